"""Facts that are given, in a file or in the config: their names, their gaps, and what is wrong with some."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tasks.factual.config import FactualConfig
from tasks.factual.task import FactualTask
from toytf.config.plugins import load_config
from toytf.errors import UserError
from toytf.randomness import generator
from toytf.runs.checksums import sha256

if TYPE_CHECKING:
    from conftest import Refused

QUICK = Path(__file__).parents[3] / "configs" / "factual" / "quick.yaml"


def make(**fields: Any) -> FactualTask:
    return FactualTask(FactualConfig(kind="factual", **fields), torch.device("cpu"))


def test_names_of_a_file_become_names_of_tokens_and_outputs(tmp_path: Path) -> None:
    path = tmp_path / "facts.csv"
    path.write_text("subject,relation,attribute\nFrance,capital,Paris\nItaly,capital,Rome\n")
    task = make(facts=str(path), n_noise=2)
    assert task.token_names == ("France", "Italy", "capital", "n1", "n2", "⟨eos⟩")
    assert task.output_names == ("Paris", "Rome")
    only = make(facts=str(path), subjects=("Italy",))
    assert only.output_names == ("Rome",)


def test_an_unknown_pair_is_never_asked(tmp_path: Path) -> None:
    path = tmp_path / "facts.csv"
    path.write_text("subject,relation,attribute\na,x,1\na,y,2\nb,x,3\n")
    task = make(facts=str(path))
    batch = task.sample(300, generator(0, "batch"))
    assert set(zip(batch.latents["subject"].tolist(), batch.latents["relation"].tolist(), strict=True)) == {
        (0, 0),
        (0, 1),
        (1, 0),
    }
    assert len(task.every_fact(1, generator(0, "x")).tokens) == 3


def test_a_run_has_its_facts_whatever_becomes_of_their_file(tmp_path: Path) -> None:
    import toytf

    path = tmp_path / "facts.csv"
    path.write_text("subject,relation,attribute\na,x,1\nb,x,2\n")
    changes = {"task.facts": str(path), "train.steps": 1, "probes": [], "threads": 1, "logging.wandb": "off"}
    run = toytf.run(QUICK, changes, out=tmp_path / "run")
    path.unlink()
    assert toytf.Run.open(run.directory).task.output_names == ("1", "2")
    path.write_text("subject,relation,attribute\na,x,1\nb,x,3\n")
    with pytest.raises(UserError, match=r"holds a run with a different config \(task\.facts"):
        toytf.run(QUICK, changes, out=tmp_path / "run", resume=True)


STRANGE = (
    "北京",
    "القاهرة",
    "😀",
    '"',
    "'",
    "${oc.env:HOME}",
    "???",
    "<b>",
    "</script>",
    "a\nb",
    "a\x85b",
    "\x1b[31m",
    "=1",
)


def test_thousands_of_facts_with_any_names_can_be_trained(tmp_path: Path) -> None:
    """Names are text: nothing in them is looked up, obeyed or lost, and no number of them is too many for a run."""
    import toytf

    facts = [
        (f"{STRANGE[i % 13]} {i}", f"{STRANGE[j]} r", f"{STRANGE[j]} {i % 7}") for i in range(300) for j in range(9)
    ]
    path = tmp_path / "facts.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("subject", "relation", "attribute"), *facts])
    changes = {
        "task.facts": str(path), "train.steps": 1, "train.batch_size": 8, "threads": 1, "logging.wandb": "off",
        "probes": [{"kind": "facts", "repeats": 1}],
    }  # fmt: skip
    run = toytf.run(QUICK, changes, out=tmp_path / "run")
    path.unlink()
    again = toytf.Run.open(run.directory)
    assert again.config.task.facts == tuple(facts)
    assert set(again.task.token_names) >= {subject for subject, _, _ in facts}
    run.summary_file.unlink()
    toytf.run(run.config_file, out=run.directory, resume=True)
    assert (run.directory / "report.html").exists()
    assert len(again.probe("facts").failures["facts/accuracy"]) == 10


def test_facts_can_be_in_the_config_itself() -> None:
    task = make(facts=[["France", "capital", "Paris"], ["Italy", "capital", "Rome"]])
    assert task.output_names == ("Paris", "Rome")
    with pytest.raises(ValueError, match='"France, capital" has two answers, "Paris" and "Lyon"'):
        make(facts=[["France", "capital", "Paris"], ["France", "capital", "Lyon"]])


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (
            'subject,relation,attribute\na,x,"1\nb,x,2\n',
            "line 3: not valid CSV: unexpected end of data (is a quotation mark left open?)",
        ),
        ("subject,relation,attribute\na,x,1\na,x,2\n", '"a, x" has two answers, "1" in line 2 and "2" in line 3'),
        ("", "the file is empty"),
        ("subject,relation,atribute\na,x,1\n", 'the first line does not have the column "attribute"'),
    ],
    ids=["open_quotation", "two_answers", "empty", "unknown_column"],
)
def test_a_file_that_is_no_fact_table_is_answered_with_one_line(
    facts: str, says: str, refused: "Refused", tmp_path: Path
) -> None:
    path = tmp_path / "facts.csv"
    path.write_text(facts)
    refused(f"base: {QUICK}\n", [f"task.facts={path}"], [str(path), says])


def test_sizes_beside_a_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "facts.csv"
    path.write_text("subject,relation,attribute\na,x,1\n")
    with pytest.raises(UserError, match="n_subjects has no effect with facts"):
        load_config(QUICK, {"task": {"kind": "factual", "n_subjects": 3, "facts": str(path)}})


def test_a_kept_file_that_is_nested_too_deeply_is_answered_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text("[" * 200_000)
    facts = {"file": str(path), "sha256": sha256(path.read_bytes())}
    with pytest.raises(UserError, match=r"facts\.json is not a list of facts: restore the file"):
        load_config(QUICK, {"task": {"kind": "factual", "facts": facts}})
