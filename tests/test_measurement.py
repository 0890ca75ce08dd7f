"""A measurement is a record, and its flat name only how it is written down."""

import json
import subprocess
import sys

import pandas as pd
import pytest

from toytf.errors import UserError
from toytf.fits import log_slope, power_law
from toytf.measurement import Group, Measurement, Quantity, Reference, as_row, flat, from_json, quantity_of, to_json
from toytf.tidy import last_of_each, over_seeds, tidy

STORED = Group("capacity", "Associations stored", variants=("end",))
RECALL = Group("recall", "Recall", variants=("head",))


@pytest.mark.parametrize(
    ("measured", "name"),
    [
        (STORED.measurement(1.0, rule="optimum", d=64), "capacity/optimum_d64"),
        (STORED.measurement(1.0, rule="low_rank", d="48x32", width=16), "capacity/low_rank_d48x32_m16"),
        (STORED.measurement(1.0, rule="low_rank", d=8, width=None), "capacity/low_rank_d8"),
        (STORED.measurement(1.0, rule="optimum", d=64, end="feasible"), "capacity/optimum_d64/feasible"),
        (STORED.measurement(1.0, d=32, alpha=1.0, beta=0.5), "capacity/d32_a1_b0.5"),
        (STORED.measurement(1.0, "FF", alpha=1e-05, n_tokens=128), "capacity/FF_a1e-05_N128"),
        (STORED.measurement(1.0, "x", lr=0.1, kind="sgd"), "capacity/x_lr0.1_sgd"),  # factors of somebody else
        (RECALL.measurement(1.0, memory="W_OV2", head=0), "recall/W_OV2/head0"),
        (RECALL.measurement(1.0, memory="W_KQ1", weighted=True), "recall/W_KQ1_weighted"),
        (RECALL.measurement(1.0, memory="W_KQ1", weighted=False), "recall/W_KQ1"),
        (RECALL.measurement(1.0, "W_OV2", head=0).evaluated_on("clean"), "recall@clean/W_OV2/head0"),
        (RECALL.measurement(1.0), "recall"),
    ],
)
def test_flat_names(measured: Measurement, name: str) -> None:
    assert measured.flat == flat(measured.quantity) == name


def test_factors_of_a_case_come_before_those_of_the_measurement_and_some_go_without_saying() -> None:
    measured = STORED.measurement(1.0, measure="min").placed({"rule": "hebbian", "samples": 64}, plain=("samples",))
    assert measured.flat == "capacity/hebbian_min"
    assert measured.quantity.at == {"rule": "hebbian", "samples": 64, "measure": "min"}
    assert not measured.quantity.is_variant


def test_a_row_has_values_and_what_they_can_be_read_against() -> None:
    measured = [
        RECALL.measurement(0.5, "a", ideal=1.0, chance=0.0),
        RECALL.measurement(None, "b", theory=3.0),  # what did not come has its theory all the same
        RECALL.measurement(2.0, "c"),
    ]
    references = {"ideal/recall/a": 1.0, "chance/recall/a": 0.0, "theory/recall/b": 3.0}
    assert as_row(measured) == {"recall/a": 0.5, "recall/c": 2.0, **references}
    assert as_row(measured, references=False) == {"recall/a": 0.5, "recall/c": 2.0}


def test_numbers_of_numpy_and_pandas_become_those_of_python() -> None:
    column = pd.Series([4, None], dtype="Int64")
    measured = STORED.measurement(pd.Series([1.5])[0], d=column[0], alpha=pd.Series([0.5])[0])
    assert json.dumps([measured.value, dict(measured.quantity.at)]) == '[1.5, {"d": 4, "alpha": 0.5}]'
    assert measured.flat == "capacity/d4_a0.5"


@pytest.mark.parametrize("taken", ["seed", "step", "group", "name", "metric", "variant", "value", "theory", "spread"])
def test_a_factor_cannot_be_called_as_a_column_of_every_table(taken: str) -> None:
    with pytest.raises(UserError, match=f"cannot be called {taken}"):
        Quantity(RECALL, at={taken: 1})


