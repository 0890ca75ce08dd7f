"""What a model knows, fact by fact, on models that know all facts by construction, and on others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.factual import tables
from tasks.factual.config import FactualConfig
from tasks.factual.sheet import PLACES, fact_sheet, most_often_said
from tasks.factual.streams import Replies
from tasks.factual.table import random_table
from tasks.factual.task import FactualTask
from toytf.build import build_model, build_probe, build_task
from toytf.config.plugins import plugins
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig

CPU = torch.device("cpu")
HEADER = "subject,relation,attribute\n"


def factual(**fields: Any) -> FactualTask:
    """24 facts, or those of a file."""
    sizes = {} if "facts" in fields else {"n_subjects": 6, "n_relations": 4, "n_answers": 3}
    config = {"kind": "factual", "n_noise": 6, "seq_len": 12, **sizes, **fields}
    task: Any = build_task(FactualConfig.model_validate(config), CPU)
    return task


def layer(task: FactualTask, **fields: Any) -> ToyTransformer:
    attention = {"n_heads": 4, "d_head": 4, "residual": False, **fields.pop("attention", {})}
    config = {"d_model": 32, "n_layers": 1, "position": "none", "attention": attention, **fields}
    return build_model(ModelConfig.model_validate(config), task, 0)


def ideal(task: FactualTask, **feed_forward: Any) -> ToyTransformer:
    vectors = {"embedding": "sphere", "unembedding": "sphere"}
    return layer(task, init="ideal", feed_forward=feed_forward, **vectors)


RELU = {"kind": "relu", "width": 192, "init": "normal_over_d"}


# Who knows


@pytest.mark.parametrize("feed_forward", [RELU, {"kind": "none"}])
@pytest.mark.parametrize("last", ["eos", "relation"])
def test_a_construction_knows_every_fact(last: str, feed_forward: dict[str, Any]) -> None:
    task = factual(last=last)
    sheet = task.facts(ideal(task, **feed_forward))
    assert sheet.n_known == sheet.n_facts == 24
    assert (sheet.margin > 0).all()
    assert np.array_equal(sheet.said, sheet.right)
    assert np.array_equal(sheet.right, task.table.answers)
    assert sheet.wrong() == []
    assert (sheet.subjects[0], sheet.relations[0], sheet.answers[0]) == ("s1", "r1", "r1a1")


def test_a_fact_that_has_become_another_is_the_wrong_one(tmp_path: Path) -> None:
    """A model that was built for one table is asked about a second, in which one answer is another."""
    lines = [f"s{s},r{r},r{r}a{(s + r) % 3}" for s in range(1, 7) for r in range(1, 5)]
    before, after = tmp_path / "before.csv", tmp_path / "after.csv"
    before.write_text(HEADER + "\n".join(lines))
    after.write_text(HEADER + "\n".join(line.replace("s5,r2,r2a1", "s5,r2,r2a2") for line in lines))
    first, second = (factual(facts=str(path)) for path in (before, after))
    assert first.output_names == second.output_names
    sheet = second.facts(ideal(first, **RELU))
    assert [*map(str, sheet.wrong())] == ["s5, r2: says r2a1, is r2a2"]
    assert sheet.wrong()[0].margin == sheet.margin.min() < 0
    assert sheet.known[4, 1] == 0
    assert sheet.stored[4, 1] == -1
    assert sheet.n_known == 23


def test_pairs_about_which_nothing_is_said_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "facts.csv"
    path.write_text(HEADER + "France,capital,Paris\nFrance,language,French\nChad,capital,Ndjamena\n")
    task = factual(facts=str(path))
    sheet = task.facts(ideal(task, **RELU))
    gap = (1, 1)
    assert sheet.right[gap] == sheet.said[gap] == sheet.stored[gap] == -1
    assert np.isnan([sheet.known[gap], sheet.margin[gap]]).all()
    assert np.isfinite(sheet.margin).sum() == sheet.n_facts == sheet.n_known == 3
    assert sheet.table()["right"].tolist() == ["Paris", "French", "Ndjamena"]


def test_a_task_without_facts_has_no_sheet() -> None:
    from tasks.bigram.config import BigramConfig

    task = build_task(BigramConfig(kind="bigram", seq_len=16), CPU)
    assert task.facts(build_model(ModelConfig(d_model=16, n_layers=1), task, 0)) is None


# What is said


def test_the_wrong_answer_of_most_draws_is_said() -> None:
    """Rows: right in all draws; wrong in one; wrong in three of four, twice alike; two wrong ones equally often."""
    table = random_table(2, 2, 4, seed=0, shared=True)
    right = torch.tensor(table.answers).flatten()[:, None]
    said = (right + torch.tensor([[0, 0, 0, 0], [0, 0, 3, 0], [2, 0, 1, 1], [1, 2, 2, 1]])) % 4
    found = most_often_said(Replies(said, said == right, torch.zeros(4, 4)), table).flatten()
    own = right[:, 0].tolist()
    assert found[:3].tolist() == [own[0], (own[1] + 3) % 4, (own[2] + 1) % 4]
    assert found[3] == min((own[3] + 1) % 4, (own[3] + 2) % 4)


@pytest.mark.parametrize("model", [{}, {"feed_forward": RELU}, {"n_layers": 2, "position": "normal", "norm": "layer"}])
@torch.no_grad()
def test_the_sheet_is_what_the_logits_say(model: dict[str, Any]) -> None:
    task = factual()
    asked, draws = layer(task, **model), 5
    sheet = fact_sheet(task, asked, draws)
    logits = asked(task.facts_among_noise(draws).tokens, last=1)[:, -1].view(24, draws, -1)
    own = logits.gather(2, task.targets[:, None, None].expand(-1, draws, 1))[..., 0]
    others = logits.scatter(2, task.targets[:, None, None].expand(-1, draws, 1), -torch.inf).amax(2)
    np.testing.assert_allclose(sheet.margin.flatten(), (own - others).mean(1), atol=1e-4)
    right = logits.argmax(2) == task.targets[:, None]
    np.testing.assert_allclose(sheet.known.flatten(), right.float().mean(1))
    assert sheet.n_known == int(right.all(1).sum())


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    task = factual()
    model = layer(task, feed_forward=RELU)
    whole = task.facts(model)
    monkeypatch.setattr(tables, "CHUNK", 100)
    found = task.facts(model)
    for name in ("said", "known", "stored"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
    np.testing.assert_allclose(found.margin, whole.margin, atol=1e-5)


def test_the_probe_shows_the_sheet() -> None:
    task = factual()
    model = layer(task, feed_forward=RELU)
    sheet = task.facts(model)
    result = build_probe(plugins("probes")["facts"](kind="facts"))(model, task, task.facts_among_noise(1))
    assert result.metrics["facts/stored"] == pytest.approx(sheet.n_known / sheet.n_facts)
    assert result.metrics["facts/accuracy"] == pytest.approx(sheet.known.mean())
    assert result.failures["facts/accuracy"] == [*map(str, sheet.wrong(10))]
    assert result.figure() == sheet.figure()


# Where it is stored


def test_a_construction_with_a_feed_forward_part_stores_its_facts_there() -> None:
    """Attention copies subject and relation, and says nothing of answers: it is right by chance at most."""
    task = factual()
    sheet = task.facts(ideal(task, **RELU))
    assert sheet.places == PLACES
    counts = sheet.table()["stored"].value_counts()
    assert counts["feed-forward part alone"] >= 20
    assert counts.sum() == counts.get("either", 0) + counts["feed-forward part alone"] == 24


@pytest.mark.parametrize(
    "model",
    [
        {"feed_forward": {"kind": "none"}},
        {"feed_forward": {**RELU, "residual": False}},
        {"feed_forward": {**RELU, "reads": "block_input"}},
        {"feed_forward": RELU, "n_layers": 2},
    ],
)
def test_one_path_or_more_than_two_have_no_places(model: dict[str, Any]) -> None:
    task = factual()
    sheet = task.facts(layer(task, **model))
    assert sheet.places == ()
    assert (sheet.stored == -1).all()


@torch.no_grad()
def test_a_place_is_what_answers_by_itself() -> None:
    """With three answers and no noise an untrained model is often right by chance, and every place occurs."""
    task = factual(pools="shared", n_noise=0, seq_len=3)
    model, draws = layer(task, feed_forward=RELU, attention={"init": "normal_over_d"}), 2
    sheet = fact_sheet(task, model, draws)
    names = ("blocks.0.hook_resid_mid", "blocks.0.hook_mlp_out")
    _, seen = model.observe(task.facts_among_noise(draws).tokens, *names, last=1)
    direct, through = (seen[name][:, -1] for name in names)

    def known(x: torch.Tensor) -> np.ndarray:
        right = (x @ model.unembed.W_U).argmax(1).view(-1, draws) == task.targets[:, None]
        return right.all(1).view(6, 4).numpy()

    by_attention, by_feed_forward = known(direct + through.mean(0)), known(direct.mean(0) + through)
    expected = np.select(
        [by_attention & by_feed_forward, by_attention, by_feed_forward],
        [PLACES.index(name) for name in ("either", "attention alone", "feed-forward part alone")],
        PLACES.index("both are needed"),
    )
    np.testing.assert_array_equal(sheet.stored, np.where(known(direct + through), expected, -1))
    assert {*sheet.stored.flatten().tolist()} == {-1, 0, 1, 2, 3}
