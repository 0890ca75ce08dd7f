"""A figure with a slider, as the page draws it."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
import pytest

from toytf.report.page import Figures, as_script, template

if TYPE_CHECKING:
    from conftest import Visit

    Open = Callable[..., Visit]


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
