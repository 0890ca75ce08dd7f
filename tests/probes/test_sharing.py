"""Probes of one evaluation share what they compute, and nothing outlives it."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import toytf
from probes import fact_tables
from tasks.factual.config import FactualConfig
from tasks.factual.task import FactualTask
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.plugins import load_config
from toytf.probe import Probe, ProbeResult, shared, sharing
from toytf.randomness import generator
from toytf.report.training import training_figures
from toytf.task import Batch, Task
from toytf.training.build import build_model, build_probe, build_task
from toytf.training.evaluate import measure

QUICK = Path(__file__).parents[2] / "configs" / "factual" / "quick.yaml"
SMALL = {
    "model.d_model": 16,
    "task.seq_len": 16,
    "task.n_subjects": 6,
    "task.n_relations": 4,
    "task.n_answers": 3,
    "train.steps": 2,
    "train.batch_size": 8,
    "train.evaluation.sequences": 16,
    "threads": 1,
    "device": "cpu",
    "logging.wandb": "off",
}


def setting() -> tuple[ToyTransformer, Task, Batch]:
    task = build_task(FactualConfig.model_validate({"kind": "factual", "seq_len": 8}), torch.device("cpu"))
    model = build_model(ModelConfig.model_validate({"d_model": 8, "n_layers": 1, "position": "none"}), task, 0)
    return model, task, task.sample(4, generator(0, "batch"))


class Counted:
    """A shared function of a model, a task and a number, and how often it has computed."""

    def __init__(self) -> None:
        self.calls = 0

        @shared
        def norm(model: ToyTransformer, task: Task, power: int = 2) -> torch.Tensor:
            self.calls += 1
            return model.unembed.W_U.detach().norm() ** power

        self.norm: Callable[..., torch.Tensor] = norm


# A shared function


def test_within_an_evaluation_it_computes_once() -> None:
    (model, task, _), counted = setting(), Counted()
    with sharing():
        found = [counted.norm(model, task, 3) for _ in range(3)]
    assert counted.calls == 1
    assert all(value is found[0] for value in found)


def test_for_other_arguments_it_computes_again() -> None:
    (model, task, _), (other, another, _), counted = setting(), setting(), Counted()
    with sharing():
        for arguments in ((model, task), (other, task), (model, another), (model, task, 3)):
            counted.norm(*arguments)
            counted.norm(*arguments)
        counted.norm(model, task=task, power=4)
        counted.norm(model, power=4, task=task)
    assert counted.calls == 5


def test_outside_of_an_evaluation_nothing_is_kept() -> None:
    (model, task, _), counted = setting(), Counted()
    for _ in range(2):
        counted.norm(model, task)
        with sharing():
            counted.norm(model, task)
            with sharing():  # a part of the same evaluation
                counted.norm(model, task)
            counted.norm(model, task)
    assert counted.calls == 4


def test_an_evaluation_that_fails_ends_too() -> None:
    (model, task, _), counted = setting(), Counted()
    with pytest.raises(ValueError, match="fails"), sharing():
        counted.norm(model, task)
        raise ValueError("it fails")
    counted.norm(model, task)
    assert counted.calls == 2


def test_a_changed_model_never_gets_what_another_had() -> None:
    """Neither a copy, as transplant and truncation make it, nor the model itself while others are tried in it."""
    (model, task, _), counted = setting(), Counted()
    with sharing(), torch.no_grad():
        before = float(counted.norm(model, task))
        changed = copy.deepcopy(model)
        changed.unembed.W_U.mul_(2)
        assert float(counted.norm(changed, task)) == pytest.approx(4 * before)
        model.unembed.W_U.mul_(2)
        assert float(counted.norm(model, task)) == pytest.approx(4 * before)
        model.unembed.W_U.mul_(0.5)
        assert float(counted.norm(model, task)) == pytest.approx(before)


# Probes


def test_probes_of_anybody_can_share() -> None:
    """As in docs/adding_a_probe.md."""
    (model, task, batch), counted = setting(), Counted()

    class First(Probe):
        def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
            return ProbeResult({f"{self.config}/norm": float(counted.norm(model, task, 1))})

    class Second(First):
        pass

    for evaluations in (1, 2):
        found, _ = measure(model, task, [First("a"), Second("b")], batch)
        assert found["a/norm"] == found["b/norm"] == pytest.approx(float(model.unembed.W_U.detach().norm()))
        assert counted.calls == evaluations


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often sequences about every fact were drawn, and how often attention was taken over them."""
    calls = {"sequences": 0, "attention": 0}
    every_fact, embedding_bag = FactualTask.every_fact, fact_tables.embedding_bag

    def counted_sequences(*args: Any) -> Batch:
        calls["sequences"] += 1
        return every_fact(*args)

    def counted_attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls["attention"] += 1
        return embedding_bag(*args, **kwargs)

    monkeypatch.setattr(FactualTask, "every_fact", counted_sequences)
    monkeypatch.setattr(fact_tables, "embedding_bag", counted_attention)
    return calls


def test_the_probes_of_facts_compute_their_tables_once(computed: dict[str, int]) -> None:
    """24 facts in 8 draws are one chunk."""
    config: Any = load_config(QUICK, SMALL)
    task = build_task(config.task, torch.device("cpu"))
    model, probes = build_model(config.model, task, 0), [build_probe(probe) for probe in config.probes]
    assert len(probes) == 8
    batch = task.sample(4, generator(0, "batch"))
    metrics, _ = measure(model, task, probes, batch)
    assert computed == {"sequences": 1, "attention": 1}
    alone = [probe(model, task, batch) for probe in probes]
    assert computed["attention"] > 8
    for result in alone:
        assert dict(result.metrics) == {name: metrics[name] for name in result.metrics}


def test_the_page_computes_the_tables_once_for_the_task_and_once_for_a_test(
    computed: dict[str, int], tmp_path: Path
) -> None:
    run = toytf.run(QUICK, SMALL | {"tests": {"short": {"seq_len": 8}}}, out=tmp_path / "run")
    computed.update(sequences=0, attention=0)
    names = [name for name, _ in training_figures(run)]
    assert computed == {"sequences": 2, "attention": 2}
    probes = ["facts", "ownership", "value_memory"]
    expected = [f"probe_{probe}{test}" for probe in probes for test in ("", "_short")]
    assert [name for name in names if name.startswith("probe_")] == expected
