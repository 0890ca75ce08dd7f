"""Figures from plain arrays."""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from toytf.curves import curves, overlaid
from toytf.figures import (
    COLOURS,
    LONGEST_LABEL,
    LONGEST_TICK,
    Series,
    attention_map,
    group_figures,
    heat_maps,
    lines,
    literal,
    scaling_curves,
)
from toytf.measurement import Group, as_row
from toytf.tidy import tidy

NAMES = ["a", "b", "c"]


def test_heat_maps_have_a_panel_each_with_a_scale_symmetric_about_zero() -> None:
    panels = {
        "one": (np.array([[1.0, -4.0, 0.0]]), ["row"], NAMES),
        "two": (np.array([[0.5], [np.nan], [0.25]]), NAMES, ["column"]),
        "three": (np.zeros((1, 1)), ["row"], ["column"]),
    }
    figure = heat_maps(panels, "title", x="key", y="query")
    assert [annotation.text for annotation in figure.layout.annotations] == list(panels)
    assert [(heat.zmin, heat.zmax) for heat in figure.data] == [(-4, 4), (-0.5, 0.5), (0, 0)]
    assert [list(row) for row in figure.data[0].customdata] == [["row, a", "row, b", "row, c"]]
    assert list(figure.layout.xaxis.ticktext) == NAMES
    assert figure.layout.yaxis.autorange == "reversed"  # the first row is on top, as in a matrix
    assert figure.layout.yaxis.title.text == "query"
    assert figure.layout.xaxis3.title.text == "key"


@pytest.mark.parametrize(("columns", "rows"), [(1, 3), (2, 2), (9, 1)])
def test_heat_maps_fill_rows_of_so_many_columns(columns: int, rows: int) -> None:
    panels = {str(i): (np.eye(3), NAMES, NAMES) for i in range(3)}
    figure = heat_maps(panels, "title", columns=columns)
    assert len({tuple(figure.layout[f"yaxis{i or ''}"].domain) for i in ("", 2, 3)}) == rows


def test_a_large_heat_map_has_a_name_for_some_ticks_and_a_hover_for_every_cell() -> None:
    names = [str(i) for i in range(100)]
    figure = heat_maps({"large": (np.eye(100), names, names)}, "title")
    assert 10 < len(figure.layout.xaxis.ticktext) <= 32
    assert figure.data[0].customdata[99][98] == "99, 98"


def test_no_panels_is_an_empty_figure() -> None:
    assert len(heat_maps({}, "title").data) == 0


@pytest.mark.parametrize(("log_y", "axis"), [(True, "log"), (False, "linear")])
def test_fractions_have_a_linear_axis(log_y: bool, axis: str) -> None:
    series = Series([1.0, 2.0], [0.5, 1.0], [None, None], [None, None])
    figure = scaling_curves({"a": series}, "title", x="n", y="recall", guides={}, log_y=log_y)
    assert figure.layout.yaxis.type == axis


@pytest.mark.parametrize(
    ("x", "measured", "theory", "axes"),
    [
        ([1.0, 2.0], [3.0, 6.0], [None, 5.0], ("log", "log")),
        ([0.0, 2.0], [3.0, 6.0], [None, 5.0], ("linear", "log")),
        ([1.0, 2.0], [3.0, 0.0], [None, 5.0], ("log", "linear")),
        ([1.0, 2.0], [3.0, 6.0], [-1.0, 5.0], ("log", "linear")),
    ],
)
def test_an_axis_with_something_that_has_no_logarithm_is_linear(
    x: list[float], measured: list[float], theory: list[float | None], axes: tuple[str, str]
) -> None:
    curve = Series(x, measured, [None, None], theory)
    figure = scaling_curves({"a": curve}, "title", x="n", y="pairs", guides={})
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == axes
    assert list(figure.layout.xaxis.tickvals) == x  # none is missing


