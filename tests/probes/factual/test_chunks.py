"""Many facts and many answers are taken in chunks, which changes nothing; with very many, probes wait for the end."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probes.factual import tables as probe_tables
from probes.factual.additivity import two_way
from probes.factual.config import MANY_FACTS
from probes.factual.tables import fraction
from tasks.factual import tables
from tasks.factual.config import FactualConfig
from tasks.factual.streams import answered, answers, are_answered, final_streams, margins
from tasks.factual.task import FactualTask
from toytf.build import build_model, build_probe, build_task
from toytf.config.plugins import load_config, plugins
from toytf.errors import UserError
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.probe import ProbeResult
from toytf.randomness import generator
from toytf.training.config import TrainConfig
from toytf.training.learner import SeedLearner

OF_FACTS = [
    "facts",
    "ownership",
    "value_memory",
    "additivity",
    "fact_storage",
    "pair_memory",
    "value_alignment",
    "fact_ratios",
]
DEAR = [kind for kind in OF_FACTS if kind not in ("facts", "fact_ratios")]


def setting(task: dict[str, Any] | None = None, **model: Any) -> tuple[FactualTask, ToyTransformer]:
    """15 facts; strong attention, so that masses differ."""
    config = {"kind": "factual", "n_subjects": 5, "n_relations": 3, "n_answers": 4, "n_noise": 4, "seq_len": 12}
    built: Any = build_task(FactualConfig.model_validate(config | (task or {})), torch.device("cpu"))
    attention = {"n_heads": 3, "d_head": 4, "residual": False, "init": "normal", **model.pop("attention", {})}
    layer = {"d_model": 16, "n_layers": 1, "position": "none", "feed_forward": {"kind": "relu"}, **model}
    return built, build_model(ModelConfig.model_validate({**layer, "attention": attention}), built, 0)


def probed(kind: str, task: FactualTask, model: ToyTransformer) -> ProbeResult:
    return build_probe(plugins("probes")[kind](kind=kind))(model, task, task.sample(1, generator(0, "batch")))


# Chunks


@pytest.mark.parametrize("task", [{}, {"last": "relation"}])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("chunk", [1, 100])
def test_chunks_change_no_metric_and_no_name(
    chunk: int, residual: bool, task: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence at a time, or some; sums of floats in another order differ by rounding."""
    facts, model = setting(task, attention={"residual": residual})
    whole = {kind: probed(kind, facts, model) for kind in OF_FACTS}
    monkeypatch.setattr(tables, "CHUNK", chunk)
    for kind, expected in whole.items():
        found = probed(kind, facts, model)
        assert dict(found.metrics) == pytest.approx(dict(expected.metrics), rel=1e-5, abs=1e-6)
        assert found.failures == expected.failures


@pytest.mark.parametrize(
    "model",
    [
        {"feed_forward": {"kind": "none"}},
        {"feed_forward": {"kind": "relu", "reads": "block_input"}},
        {"feed_forward": {"kind": "relu", "residual": False}, "attention": {"residual": True}},
        {"attention": {"kind": "linear"}},
        {"n_layers": 2, "position": "normal"},
        {"n_layers": 2, "norm": "layer"},
    ],
)
@pytest.mark.parametrize("last", ["eos", "relation"])
@torch.no_grad()
def test_what_is_read_out_is_what_the_model_says(last: str, model: dict[str, Any]) -> None:
    """Also after LayerNorms have learned gains and offsets."""
    facts, layers = setting({"last": last}, **model)
    if layers.ln_final is not None:
        layers.ln_final.w.copy_(torch.linspace(-1, 2, 16))
        layers.ln_final.b.copy_(torch.linspace(3, 1, 16))
    logits = layers(facts.facts_among_noise(4).tokens, last=1)[:, -1]
    found = final_streams(layers, facts, 4) @ layers.unembed.W_U
    assert found.shape == (15, 4, 12)
    torch.testing.assert_close(found.flatten(0, 1), logits, rtol=1e-4, atol=1e-4)


# Answers


