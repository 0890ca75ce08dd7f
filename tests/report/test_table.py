"""The table of a run: how a number is shown, what stands beside it, and in which order."""

import pytest

from toytf.measurement import KINDS, Group, Measurement, as_row
from toytf.report.table import TableSection, columns, number, summary_table
from toytf.task import EVAL, FLOOR

CAPACITY = Group("capacity", "Associations stored", variants=("end",))
RECALL = Group("recall", "Recall", "It should rise.", unit="fraction", timed="onset")


def table(*measured: Measurement, variants: bool = True, **more: float) -> list[TableSection]:
    """The table of measurements, and of further entries of a summary."""
    known = {one.flat: one.quantity for one in measured}
    return summary_table({**dict(sorted(as_row(measured).items())), **more}, known, variants=variants)


def names(section: TableSection) -> list[str]:
    return [row.cells()[0] for row in section.rows]


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


def test_sizes_and_widths_are_in_the_order_of_numbers() -> None:
    at = [(rule, d, m) for rule in ("optimum", "low_rank") for d in (128, 16, 8) for m in (16, 4)]
    (section,) = table(*(CAPACITY.measurement(1.0, rule=rule, d=d, width=m) for rule, d, m in at))
    assert names(section)[:4] == [f"capacity/low_rank_{size}" for size in ("d8_m4", "d8_m16", "d16_m4", "d16_m16")]
    assert names(section)[-1] == "capacity/optimum_d128_m16"


@pytest.mark.parametrize(
    ("references", "shown"),
    [
        ({}, ()),
        ({"theory": 2.0}, ("theory",)),
        ({"chance": 0.1, "ideal": 1.0}, ("ideal", "chance")),
        ({"chance": 0.1, "theory": 2.0, "ideal": 1.0}, ("ideal", "theory", "chance")),
        (dict.fromkeys(KINDS, 1.0), KINDS),
    ],
)
def test_a_column_is_shown_if_there_is_something_in_it(references: dict[str, float], shown: tuple[str, ...]) -> None:
    measured = [CAPACITY.measurement(3.0, "a", **references), CAPACITY.measurement(4.0, "b")]
    assert columns(as_row(measured)) == shown
    (section,) = table(*measured)
    assert [row.cells() for row in section.rows] == [
        ("capacity/a", "3.000", *(number(references[kind]) for kind in shown)),
        ("capacity/b", "4.000", *("–" for _ in shown)),
    ]


def test_beside_the_mean_stands_the_spread_over_seeds() -> None:
    spreads = {"capacity/a/std": 1.25, "theory/capacity/a/std": 0.0}
    (section,) = table(CAPACITY.measurement(190.9, "a", theory=181.8), **spreads)
    assert [row.cells() for row in section.rows] == [("capacity/a", "190.9 ± 1.250", "181.8")]


def test_groups_are_shown_as_whoever_measures_declares_them() -> None:
    samples, signal = Group("samples", "Samples", format="whole"), Group("signal", "Signals", format="power")
    sections = table(samples.measurement(12.0, "a"), signal.measurement(0.25, "b"), RECALL.measurement(0.5, "c"))
    assert [(part.heading, part.rows[0].cells()[1]) for part in sections] == [
        ("Samples", "12"),
        ("Signals", "2.5e-01"),
        ("Recall (fraction)", "0.500"),
    ]
    assert sections[2].group.says == "It should rise."


def test_steps_are_whole_and_those_at_half_of_the_way_are_left_to_the_full_table() -> None:
    measured = (RECALL.measurement(1.0, "W_KQ1"), EVAL.measurement(2.0, role="in_context", quantity="loss"))
    steps = {"onset/recall/W_KQ1": 120.0, "onset/recall/W_KQ1/std": 10.4, "halfway/eval/in_context_loss": 133.4}
    full, short = (table(*measured, variants=variants, **steps) for variants in (True, False))
    cells = {part.group.name: part.rows[0].cells()[:2] for part in full}
    assert cells["onset"] == ("onset/recall/W_KQ1", "120 ± 10")
    assert cells["halfway"] == ("halfway/eval/in_context_loss", "133")
    assert [part.group.name for part in short] == ["recall", "eval", "onset"]


def test_a_test_has_tables_of_its_own_with_references_of_its_own() -> None:
    at = {"role": "in_context", "quantity": "accuracy"}
    measured = [
        EVAL.measurement(0.4, ideal=0.5, **at),
        EVAL.measurement(0.8, ideal=1.0, **at).evaluated_on("clean"),
        RECALL.measurement(2.0, "a").evaluated_on("clean"),
    ]
    shown = {part.heading: [row.cells() for row in part.rows] for part in table(*measured)}
    assert shown == {
        EVAL.title: [("eval/in_context_accuracy", "0.400", "0.500")],
        f"{EVAL.title} (clean)": [("eval@clean/in_context_accuracy", "0.800", "1.000")],
        "Recall (fraction) (clean)": [("recall@clean/a", "2.000", "–")],
    }


def test_groups_come_as_they_were_measured_but_for_those_that_ask_to_be_last_or_only_logged() -> None:
    floor = FLOOR.measurement(0.3, role="all", quantity="accuracy", heuristic="repeat")
    logged = Group("train", "Training", place="log").measurement(1.0, "loss")
    sections = table(floor, logged, RECALL.measurement(1.0, "a"), CAPACITY.measurement(1.0, "b"))
    assert [part.group.name for part in sections] == ["recall", "capacity", "floor"]


def test_a_metric_of_which_nothing_is_known_is_shown_by_its_name() -> None:
    (section,) = summary_table({"zebra@clean/a": 2.0}, {})
    assert (section.heading, section.on, names(section)) == ("zebra (clean)", "clean", ["zebra@clean/a"])


def test_variants_are_left_to_the_full_table_unless_their_group_says_otherwise() -> None:
    measured = [
        CAPACITY.measurement(8.0, rule="optimum", d=8),
        CAPACITY.measurement(7.0, rule="optimum", d=8, end="feasible"),
        FLOOR.measurement(0.3, role="all", quantity="accuracy", heuristic="repeat"),
    ]
    full, short = (table(*measured, variants=variants) for variants in (True, False))
    assert [names(part) for part in full] == [
        ["capacity/optimum_d8", "capacity/optimum_d8/feasible"],
        ["floor/all_accuracy/repeat"],
    ]
    assert [names(part) for part in short] == [["capacity/optimum_d8"], ["floor/all_accuracy/repeat"]]
