"""The experiment dynamics: what a run measures, draws and says, at the numbers of the figures."""

import json
import math
from base64 import b64decode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import toytf
from toytf.config.plugins import load_config
from toytf.experiments.dynamics.config import DynamicsConfig
from toytf.experiments.dynamics.trajectory import spaced
from toytf.experiments.opened import shown, story_of

if TYPE_CHECKING:
    from conftest import EndsTheSame

Run = Callable[..., toytf.Run]

PAIR = {"kind": "two_particles", "correlations": [0.95], "p1": [0.75]}
TEN = [116.42, 160.80, -98.03, 26.77, -68.01, 50.31, -30.08, 139.61, 8.86, 144.71]
PLANE = {"kind": "plane", "angles": TEN, "alpha": 2, "start": [7.5, 2.5]}


def values(kept: Any) -> np.ndarray:
    """The numbers of a trace that was kept: plotly writes them in base64."""
    return np.frombuffer(b64decode(kept["bdata"]), kept["dtype"]) if isinstance(kept, dict) else np.array(kept)


@pytest.fixture(scope="module")
def trained(run_quietly: Run) -> Run:
    """A run of the experiment: `trained(system={…}, learning_rates=[…], steps=…)`."""

    def run(**config: Any) -> toytf.Run:
        return run_quietly(page=False, experiment="dynamics", **config)

    return run


@pytest.fixture(scope="module")
def spike(trained: Run) -> toytf.Run:
    return trained(system=PAIR, learning_rates=[10, 1], steps=35, report_at=[0, 5, 34])


@pytest.fixture(scope="module")
def forgetting(trained: Run) -> toytf.Run:
    return trained(system=PLANE, learning_rates=[0.1], steps=999, report_at=[0, 100, 300], points=8)


def configured(**config: Any) -> DynamicsConfig:
    loaded: DynamicsConfig = load_config({"experiment": "dynamics", "device": "cpu", **config})
    return loaded


# What is measured


def test_the_spike_figure(spike: toytf.Run) -> None:
    """Loss to three digits, spikes, increases and errors of a separate simulation; the sharpness is derived."""
    summary = spike.summary
    losses = [summary[f"loss/lr10/at{step}"] for step in (0, 5, 34)]
    assert losses == pytest.approx([0.693, 1.349, 0.054], abs=6e-4)
    assert (summary["spikes/lr10"], summary["spikes/benign_lr10"], summary["spikes/increases_lr10"]) == (4, 4, 8)
    assert (summary["time/first_right_lr10"], summary["time/last_error_lr10"]) == (2, 14)
    assert (summary["spikes/lr1"], summary["spikes/increases_lr1"]) == (0, 0)
    assert summary["edge/start_lr10"] == pytest.approx(2.453, abs=6e-4)
    assert "time/first_right_lr1" not in summary  # the rare token is wrong until step 51
    assert summary["time/last_error_lr1"] == 35


def test_two_tokens_end_where_their_recursion_says(spike: toytf.Run) -> None:
    summary = spike.summary
    for name in ("loss/lr10", "loss/lr1", "margin/lr10/token1", "margin/lr10/token2", "edge/start_lr1"):
        assert summary[name] == pytest.approx(summary[f"theory/{name}"], abs=1e-10)
    assert summary["ideal/loss/lr10"] == summary["ideal/error/lr10"] == 0  # both tokens can be right


def test_error_and_sharpness_step_by_step(spike: toytf.Run) -> None:
    history = spike.history.set_index("step")
    assert history["error/lr10"].tolist()[:16] == pytest.approx(
        [1, 0.25, 0, 0.25, 0.75, 0.25, 0.25, 0, 0.25, 0, 0.25, 0, 0.25, 0, 0.25, 0]
    )
    assert history["edge/lr10"].tolist()[:8] == pytest.approx(
        [2.45, 0.07, 2.33, 0.24, 2.18, 0.02, 1.09, 1.96], abs=6e-3
    )
    changes = np.diff(history["margin/smallest_lr10"] > 0).sum()
    assert changes > 6  # the smaller margin alone goes to and fro


