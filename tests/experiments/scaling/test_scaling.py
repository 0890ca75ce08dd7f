"""The study scaling: errors of schemes by dimension and samples, the powers fitted to them, and degenerate cases."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import toytf
from toytf import theory
from toytf.config.plugins import load_config
from toytf.experiments.opened import shown, story_of
from toytf.experiments.scaling.experiment import draw_counts

if TYPE_CHECKING:
    from conftest import Ended

Run = Callable[..., toytf.Run]

SCHEMES = ["counts", "seen", "power", {"kind": "top", "share": 0.25}]


@pytest.fixture(scope="module")
def scaled(run_quietly: Run) -> Run:
    """A run of the study: `scaled(dimensions=[…], …)`."""

    def run(**config: Any) -> toytf.Run:
        return run_quietly(**{"experiment": "scaling", "n_inputs": [200], "schemes": SCHEMES, **config})

    return run


@pytest.fixture(scope="module")
def laws(scaled: Run) -> toytf.Run:
    return scaled(dimensions=[16, 64, 256], alphas=[2, 1.5], fit_dimensions_from=10, seeds=[*range(12)])


# --- what is measured


def test_errors_come_with_what_they_are_without_simulation(laws: toytf.Run) -> None:
    """The mean over 12 seeds, up to a fifth and the share of the first input (0.6) in a seed: 0.05."""
    summary = laws.summary
    for scheme in ("counts", "power_best", "top0.25d"):
        for d in (64, 256):
            name = f"error/{scheme}_a2_d{d}"
            assert summary[name] == pytest.approx(summary[f"theory/{name}"], rel=0.2, abs=0.05)


def test_powers_are_fitted_to_the_mean_over_seeds_with_an_error_by_resampling(laws: toytf.Run) -> None:
    table = laws.table
    errors = table[(table["group"] == "error") & (table["scheme"] == "counts") & (table["alpha"] == 2)]
    means = errors.groupby("d")["value"].mean()
    slope = np.polyfit(np.log(means.index.to_numpy(dtype=float)), np.log(means), 1)[0]
    summary = laws.summary
    assert summary["dimension_exponent/counts_a2"] == pytest.approx(slope)
    assert summary["dimension_exponent/counts_a2/std"] == pytest.approx(0, abs=1e-12)  # one value for all seeds
    assert 0 < summary["dimension_exponent/counts_a2/error"] < 0.3
    assert summary["theory/dimension_exponent/counts_a2"] == -0.25
    assert summary["theory/dimension_exponent/counts_a1.5"] == pytest.approx(-1 / 6)
    assert summary["theory/dimension_exponent/power_best_a1.5"] == pytest.approx(-0.5)
    assert "theory/dimension_exponent/seen_a2" not in summary


def test_a_median_is_told_beside_the_mean(laws: toytf.Run) -> None:
    table = laws.table
    here = table[(table["metric"] == "error/seen_a2_d256")]["value"]
    assert laws.summary["typical_error/seen_a2_d256"] == pytest.approx(here.median())


def test_a_seed_does_not_depend_on_the_others_nor_on_other_schemes(scaled: Run, laws: toytf.Run) -> None:
    alone = scaled(dimensions=[16, 64, 256], alphas=[1.5], schemes=["seen"], seeds=[3]).table
    of_all = laws.table[laws.table["seed"] == 3]
    for d in (16, 64, 256):
        name = f"error/seen_a1.5_d{d}"
        values = [table[table["metric"] == name]["value"].item() for table in (alone, of_all)]
        assert values[0] == pytest.approx(values[1], abs=1e-12)


def test_the_story_and_the_figures_name_schemes_in_words(laws: toytf.Run) -> None:
    said = str(story_of(laws))
    assert "stored by frequency (counts)" in said
    assert "only the d/4 most frequent (top0.25d)" in said
    figures = shown(laws).figures
    assert list(figures) == ["error_by_dimension_a2", "error_by_dimension_a1.5"]
    names = {trace.name for trace in figures["error_by_dimension_a2"].data}
    assert {"seen: all alike", "theory: counts: by frequency", "law of counts: d^−0.25"} <= names


# --- samples


@pytest.fixture(scope="module")
def sampled(scaled: Run) -> toytf.Run:
    schemes = ["seen", "counts", {"kind": "top", "share": 0.1}, {"kind": "at_least", "count": 2}]
    return scaled(
        n_inputs=[300], dimensions=[20, 400], samples=[0, 30, 100, 300, 1000, 20000], fit_samples_from=30,
        schemes=schemes, seeds=[*range(20)],
    )  # fmt: skip


def test_with_room_enough_the_error_is_what_is_not_seen(sampled: toytf.Run) -> None:
    """d = 400 above 300 inputs: 0.8 of what is unseen, up to its spread over 20 seeds."""
    summary = sampled.summary
    for n in (100, 300, 1000):
        floor = theory.sampling_floor(theory.zipf(300, 2), n, 5)
        assert summary[f"limit/error/seen_a2_n{n}_d400"] == pytest.approx(floor)
        assert summary[f"error/seen_a2_n{n}_d400"] == pytest.approx(floor, rel=0.25)


def test_more_data_hurts_a_full_memory_unless_it_has_a_threshold(sampled: toytf.Run) -> None:
    summary = sampled.summary
    assert summary["more_data/seen_a2_d20"] > 1.5
    assert summary["more_data/top0.1d_a2_d20"] == pytest.approx(1, abs=0.05)
    assert "More data hurts a memory that stores all alike: with 20000 samples" in str(story_of(sampled))


def test_without_samples_all_is_a_tie_which_is_wrong(sampled: toytf.Run) -> None:
    for scheme in ("seen", "counts", "top0.1d", "at_least2"):
        assert sampled.summary[f"error/{scheme}_a2_n0_d400"] == pytest.approx(1)


def test_counts_are_of_the_first_draws_and_follow_the_frequencies() -> None:
    p = torch.tensor(theory.zipf(50, 1.5))
    counts = draw_counts(p, [0, 10, 4000], seed=0)
    assert [int(counts[n].sum()) for n in (0, 10, 4000)] == [0, 10, 4000]
    assert bool((counts[4000] >= counts[10]).all())
    expected = 4000 * p
    assert bool(((counts[4000] - expected).abs() < 5 * expected.sqrt() + 3).all())  # five standard deviations
    assert torch.equal(draw_counts(p, [10], seed=0)[10], counts[10])


# --- degenerate, and wrong


def test_a_single_answer_is_always_right(scaled: Run) -> None:
    summary = scaled(n_outputs=[1], dimensions=[4, 8]).summary
    assert {summary[f"error/{scheme}_a2_d8"] for scheme in ("counts", "seen", "power_best", "top0.25d")} == {0}


def test_a_threshold_above_all_inputs_stores_all(scaled: Run) -> None:
    summary = scaled(n_inputs=[20], dimensions=[8, 64], schemes=["seen", {"kind": "top", "share": 100}]).summary
    assert summary["error/top100d_a2_d64"] == summary["error/seen_a2_d64"]


@pytest.mark.parametrize("alpha", [0, 0.5, 1])
def test_there_is_no_law_without_a_heavy_tail(scaled: Run, alpha: float) -> None:
    summary = scaled(alphas=[alpha], dimensions=[60, 120], fit_dimensions_from=1).summary
    assert f"error/counts_a{alpha}_d120" in summary
    assert not any(name.startswith("theory/dimension_exponent") for name in summary)


def test_answers_may_be_as_many_as_inputs(scaled: Run) -> None:
    schemes = [{"kind": "top", "share": 0.25}, {"kind": "top", "share": 0.01, "squared": True}]
    run = scaled(n_outputs=[5, "n_inputs"], dimensions=[8, 32], schemes=schemes, distribution="sphere")
    assert {"error/M5_top0.25d_a2_d8", "error/M200_top0.01d2_a2_d32"} <= set(run.summary)
    assert run.summary["theory/error/M200_top0.25d_a2_d32"] == pytest.approx(
        theory.tail_error(theory.zipf(200, 2), 8, 200)
    )


MISTAKES = {
    "no_dimension": ("dimensions=[0]", "dimensions.0 = 0"),
    "no_dimensions": ("dimensions=[]", "dimensions"),
    "negative_exponent": ("alphas=[-1]", "alphas.0 = -1"),
    "no_answer": ("n_outputs=[0]", "n_outputs"),
    "negative_samples": ("samples=[-5]", "samples"),
    "scheme": ("schemes=[best]", '"best"'),
    "power_one": ("schemes=[{kind: power, rho: 1}]", "write counts"),
    "power_zero": ("schemes=[{kind: power, rho: 0}]", "schemes.0.rho = 0"),
    "share": ("schemes=[{kind: top, share: 0}]", "schemes.0.share = 0"),
    "twice": ("schemes=[seen, seen]", "twice"),
    "inputs": ("n_inputs=[1000000000000]", "n_inputs = 1,000,000,000,000 needs too much memory"),
    "dimension": ("dimensions=[1000000000]", "dimensions = 1,000,000,000 needs too much memory"),
    "answers": ("n_outputs=[100000000000]", "n_outputs = 100,000,000,000 needs too much memory"),
    "samples": ("samples=[1000000000000]", "samples = 1,000,000,000,000 needs too much memory"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(name: str, invoke: "Callable[..., Ended]", tmp_path: Any) -> None:
    override, says = MISTAKES[name]
    ended = invoke("run", "scaling/laws", override, "seeds=[0]", "--out", str(tmp_path / "run"))
    assert ended.code == 2
    assert says in ended.err
    assert len(ended.err.strip().splitlines()) == 1


def test_shipped_configs_have_the_sizes_of_the_paper() -> None:
    config: Any = load_config("scaling/laws")
    assert (config.n_inputs, config.n_outputs, config.alphas, len(config.seeds)) == ((10000,), (5,), (2, 1.5), 100)
    assert len(config.dimensions) == 20
    assert max(load_config("scaling/million").dimensions) == 256  # type: ignore[attr-defined]
