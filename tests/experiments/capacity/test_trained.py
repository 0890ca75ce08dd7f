"""Trained memories in the experiment capacity: widths relative to d, one start for all, one curve, bits per weight."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import pytest
import torch

import toytf
from toytf import theory
from toytf.experiments.capacity.case import CapacityCase, predicted_capacity
from toytf.experiments.capacity.config import CapacityConfig
from toytf.experiments.capacity.experiment import Capacity
from toytf.experiments.capacity.measures import collapse, exponents
from toytf.experiments.capacity.search import _try, first_pairs
from toytf.memory import RULES, Association, AssociationStream, MLPMemory, Rule, RuleInputs, Trained

Run = Callable[..., toytf.Run]

MLP: dict[str, Any] = {
    "rules": ["trained_mlp"], "dimensions": [4, 6], "width_ratios": [1, 2], "criterion": 0.99, "resolution": 0.3,
    "trained": {"lr": 0.1, "steps": 100}, "starts": 2, "seeds": [0, 1],
}  # fmt: skip


def config(**given: Any) -> CapacityConfig:
    return CapacityConfig.model_validate({"experiment": "capacity", **given})


@pytest.fixture(scope="module")
def hidden(run_quietly: Run) -> toytf.Run:
    return run_quietly(experiment="capacity", **MLP)


# --- sizes


def test_ratios_are_widths_in_multiples_of_the_dimension_of_keys() -> None:
    given = config(rules=["trained_mlp", "optimum"], dimensions=[8, [11, 3]], width_ratios=[0.5, 1, 8], criterion=0.9)
    cases = {case.stream for case in Capacity(given).cases()}
    widths = {"d8": (4, 8, 64), "d11x3": (6, 11, 88)}
    names = {f"trained_mlp_{d}_m{width}" for d, several in widths.items() for width in several}
    assert cases == names | {"optimum_d8", "optimum_d11x3"}


def test_a_ratio_and_its_width_are_the_same_case(run_quietly: Run, hidden: toytf.Run) -> None:
    widths = run_quietly(experiment="capacity", **{**MLP, "dimensions": [6], "width_ratios": [], "widths": [12]})
    name = "capacity/trained_mlp_d6_m12"
    assert widths.summary[name] == hidden.summary[name]


# --- the search


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.search == "trained"])
def test_a_training_begins_with_as_many_pairs_whatever_it_could_store(rule: str) -> None:
    """Neither width, nor answers, nor criterion, nor what theory says."""
    starts = {
        first_pairs(config(rules=[rule], dimensions=[8], widths=widths, **more), CapacityCase(rule, 8, *widths))
        for widths in ([[4], [7]] if RULES[rule].width != "none" else [[]])
        for more in ({}, {"criterion": 0.99}, {"data": {"n_answers": 32}})
    }
    assert starts == {8.0}


def test_a_certified_rule_means_all_pairs_beside_one_that_may_miss_some(run_quietly: Run) -> None:
    both = run_quietly(
        experiment="capacity", rules=["optimum", "trained_linear"], dimensions=[6], criterion=0.5,
        trained={"lr": 1.0, "steps": 100}, seeds=[0],
    )  # fmt: skip
    alone = run_quietly(experiment="capacity", rules=["optimum"], dimensions=[6], seeds=[0])
    shared = [name for name in alone.summary if "optimum" in name]
    assert shared
    assert {name: both.summary[name] for name in shared} == {name: alone.summary[name] for name in shared}
    assert both.summary["capacity/trained_linear_d6"] > both.summary["capacity/optimum_d6"]  # half may be wrong
    assert "(without an error)" in next(iter(Capacity(both.config).findings(both)))


def test_a_training_that_cannot_reach_a_key_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained twice in vain because the unit is off for the keys, and a third time with the unit on."""
    begun: list[int] = []

    def attempts(rule: Rule, inputs: Sequence[RuleInputs]) -> list[Trained]:
        begun.append(len(inputs))
        unit = torch.full((1, 4), -1.0 if len(begun) < 3 else 1.0)
        memories = [MLPMemory(unit, torch.ones(1, 4)) for _ in inputs]
        return [Trained(memory, 1.0 if len(begun) == 3 and one == 0 else 0.5, 1) for one, memory in enumerate(memories)]

    monkeypatch.setattr(Rule, "attempts", attempts)
    monkeypatch.setattr(AssociationStream, "prefix", lambda self, n: positive)
    positive = Association(torch.ones(3, 4), torch.eye(4)[:3], torch.arange(3))
    given = config(rules=["trained_mlp"], dimensions=[4], widths=[1], starts=8)
    streams = [AssociationStream(seed, 4, 4) for seed in (0, 1)]
    found = _try(given, CapacityCase("trained_mlp", 4, 1), streams, 3)
    assert [*found] == [0]  # the third start stores the pairs of one seed
    assert begun == [2, 2, 2]  # that of the other was on, without success: more starts would not help


# --- what is measured


def test_the_load_of_hidden_units_counts_what_competes(hidden: toytf.Run) -> None:
    for width in (6, 12):
        p = hidden.table.query(f"metric == 'capacity/trained_mlp_d6_m{width}'")["value"]
        load = hidden.table.query(f"metric == 'hidden_load/trained_mlp_d6_m{width}'")
        assert load["value"].tolist() == pytest.approx([n * math.log(n) / (6 * width) for n in p])
        assert load["theory"].tolist() == pytest.approx([theory.HIDDEN_LOAD] * 2)