@given(st.data())
def test_answers_are_counted_as_argmax_gives_them(data: st.DataObject) -> None:
    """Small whole numbers, of which products are exact and often equal; few = 2 of up to 20 answers are tried first."""
    n, d, A = (data.draw(st.integers(1, largest)) for largest in (12, 3, 20))
    numbers = st.integers(-2, 2)
    x, U = (
        torch.tensor(data.draw(st.lists(st.lists(numbers, min_size=b, max_size=b), min_size=a, max_size=a))).float()
        for a, b in ((n, d), (d, A))
    )
    targets = torch.tensor(data.draw(st.lists(st.integers(0, A - 1), min_size=n, max_size=n)))
    said = (x @ U).argmax(1)
    assert torch.equal(answers(x, U), said)
    assert torch.equal(are_answered(margins(x, U, targets), x, U, targets), said == targets)
    assert fraction(answered(x, U, targets, few=2)) == float((said == targets).float().mean())


def test_a_stream_that_says_nothing_gives_the_first_answer() -> None:
    """All logits are equal, so margins decide nothing."""
    x, U = torch.zeros(4, 3), torch.randn(3, 2000, generator=generator(0, "vectors"))
    assert fraction(answered(x, U, torch.tensor([0, 1, 1999, 0]))) == 0.5


def test_the_margin_is_above_the_best_other() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [3.0, 1.0, 2.0]])
    assert margins(logits, torch.eye(3), torch.arange(3)).tolist() == [1, -2, -1]


@pytest.mark.parametrize("n_answers", [3, 40])
def test_variance_is_the_same_by_streams_as_by_logits(n_answers: int) -> None:
    """With fewer answers than dimensions, and with more."""
    X = torch.randn(6, 5, 8, generator=generator(0, "streams"), dtype=torch.float64)
    U = torch.randn(8, n_answers, generator=generator(0, "answers"), dtype=torch.float64)
    by_streams, by_logits = two_way(X, U), two_way(X @ U)
    assert by_streams is not None
    assert by_logits is not None
    for part in ("subject", "relation", "interaction"):
        assert getattr(by_streams, part) == pytest.approx(getattr(by_logits, part), rel=1e-12)
    torch.testing.assert_close(by_streams.additive @ U, by_logits.additive)


# When


def due(task: FactualTask, model: ToyTransformer, step: int, **fields: Any) -> set[str]:
    """The probes of facts that an evaluation of a training of 4 steps asks, with the same options for all."""
    asked = []

    def recorded(kind: str) -> Any:
        probe = build_probe(plugins("probes")[kind](kind=kind, **fields))

        class Recorded(type(probe)):  # type: ignore[misc]
            def __call__(self, *_: Any) -> ProbeResult:
                asked.append(kind)
                return ProbeResult()

        return Recorded(probe.config)

    train = TrainConfig.model_validate({"steps": 4, "batch_size": 4, "loss": "fact", "evaluation": {"sequences": 4}})
    SeedLearner(model, task, map(recorded, OF_FACTS), train, 0).evaluate(step)
    return set(asked)


def test_probes_of_few_facts_run_at_every_evaluation() -> None:
    task, model = setting()
    assert due(task, model, 2) == {*OF_FACTS} - {"fact_ratios"}
    assert due(task, model, 4) == {*OF_FACTS}


def test_probes_of_many_facts_wait_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """15 facts, where 14 are already many."""
    task, model = setting()
    monkeypatch.setattr(probe_tables, "MANY_FACTS", 15)
    assert due(task, model, 2) == {*OF_FACTS} - {"fact_ratios"}
    monkeypatch.setattr(probe_tables, "MANY_FACTS", 14)
    assert due(task, model, 0) == due(task, model, 2) == {"facts"}
    assert due(task, model, 4) == {*OF_FACTS}


def test_a_given_schedule_wins_over_the_number_of_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = setting()
    assert due(task, model, 2, when="end") == set()
    monkeypatch.setattr(probe_tables, "MANY_FACTS", 14)
    assert due(task, model, 2, when="always") == {*OF_FACTS}


def test_the_schema_says_how_many_are_many() -> None:
    for kind in DEAR:
        field = plugins("probes")[kind].model_json_schema()["properties"]["when"]
        assert field["default"] == "auto"
        assert f"{MANY_FACTS:,} facts" in field["description"]


def test_only_probes_of_facts_can_be_left_to_their_number() -> None:
    content = {"experiment": "train", "task": {"kind": "bigram"}, "probes": [{"kind": "memory_recall", "when": "auto"}]}
    with pytest.raises(UserError, match='when = "auto" is not accepted'):
        load_config(content)