@pytest.mark.parametrize("name", ["", "seed", "step", "theory", "ideal", "chance", "a/b", "a@b"])
def test_a_group_has_a_name_of_its_own(name: str) -> None:
    with pytest.raises(UserError, match="a group cannot be called"):
        Group(name, "Title")


def test_two_measurements_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="capacity/optimum is measured twice"):
        as_row([STORED.measurement(1.0, "optimum"), STORED.measurement(2.0, rule="optimum")])


def test_a_factor_cannot_be_given_twice() -> None:
    with pytest.raises(UserError, match="already has a factor d"):
        STORED.measurement(1.0, d=4).placed({"d": 5})


def test_quantities_survive_their_file() -> None:
    other = Group("recall", "Another title", "What to look for.", "nats", "whole", "last", False, ("a",), True, "onset")
    measured = [
        STORED.measurement(1.0, rule="optimum", d=64, end="feasible"),
        RECALL.measurement(1.0, "a", weighted=True).evaluated_on("clean"),
        other.measurement(1.0, "b", alpha=0.5).placed({"samples": 3}, plain=("samples",)),
    ]
    quantities = {one.flat: one.quantity for one in measured}
    assert from_json(json.loads(json.dumps(to_json(quantities)))) == quantities


@pytest.mark.parametrize("content", [None, [], {}, {"groups": [], "metrics": {"a": [0, "", {}, []]}}, {"groups": [{}]}])
def test_what_is_no_file_of_quantities_is_refused(content: object) -> None:
    with pytest.raises((TypeError, KeyError, ValueError, IndexError)):
        from_json(content)


def test_of_an_unknown_metric_its_group_and_test_are_known() -> None:
    loss = quantity_of("eval@clean/a_loss")
    assert (loss.group.name, loss.on) == ("eval", "clean")
    for name in ("eval@clean/a_loss", "truncated/W/loss", "recall/W_OV2/head0", "coincidence", "floor@clean/a_loss/b"):
        assert flat(quantity_of(name)) == name


def test_measuring_needs_no_torch() -> None:
    code = "import sys, toytf.measurement, toytf.tidy; assert not {'torch', 'pandas', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# The tidy table


def rows_of(*seeds: list[tuple[int, list[Measurement]]]) -> tuple[list[dict[str, float | int]], dict[str, Quantity]]:
    rows = [
        {"seed": seed, "step": step, **as_row(measured, references=i == len(given) - 1)}
        for seed, given in enumerate(seeds)
        for i, (step, measured) in enumerate(given)
    ]
    return rows, {one.flat: one.quantity for given in seeds for _, measured in given for one in measured}


def test_the_table_has_factors_and_references_as_columns() -> None:
    def at(step: int, value: float) -> tuple[int, list[Measurement]]:
        return step, [
            STORED.measurement(value, rule="optimum", d=8, theory=4.0),
            STORED.measurement(value + 1, rule="low_rank", d=8, width=2),
            STORED.measurement(value - 1, rule="optimum", d=8, end="feasible"),
        ]

    table = tidy(*rows_of([at(0, 1.0), at(5, 2.0)], [at(0, 3.0), at(5, 6.0)]))
    assert len(table) == 12
    optimum = table[(table["rule"] == "optimum") & ~table["variant"]]
    assert optimum[["seed", "step", "value", "theory"]].values.tolist() == [
        [0, 0, 1.0, 4.0],  # written with the last row only
        [0, 5, 2.0, 4.0],
        [1, 0, 3.0, 4.0],
        [1, 5, 6.0, 4.0],
    ]
    assert table["width"].dropna().unique().tolist() == [2]
    assert table["width"].dtype == "Int64"
    assert len(last_of_each(table)) == 6
    means = over_seeds(table).set_index("metric")
    assert means.loc["capacity/optimum_d8", ["value", "theory"]].tolist() == [4.0, 4.0]
    assert means.loc["capacity/optimum_d8", "spread"] == pytest.approx(8**0.5)


