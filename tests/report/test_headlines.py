"""The short table: at most twelve rows, chosen by those who measure, each with a phrase before its name."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toytf.errors import UserError
from toytf.measurement import Group, Headline, Measurement, as_row, from_json, to_json
from toytf.report.headlines import ROWS, ShortTable, headline_of, short_table

WHERE = Group(
    "attention", "Where it attends", variants=("head",),
    headline=(Headline("induction", "layer 2 finds the output"), Headline("previous", "layer 1 looks back", 1)),
)  # fmt: skip
STORED = Group("stored", "Pairs stored", headline=(Headline("*", "pairs that {rule} stores at d = {d}"),))
SILENT = Group("silent", "Not shown", headline=())
STRANGE = Group("strange", "A stranger's numbers")


def short(*measured: Measurement, **more: float) -> ShortTable:
    """The short table of measurements, and of further entries of a summary."""
    return short_table({**as_row(measured), **more}, {one.flat: one.quantity for one in measured})


def phrases(table: ShortTable) -> list[str]:
    return [phrase for phrase, _ in table.rows]


def names(table: ShortTable) -> list[str]:
    return [cells[-1] for cells in table.cells()]


def test_a_row_says_what_it_is_and_then_its_name_as_in_the_summary() -> None:
    table = short(WHERE.measurement(0.5, "induction", ideal=1.0))
    assert [*table.cells()] == [("layer 2 finds the output", "0.500", "1.000", "attention/induction")]


def test_rows_come_as_declared_and_nothing_else_of_the_group() -> None:
    table = short(*(WHERE.measurement(0.5, name) for name in ("previous", "other", "induction")))
    assert names(table) == ["attention/induction", "attention/previous"]
    assert table.others == 1


def test_a_phrase_names_the_factors_of_its_metric_and_passes_over_metrics_without_them() -> None:
    table = short(STORED.measurement(5.0, rule="hebbian", d=8), STORED.measurement(5.0, "other", rule="hebbian"))
    assert phrases(table) == ["pairs that hebbian stores at d = 8"]


def test_a_whole_number_is_written_in_full_and_a_format_is_obeyed() -> None:
    group = Group("g", "", headline=(Headline("*", "{n} at {a} or {a:.2f}, {rule}"),))
    table = short(group.measurement(1.0, n=2**20, a=0.5, rule="hebbian"))
    assert phrases(table) == ["1048576 at 0.5 or 0.50, hebbian"]
    assert phrases(short(STRANGE.measurement(1.0, n=2**20))) == ["A stranger's numbers (n = 1048576)"]


@pytest.mark.parametrize("phrase", ["lone {", "lone }", "{}", "{0}", "{d.real}", "{d[0]}"])
def test_a_phrase_that_cannot_be_filled_in_is_refused_before_anything_is_measured(phrase: str) -> None:
    with pytest.raises(UserError, match=re.escape(f'the phrase "{phrase}" of a headline')):
        Group("g", "", headline=(Headline("*", phrase),))


@pytest.mark.parametrize("phrase", ["at {dd}", "{rule:.1f}"])
def test_a_phrase_with_a_wrong_factor_or_format_leaves_the_row_under_its_title(phrase: str) -> None:
    group = Group("g", "Title", headline=(Headline("*", phrase),))
    assert phrases(short(group.measurement(1.0, rule="hebbian", d=8))) == ["Title (hebbian, d = 8)"]


def test_the_short_table_and_others_ask_alike_which_headline_a_metric_has() -> None:
    group = Group("g", "", variants=("head",), headline=(Headline("W_*", "a matrix"), Headline("b", "b at {d}")))
    shown, *hidden = (
        group.measurement(1.0, "W_OV2"), group.measurement(1.0, "a"), group.measurement(1.0, "W_OV2", head=0)
    )  # fmt: skip
    assert headline_of(shown.quantity) == Headline("W_*", "a matrix")
    assert [headline_of(one.quantity) for one in hidden] == [None, None]


def test_the_first_headline_that_fits_a_metric_has_it() -> None:
    wide = Group("stored", "", headline=(Headline("*", "width {width}"), Headline("*", "no width, d = {d}")))
    table = short(wide.measurement(1.0, d=8, width=2), wide.measurement(1.0, d=4))
    assert phrases(table) == ["width 2", "no width, d = 4"]


def test_a_variant_is_shown_only_if_it_is_named() -> None:
    anything = Group("a", "", variants=("head",), headline=(Headline("*", "any"), Headline("x/head1", "head 1 of x")))
    table = short(*(anything.measurement(1.0, "x", head=head) for head in (None, 0, 1)))
    assert dict(zip(names(table), phrases(table), strict=True)) == {"a/x": "any", "a/x/head1": "head 1 of x"}


def test_a_group_that_declares_nothing_shows_its_metrics_under_its_title() -> None:
    table = short(
        STRANGE.measurement(1.0, "a"), STRANGE.measurement(2.0, "b", rule="{odd", d=64), SILENT.measurement(3.0)
    )
    assert phrases(table) == ["A stranger's numbers (a)", "A stranger's numbers (b, {odd, d = 64)"]


def test_a_metric_of_which_only_the_name_is_known_is_shown_by_it() -> None:
    table = short_table({"zebra/a": 2.0}, {})
    assert [*table.cells()] == [("zebra (a)", "2.000", "zebra/a")]


def test_what_was_evaluated_on_something_else_says_so_and_comes_last() -> None:
    measured = WHERE.measurement(0.5, "induction")
    table = short(measured.evaluated_on("clean"), measured)
    assert phrases(table) == ["layer 2 finds the output", "layer 2 finds the output (on clean)"]


def test_declared_rows_push_out_those_that_are_not() -> None:
    many = Group("many", "", headline=(Headline("*", "{name_of}"),))
    declared = [many.measurement(1.0, f"x{i}", name_of=f"word{i}") for i in range(ROWS)]
    assert all(name.startswith("many/") for name in names(short(STRANGE.measurement(1.0, "a"), *declared)))


def test_of_many_sizes_the_largest_are_shown_for_every_rule_alike() -> None:
    table = short(*(STORED.measurement(1.0, rule=rule, d=d) for rule in "abcde" for d in (8, 16, 32, 64)))
    assert names(table) == [f"stored/{rule}_d{d}" for rule in "abcde" for d in (32, 64)]  # three sizes would be 15 rows
    decimals = short(*(STRANGE.measurement(1.0, alpha=alpha) for alpha in (1.0, 0.5, 0.125, 0.0625)))
    assert names(decimals) == [f"strange/a{alpha}" for alpha in ("0.0625", "0.125", "0.5", "1")]


def test_no_column_is_empty() -> None:
    shown, hidden = WHERE.measurement(0.5, "induction", theory=0.4), SILENT.measurement(1.0, "x", ideal=1.0)
    assert short(shown, hidden).columns == ("theory",)


def test_the_spread_over_seeds_stands_beside_the_mean() -> None:
    table = short(WHERE.measurement(0.996, "induction"), **{"attention/induction/std": 4e-4})
    assert [*table.cells()] == [("layer 2 finds the output", "0.996 ± 0.000", "attention/induction")]


def test_headlines_are_kept_with_the_run() -> None:
    known = {
        one.flat: one.quantity
        for one in (WHERE.measurement(1.0, "induction"), SILENT.measurement(1.0), STRANGE.measurement(1.0))
    }
    assert from_json(to_json(known)) == known


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 30), st.sampled_from(["", "clean"])),
        unique=True,
        max_size=60,
    )
)
def test_there_are_never_more_than_twelve_rows_and_every_metric_is_counted_once(
    metrics: list[tuple[str, int, int, str]],
) -> None:
    groups = {
        "a": Group("a", "", headline=(Headline("n0*", "first"), Headline("*", "rest of {d}", 1))),
        "b": Group("b", "", headline=tuple(Headline(f"n{i}_d*", f"rank {i}", i) for i in range(4))),
        "c": Group("c", "Title"),
    }
    measured = [groups[group].measurement(1.0, f"n{name}", d=d) for group, name, d, _ in metrics]
    placed = [one.evaluated_on(on) if on else one for one, (*_, on) in zip(measured, metrics, strict=True)]
    table = short(*placed)
    assert len(table.rows) == len(set(names(table))) <= ROWS
    assert len(table.rows) + table.others == len(metrics)
    assert not metrics or table.rows


def test_a_metric_that_nobody_described_is_left_out_of_a_group_of_its_name() -> None:
    table = short(WHERE.measurement(0.5, "induction"), **{"attention/stray": 1.0})
    assert (names(table), table.others) == (["attention/induction"], 1)
