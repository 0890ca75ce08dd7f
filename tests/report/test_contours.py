"""Contour lines in still pictures, texts in maps, and figures with a slider: without scripts, and with them."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toytf.report.drawing.contours import crossings
from toytf.report.page import Figures, as_script, template
from toytf.report.still import still

if TYPE_CHECKING:
    from conftest import Visit

    Open = Callable[..., Visit]

SVG = "{http://www.w3.org/2000/svg}"


def red(figure: go.Figure) -> list[np.ndarray]:
    """The ends of the pieces of every red path: [piece, end, (x, y)]."""
    paths = [
        path.attrib["d"] for path in ET.fromstring(still(figure)).iter(f"{SVG}path") if path.get("stroke") == "red"
    ]
    number = r"(-?[\d.]+)"
    found = [re.findall(f"M{number} {number}L{number} {number}", path) for path in paths]
    return [np.array(path, dtype=float).reshape(-1, 2, 2) for path in found]


def contour(z: Any, **more: Any) -> go.Figure:
    return go.Figure(go.Contour(z=z, line_color="red", **more))


# Where lines are


def test_a_line_lies_where_a_slope_reaches_its_level() -> None:
    z = np.tile(np.arange(5.0), (3, 1))  # z = column
    ends = crossings(z, 1.25)
    assert ends[..., 1] == pytest.approx(np.full((2, 2), 1.25))
    assert sorted(ends[..., 0].ravel()) == [0, 1, 1, 2]


def test_a_circle_is_a_closed_line_at_its_radius() -> None:
    x = np.linspace(-2, 2, 81)
    ends = crossings(np.add.outer(x**2, x**2), 1.21 + 1e-6)  # no point of the grid is on it
    radius = np.hypot(*np.moveaxis(ends * 0.05 - 2, -1, 0))
    assert radius == pytest.approx(np.full_like(radius, 1.1), abs=1e-3)  # z is linear along sides: 0.05² / 8 is off
    points, counts = np.unique(ends.reshape(-1, 2).round(9), axis=0, return_counts=True)
    assert set(counts) == {2}  # every point is the end of two pieces
    assert len(points) == len(ends)


@pytest.mark.parametrize(("level", "alone"), [(0.4, (0, 0)), (0.6, (0, 1))])
def test_at_a_saddle_the_middle_decides_which_corners_are_cut_off(level: float, alone: tuple[int, int]) -> None:
    """Corners 0 1 / 1 0 with 0.5 in the middle: below it the zeros stand alone, above it the ones."""
    ends = crossings(np.array([[0.0, 1.0], [1.0, 0.0]]), level)
    assert len(ends) == 2
    nearest = np.abs(ends - np.array(alone)).sum(-1)
    assert nearest.min(0) == pytest.approx([0.4, 0.4])


@given(st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=2, max_size=5), st.floats(-3.5, 3.5))
def test_both_sides_of_a_line_are_on_different_sides_of_the_level(rows: list[list[int]], level: float) -> None:
    z = np.array(rows, dtype=float)
    for (a, b), (c, d) in crossings(z, level):
        for row, column in ((a, b), (c, d)):
            low, left = int(np.floor(row)), int(np.floor(column))
            high, right = int(np.ceil(row)), int(np.ceil(column))
            between = z[low, left], z[high, right]
            assert min(between) <= level + 1e-9
            assert max(between) >= level - 1e-9


def test_what_is_not_known_has_no_line() -> None:
    assert len(crossings(np.array([[0.0, np.nan], [1.0, 1.0]]), 0.5)) == 0
    assert len(crossings(np.zeros((1, 5)), 0.0)) == 0
    assert len(crossings(np.empty((0, 0)), 0.0)) == 0


# In a picture


def test_contours_are_drawn_at_the_levels_and_places_of_the_trace() -> None:
    z = np.tile(np.arange(5.0), (3, 1))
    figure = contour(z, x=[0, 10, 20, 30, 40], y=[0, 1, 2], contours={"start": 1, "end": 3, "size": 2}, name="lines")
    figure.add_trace(go.Scatter(x=[10, 30], y=[0, 0], mode="lines", line_color="blue"))
    first, second = red(figure)
    (path,) = [
        element.attrib["d"]
        for element in ET.fromstring(still(figure)).iter(f"{SVG}path")
        if element.get("stroke") == "blue"
    ]
    at = [float(x) for x in re.findall(r"[ML](-?[\d.]+)", path)]
    assert [float(first[..., 0].mean()), float(second[..., 0].mean())] == pytest.approx(at, abs=0.1)
    assert "drawn only with JavaScript" not in still(figure)


def test_a_trace_that_names_no_levels_has_some() -> None:
    assert len(red(contour(np.tile(np.arange(5.0), (3, 1))))) == 8
    assert red(contour(np.zeros((3, 3)))) == []
    assert red(contour([])) == []


def test_contours_are_in_the_legend_if_they_ask_for_it() -> None:
    z = np.tile(np.arange(5.0), (3, 1))
    assert "equal loss" not in still(contour(z, name="equal loss"))
    assert "equal loss" in still(contour(z, name="equal loss", showlegend=True))


def test_texts_of_a_map_are_written_into_its_cells() -> None:
    heat = go.Heatmap(z=[[0, 1]], x=["a", "b"], y=["c"], text=[["never", "<b>7"]], texttemplate="%{text}")
    texts = [element.text for element in ET.fromstring(still(go.Figure(heat))).iter(f"{SVG}text")]
    assert {"never", "7"} <= set(texts)


# A slider


@pytest.fixture
def moving() -> go.Figure:
    """A point that goes to 2 in three steps, over a map and contours."""
    z = np.tile(np.arange(5.0), (3, 1))
    heat, lines = go.Heatmap(z=z), go.Contour(z=z, contours={"coloring": "none", "start": 1, "end": 3, "size": 1})
    figure = go.Figure([heat, lines, go.Scatter(x=[2], y=[1], mode="markers")])
    figure.frames = [go.Frame(data=[go.Scatter(x=[at], y=[1])], traces=[2], name=f"{at}") for at in range(3)]
    at_once = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    steps = [{"label": f"{at}", "method": "animate", "args": [[f"{at}"], at_once]} for at in range(3)]
    return figure.update_layout(sliders=[{"steps": steps, "active": 2}], title="moving")


def test_a_still_picture_says_that_a_slider_needs_scripts(moving: go.Figure) -> None:
    assert "the slider needs JavaScript" in still(moving)
    moving.frames = []
    assert "the slider needs JavaScript" not in still(moving)


def page(figure: go.Figure, path: Path) -> Path:
    """A page with this figure alone, made of the scripts of all pages."""
    figures = Figures()
    name = figures.add("0/moving", figure)["name"]
    from plotly.offline import get_plotlyjs

    scripts = template("page.html.j2").environment.globals["asset"]
    data = as_script({"runs": [], "figures": figures.by_name, "arrays": [], "names": []})
    parts = [
        f"<style>{scripts('page.css')}</style><script>{get_plotlyjs()}</script>",
        f'<article><div class="chart" data-figure="{name}"></div></article>',
        f'<script type="application/json" id="data">{data}</script>',
        f"<script>{scripts('elements.js')}{scripts('figures.js')}",
        "const chart = document.querySelector('[data-figure]'); drawn.add(chart); draw(chart);</script>",
    ]
    path.write_text("".join(parts), encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True])
def test_the_slider_of_a_page_moves_the_figure_and_leaves_the_ground(
    moving: go.Figure, visit: "Open", tmp_path: Path, dark: bool
) -> None:
    seen = visit(page(moving, tmp_path / "moving.html"), dark=dark)
    seen.page.wait_for_selector(".slider-group")
    seen.page.wait_for_selector(".contourlevel path", state="attached")  # lines come after the slider
    lines = seen.page.locator(".contourlevel path").count()
    assert lines == 3
    for label in ("0", "1"):
        box = seen.page.locator(f".slider-label:text-is('{label}')").first.bounding_box()
        seen.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        seen.page.wait_for_function("label => document.querySelector('.chart').data[2].x[0] == label", arg=label)
        assert seen.page.locator(".contourlevel path").count() == lines
        assert seen.page.locator(".heatmaplayer image").count() == 1
    assert (seen.errors, seen.outside) == ([], [])
