"""The probe `population`: exact errors by part, margins against frequency, and the names of what is wrong."""

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

import toytf
from probes.association import population as module
from tasks.association.task import AssociationTask
from tests.tasks.association.tasks import make, memory_model, write
from toytf.build import build_probe
from toytf.config.plugins import plugins, probe_config
from toytf.errors import UserError
from toytf.models import ToyTransformer
from toytf.probe import ProbeResult
from toytf.randomness import generator
from toytf.theory import capacity

RANDOM = {"attention.init": "normal"}


def probed(task: AssociationTask, model: ToyTransformer, **fields: Any) -> ProbeResult:
    probe = build_probe(plugins("probes")["population"](kind="population", **fields))
    return probe(model, task, task.sample(1, generator(0, "batch")))


def test_the_errors_of_head_and_tail_add_up_to_the_error() -> None:
    task = make(n_inputs=100, alpha=1)
    metrics = probed(task, memory_model(task, **RANDOM)).metrics
    parts = metrics["population/error_head"] + metrics["population/error_tail"]
    assert parts == pytest.approx(metrics["population/error"])
    assert 0 < metrics["population/error_tail"] < metrics["population/error"]


def test_as_many_inputs_as_dimensions_have_no_tail() -> None:
    task = make(n_inputs=16)
    assert not any("tail" in name or "head" in name for name in probed(task, memory_model(task, **RANDOM)).metrics)


def test_everything_can_be_read_against_ideal_chance_and_a_constant_answer() -> None:
    """Of M = 5 answers a guess is wrong in 0.8; a constant in 0.359 (N = 100, α = 2); each part has its share."""
    task = make(n_inputs=100, alpha=2)
    result = probed(task, memory_model(task))
    known, metrics = result.references, result.metrics
    assert metrics["population/error"] == pytest.approx(1.0)  # W = 0: a tie everywhere
    assert (known["population/error"].ideal, known["population/error"].chance) == pytest.approx((0.0, 0.8))
    assert known["population/loss"].chance == pytest.approx(math.log(5))
    assert metrics["population/error/constant"] == pytest.approx(0.359, abs=5e-4)
    tail = known["population/error_tail"].chance
    assert tail == pytest.approx(0.8 * float(task.frequencies[16:].sum()))


def test_theory_fills_the_matrix_with_the_most_frequent_inputs_and_guesses_the_rest() -> None:
    task = make(n_inputs=1000, alpha=1.5)
    known = probed(task, memory_model(task, d=64)).references["population/error"]
    fit = int(capacity(64, 4, n_values=5, shared=False))  # d (M − 1) numbers that matter
    assert 190 < fit < 200
    assert known.theory == pytest.approx(0.8 * float(task.frequencies[fit:].sum()))
    both = memory_model(task, d=64, feed_forward={"kind": "linear"})
    assert probed(task, both).references["population/error"].theory is None  # two parts may store


def test_the_slope_is_how_fast_margins_grow_with_frequency() -> None:
    """Orthonormal vectors and W = Σ_z (3 ln p(z) + 30) u_{f(z)} e_zᵀ: margins 3 ln p(z) + 30, all above 0."""
    task = make(n_inputs=16, alpha=1)
    model = memory_model(task, embedding="orthonormal", unembedding="orthonormal")
    e, u = model.embed.W_E.detach(), model.unembed.W_U.detach().T
    size = torch.tensor(3 * np.log(task.frequencies) + 30, dtype=torch.float32)
    write(model, u[task.targets].T @ (size[:, None] * e))
    result = probed(task, model)
    metrics = result.metrics
    assert metrics["by_frequency/margin_slope"] == pytest.approx(3.0, rel=1e-4)
    assert metrics["by_frequency/margin_correlation"] == pytest.approx(1.0, rel=1e-4)
    assert result.references["by_frequency/margin_correlation"].chance == 0.0
    assert metrics["population/error"] == 0.0


def test_equal_frequencies_have_no_slope_and_one_output_has_no_margins() -> None:
    for task in (make(n_inputs=20, alpha=0), make(n_inputs=20, n_outputs=1)):
        result = probed(task, memory_model(task, **RANDOM))
        assert not any(name.startswith("by_frequency") for name in result.metrics)
        assert isinstance(result.figure(), go.Figure)
        assert all(math.isfinite(value) for value in result.metrics.values())


def test_wrong_inputs_are_named_the_most_frequent_first() -> None:
    task = make(answers=[["a", "x", 1], ["b", "y", 5], ["c", "x", 3], ["d", "y", 3]])
    model = memory_model(task, embedding="orthonormal", unembedding="orthonormal")
    e, u = model.embed.W_E.detach(), model.unembed.W_U.detach().T
    write(model, u[0][:, None] * e.sum(0))  # always x
    failures = probed(task, model).failures
    assert failures == {"population/error": ["b → x, should be y", "d → x, should be y"]}
    assert probed(task, model, failures=1).failures["population/error"] == ["b → x, should be y"]


def test_the_figure_shows_right_and_wrong_inputs_and_does_not_change_later() -> None:
    task = make(n_inputs=40, alpha=1)
    model = memory_model(task, **RANDOM)
    result = probed(task, model)
    wrong = int((torch.tensor(module.population(model, task).wrong)).sum())
    before = result.figure().to_json()
    write(model, torch.zeros(16, 16))
    figure = result.figure()
    assert figure.to_json() == before
    right, lost = figure.data
    assert (len(right.x), len(lost.x)) == (40 - wrong, wrong)
    assert min(right.y) > 0 >= max(lost.y)
    assert figure.layout.xaxis.type == "log"


def test_of_many_inputs_the_figure_shows_some_of_every_frequency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHOWN", 50)
    task = make(n_inputs=3000, alpha=1)
    figure = probed(task, memory_model(task, **RANDOM)).figure()
    x = np.concatenate([trace.x for trace in figure.data])
    assert len(x) <= 50
    assert (max(x), min(x)) == pytest.approx((task.frequencies[0], task.frequencies[-1]))
    assert {trace.name.split()[-1] for trace in figure.data} == {"3,000"}  # the numbers are of all


def test_a_diverged_model_is_no_error() -> None:
    task = make(n_inputs=20)
    model = memory_model(task)
    write(model, torch.full((16, 16), torch.nan))
    assert probed(task, model).metrics["population/error"] == pytest.approx(1.0)


def test_another_task_is_refused() -> None:
    with pytest.raises(UserError, match='probe "population" needs the task association, got bigram'):
        toytf.load_config("quickstart", {"probes": ["population"]})
    assert probe_config("population").kind == "population"


@pytest.mark.repeats_runs
def test_other_frequencies_have_an_error_of_their_own(tmp_path: Any) -> None:
    """`evaluate_on` a uniform distribution: rare inputs, which are wrong more often, count more."""
    changes = {
        "task.n_inputs": 60, "model.d_model": 16, "train.steps": 40, "train.evaluation": {"every": 40, "sequences": 16},
        "evaluate_on": {"uniform": {"alpha": 0}}, "probes": ["population"], "threads": 1, "logging.wandb": "off",
    }  # fmt: skip
    summary = toytf.run("association/memory", changes, out=tmp_path / "run", page=False).summary
    assert summary["population@uniform/error"] > 2 * summary["population/error"]
    assert summary["population@uniform/error/constant"] == pytest.approx(0.8)