def test_forgetting(forgetting: toytf.Run) -> None:
    summary = forgetting.summary
    errors = [summary[f"error/lr0.1/at{step}"] for step in (0, 100, 300)]
    assert [*errors, summary["error/lr0.1"]] == pytest.approx([0.775, 0.156, 0.166, 0.347], abs=1e-3)
    assert summary["error/best_lr0.1"] == pytest.approx(summary["excess/best"])
    assert summary["ideal/error/lr0.1"] == summary["excess/best"]
    assert summary["forgotten/lr0.1"] == pytest.approx(0.191, abs=1e-3)
    assert summary["excess/minimiser"] == pytest.approx(0.347, abs=1e-3)
    assert (summary["excess/large"], summary["spikes/increases_lr0.1"]) == (1, 0)


@pytest.mark.repeats_runs  # thousands of steps
def test_orthonormal_tokens_follow_their_laws(trained: Run) -> None:
    """N = M = 5: at η = 10 the law is met within 1 %; fewer steps than in the claim, whose numbers are known."""
    system = {"kind": "random", "embedding": "orthonormal"}
    summary = trained(system=system, learning_rates=[10], steps=3000, points=2).summary
    assert summary["growth/slowest_lr10"] == pytest.approx(1, abs=0.01)
    assert summary["growth/fastest_lr10"] == pytest.approx(1, abs=0.01)
    assert summary["loss_law/lr10"] == pytest.approx(1, abs=0.01)
    for name in ("loss/lr10", *(f"margin/lr10/token{token}" for token in range(1, 6))):
        assert summary[name] == pytest.approx(summary[f"theory/{name}"], rel=1e-9)


@pytest.mark.repeats_runs
def test_more_tokens_than_values_share_them(trained: Run) -> None:
    """f(x) = x mod M; the law of the loss has N tokens."""
    system = {"kind": "random", "n_inputs": 6, "n_outputs": 2, "dimensions": [6], "embedding": "orthonormal"}
    summary = trained(system=system, learning_rates=[10], steps=3000, points=2).summary
    assert summary["loss_law/lr10"] == pytest.approx(1, abs=0.01)


def test_a_token_may_be_alone(trained: Run) -> None:
    summary = trained(system={"kind": "random", "n_inputs": 1, "n_outputs": 2, "dimensions": [3]}, steps=1).summary
    assert summary["error/lr1"] == 0
    assert summary["loss/lr1"] < math.log(2)


def test_two_tokens_of_one_vector_are_never_both_right(trained: Run) -> None:
    summary = trained(system={**PAIR, "correlations": [1.0]}, learning_rates=[1, 5], steps=200, points=2).summary
    for lr in (1, 5):
        assert f"time/first_right_lr{lr}" not in summary
        assert summary[f"error/lr{lr}"] == pytest.approx(0.25)
        # the best: say each answer as often as it comes, H(0.25)
        entropy = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
        assert summary[f"ideal/loss/lr{lr}"] == pytest.approx(entropy)
        assert summary[f"loss/lr{lr}"] == pytest.approx(entropy, abs=1e-6)
        assert f"theory/loss/lr{lr}" not in summary  # there rounding is amplified


def test_opposite_tokens_help_each_other(trained: Run) -> None:
    summary = trained(system={**PAIR, "correlations": [-1.0]}, learning_rates=[10], steps=5).summary
    assert (summary["time/first_right_lr10"], summary["spikes/lr10"]) == (1, 0)