@pytest.mark.parametrize(
    ("x", "values", "format_", "axes"),
    [
        ([16, 32, 64], [200.0, 800.0, 3200.0], "number", ("log", "log")),  # pairs ∝ d²: a straight line
        ([0.0, 0.2, 0.4, 0.6], [500.0, 400.0, 300.0, 3.0], "number", ("linear", "linear")),
        ([0.2, 0.4, 0.6], [500.0, 300.0, 3.0], "number", ("linear", "linear")),
        ([16, 32, 64], [0.25, 0.5, 1.0], "number", ("log", "linear")),  # an accuracy
        ([16, 32, 64], [1e-2, 1e-3, 1e-4], "power", ("log", "log")),
        ([16, 32, 64], [1e-2, 1e-3, 0.0], "power", ("log", "linear")),
        ([64, 16, 32], [3200.0, 200.0, 800.0], "number", ("log", "log")),
    ],
)
def test_a_group_is_drawn_in_axes_that_show_every_point(
    x: list[float], values: list[float], format_: Any, axes: tuple[str, str]
) -> None:
    group = Group("stored", "Stored", format=format_)
    found = [group.measurement(value, at=place) for place, value in zip(x, values, strict=True)]
    table = tidy([{"seed": 0, "step": 0, **as_row(found)}], {one.flat: one.quantity for one in found})
    [(name, figure)] = group_figures(table, {one.flat: one.quantity for one in found}, ["at"])
    assert (name, figure.layout.xaxis.type, figure.layout.yaxis.type) == ("stored", *axes)
    assert list(zip(figure.data[0].x, figure.data[0].y, strict=True)) == sorted(zip(x, values, strict=True))
    assert list(figure.layout.xaxis.tickvals) == sorted(x)


def test_lines_have_a_panel_per_quantity_and_one_style_and_legend_entry_per_label() -> None:
    panels = {
        "accuracy": {"W_in": [(1.0, 0.9), (0.0, 0.1), (0.5, 0.7)], "W_out": [(0.0, 0.2)]},
        "loss": {"W_in": [(0.0, 3.0)], "W_out": [(1.0, 0.0), (0.0, 4.0)]},
    }
    figure = lines(panels, "title", x="fraction kept")
    assert [annotation.text for annotation in figure.layout.annotations] == ["accuracy", "loss"]
    assert [(trace.name, trace.yaxis) for trace in figure.data] == [
        ("W_in", "y"),
        ("W_out", "y"),
        ("W_in", "y2"),
        ("W_out", "y2"),
    ]
    assert (list(figure.data[0].x), list(figure.data[0].y)) == ([0.0, 0.5, 1.0], [0.1, 0.7, 0.9])  # from left to right
    assert [trace.showlegend for trace in figure.data] == [True, True, False, False]
    for above, below in zip(figure.data[:2], figure.data[2:], strict=True):
        assert above.line == below.line
        assert above.legendgroup == below.legendgroup  # a click hides a label in every panel
    assert figure.layout.title.text == "title"
    assert (figure.layout.xaxis.title.text or "", figure.layout.xaxis2.title.text) == ("", "fraction kept")


def test_lines_that_share_a_colour_differ_in_their_dashes() -> None:
    labels = [str(i) for i in range(len(COLOURS) + 1)]
    figure = lines({"a": {label: [(0.0, 0.0)] for label in labels}}, "title", x="x")
    assert figure.data[0].line.color == figure.data[-1].line.color
    assert figure.data[0].line.dash != figure.data[-1].line.dash


def test_no_lines_is_an_empty_figure() -> None:
    assert len(lines({}, "title", x="x").data) == 0


# Names


@pytest.mark.parametrize(
    ("name", "longest", "shown"),
    [
        ("plain", None, "plain"),
        ("<b>x</b> & co", None, "&lt;b&gt;x&lt;/b&gt; &amp; co"),
        ("\"quoted\" 'so'", None, "\"quoted\" 'so'"),  # no attribute of a tag: quotes are harmless
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abcde…"),
        ("<<<<<<<", 3, "&lt;&lt;…"),  # cut before it is escaped, so that no escape is cut
    ],
)
def test_a_name_is_shown_to_the_letter_and_cut_where_it_is_long(name: str, longest: int | None, shown: str) -> None:
    assert literal(name, longest) == shown


def test_names_in_maps_curves_and_legends_are_no_markup() -> None:
    names = ["<b>x</b>", "y" * 40]
    heat = heat_maps({"panel": (np.eye(2), names, names)}, "title")
    assert list(heat.layout.xaxis.ticktext) == ["&lt;b&gt;x&lt;/b&gt;", "y" * (LONGEST_TICK - 1) + "…"]
    assert heat.data[0].customdata[0][1] == f"&lt;b&gt;x&lt;/b&gt;, {'y' * 40}"
    seen = attention_map(np.eye(2), names, "title")
    assert seen.data[0].customdata[1][0] == f"{'y' * 40} (t=2) attends to &lt;b&gt;x&lt;/b&gt; (t=1)"
    assert list(seen.layout.yaxis.ticktext) == list(heat.layout.xaxis.ticktext)
    drawn = drawn_curves({"g/<i>": [0.1, 0.2]}, levels={"<u>": 1.0}, labels={"g/<i>": "<i>" + "z" * 80})
    label = "&lt;i&gt;" + "z" * (LONGEST_LABEL - 4) + "…"
    assert [trace.name for trace in drawn.data] == [label, "&lt;u&gt;"]
    of_runs = overlaid({"<s>": history({"m": [1.0]})}, "m")
    assert of_runs.data[0].name == "&lt;s&gt;"


