"""The table of a run: how a number is shown, what stands beside it, and in which order."""

import pytest

from toytf.report.table import (
    BACKGROUND,
    GROUPS,
    REFERENCES,
    columns,
    group_and_test,
    is_variant,
    number,
    summary_table,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0.000"),
        (1.0, "1.000"),
        (0.12345, "0.123"),
        (-0.5, "-0.500"),
        (5e-4, "0.001"),
        (4.9e-4, "4.9e-04"),
        (2.2e-16, "2.2e-16"),
        (-1e-9, "-1.0e-09"),
        (99.9994, "99.999"),
        (100.0, "100.0"),
        (563.34, "563.3"),
        (-1234.56, "-1234.6"),
    ],
)
def test_a_number_has_three_decimals_fewer_if_large_and_a_power_of_ten_if_tiny(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_sizes_are_in_the_order_of_numbers() -> None:
    summary = {f"capacity/optimum_d{d}": 1.0 for d in (128, 16, 8)} | {"capacity/hebbian_d64": 1.0}
    (rows,) = summary_table(summary).values()
    names = [row.cells()[0] for row in rows]
    assert names == ["hebbian_d64", "optimum_d8", "optimum_d16", "optimum_d128"]


def test_widths_are_in_the_order_of_numbers_within_a_size() -> None:
    summary = {f"capacity/low_rank_d{d}_m{m}": 1.0 for d in (32, 8) for m in (16, 4)}
    (rows,) = summary_table(summary).values()
    names = [row.cells()[0] for row in rows]
    assert names == ["low_rank_d8_m4", "low_rank_d8_m16", "low_rank_d32_m4", "low_rank_d32_m16"]


@pytest.mark.parametrize(
    ("references", "shown"),
    [
        ({}, ()),
        ({"theory/capacity/a": 2.0}, ("theory",)),
        ({"chance/capacity/a": 0.1, "ideal/capacity/a": 1.0}, ("ideal", "chance")),
        ({"chance/capacity/a": 0.1, "theory/capacity/a": 2.0, "ideal/capacity/a": 1.0}, REFERENCES),
    ],
)
def test_a_column_is_shown_if_there_is_something_in_it(references: dict[str, float], shown: tuple[str, ...]) -> None:
    summary = {"capacity/a": 3.0, "capacity/b": 4.0, **references}
    assert columns(summary) == shown
    (rows,) = summary_table(summary).values()
    assert [row.cells() for row in rows] == [
        ("a", "3.000", *(number(references[f"{kind}/capacity/a"]) for kind in shown)),
        ("b", "4.000", *("–" for _ in shown)),
    ]


def test_beside_the_mean_stands_the_spread_over_seeds() -> None:
    summary = {"capacity/a": 190.9, "capacity/a/std": 1.25, "theory/capacity/a": 181.8, "theory/capacity/a/std": 0.0}
    (rows,) = summary_table(summary).values()
    assert [row.cells() for row in rows] == [("a", "190.9 ± 1.250", "181.8")]


def test_the_steps_of_an_onset_are_whole() -> None:
    (rows,) = summary_table({"onset/recall/W_KQ1": 120.0, "onset/recall/W_KQ1/std": 10.4}).values()
    assert rows[0].cells()[1] == "120 ± 10"


def test_the_steps_at_half_of_the_way_are_whole() -> None:
    summary = {"halfway/eval/in_context_loss": 133.4, "halfway/eval/in_context_loss/std": 5.6}
    (rows,) = summary_table(summary).values()
    assert rows[0].cells() == ("eval/in_context_loss", "133 ± 6")


@pytest.mark.parametrize(
    ("name", "group", "test"),
    [
        ("eval/in_context_accuracy", "eval", ""),
        ("eval@clean/in_context_accuracy", "eval", "clean"),
        ("truncated@no_noise/blocks.1.mlp.W_out_rho0/loss", "truncated", "no_noise"),
        ("floor@clean/in_context_accuracy/repeat", "floor", "clean"),
        ("ideal/eval@clean/in_context_accuracy", "ideal", ""),  # shown beside the metric, whichever test it is of
        ("halfway/eval@clean/in_context_accuracy", "halfway", ""),
    ],
)
def test_the_test_of_a_metric_stands_behind_its_group(name: str, group: str, test: str) -> None:
    assert group_and_test(name) == (group, test)


def test_a_test_has_tables_of_its_own_with_references_of_its_own() -> None:
    summary = {
        "eval/in_context_accuracy": 0.4,
        "ideal/eval/in_context_accuracy": 0.5,
        "eval@clean/in_context_accuracy": 0.8,
        "eval@clean/in_context_accuracy/std": 0.1,
        "ideal/eval@clean/in_context_accuracy": 1.0,
        "zebra@clean/a": 2.0,
    }
    table = summary_table(summary)
    shown = {title: [row.cells() for row in rows] for title, rows in table.items()}
    assert shown == {
        GROUPS["eval"]: [("in_context_accuracy", "0.400", "0.500")],
        f"{GROUPS['eval']} (clean)": [("in_context_accuracy", "0.800 ± 0.100", "1.000")],
        "zebra (clean)": [("a", "2.000", "–")],
    }


def test_groups_come_in_the_order_of_their_titles_and_an_unknown_one_last() -> None:
    summary = {"zebra/a": 1.0, "margin/a": 1.0, "capacity/a": 1.0, "recall/a": 1.0, "train/loss": 1.0}
    titles = list(summary_table(summary))
    assert titles == [GROUPS["recall"], GROUPS["capacity"], GROUPS["margin"], "zebra"]
    assert "train" in BACKGROUND


def test_the_ends_of_a_search_are_variants_of_the_capacity() -> None:
    assert is_variant("capacity/optimum_d8/feasible")
    assert not is_variant("capacity/optimum_d8")
    assert not is_variant("onset/recall/W_KQ1")
    assert not is_variant("floor/in_context_accuracy/most_frequent")
    assert not is_variant("floor@clean/in_context_accuracy/most_frequent")
    assert not is_variant("eval@clean/in_context_accuracy")
    assert is_variant("truncated@clean/blocks.1.mlp.W_out_rho0/loss")


def test_the_steps_at_half_of_the_way_are_left_to_the_full_table() -> None:
    assert is_variant("halfway/eval/in_context_accuracy")
    assert is_variant("halfway/eval@clean/in_context_accuracy")
