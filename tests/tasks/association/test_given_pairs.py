"""Pairs that are given, in a file or in the config: their names and frequencies, and what is wrong with some."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import toytf
from tasks.association.config import read_pairs
from tests.tasks.association.tasks import make
from toytf.config.plugins import load_config
from toytf.config.shipped import config_folder
from toytf.errors import UserError
from toytf.theory import zipf

if TYPE_CHECKING:
    from conftest import Refused

OWN = "association/own"
WORDS = config_folder() / "association" / "words.csv"


def file(folder: Path, content: str) -> Path:
    path = folder / "pairs.csv"
    path.write_text(content, encoding="utf-8")
    return path


def test_names_of_a_file_become_names_of_tokens_and_outputs(tmp_path: Path) -> None:
    path = file(tmp_path, "answer,input\nbird,owl\nfish,tuna\nbird,hen\n")
    task = make(answers=str(path))
    assert (task.token_names, task.output_names) == (("owl", "tuna", "hen"), ("bird", "fish"))
    assert task.targets.tolist() == [0, 1, 0]
    assert np.array_equal(task.frequencies, zipf(3, 2.0))  # by the order of the lines
    assert np.array_equal(make(answers=str(path), alpha=0).frequencies, np.full(3, 1 / 3))


def test_a_file_may_say_how_often_each_input_comes(tmp_path: Path) -> None:
    task = make(answers=str(file(tmp_path, "input,answer,frequency\na,x,1\nb,y,2.5\nc,x,1e-1\n")))
    assert task.frequencies == pytest.approx(np.array([1, 2.5, 0.1]) / 3.6)
    assert "as often as the file says" in task.about
    huge = make(answers=[["a", "x", 1e30], ["b", "y", 1e30]])
    assert huge.frequencies.tolist() == [0.5, 0.5]


def test_the_table_that_ships_has_forty_animals_of_six_classes() -> None:
    task = make(answers="association/words.csv")
    assert (len(task.token_names), len(task.output_names)) == (40, 6)
    assert len(read_pairs(WORDS)) == len(WORDS.read_text().splitlines()) - 1
    assert (np.diff(task.frequencies) < 0).all()


def test_pairs_can_be_in_the_config_itself() -> None:
    task = make(answers=[["a", "x"], ["b", "y"], ["a", "x"]])
    assert task.token_names == ("a", "b")


@pytest.mark.repeats_runs
def test_a_run_has_its_pairs_whatever_becomes_of_their_file(tmp_path: Path) -> None:
    strange = ('"', "${oc.env:HOME}", "</script>", "a\nb", "\x1b[31m", "=1", "北京")
    rows = "".join(f'"{name.replace(chr(34), chr(34) * 2)} z",{i % 2},{i + 1}\n' for i, name in enumerate(strange))
    path = file(tmp_path, f"input,answer,frequency\n{rows}")
    changes = {"task.answers": str(path), "train.steps": 1, "threads": 1, "logging.wandb": "off"}
    run = toytf.run(OWN, changes, out=tmp_path / "run")
    path.unlink()
    again: Any = toytf.Run.open(run.directory)
    assert again.task.token_names == tuple(f"{name} z" for name in strange)
    assert again.task.frequencies == pytest.approx(np.arange(1, 8) / 28)
    assert (run.directory / "pairs.json").is_file() and (run.directory / "report.html").is_file()
    file(tmp_path, "input,answer\na,x\n")
    with pytest.raises(UserError, match=r"holds a run with a different config \(task\.answers"):
        toytf.run(OWN, changes, out=tmp_path / "run", resume=True)
    (run.directory / "pairs.json").write_text("[]")
    with pytest.raises(UserError, match="has changed since the run began"):
        _ = toytf.Run.open(run.directory).config


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "the file is empty"),
        ("input,anser\na,x\n", 'the first line does not have the column "answer"'),
        ("input,answer,often\na,x,1\n", 'unknown column "often"'),
        ("input,answer\n", "there are no pairs below the first line"),
        ("input,answer\na,x\na,y\n", '"a" has two answers, "x" in line 2 and "y" in line 3: keep one of them'),
        ("input,answer,frequency\na,x,1\na,x,2\n", '"a" has two frequencies: keep one of them'),
        ("input,answer,frequency\na,x,often\n", 'line 2: a frequency should be a number above 0, got "often"'),
        ("input,answer,frequency\na,x,1\nb,y,-3\n", 'line 3: a frequency should be a number above 0, got "-3"'),
        ("input,answer,frequency\na,x,0\n", 'above 0, got "0"'),
        ("input,answer,frequency\na,x,nan\n", 'above 0, got "nan"'),
        ("input,answer,frequency\na,x,inf\n", 'above 0, got "inf"'),
        ("input,answer,frequency\na,x,\n", "line 2: expected 3 names"),
    ],
)
def test_a_file_without_clear_pairs_is_answered_with_one_line(
    content: str, says: str, refused: "Refused", tmp_path: Path
) -> None:
    path = file(tmp_path, content)
    refused(f"base: {OWN}\n", [f"task.answers={path}"], [str(path), says])


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ("nowhere.csv", "no such file: give mod, bijective, or the path of a CSV file with the columns input, answer"),
        ("modd", "task.answers = 'modd': no such file: give mod, bijective, or the path"),
        ("[[a, 1]]", "task.answers.0.1 = 1"),
        ("[[a, x, -1]]", "task.answers.0.2 = -1"),
        ("[[a, x, 1], [b, y]]", "some pairs have a frequency and some do not"),
        ("[[a, x], [a, y]]", '"a" has two answers, "x" and "y"'),
        ("[]", "at least 1 item"),
        ("3", "task.answers = 3"),
        ("{file: pairs.txt, sha256: 0}", "a list of pairs, or {file: pairs.json"),
    ],
)
def test_answers_that_are_none_are_answered_with_one_line(answers: str, says: str, refused: "Refused") -> None:
    refused(f"base: {OWN}\n", [f"task.answers={answers}"], [says])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"n_inputs": 3}, "n_inputs has no effect with pairs"),
        ({"n_outputs": 3}, "n_outputs has an effect only with answers: mod; the file already says it"),
        ({"alpha": 1.5}, "alpha has no effect with pairs that have a frequency"),
    ],
)
def test_what_a_file_already_says_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        load_config(OWN, {f"task.{key}": value for key, value in fields.items()})