def test_the_line_of_others_is_for_their_criterion_and_single_inputs() -> None:
    case = CapacityCase("trained_mlp", 16, 64)
    own = {"rules": ["trained_mlp"], "dimensions": [16], "widths": [64]}
    assert predicted_capacity(config(**own, criterion=0.99), case) == pytest.approx(theory.mlp_capacity(16, 16, 64))
    fixed = predicted_capacity(config(**own, criterion=0.99, data={"n_answers": 32}), case)
    assert fixed == pytest.approx(0.83 * 16 * 64, rel=0.01)
    assert predicted_capacity(config(**own, criterion=0.9), case) is None
    assert predicted_capacity(config(**own, criterion=0.99, data={"inputs": 2}), case) is None


def test_bits_of_weights_are_at_least_those_of_answers(hidden: toytf.Run) -> None:
    table = hidden.table
    precision, used = (table[table["group"] == group] for group in ("precision", "bits_used"))
    assert len(precision) == len(used) == 8  # two sizes, two ratios, two seeds
    assert (precision["value"] >= precision["theory"]).all()
    assert used["value"].between(0, 1).all()
    n = int(table.query("metric == 'capacity/trained_mlp_d4_m4/feasible' and seed == 0")["value"].iloc[0])
    bound = theory.bits_to_store(n, n, error=0.01, injective=True) / 32
    at = precision.query("d == 4 and width == 4 and seed == 0")
    assert at["theory"].iloc[0] == pytest.approx(bound)


def test_sizes_and_widths_are_drawn_as_one_curve_with_the_lines_to_compare(hidden: toytf.Run) -> None:
    figures = dict(Capacity(hidden.config).figures(hidden))
    names = [trace.name for trace in figures["capacity_by_weights"].data]
    assert names[:2] == ["trained_mlp, m/d = 1", "trained_mlp, m/d = 2"]
    assert [trace.x for trace in figures["capacity_by_weights"].data[:2]] == [(16.0, 36.0), (32.0, 72.0)]
    line = next(trace for trace in figures["capacity_by_weights"].data if "2.86" in trace.name)
    assert [p * math.log(p) for p in line.y] == pytest.approx([2.86 * x for x in line.x])
    assert sum("information bound" in name for name in names) == 2  # of the rounded weights, and of float32


# --- what many cases say together


def stored(load: Callable[[int, int], float], n_answers: int | None) -> pd.DataFrame:
    """Capacities with a given load p log V / (m d)."""
    rows = []
    for d in (8, 16, 32):
        for m in (d, 2 * d, 4 * d):
            value = load(d, m) * m * d
            p = value / math.log(n_answers) if n_answers else theory.asymptotic_capacity(1, 1, constant=value)
            rows.append({"rule": "trained_mlp", "d": d, "width": m, "value": p, "side": d, "weights": 2 * m * d})
    return pd.DataFrame(rows).assign(theory=math.nan)


@pytest.mark.parametrize("n_answers", [None, 32])
def test_bits_proportional_to_weights_have_the_exponent_1(n_answers: int | None) -> None:
    found = {one.flat: one.value for one in exponents(stored(lambda d, m: 2.86, n_answers), n_answers)}
    assert found["bits_exponent/trained_mlp"] == pytest.approx(1)
    assert found["bits_exponent/trained_mlp/error"] == pytest.approx(0, abs=1e-6)
    # N ln N ∝ x means d ln N / d ln x = 1 / (1 + 1/ln N), which is .80 to .88 for 53 to 1500 pairs.
    expected = (1, 1) if n_answers else (0.8, 0.88)
    assert expected[0] - 1e-9 <= found["weights_exponent/trained_mlp"] <= expected[1] + 1e-9


def test_a_collapse_is_the_relative_spread_over_widths() -> None:
    """Loads 2, 3, 4 at m/d = 1, 2, 4 have the mean 3 and the standard deviation 1; all nine, √(6/8)."""
    loads = stored(lambda d, m: 1.0, 32).assign(value=[2.0, 3.0, 4.0] * 3)
    found = {one.flat: one.value for one in collapse(loads)}
    assert found == pytest.approx(
        {**{f"collapse/trained_mlp_d{d}": 1 / 3 for d in (8, 16, 32)}, "collapse/trained_mlp": math.sqrt(6 / 8) / 3}
    )


def test_one_width_is_no_curve_to_collapse() -> None:
    assert [*collapse(stored(lambda d, m: 1.0, 32).query("width == d"))] == []


# --- keys of two inputs


def test_sums_of_two_inputs_are_searched_like_other_keys(run_quietly: Run) -> None:
    run = run_quietly(experiment="capacity", **{**MLP, "data": {"inputs": 2, "n_answers": 8}, "seeds": [0]})
    assert run.summary["capacity/trained_mlp_d6_m12"] > run.summary["capacity/trained_mlp_d4_m4"] > 4
    assert "theory/capacity/trained_mlp_d6_m12" not in run.summary
    p = run.summary["capacity/trained_mlp_d6_m12"]
    assert run.summary["hidden_load/trained_mlp_d6_m12"] == pytest.approx(p * math.log(8) / 72)