def test_a_start_that_is_given_is_where_training_begins(trained: Run) -> None:
    at = {**PAIR, "start": [3.0, -40.0]}  # margins 3 and −(0.95·3 − 0.3122·40)
    summary = trained(system=at, learning_rates=[1], steps=3, report_at=[0]).summary
    margins = np.array([3, 40 * math.sqrt(1 - 0.95**2) - 0.95 * 3])
    assert summary["loss/lr1/at0"] == pytest.approx(float(np.array([0.75, 0.25]) @ np.log1p(np.exp(-margins))))
    assert summary["loss/lr1"] == pytest.approx(summary["theory/loss/lr1"], abs=1e-12)


def test_a_random_start_moves_the_loss_away_from_chance(trained: Run) -> None:
    system = {"kind": "random", "dimensions": [8], "start_scale": 2.0}
    summary = trained(system=system, steps=2, report_at=[0], seeds=[0, 1]).summary
    assert summary["loss/lr1/at0"] != pytest.approx(math.log(5), abs=0.01)
    assert summary["loss/lr1/at0/std"] > 0


def test_batches_are_the_same_for_all_step_sizes_and_differ_between_seeds(trained: Run) -> None:
    """From W = 0 the scores after one step are proportional to the step size, if the batch is one and the same."""
    system = {"kind": "random", "embedding": "orthonormal"}
    run = trained(system=system, learning_rates=[0.5, 1], steps=1, batch_size=3, seeds=[0, 1, 2, 3])
    small, large = (np.array([run.seeds[f"margin/lr{lr}/token{x}"] for x in range(1, 6)]) for lr in ("0.5", "1"))
    assert large == pytest.approx(2 * small)
    assert len({tuple(margins) for margins in small.T}) > 1
    counts = large * 3  # orthonormal: m = η c/B, so these are counts
    assert counts == pytest.approx(counts.round())
    assert counts.sum(0) == pytest.approx([3] * 4)


def test_names_say_in_what_systems_differ(trained: Run) -> None:
    both = {"kind": "two_particles", "correlations": [0.5, 0.9], "p1": [0.6, 0.75]}
    names = set(trained(system=both, steps=2, points=2).summary)
    assert {"loss/correlation0.5_p0.6_lr1", "loss/correlation0.9_p0.75_lr1"} <= names
    names = set(trained(system={"kind": "random", "dimensions": [3, 5]}, steps=2, points=2).summary)
    assert {"loss/d3_lr1", "loss/d5_lr1", "margin/d3_lr1/token5"} <= names


def test_a_seed_gives_the_same_alone_and_among_others(trained: Run) -> None:
    config: dict[str, Any] = {"system": {"kind": "random", "dimensions": [3]}, "learning_rates": [5], "steps": 30}
    alone, together = trained(**config, seeds=[4]), trained(**config, seeds=[3, 4])
    one, other = (
        {name: value for name, value in run.seeds.loc[4].items() if not name.startswith("theory")}
        for run in (alone, together)
    )
    assert one == other


def test_a_killed_run_goes_on_where_it_was(trained: Run, ends_the_same: "EndsTheSame") -> None:
    whole = trained(system={"kind": "random", "dimensions": [3, 4]}, steps=5, seeds=[0, 1])
    ends_the_same(whole, 15)


@pytest.mark.parametrize(
    ("steps", "most", "expected"),
    [(3, 64, [0, 1, 2, 3]), (100, 2, [0, 100]), (100, 4, [0, 1, 10, 100]), (1, 2, [0, 1])],
)
def test_rows_are_all_steps_or_evenly_spaced_on_a_logarithmic_scale(steps: int, most: int, expected: list[int]) -> None:
    assert spaced(steps, most) == expected


# What is drawn and said


def test_pictures_of_two_tokens(spike: toytf.Run) -> None:
    figures = shown(spike).figures
    assert set(figures) == {"loss", "margins", "landscape", "edge"}
    marks = next(trace for trace in figures["loss"].data if trace.name == "spike, made good later")
    assert marks.x == (1, 5, 10, 12)  # the highest steps of {1}, {3, 4, 5}, {7 … 10}, {12}
    law = [trace for trace in figures["margins"].data if trace.name == "exact law"]
    assert len(law) == 4
    levels = [trace for trace in figures["edge"].data if trace.name == "edge of stability"]
    assert [trace.y for trace in levels] == [(1, 1)]


