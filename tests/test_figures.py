"""Figures from plain arrays."""

import numpy as np
import pytest

from toytf.figures import COLOURS, Series, heat_maps, lines, scaling_curves

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
    series = Series([1.0, 2.0], [0.0, 1.0], [None, None], [None, None])
    figure = scaling_curves({"a": series}, "title", x="n", y="recall", guides={}, log_y=log_y)
    assert figure.layout.yaxis.type == axis


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
