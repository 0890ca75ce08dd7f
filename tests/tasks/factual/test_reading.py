"""How a person reads facts among noise: what the task is, which tokens matter, and where heads should look."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.factual.config import FactualConfig
from tasks.factual.task import FactualTask
from toytf.randomness import generator
from toytf.task import Task


def make(**fields: Any) -> FactualTask:
    return FactualTask(FactualConfig(kind="factual", **fields), torch.device("cpu"))


def test_facts_are_counted_and_the_end_token_asks() -> None:
    assert make().about == (
        "The model learns 256 facts about 16 subjects and 16 relations. A sequence has one subject and one relation "
        "among noise tokens, and ⟨eos⟩ asks for the answer: the attribute that this subject has under this relation."
    )


def test_without_an_end_token_the_relation_comes_last() -> None:
    assert "one relation among noise tokens, the relation last: the attribute that" in make(last="relation").about
    assert "⟨eos⟩" not in make(last="relation").about


def test_only_facts_that_are_there_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "facts.csv"
    path.write_text("subject,relation,attribute\nFrance,capital,Paris\nFrance,language,French\nChad,capital,Ndjamena\n")
    assert make(facts=str(path)).about.startswith("The model learns 3 facts about 2 subjects and 2 relations. ")
    only = make(facts=str(path), relations=["capital"])
    assert only.about.startswith("The model learns 2 facts about 2 subjects and 1 relation. ")
    assert make(n_subjects=64, n_relations=32).about.startswith(
        "The model learns 2,048 facts about 64 subjects and 32 "
    )


def test_a_task_that_says_nothing_of_itself_has_the_first_line_of_its_config() -> None:
    about = Task.about.fget(make())  # type: ignore[attr-defined]
    assert about == (FactualConfig.__doc__ or "").partition("\n")[0] != ""


@pytest.mark.parametrize("last", ["eos", "relation"])
def test_subject_relation_and_end_token_are_told_apart_and_heads_look_at_the_first_two(last: str) -> None:
    task = make(n_subjects=6, n_relations=4, n_answers=2, n_noise=5, seq_len=8, last=last)
    batch = task.sample(50, generator(0, "batch"))
    found = task.annotate(batch)
    kinds = {"subject": "s", "relation": "r"} | ({"end token: asks for the answer": "⟨"} if last == "eos" else {})
    assert {*found.parts} == {*kinds}
    for row, names in enumerate([[task.token_names[z] for z in tokens] for tokens in batch.tokens.tolist()]):
        for part, first in kinds.items():
            assert found.parts[part][row].tolist() == [name[0] == first for name in names]
        assert found.right_keys[0][row].tolist() == [[name[0] in "sr" for name in names]]
    assert {*found.right_keys} == {0}
    assert found.right_keys[0].sum((1, 2)).tolist() == [2] * 50
    assert bool(found.parts["relation" if last == "relation" else "end token: asks for the answer"][:, -1].all())