def test_the_slider_moves_the_way_from_the_start_to_the_end(spike: toytf.Run) -> None:
    figure = shown(spike).figures["landscape"]
    (slider,) = figure.layout.sliders
    assert [step.label for step in slider.steps] == [str(step) for step in range(36)]
    assert [frame.name for frame in figure.frames] == [step.label for step in slider.steps]
    still = [trace for trace in figure.data if trace.type == "scatter"]
    first, last = figure.frames[0].data, figure.frames[-1].data
    assert [len(values(trace.x)) for trace in first] == [1] * 4
    assert [[*values(trace.x)] for trace in last] == [[*values(trace.x)] for trace in still]  # as without the slider
    assert all(figure.data[at].type == "scatter" for at in figure.frames[0].traces)
    star = last[1]  # of η = 10: m_1 = γ · e_1
    assert values(star.x)[0] == pytest.approx(spike.summary["margin/lr10/token1"])


def test_the_landscape_of_ten_tokens_shows_the_best_direction_and_the_lowest_loss(forgetting: toytf.Run) -> None:
    figure = shown(forgetting).figures["landscape"]
    lowest = next(trace for trace in figure.data if trace.name == "lowest loss")
    way = next(trace for trace in figure.data if trace.name == "η = 0.1")
    x, y = values(way.x), values(way.y)
    assert (x[0], y[0]) == pytest.approx((7.5, 2.5))
    assert (x[-1], y[-1]) == pytest.approx((lowest.x[0], lowest.y[0]), abs=0.1)  # it has nearly got there
    assert any(trace.name == "best direction" for trace in figure.data)


@pytest.mark.parametrize(("window", "ends"), [(2, (-2, 2, -2, 2)), ([-1, 8, -17, 10], (-1, 8, -17, 10))])
def test_a_window_is_what_the_landscape_shows(window: Any, ends: tuple[float, ...], trained: Run) -> None:
    layout = shown(trained(system=PAIR, steps=2, window=window)).figures["landscape"].layout
    assert (*layout.xaxis.range, *layout.yaxis.range) == ends


def test_the_map_shows_the_first_step_without_an_error(trained: Run) -> None:
    """a = 0.9: 26 and 9 steps at η = 1 and 3; a = 1 is never separable."""
    system = {**PAIR, "correlations": [0.9, 1.0]}
    run = trained(system=system, learning_rates=[3, 1], steps=40, points=2)
    (heat,) = shown(run).figures["map"].data
    assert [[*row] for row in heat.text] == [["26", "9"], ["never", "never"]]


def test_the_excess_of_many_seeds_is_a_histogram(trained: Run) -> None:
    run = trained(system={"kind": "plane", "n_inputs": 30}, steps=1, seeds=[*range(20)])
    assert "excess" in shown(run).figures
    assert 0 <= run.summary["excess"] < 0.3
    assert any("of the seeds it costs more than 0.01" in sentence for sentence in _said(run))


def test_findings_tell_what_each_step_size_did(spike: toytf.Run, forgetting: toytf.Run) -> None:
    (sentence,) = _said(spike)
    assert "with step size 10 the loss is 0.0529 (spikes: 4, made good: 4)" in sentence
    assert "all tokens are right after step 14" in sentence
    first, second = _said(forgetting)
    assert "the error 0.347, having been 0.156" in first
    assert second == "No direction has an error below 0.156, and the lowest cross-entropy has 0.347."


def _said(run: toytf.Run) -> list[str]:
    return [*story_of(run).sentences]


def test_every_field_of_a_config_survives_being_written_down() -> None:
    config = configured(system=PLANE, learning_rates=[0.1], steps=9, batch_size=3, window=[-1, 1, -2, 2], report_at=[3])
    assert DynamicsConfig.model_validate(json.loads(config.model_dump_json())) == config