def test_every_token_of_an_attention_map_has_a_tick_and_rows_are_queries_or_heads() -> None:
    tokens = [f"z{t}" for t in range(50)]
    one = attention_map(np.eye(50), tokens, "title")
    assert list(one.layout.xaxis.ticktext) == list(one.layout.yaxis.ticktext) == tokens
    assert (one.layout.xaxis.title.text, one.layout.yaxis.title.text) == ("key", "query")
    heads = attention_map(np.ones((2, 50)) / 50, tokens, "title", heads=["L0H0", "L0H1"])
    assert list(heads.layout.yaxis.ticktext) == ["L0H0", "L0H1"]
    assert heads.data[0].customdata[1][4] == "L0H1 attends to z4 (t=5)"


# Curves


def history(by_metric: dict[str, list[float]], seeds: int = 1, step: int = 10) -> pd.DataFrame:
    """Rows of so many seeds: in seed s every metric is s above that of seed 0."""
    return pd.DataFrame(
        [
            {"seed": seed, "step": step * i, **{name: values[i] + seed for name, values in by_metric.items()}}
            for seed in range(seeds)
            for i in range(len(next(iter(by_metric.values()))))
        ]
    )


def drawn_curves(by_metric: dict[str, list[float]], *, seeds: int = 1, **fields: Any) -> go.Figure:
    return curves(history(by_metric, seeds), [*by_metric], "title", **{"chance": {}, "levels": {}, **fields})


def kinds(figure: go.Figure) -> list[str]:
    return [(trace.meta or {}).get("kind", "") for trace in figure.data]


def test_one_seed_is_one_line() -> None:
    (curve,) = drawn_curves({"g/a": [0.25, 0.5, 0.75]}).data
    assert (curve.name, list(curve.x), list(curve.y)) == ("a", [0, 10, 20], [0.25, 0.5, 0.75])
    assert curve.visible is True
    assert curve.meta == {"kind": "mean"}


def test_seeds_are_a_mean_a_band_of_one_standard_deviation_and_lines_on_request() -> None:
    figure = drawn_curves({"g/a": [0.0, 1.0]}, seeds=3)
    assert kinds(figure) == ["band", "seed", "seed", "seed", "mean"]
    band, *each, mean = figure.data
    assert list(mean.y) == [1, 2]  # of s, s + 1 for s = 0, 1, 2
    assert list(band.x) == [0, 10, 10, 0]
    assert list(band.y) == pytest.approx([2, 3, 1, 0])  # the standard deviation of 0, 1, 2 is 1
    assert (band.fill, band.showlegend, band.hoverinfo) == ("toself", False, "skip")
    for seed, trace in enumerate(each):
        assert (trace.visible, trace.showlegend) == (False, False)
        assert (trace.name, list(trace.y)) == (f"a, seed {seed}", [seed, seed + 1])
    assert {trace.legendgroup for trace in figure.data} == {"a"}
    assert {trace.line.color for trace in (*each, mean)} == {band.fillcolor} == {COLOURS[0]}


def test_seeds_that_agree_have_no_band() -> None:
    rows = history({"g/a": [0.5, 0.5]}, seeds=2)
    rows["g/a"] = 0.5
    assert kinds(curves(rows, ["g/a"], "title", chance={}, levels={})) == ["seed", "seed", "mean"]


def test_a_step_at_which_some_seed_has_nothing_is_a_mean_over_the_others() -> None:
    rows = history({"g/a": [0.0, 1.0, 2.0]}, seeds=2)
    rows.loc[(rows["seed"] == 1) & (rows["step"] > 0), "g/a"] = np.nan
    rows.loc[rows["step"] == 20, "g/a"] = np.nan
    mean = curves(rows, ["g/a"], "title", chance={}, levels={}).data[-1]
    assert (list(mean.x), list(mean.y)) == ([0, 10], [0.5, 1.0])