def test_a_metric_that_some_seed_lacks_has_no_mean() -> None:
    both, one = RECALL.measurement(1.0, "a"), RECALL.measurement(1.0, "b")
    table = tidy(*rows_of([(0, [both, one])], [(0, [both])]))
    assert over_seeds(table)["metric"].tolist() == ["recall/a"]


def test_a_row_with_references_of_its_own_keeps_them() -> None:
    steps = [(step, [RECALL.measurement(0.5, "a", chance=chance)]) for step, chance in ((0, 0.1), (5, 0.2))]
    measured = [found for _, found in steps]
    rows = [{"seed": 0, "step": step, **as_row(found)} for step, found in steps]
    table = tidy(rows, {one.flat: one.quantity for found in measured for one in found})
    assert table["chance"].tolist() == [0.1, 0.2]


def test_what_is_not_said_to_be_so_is_not_so() -> None:
    measured = [RECALL.measurement(0.5, memory="W"), RECALL.measurement(0.7, memory="W", weighted=True)]
    table = tidy(*rows_of([(0, measured)]))
    assert table[~table["weighted"]]["value"].tolist() == [0.5]


# Fits


def test_the_power_of_points_on_a_power_law_is_exact_and_has_no_error() -> None:
    x = [8, 16, 64]
    slope = log_slope(x, [3.0 * value**1.7 for value in x])
    assert slope is not None
    assert slope.value == pytest.approx(1.7)
    assert slope.error == pytest.approx(0, abs=1e-7)


def test_the_error_of_a_slope_is_that_of_linear_regression() -> None:
    import numpy as np
    from scipy.stats import linregress

    x, y = [2.0, 3.0, 5.0, 9.0], [1.0, 2.2, 2.9, 8.0]
    slope, known = log_slope(x, y), linregress(np.log(x), np.log(y))
    assert slope is not None
    assert (slope.value, slope.error) == pytest.approx((known.slope, known.stderr))


@pytest.mark.parametrize(
    ("x", "y"), [([2.0], [1.0]), ([2.0, 2.0], [1.0, 3.0]), ([2.0, 4.0], [0.0, 1.0]), ([0.0, 1.0], [1.0, 2.0])]
)
def test_no_line_through_one_point_or_zero(x: list[float], y: list[float]) -> None:
    assert log_slope(x, y) is None


def test_two_points_have_a_slope_and_no_error() -> None:
    slope = log_slope([2.0, 4.0], [3.0, 6.0])
    assert slope is not None
    assert (slope.value, slope.error) == (pytest.approx(1.0), None)


def test_a_power_law_is_fitted_for_each_value_of_the_other_factors() -> None:
    exponent = Group("exponent", "Grows like d to the power of", variants=("error",))
    measured = [
        STORED.measurement(d**power, rule=rule, d=d, width=width, theory=float(d**2))
        for rule, width, power in (("optimum", None, 2.0), ("low_rank", 4, 1.0))
        for d in (4, 8, 16)
    ]
    table = tidy(*rows_of([(0, measured)]))
    found = as_row(power_law(table, exponent, x="d", by=["rule", "width"]))
    assert found == pytest.approx(
        {
            "exponent/optimum": 2.0, "theory/exponent/optimum": 2.0, "exponent/optimum/error": 0.0,
            "exponent/low_rank_m4": 1.0, "theory/exponent/low_rank_m4": 2.0, "exponent/low_rank_m4/error": 0.0,
        },
        abs=1e-7,
    )  # fmt: skip
    assert not list(power_law(table, exponent, x="d", by=["rule"], points=4))


def test_a_reference_has_what_it_is_given() -> None:
    assert RECALL.measurement(1.0, ideal=1.0, chance=0.1, theory=0.9).reference == Reference(1.0, 0.1, 0.9)
