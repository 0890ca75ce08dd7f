"""The experiment optimisers: what is measured of each case, against identities, theory and plain sums."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import toytf
from toytf import theory
from toytf.config.plugins import load_config
from toytf.config.sections import digest
from toytf.experiments.opened import shown, story_of
from toytf.experiments.optimisers.config import OptimisersConfig
from toytf.experiments.optimisers.experiment import Optimisers, OptimisersCase
from toytf.experiments.optimisers.measures import by_octave, learning_times, octaves
from toytf.measurement import Group

if TYPE_CHECKING:
    from conftest import Ended, EndsTheSame, Refused

Run = Callable[..., toytf.Run]
SMALL: dict[str, Any] = {
    "experiment": "optimisers", "n_inputs": 6, "n_outputs": [3], "dimensions": [12], "batches": [4], "samples": [40],
    "alpha": 1.0,
}  # fmt: skip


def configured(**config: Any) -> OptimisersConfig:
    loaded: OptimisersConfig = load_config({**SMALL, "device": "cpu", **config})
    return loaded


@pytest.fixture(scope="module")
def study(run_quietly: Run) -> Run:
    """A small run: `study(optimisers=[…], …)`."""
    return lambda **config: run_quietly(**{**SMALL, **config})


# --- what is measured


def test_one_step_from_zero_has_the_exponent_one_against_its_counts(study: Run) -> None:
    """The identity q = lr c/B (1 − 1/M), whatever the learning rate; in float64 up to rounding."""
    run = study(batches=["all"], learning_rates=[1, 1000], precision="float64", seeds=[0, 1])
    for lr in (1, 1000):
        assert run.summary[f"rho/counts_sgd_d12_lr{lr}_all_n40"] == pytest.approx(1, abs=1e-9)
        assert run.summary[f"theory/rho/counts_sgd_d12_lr{lr}_all_n40"] == pytest.approx(1, abs=1e-9)
        assert run.summary[f"read_out/residual_sgd_d12_lr{lr}_all_n40"] < 1e-9
        assert run.summary[f"read_out/left_out_sgd_d12_lr{lr}_all_n40"] == 0


def test_a_case_is_named_by_its_factors_and_what_goes_without_saying_is_left_out(study: Run) -> None:
    names = {*study(layer_norm=[False, True], start="random", inside=False).summary}
    assert {"error/sgd_d12_lr1_batch4_n40", "error/sgd_layer_norm_d12_lr1_batch4_n40"} <= names
    several = {*study(models=["learnable"], n_outputs=[2, "n_inputs"], inside=False).summary}
    assert {"error/learnable_sgd_d12_lr1_batch4_n40_M2", "error/learnable_sgd_d12_lr1_batch4_n40_M6"} <= several


def test_the_error_is_the_frequency_of_what_is_not_recalled(study: Run) -> None:
    """Errors are sums of p over sets of inputs, and octaves 1, 2–3, 4–6 count them, too."""
    run = study(seeds=[0])
    p = theory.zipf(6, 1.0)
    name = "sgd_d12_lr1_batch4_n40"
    recalled = [run.summary[f"by_frequency/{name}_octave{k}"] for k in range(3)]
    stored = recalled[0] + 2 * recalled[1] + 3 * recalled[2]
    assert run.summary[f"stored/{name}"] == pytest.approx(stored)
    sums = {float(np.sum(p[list(lost)])) for lost in _subsets(range(6))}
    assert min(abs(run.summary[f"error/{name}"] - total) for total in sums) < 1e-12


def _subsets(items: range) -> list[list[int]]:
    return [[i for i in items if mask >> i & 1] for mask in range(2 ** len(items))]


def test_the_limit_is_what_the_samples_leave_unseen_and_chance_a_guess(study: Run) -> None:
    summary = study(samples=[20, 40], inside=False).summary
    for n in (20, 40):
        name = f"error/sgd_d12_lr1_batch4_n{n}"
        assert summary[f"limit/{name}"] == pytest.approx(2 / 3 * theory.unseen_mass(theory.zipf(6, 1.0), n))
        assert summary[f"chance/{name}"] == pytest.approx(2 / 3)
        assert summary[f"chance/loss/sgd_d12_lr1_batch4_n{n}"] == pytest.approx(math.log(3))


def test_a_population_has_nothing_unseen(study: Run) -> None:
    run = study(batches=["population"], samples=[], steps=3)
    assert run.summary["limit/error/sgd_d12_lr1_population_steps3"] == 0
    assert run.summary["theory/rho/frequency_sgd_d12_lr1_population_steps3"] <= 1
    assert not any(name.startswith("rho/counts") for name in run.summary)


def test_a_scheme_is_told_only_where_it_can_be_read(study: Run) -> None:
    """Independent vectors (N, M ≤ d), a matrix that began at 0, and no LayerNorm."""
    told = [name.startswith(("rho/", "scheme/")) for name in study(dimensions=[6]).summary]
    assert any(told)
    for config in ({"dimensions": [5]}, {"start": "random"}, {"models": ["learnable"]}):
        assert not any(name.startswith(("rho/", "scheme/", "read_out/")) for name in study(**config).summary)


def test_strengths_are_near_those_of_inputs_that_are_learned_alone(study: Run) -> None:
    """With d = 400 ≫ N vectors are orthogonal up to 1/√d = 5 %."""
    run = study(dimensions=[400], batches=[1], samples=[100], learning_rates=[0.5], seeds=[0, 1, 2])
    name = "scheme/sgd_d400_lr0.5_batch1_n100_octave"
    for k in range(3):
        assert run.summary[f"{name}{k}"] == pytest.approx(run.summary[f"theory/{name}{k}"], rel=0.1)


def test_gradient_descent_learns_by_frequency_and_muon_evenly(study: Run) -> None:
    """t ∝ 1/p for orthogonal vectors; with looks 20 % apart and vectors 7 % off, b is within 0.1."""
    run = study(
        optimisers=["sgd", "muon"], batches=["population"], samples=[], steps=2500, evaluations=40, dimensions=[200],
        n_inputs=30, n_outputs=["n_inputs"], alpha=1.5,
    )  # fmt: skip
    case = "d200_lr1_population_steps2500"
    assert run.summary[f"time_exponent/sgd_{case}"] == pytest.approx(1, abs=0.1)
    assert run.summary[f"theory/time_exponent/sgd_{case}"] == 1
    assert run.summary[f"time_exponent/muon_{case}"] == pytest.approx(0, abs=0.1)
    first, last = (run.summary[f"learned_at/sgd_{case}_octave{k}"] for k in (1, 4))
    assert last / first == pytest.approx(2.5**-1.5 / 22**-1.5, rel=0.5)  # the middle ranks of 2–3 and 16–30


def test_curves_end_with_the_error(study: Run) -> None:
    summary = study(evaluations=4).summary
    assert summary["curve/sgd_d12_lr1_batch4_n40_after10"] == summary["error/sgd_d12_lr1_batch4_n40"]
    assert "curve/sgd_d12_lr1_batch4_n40_after1" in summary


def test_all_seeds_at_once_are_each_seed_alone(study: Run) -> None:
    both, one = study(seeds=[3, 4]), study(seeds=[4])
    of_four = both.seeds.loc[4]
    for name, value in one.summary.items():
        assert of_four.get(name, value) == pytest.approx(value, rel=1e-4, abs=1e-5), name


def test_cases_that_are_compared_see_the_same_stream(study: Run) -> None:
    """One pass with batches of 4 or 5 over the same 40 samples leaves the same inputs unseen."""
    table = study(batches=[4, 5], learning_rates=[100], dimensions=[200], seeds=[0]).table
    errors = table[(table["group"] == "error")]["value"]
    assert errors.nunique() == 1  # with large steps and room for all, only what is unseen is wrong


def test_later_steps_can_be_smaller(study: Run) -> None:
    plain = study(learning_rates=[5]).summary
    late = study(learning_rates=[5], late={"after": 0.5, "factor": 0.01}).summary
    name = "loss/sgd_d12_lr5_batch4_n40"
    assert plain[name] != late[name]
    assert "theory/rho/counts_sgd_d12_lr5_batch4_n40" not in late


def test_one_answer_is_always_right(study: Run) -> None:
    summary = study(n_outputs=[1]).summary
    assert summary["error/sgd_d12_lr1_batch4_n40"] == summary["limit/error/sgd_d12_lr1_batch4_n40"] == 0
    assert "rho/counts_sgd_d12_lr1_batch4_n40" not in summary  # nothing was stored


@pytest.mark.parametrize(
    "config",
    [{"n_inputs": 1, "n_outputs": [2]}, {"dimensions": [1]}, {"alpha": 0}, {"samples": [4]}, {"n_outputs": [40]}],
    ids=str,
)
def test_the_smallest_sizes_run(config: dict[str, Any], study: Run) -> None:
    run = study(optimisers=["sgd", "normalised", "adam", "muon"], **config)
    errors = [value for name, value in run.summary.items() if name.startswith("error/")]
    assert errors and all(0 <= value <= 1 for value in errors)


def test_a_rate_that_overflows_is_an_error_of_one_and_no_crash(study: Run) -> None:
    """Scores that are not numbers recall nothing."""
    run = study(models=["learnable"], learning_rates=[1e30], samples=[40])
    assert 0 <= run.summary["error/learnable_sgd_d12_lr1e+30_batch4_n40"] <= 1


# --- parts


def test_octaves_are_those_of_the_rank() -> None:
    assert octaves(9).tolist() == [0, 1, 1, 2, 2, 2, 2, 3, 3]
    found = [*by_octave(Group("x", "X"), np.arange(3.0), known=np.array([True, False, True]))]
    assert [(one.quantity.at["octave"], one.value) for one in found] == [(0, 0.0), (1, 2.0)]


def test_an_input_is_learned_when_it_stays_learned() -> None:
    seen = [
        np.array([True, False, True, False]),
        np.array([True, True, False, False]),
        np.array([True, True, True, False]),
    ]
    assert learning_times([1, 10, 100], seen).tolist() == [1, 10, 100, math.inf]


def test_cases_are_all_combinations() -> None:
    config = configured(
        optimisers=["sgd", "adam"], learning_rates=[1, 2], dimensions=[2, 3], batches=[1, "all"], samples=[8, 9]
    )
    cases = [*Optimisers(config).cases()]
    assert len({*cases}) == len(cases) == 32
    assert {case.n_steps for case in cases} == {8, 9, 1}
    assert OptimisersCase("matrix", "sgd", False, 2, 1.0, 4, 9, None, 3).n_steps == 3  # the last batch has one


# --- pages, stories, resuming


def test_figures_show_errors_schemes_and_vectors(study: Run) -> None:
    run = study(learning_rates=[0.1, 1], dimensions=[6, 12], evaluations=3)
    assert {"error", "learning_rate", "rho", "scheme", "by_frequency", "curve"} <= {*shown(run).figures}
    plane = study(models=["learnable"], dimensions=[2], n_outputs=[2, 3], start="random")
    assert {"error", "vectors_learnable_sgd_d2_lr1_batch4_n40_M2"} <= {*shown(plane).figures}


def test_errors_by_batch_are_drawn_beside_a_step_on_all_samples(study: Run) -> None:
    """`all` is no number, so it is on no axis of batches, and neither is its floor."""
    run = study(batches=[2, 8, "all"], inside=False)
    assert any(name.startswith("error") for name in shown(run).figures)


def test_time_has_no_law_with_two_answers(study: Run) -> None:
    """Learned is a probability above 1/2: a margin above 0, which the first step gives."""
    config = {"batches": ["population"], "samples": [], "steps": 20, "evaluations": 8}
    assert not any(name.startswith("theory/time_exponent") for name in study(**config, n_outputs=[2]).summary)


def test_a_late_rate_never_takes_the_first_step(study: Run) -> None:
    config: dict[str, Any] = {"batches": [20], "precision": "float64", "inside": False}
    late, none = (study(**config, **more).summary for more in ({"late": {"after": 0.1, "factor": 1e-9}}, {}))
    name = "loss/sgd_d12_lr1_batch20_n40"
    assert none[name] < late[name] < math.log(3)  # one of its two steps counts


def test_many_curves_come_in_several_figures(study: Run) -> None:
    run = study(
        optimisers=["sgd", "adam"], layer_norm=[False, True], learning_rates=[0.1, 1], batches=[1, 2, 4, 8],
        dimensions=[2, 3], start="random", inside=False,
    )  # fmt: skip
    assert {"error_sgd", "error_adam", "learning_rate_sgd", "learning_rate_adam"} <= {*shown(run).figures}


def test_the_story_tells_errors_and_exponents(study: Run) -> None:
    run = study(learning_rates=[0.1, 1])
    story = str(story_of(run))
    assert story.startswith("The error is ")
    assert "ρ is" in story and "lr 0.1" in story
    many = str(story_of(study(learning_rates=[0.1, 1, 2, 3, 4, 5, 6, 7], inside=False)))
    assert many.startswith("The smallest errors are ")


def test_a_killed_run_goes_on(study: Run, ends_the_same: "EndsTheSame") -> None:
    """Seeds of a case are done one by one if the case was killed between them."""
    ends_the_same(study(learning_rates=[0.1, 1], seeds=[0, 1], inside=False), 3)


FLIPS: dict[str, Any] = {
    "optimisers": ["adam"], "learning_rates": [2], "dimensions": [7], "batches": [8], "samples": [44],
    "models": ["learnable"], "n_inputs": 7, "n_outputs": [4], "alpha": 2.0, "distribution": "sphere", "start": "random",
    "late": {"after": 0.5}, "evaluations": 3, "inside": False, "precision": "float64",
}  # fmt: skip


@pytest.mark.parametrize("key", FLIPS)
def test_every_field_changes_what_is_measured(key: str, study: Run) -> None:
    plain, flipped = study().summary, study(**{key: FLIPS[key]}).summary
    assert plain != flipped


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ({"optimisers": ["adam"]}, "betas", [0.9, 0.9]),
        ({"optimisers": ["muon"]}, "momentum", 0.9),
        ({"start": "random"}, "layer_norm", [True]),
        ({"batches": ["population"], "samples": [], "steps": 2}, "steps", 3),
    ],
)
def test_fields_of_some_optimisers_change_what_these_do(
    setting: dict[str, Any], key: str, value: Any, study: Run
) -> None:
    assert study(**setting).summary != study(**{**setting, key: value}).summary


def test_the_config_names_the_run() -> None:
    assert digest(configured()) != digest(configured(precision="float64"))


# --- mistakes

BASE = "experiment: optimisers\nsamples: [64]\nlogging: {wandb: 'off'}\n"
MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "late_in_a_single_step": (["batches=[all]", "late={after: 0.5}"], ["late has no effect"]),
    "no_learning": (["learning_rates=[0]"], ["learning_rates.0 = 0", "greater than 0"]),
    "negative_learning": (["learning_rates=[-1]"], ["learning_rates.0 = -1", "greater than 0"]),
    "large_batch": (["batches=[128]"], ["batches: 128 is more than samples = 64"]),
    "no_samples": (["samples=[0]"], ["samples.0 = 0", "greater than 0"]),
    "samples_missing": (["samples=[]"], ["samples is missing", "samples: [1024]"]),
    "no_dimension": (["dimensions=[0]"], ["dimensions.0 = 0", "greater than 0"]),
    "no_dimensions": (["dimensions=[]"], ["dimensions", "at least 1"]),
    "negative_alpha": (["alpha=-1"], ["alpha = -1", "greater than or equal to 0"]),
    "no_answers": (["n_outputs=[0]"], ["n_outputs.0", "0"]),
    "answers_twice": (["n_outputs=[100,n_inputs]"], ["n_outputs: 100 is listed twice"]),
    "no_inputs": (["n_inputs=0"], ["n_inputs = 0", "greater than 0"]),
    "unknown_optimiser": (["optimisers=[sdg]"], ['optimisers.0 = "sdg"', 'did you mean "sgd"?']),
    "optimiser_twice": (["optimisers=[sgd,sgd]"], ["optimisers: sgd is listed twice"]),
    "unknown_model": (["models=[linear]"], ['models.0 = "linear"']),
    "unknown_key": (["optimizers=[sgd]"], ['"optimizers"', 'did you mean "optimisers"?']),
    "population_without_steps": (["batches=[population]", "samples=[]"], ["steps is missing", "population"]),
    "population_with_samples": (["batches=[population]", "steps=3"], ["samples is given", "population"]),
    "steps_for_nothing": (["steps=3"], ["steps = 3", "population"]),
    "norm_of_zero": (["layer_norm=[true]"], ["layer_norm: [true]", "start: random"]),
    "muon_without_a_matrix": (["optimisers=[muon]", "models=[exponential]"], ["muon", '"exponential"', "adam"]),
    "betas_for_nothing": (["betas=[0.9,0.9]"], ["betas = [0.9, 0.9]", "adam"]),
    "betas_of_one": (["optimisers=[adam]", "betas=[1,0]"], ["betas.0 = 1", "less than 1"]),
    "momentum_for_nothing": (["momentum=0.9"], ["momentum = 0.9", "muon"]),
    "late_after_the_end": (["late={after: 1}"], ["late.after = 1", "less than 1"]),
    "no_evaluations": (["evaluations=0"], ["evaluations = 0", "greater than 0"]),
    "half_precision": (["precision=float16"], ['precision = "float16"', "float32"]),
}


@pytest.mark.parametrize(("overrides", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_ends_with_2_and_one_line(overrides: list[str], says: list[str], refused: "Refused") -> None:
    refused(BASE, overrides, says)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("n_inputs=1000000000000", "n_inputs = 1,000,000,000,000 needs too much memory"),
        ("dimensions=[10000000]", "dimensions = 10,000,000 needs too much memory"),
        ("n_outputs=[1000000000000]", "n_outputs = 1,000,000,000,000 needs too much memory"),
        ("samples=[100000000000]", "samples = 100,000,000,000 needs too much memory"),
    ],
)
def test_a_size_that_no_machine_has_ends_with_2_and_one_line(
    override: str, says: str, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(BASE, encoding="utf-8")
    ended = invoke("run", path, override, "--out", tmp_path / "run")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert says in ended.err
    assert not (tmp_path / "run").exists()


def test_seeds_are_trained_together_as_far_as_memory_goes() -> None:
    """A population of 10⁶ is 1.5·10⁷ numbers a seed: one at a time, however small a step is."""
    many = configured(seeds=[*range(50)])
    assert many.seeds_at_once(12, 3, 4) == 50
    assert configured(seeds=[*range(50)], n_inputs=10**6).seeds_at_once(12, 3, 1) == 1
