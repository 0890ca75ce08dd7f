"""The probes of margins, scores, spectra and utilisation: the measures of the matrices a model really holds."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
import yaml

import toytf
from probes.matrices import learned_memories
from tasks.bigram.task import BigramTask
from toytf.build import build_model, build_probe, build_task
from toytf.config.plugins import load_config, plugins
from toytf.measurement import Group, as_row
from toytf.memory import hebbian
from toytf.memory.measures import measure_margins, measure_scores, measure_spectrum, measure_utilisation
from toytf.models import Slot, ToyTransformer
from toytf.probe import ProbeResult
from toytf.randomness import generator
from toytf.theory import extreme_level, optimum_scores

CONFIGS = Path(__file__).parents[2] / "configs"
KINDS = ("margins", "scores", "spectrum", "utilisation")
D = 32


def setting(path: str = "bigram/ideal.yaml", **overrides: Any) -> tuple[BigramTask, ToyTransformer]:
    """A model of d = 32 on sequences of 16, in which the ideal memories are written."""
    small = {"model.d_model": D, "task.seq_len": 16}
    config: Any = load_config(CONFIGS / path, small | {key.replace("__", "."): v for key, v in overrides.items()})
    task: Any = build_task(config.task, torch.device("cpu"))
    return task, build_model(config.model, task, 0)


def probe(kind: str, task: BigramTask, model: ToyTransformer, **fields: Any) -> ProbeResult:
    config = plugins("probes")[kind](kind=kind, **fields)
    return build_probe(config)(model, task, task.sample(2, generator(0, "batch")))


# The construction


def test_the_probes_measure_the_matrix_that_was_written():
    """The Hebbian matrix of each memory; the scale it was written with does not matter, its orientation does."""
    task, model = setting()
    found = {kind: probe(kind, task, model).metrics for kind in KINDS}
    for name, memory in task.memories(model).items():
        stored, W = memory.association, hebbian(memory.association)
        for kind, measured in (
            ("margins", measure_margins(stored, W)),
            ("scores", measure_scores(stored, W)),
            ("spectrum", measure_spectrum(W, len(stored.keys))),
            ("utilisation", measure_utilisation(stored, W)),
        ):
            expected = as_row((one.placed({"memory": name}) for one in measured), references=False)
            assert {key: found[kind][key] for key in expected} == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_margins_and_utilisation_agree_with_recall():
    task, model = setting(task__triggers="random")
    recall, margins, utilisation = (probe(kind, task, model).metrics for kind in ("memory_recall", *KINDS[::3]))
    assert recall["recall/W_OV2"] < 1  # 65 pairs are too many for the Hebbian rule at d = 32
    for name, memory in task.memories(model).items():
        n = len(memory.association.keys)
        assert margins[f"margin/{name}_negative"] == pytest.approx(1 - recall[f"recall/{name}"], abs=1e-6)
        assert (margins[f"margin/{name}_min"] > 0) == (recall[f"recall/{name}"] == 1)
        assert utilisation[f"utilisation/{name}/stored"] == pytest.approx(n * recall[f"recall/{name}"])


def test_every_probe_reads_its_metrics_against_theory():
    task, model = setting()
    expected = {
        "margins": {"margin/W_OV2_min"},
        "scores": {f"scores/W_OV2_{name}" for name in ("correct_mean", "correct_spread", "rival_spread")},
        "spectrum": {f"spectrum/W_OV2_{name}" for name in ("fourth_moment", "largest", "effective_rank")},
        "utilisation": {"utilisation/W_OV2", "utilisation/W_OV2/stored"},
    }
    for kind, names in expected.items():
        references = probe(kind, task, model).references
        assert {name for name in references if "W_OV2" in name and references[name].theory is not None} == names


def test_utilisation_counts_the_pairs_of_a_guess_and_of_the_solution():
    task, model = setting()
    references = probe("utilisation", task, model).references
    stored = references["utilisation/W_OV2/stored"]
    assert (stored.ideal, stored.chance, stored.theory) == (65, pytest.approx(1), 65)


# The pairs by name


def test_the_worst_pairs_are_named_with_the_rival_they_beat_or_lose_to():
    task, model = setting(
        "quickstart.yaml",
        model__d_model=65,
        model__embedding="one_hot",
        model__unembedding="one_hot",
        model__position="none",
        model__attention={"ov": "joint"},
    )
    W = 2 * torch.eye(65)
    W[1, 2], W[2, 1] = 1.0, 3.0  # e prefers itself to t by 1, t prefers e to itself by 1
    model.write(Slot("OV", 1), W)
    unit = math.sqrt(65 * 4 + 1 + 9) / 65
    result = probe("margins", task, model, worst=2)
    assert result.failures["margin/W_OV2_min"] == [
        f"t → t: margin {-1 / unit:.2f} behind e",
        f"e → e: margin {1 / unit:.2f} ahead of t",
    ]
    assert result.metrics["margin/W_OV2_min"] == pytest.approx(-1 / unit)
    assert result.metrics["margin/W_OV2_median"] == pytest.approx(2 / unit)


def test_the_pairs_of_every_memory_are_named_even_if_recalled():
    task, model = setting(model__d_model=128)
    result = probe("margins", task, model)
    assert result.metrics["margin/W_KQ1_min"] > 0
    assert len(result.failures["margin/W_KQ1_min"]) == 10
    assert all(" → t=" in pair and " ahead of t=" in pair for pair in result.failures["margin/W_KQ1_min"])


# Which matrix


@pytest.mark.parametrize(
    ("attention", "rank"),
    [
        ({"kq": "joint", "ov": "joint"}, D),
        ({"kq": "joint", "ov": "factored", "n_heads": 2, "d_head": 4}, 8),
        ({"kq": "joint", "ov": "factored", "n_heads": 2}, D),
        ({"kq": "joint", "ov": "factored", "n_heads": 4, "d_head": 16}, D),
    ],
)
def test_a_memory_passes_through_the_width_of_its_heads(attention: dict[str, Any], rank: int):
    task, model = setting("quickstart.yaml", model__attention=attention)
    learned = {held.name: held for held in learned_memories(model, task)}
    assert {name: held.rank for name, held in learned.items()} == {"W_KQ1": D, "W_KQ2": D, "W_OV2": rank}
    W = learned["W_OV2"].memory
    assert isinstance(W, torch.Tensor)
    torch.testing.assert_close(W, model.W_OV(1).sum(0).T)
    torch.testing.assert_close(learned["W_KQ2"].memory, model.W_KQ(1).sum(0).T)
    assert int(torch.linalg.matrix_rank(W)) == rank


def test_half_the_width_costs_a_tenth_of_the_capacity():
    capacities = [
        probe("utilisation", *setting("quickstart.yaml", model__attention={"d_head": d_head})).metrics
        for d_head in (D // 2, D)
    ]
    half, full = (found["utilisation/W_OV2/capacity"] for found in capacities)
    assert half / full == pytest.approx(0.894, abs=0.001)


def test_a_feed_forward_part_is_a_matrix_only_if_linear():
    for kind, is_matrix in {"linear": True, "relu": False}.items():
        task, model = setting("quickstart.yaml", model__feed_forward={"kind": kind})
        margins, scores, spectrum, utilisation = (probe(probed, task, model) for probed in KINDS)
        assert "margin/FF2_min" in margins.metrics
        assert "scores/FF2_correct_mean" in scores.metrics
        assert (margins.references["margin/FF2_min"].theory is not None) == is_matrix
        assert (scores.references["scores/FF2_correct_mean"].theory is not None) == is_matrix
        assert ("spectrum/FF2_fourth_moment" in spectrum.metrics) == is_matrix
        assert ("utilisation/FF2" in utilisation.metrics) == is_matrix


def test_a_silent_model_has_few_metrics_and_all_are_finite():
    silent = {"init": "zeros", "kq": "joint", "ov": "joint"}
    task, model = setting("quickstart.yaml", model__attention=silent)
    names = {name for kind in KINDS for name in probe(kind, task, model).metrics}
    assert names == {
        f"{prefix}{name}{suffix}"
        for name in ("W_KQ1", "W_KQ2", "W_OV2")
        for prefix, suffix in (
            ("margin/", "_negative"),
            ("utilisation/", ""),
            ("utilisation/", "/stored"),
            ("utilisation/", "/capacity"),
        )
    }
    for kind in KINDS:
        assert isinstance(probe(kind, task, model).figure(), go.Figure)


@pytest.mark.parametrize("kind", KINDS)
def test_the_probes_change_nothing(kind: str):
    task, model = setting("quickstart.yaml")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    probe(kind, task, model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# Figures


def traces(figure: go.Figure, name: str) -> list[Any]:
    return [trace for trace in figure.data if trace.name is not None and trace.name.startswith(name)]


def test_the_figure_of_scores_marks_the_levels_of_theory():
    figure = probe("scores", *setting()).figure()
    assert [title.text for title in figure.layout.annotations] == ["W_KQ1", "W_KQ2", "W_OV2"]
    for name, expected in {
        "t*": optimum_scores(65).mean,
        "√(2 log m)": extreme_level(65),
        "√(d_in d_out / n)": D / math.sqrt(65),
    }.items():
        assert traces(figure, name)[-1].x == pytest.approx((expected, expected))
    for label in ("right", "rivals"):
        assert len(traces(figure, label)) == 3
        assert sum(trace.showlegend for trace in traces(figure, label)) == 1
        for bars in traces(figure, label):
            assert np.sum(np.asarray(bars.y) * bars.width) == pytest.approx(1)


def test_the_figure_of_a_spectrum_shows_both_predictions():
    figure = probe("spectrum", *setting()).figure()
    for name in ("measured", "Gaussian matrix", "Hebbian matrix"):
        for curve in traces(figure, name):
            assert list(curve.y) == sorted(curve.y, reverse=True)
    measured, gaussian, hebbian = (np.asarray(traces(figure, name)[-1].y) for name in ("meas", "Gauss", "Hebb"))
    assert np.abs(measured - hebbian).mean() < np.abs(measured - gaussian).mean()  # the ideal memory is Hebbian


@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_shows_what_was_measured_even_if_training_went_on(kind: str):
    task, model = setting("quickstart.yaml")
    result = probe(kind, task, model)
    before = result.figure().to_dict()
    result = probe(kind, task, model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    after = result.figure().to_dict()
    assert all(
        np.array_equal(one[axis], other[axis])
        for one, other in zip(before["data"], after["data"], strict=True)
        for axis in ("x", "y")
    )


def test_a_bar_of_a_metric_has_a_mark_for_theory():
    group = Group("some", "Some of them")
    figure = ProbeResult([group.measurement(1.0, "a", theory=3.0), group.measurement(2.0, "b")]).figure()
    assert [trace.name for trace in figure.data] == ["measured", "theory"]
    assert figure.data[1].x == (3.0, None)


# On runs


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_run_can_be_probed(tiny_run: "toytf.Run", kind: str):
    result = tiny_run.probe(kind)
    assert result.metrics and all(math.isfinite(value) for value in result.metrics.values())
    assert result.references.keys() <= result.metrics.keys()
    assert {name.split("/")[1][:5] for name in result.metrics} == {"W_KQ1", "W_KQ2", "W_OV2"}
    assert isinstance(result.figure(), go.Figure)


def test_the_command_prints_the_worst_pairs_of_a_run(tiny_run: "toytf.Run", invoke: Any):
    ended = invoke("probe", tiny_run.directory, "--probe", "margins")
    assert ended.code == 0
    assert "W_KQ1_min" in ended.out
    assert "margin" in ended.out and " behind t=" in ended.out


def test_a_run_that_lists_the_probes_logs_their_theory(tiny_config: Path, tmp_path: Path):
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump({"base": str(tiny_config), "probes": list(KINDS)}))
    summary = toytf.run(own, out=tmp_path / "run").summary
    assert summary["theory/margin/W_KQ1_min"] > 0
    assert summary["theory/spectrum/W_OV2_fourth_moment"] == pytest.approx(2, rel=1e-4)
    assert summary["utilisation/W_OV2"] == pytest.approx(
        summary["utilisation/W_OV2/stored"] / summary["utilisation/W_OV2/capacity"]
    )
