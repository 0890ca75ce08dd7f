"""Probes of one evaluation share what they compute, and nothing outlives it."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import toytf
from tasks.bigram.task import BigramTask
from tasks.factual import tables as fact_tables
from tasks.factual.config import FactualConfig
from tasks.factual.task import FactualTask
from toytf import evaluation as evaluate
from toytf.build import build_model, build_probe, build_task
from toytf.config.plugins import load_config, plugins
from toytf.errors import UserError
from toytf.evaluation import measure
from toytf.experiments.train.figures import training_figures
from toytf.measurement import Group, as_row
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.probe import Probe, ProbeResult, shared, sharing
from toytf.randomness import generator
from toytf.task import Batch, Task

CONFIGS = Path(__file__).parents[2] / "configs"
QUICK = CONFIGS / "factual" / "quick.yaml"
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


def test_a_shared_function_computes_once_within_an_evaluation() -> None:
    (model, task, _), counted = setting(), Counted()
    with sharing():
        found = [counted.norm(model, task, 3) for _ in range(3)]
    assert counted.calls == 1
    assert all(value is found[0] for value in found)


def test_a_shared_function_computes_again_for_other_arguments() -> None:
    (model, task, _), (other, another, _), counted = setting(), setting(), Counted()
    with sharing():
        for arguments in ((model, task), (other, task), (model, another), (model, task, 3)):
            counted.norm(*arguments)
            counted.norm(*arguments)
        counted.norm(model, task=task, power=4)
        counted.norm(model, power=4, task=task)
    assert counted.calls == 5


def test_nothing_is_kept_outside_of_an_evaluation() -> None:
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
            group = Group(self.config.kind, "The norm of W_U")
            return ProbeResult([group.measurement(float(counted.norm(model, task, 1)), "norm")])

    class Second(First):
        pass

    for evaluations in (1, 2):
        measured, _ = measure(model, task, [First(Named("a")), Second(Named("b"))], batch)
        found = as_row(measured)
        assert found["a/norm"] == found["b/norm"] == pytest.approx(float(model.unembed.W_U.detach().norm()))
        assert counted.calls == evaluations


def test_a_probe_that_forgets_to_return_is_named() -> None:
    class Forgetful(Probe):
        def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> Any:
            return None

    model, task, batch = setting()
    with pytest.raises(UserError, match='probe "forgetful" returned a NoneType, expected a ProbeResult'):
        measure(model, task, [Forgetful(Named("forgetful"))], batch)


@dataclass(frozen=True)
class Named:
    """As much of a config as an evaluation needs."""

    kind: str


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
    assert len(probes) == 9
    batch = task.sample(4, generator(0, "batch"))
    metrics = as_row(measure(model, task, probes, batch)[0])
    assert computed == {"sequences": 1, "attention": 1}
    alone = [probe(model, task, batch) for probe in probes]
    assert computed["attention"] > 8
    for result in alone:
        assert dict(result.metrics) == {name: metrics[name] for name in result.metrics}


def test_the_page_computes_no_table_again(computed: dict[str, int], tmp_path: Path) -> None:
    """It shows what the last evaluation has drawn, on the task and on a test."""
    run = toytf.run(QUICK, SMALL | {"evaluate_on": {"short": {"seq_len": 8}}}, out=tmp_path / "run")
    computed.update(sequences=0, attention=0)
    names = [name for name, _ in training_figures(run, onsets={})]
    assert computed == {"sequences": 0, "attention": 0}
    probes = ["facts", "ownership", "value_memory"]
    expected = [f"probe_{probe}{test}" for probe in probes for test in ("", "_short")]
    assert [name for name in names if name.startswith("probe_") and "limits" not in name] == expected
    assert {"probe_limits", "probe_limits_margins", "probe_limits_scores", "probe_limits_spectrum"} <= {*names}


# Forwards


@dataclass
class Trigger:
    """A task with triggers and noise, a model of it, and a batch."""

    task: Task
    model: ToyTransformer
    batch: Batch

    def ask(self, *kinds: str) -> dict[str, float]:
        """What these probes find in one evaluation."""
        probes = [build_probe(plugins("probes")[kind](kind=kind)) for kind in kinds]
        with sharing():
            return as_row(
                measured for probe in probes for measured in probe(self.model, self.task, self.batch).measurements
            )


@pytest.fixture
def triggers() -> Trigger:
    small = {"model.d_model": 16, "task.seq_len": 16}
    config: Any = load_config(CONFIGS / "bigram" / "noisy.yaml", small | {"model.attention": {"kq": "joint"}})
    task = build_task(config.task, torch.device("cpu"))
    return Trigger(task, build_model(config.model, task, 0), task.sample(16, generator(0, "batch")))


def counting(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> list[str]:
    """One entry for every call of a function from now on."""
    calls: list[str] = []
    function = getattr(where, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return function(*args, **kwargs)

    monkeypatch.setattr(where, name, counted)
    return calls


def test_probes_of_attention_look_at_one_forward(triggers: Trigger, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("attention", "heads", "noise")
    alone = [triggers.ask(kind) for kind in kinds]
    forwards = counting(monkeypatch, ToyTransformer, "forward")
    together = triggers.ask(*kinds)
    assert len(forwards) == 1
    assert together == {name: value for found in alone for name, value in found.items()}


def test_probes_that_change_the_model_share_what_it_does_unchanged(
    triggers: Trigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ("transplant", "truncation")
    forwards = counting(monkeypatch, evaluate, "fast_forward")
    alone, taken = [], []
    for kind in kinds:
        alone.append(triggers.ask(kind))
        taken.append(len(forwards))
    forwards.clear()
    together = triggers.ask(*kinds)
    assert len(forwards) == taken[-1] - 1  # of all that they took one by one
    assert together == {name: value for found in alone for name, value in found.items()}


def test_probes_of_memories_read_them_once(triggers: Trigger, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("memory_recall", "limits", "alignment", "transplant", "noise")
    alone = [triggers.ask(kind) for kind in kinds]
    read = counting(monkeypatch, BigramTask, "memories")
    together = triggers.ask(*kinds)
    assert len(read) == 1
    assert together == {name: value for found in alone for name, value in found.items()}