def test_a_hidden_curve_is_in_the_legend_only_with_all_that_belongs_to_it() -> None:
    fields = {"chance": {"g/a": 0.1, "g/b": 0.2}, "ideal": {"g/b": 1.0}, "onsets": {"g/b": 5.0}, "hidden": ["g/b"]}
    figure = drawn_curves({"g/a": [0.0, 1.0], "g/b": [0.0, 1.0]}, seeds=2, **fields)
    shown = [trace for trace in figure.data if trace.legendgroup == "a"]
    hidden = [trace for trace in figure.data if trace.legendgroup == "b"]
    assert len(shown) == len(hidden) == 5  # a band, two seeds, the mean and chance
    assert [trace.visible for trace in shown] == [True, False, False, True, True]
    assert [trace.visible for trace in hidden] == ["legendonly", False, False, "legendonly", "legendonly"]
    assert len(figure.data) == 10  # neither an ideal nor an onset


def test_each_curve_has_its_chance_in_its_colour() -> None:
    figure = drawn_curves({"g/a": [0.0, 1.0], "g/b": [0.0, 1.0]}, chance={"g/b": 0.25})
    (level,) = (trace for trace in figure.data if trace.name == "chance of b")
    assert (list(level.x), list(level.y)) == ([0, 10], [0.25, 0.25])
    assert (level.line.dash, level.line.color) == ("dot", COLOURS[1])


@pytest.mark.parametrize(
    ("ideal", "levels"),
    [
        ({"g/a": 1.0, "g/b": 1.0}, {"ideal": 1.0}),
        ({"g/a": 1.0, "g/b": 0.9731}, {"ideal 0.973": 0.9731, "ideal 1": 1.0}),
        ({"g/other": 1.0}, {}),
        (None, {}),
    ],
)
def test_there_is_one_dashed_line_for_each_different_ideal(ideal: Any, levels: dict[str, float]) -> None:
    figure = drawn_curves({"g/a": [0.0, 1.0], "g/b": [0.0, 1.0]}, ideal=ideal)
    found = {trace.name: trace for trace in figure.data if trace.name.startswith("ideal")}
    assert {name: list(trace.y) for name, trace in found.items()} == {name: [y, y] for name, y in levels.items()}
    assert all(trace.line.dash == "dash" for trace in found.values())


def test_an_onset_is_marked_on_its_curve() -> None:
    figure = drawn_curves({"g/a": [0.0, 1.0], "g/b": [0.0, 0.5]}, seeds=2, onsets={"g/a": 5.0, "g/b": 2.0, "g/c": 1.0})
    (marks,) = (trace for trace in figure.data if trace.name == "onset")
    assert marks.mode == "markers"
    assert list(marks.customdata) == ["a", "b"]
    assert list(marks.x) == [5, 2]
    assert list(marks.y) == pytest.approx([1.0, 0.6])  # on the mean of both seeds, which is 0.5 above the first
    assert not any(trace.name == "onset" for trace in drawn_curves({"g/a": [0.0]}, onsets={}).data)


def test_a_label_is_said_instead_of_the_name() -> None:
    figure = drawn_curves({"g/a": [0.0], "g/b": [0.0]}, labels={"g/a": "in words"})
    assert [trace.name for trace in figure.data] == ["in words", "b"]


def test_runs_over_each_other_have_a_colour_each() -> None:
    histories = {"one": history({"m": [0.0, 1.0]}, seeds=2), "two": history({"m": [3.0, 2.0, 1.0]}, step=7)}
    figure = overlaid(histories, "m", "What it is.")
    means = {trace.name: trace for trace in figure.data if trace.meta["kind"] == "mean"}
    assert {name: (list(trace.x), list(trace.y)) for name, trace in means.items()} == {
        "one": ([0, 10], [0.5, 1.5]),
        "two": ([0, 7, 14], [3.0, 2.0, 1.0]),
    }
    assert [trace.line.color for trace in means.values()] == [COLOURS[0], COLOURS[1]]
    assert kinds(figure) == ["band", "seed", "seed", "mean", "mean"]
    assert all(trace.visible is False for trace in figure.data if trace.meta["kind"] == "seed")
    assert figure.layout.showlegend
    assert figure.layout.meta == {"steps": True, "says": "What it is."}
    assert (figure.layout.title.text, figure.layout.xaxis.title.text) == ("m", "step")
