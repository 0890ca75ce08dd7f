"""A still picture shows what the figure shows: values at their places, names to the letter, and what it leaves out."""

import base64
import re
import struct
import xml.etree.ElementTree as ET
import zlib
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import plotly.express as px
import plotly.graph_objects as go
import plotly.io
import pytest
from plotly.subplots import make_subplots

from toytf.curves import curves
from toytf.figures import fractions, heat_maps, metric_bars
from toytf.measurement import Reference
from toytf.report.png import png
from toytf.report.still import still

SVG = "{http://www.w3.org/2000/svg}"
NUMBER = r"-?\d+(?:\.\d+)?"


def drawn(figure: go.Figure, **options: Any) -> ET.Element:
    return ET.fromstring(still(figure, **options))


def shown(element: ET.Element) -> str:
    """What can be read of a text, without its tooltip."""
    tooltip = element.find(f"{SVG}title")
    return (element.text if tooltip is None else tooltip.tail) or ""


def texts(picture: ET.Element) -> list[str]:
    return [shown(element) for element in picture.iter(f"{SVG}text")]


def label(picture: ET.Element, name: str) -> ET.Element:
    return next(element for element in picture.iter(f"{SVG}text") if shown(element) == name)


def place(picture: ET.Element, name: str) -> tuple[float, float]:
    """Where a text is."""
    found = label(picture, name).attrib
    return float(found["x"]), float(found["y"])


def panels(picture: ET.Element) -> list[dict[str, float]]:
    """The boxes of the panels."""
    sides = ("x", "y", "width", "height")
    return [{name: float(panel.attrib[name]) for name in sides} for panel in picture.findall(f"{SVG}svg")]


def paths(picture: ET.Element, **attributes: str) -> list[str]:
    """The paths in panels with these attributes."""
    return [
        path.attrib["d"]
        for panel in picture.findall(f"{SVG}svg")
        for path in panel.iter(f"{SVG}path")
        if all(path.get(name.replace("_", "-")) == value for name, value in attributes.items())
    ]


def points(path: str) -> list[tuple[float, float]]:
    """The points that a path moves or draws to."""
    return [(float(x), float(y)) for x, y in re.findall(f"[ML]({NUMBER}) ({NUMBER})", path)]


def boxes(path: str) -> list[tuple[float, ...]]:
    """Left, right, bottom and top of bars."""
    found = re.findall(f"M({NUMBER}) ({NUMBER})H({NUMBER})V({NUMBER})", path)
    return [tuple(float(part) for part in (left, right, bottom, top)) for left, bottom, right, top in found]


def curve(x: Any, y: Any, **more: Any) -> go.Scatter:
    return go.Scatter(x=x, y=y, mode="lines", line_color="red", **more)


def line(figure: go.Figure) -> list[tuple[float, float]]:
    (path,) = paths(drawn(figure), stroke="red")
    return points(path)


def indices_of(file: bytes) -> tuple[np.ndarray, np.ndarray, bytes]:
    """Indices, palette and transparency of a PNG, read by the letter of its specification."""
    assert file[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(file):
        (length,), kind = struct.unpack_from(">I", file, at), file[at + 4 : at + 8]
        chunks[kind] = file[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", file, at + 8 + length) == (zlib.crc32(kind + chunks[kind]),)
        at += 12 + length
    w, h, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 3, 0, 0, 0]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(h, w + 1)
    assert not rows[:, 0].any()
    return rows[:, 1:], np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3), chunks.get(b"tRNS", b"")


def images(picture: ET.Element) -> list[np.ndarray]:
    """The indices of the heatmaps, without colour bars."""
    found = (image.attrib["href"] for panel in picture.findall(f"{SVG}svg") for image in panel.iter(f"{SVG}image"))
    return [indices_of(base64.b64decode(href.removeprefix("data:image/png;base64,")))[0] for href in found]


def test_a_png_holds_the_indices_and_the_palette_that_it_was_given() -> None:
    generator = np.random.default_rng(0)
    indices, palette = generator.integers(0, 256, (5, 7), np.uint8), generator.integers(0, 256, (256, 3), np.uint8)
    found, colours, transparent = indices_of(png(indices, palette, transparent=2))
    assert (found == indices).all()
    assert (colours == palette).all()
    assert transparent == b"\xff\xff\x00"


def test_points_lie_in_the_order_and_proportion_of_their_values() -> None:
    (x0, y0), (x1, y1), (x2, y2) = line(go.Figure(curve([0, 1, 4], [0, 3, 4])))
    assert (x1 - x0) / (x2 - x0) == pytest.approx(1 / 4, abs=0.001)  # pixels have one decimal
    assert (y1 - y0) / (y2 - y0) == pytest.approx(3 / 4, abs=0.001)
    assert y2 < y0  # up


def test_a_point_lies_on_the_grid_line_of_its_tick() -> None:
    picture = drawn(go.Figure(curve([0, 50, 200], [0, 1, 2])))
    (path,) = paths(picture, stroke="red")
    assert points(path)[1][0] == pytest.approx(place(picture, "50")[0], abs=0.1)


def test_equal_ratios_are_equal_distances_on_a_logarithmic_axis_and_what_is_not_positive_is_left_out() -> None:
    figure = (
        go.Figure(curve([1, 10, 100, 1000, 5000], [1, 2, 4, 0, 8])).update_xaxes(type="log").update_yaxes(type="log")
    )
    found = line(figure)
    assert len(found) == 4
    assert found[1][0] - found[0][0] == pytest.approx(found[2][0] - found[1][0], abs=0.2)
    assert found[1][1] - found[0][1] == pytest.approx(found[2][1] - found[1][1], abs=0.2)


def test_a_range_on_a_logarithmic_axis_is_in_powers_of_ten() -> None:
    picture = drawn(go.Figure(curve([1, 10], [0, 1])).update_xaxes(type="log", range=[0, 2]))
    one, ten, hundred = (place(picture, name)[0] for name in ("1", "10", "100"))
    assert hundred - ten == pytest.approx(ten - one, abs=0.2)
    (path,) = paths(picture, stroke="red")
    assert [x for x, _ in points(path)] == pytest.approx([one, ten], abs=0.1)


def test_an_axis_can_be_reversed() -> None:
    figure = go.Figure(curve([0, 1], [0, 1])).update_yaxes(autorange="reversed")
    (_, y0), (_, y1) = line(figure)
    assert y0 < y1


def test_what_is_beyond_the_range_is_cut_off_by_the_panel() -> None:
    picture = drawn(go.Figure(curve([0, 1, 9], [0, 1, 9])).update_xaxes(range=[0, 1]))
    (panel,) = panels(picture)  # a nested svg hides what is beyond its box
    (path,) = paths(picture, stroke="red")
    _, (edge, _), (beyond, _) = points(path)
    assert edge == pytest.approx(panel["x"] + panel["width"], abs=0.1)
    assert beyond > edge


def test_a_curve_has_gaps_where_values_are_missing_or_infinite() -> None:
    figure = go.Figure(curve([0, 1, 2, 3, 4], [1, None, 2, float("inf"), float("nan")]))
    (path,) = paths(drawn(figure), stroke="red")
    assert path.count("M") == 2
    assert path.count("L") == 0


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_arrays_may_come_in_any_form_also_as_plotly_writes_them(kind: Any) -> None:
    figure = go.Figure(curve(kind([0.0, 1.0, 2.0]), kind([0.5, 1.5, 0.5])))
    assert still(plotly.io.from_json(figure.to_json())) == still(figure)
    assert len(line(figure)) == 3


def test_categories_are_in_order_of_appearance() -> None:
    picture = drawn(go.Figure([curve(["b", "a"], [1, 2]), curve(["c", "a"], [1, 2])]))
    assert place(picture, "b")[0] < place(picture, "a")[0] < place(picture, "c")[0]


def test_bars_stand_on_zero_and_are_as_wide_as_they_say() -> None:
    (path,) = paths(drawn(go.Figure(go.Bar(x=[0, 1, 2], y=[1, 2, -1], width=0.5, marker_color="red"))), fill="red")
    first, second, third = boxes(path)
    assert first[2] == second[2] == third[2]
    assert first[2] - second[3] == pytest.approx(2 * (first[2] - first[3]), abs=0.3)
    assert third[3] > third[2]
    assert 2 * (first[1] - first[0]) == pytest.approx(second[0] - first[0], abs=0.3)


def test_lying_bars_have_their_text_beyond_their_ends() -> None:
    bars = go.Bar(x=[2, 1], y=["a", "b"], orientation="h", text=["two", "one"], textposition="outside")
    picture = drawn(go.Figure(bars.update(marker_color="red")))
    (path,) = paths(picture, fill="red")
    for (_, right, low, high), name in zip(boxes(path), ("two", "one"), strict=True):
        x, y = place(picture, name)
        assert x > right
        assert high < y < low or low < y < high


def test_bars_are_side_by_side_unless_they_overlay_each_other() -> None:
    figure = go.Figure([go.Bar(x=["a"], y=[1], marker_color=colour) for colour in ("red", "blue")])
    red, blue = (boxes(paths(drawn(figure), fill=colour)[0])[0] for colour in ("red", "blue"))
    assert red[1] == blue[0]
    figure.update_layout(barmode="overlay")
    red, blue = (boxes(paths(drawn(figure), fill=colour)[0])[0] for colour in ("red", "blue"))
    assert red == blue


def test_a_heatmap_is_one_image_with_a_pixel_for_each_cell_and_the_first_row_below() -> None:
    z = np.array([[0.0, 0.5, 1.0], [2.0, np.nan, -1.0]])
    figure = go.Figure(go.Heatmap(z=z, zmin=0, zmax=1, colorscale="Viridis"))
    (image,) = images(drawn(figure))
    assert image.tolist() == [[255, 0, 1], [1, 128, 255]]
    (image,) = images(drawn(figure.update_yaxes(autorange="reversed")))
    assert image.tolist() == [[1, 128, 255], [255, 0, 1]]


def test_a_large_heatmap_stays_small() -> None:
    z = np.random.default_rng(0).normal(size=(256, 256))
    assert len(still(go.Figure(go.Heatmap(z=z)))) < 120_000  # 65,536 bytes of noise in base64, and little more


def test_a_colour_bar_names_its_ends_and_middle_and_numbers_are_written_where_they_fit() -> None:
    picture = drawn(fractions({"100": [0.25, 1.0]}, ["right", "wrong"], "title"))
    assert {"0", "0.5", "1.0", "0.25", "1.00"} <= set(texts(picture))
    many = {str(i): [0.0] * 40 for i in range(80)}
    assert "0.00" not in texts(drawn(fractions(many, [str(i) for i in range(40)], "title")))


def test_a_panel_is_where_its_domain_is_and_has_its_title_above_it() -> None:
    figure = make_subplots(rows=2, cols=2, subplot_titles=["first", "second", "third", "fourth"])
    for i in range(4):
        figure.add_trace(curve([0, 1], [0, 10**i]), row=i // 2 + 1, col=i % 2 + 1)
    picture = drawn(figure)
    boxes = panels(picture)
    first, second, third, _ = boxes
    assert first["x"] == third["x"]
    assert first["x"] + first["width"] < second["x"]
    assert first["y"] + first["height"] < third["y"]
    for panel, name in zip(boxes, ("first", "second", "third", "fourth"), strict=True):
        x, y = place(picture, name)
        assert x == pytest.approx(panel["x"] + panel["width"] / 2, abs=0.2)
        assert y < panel["y"] < y + 20


def test_a_wide_label_moves_the_panel_and_not_into_it() -> None:
    def left(names: list[str]) -> float:
        (panel,) = panels(drawn(go.Figure(curve([0, 1], names))))
        return panel["x"]

    assert left(["a", "b"]) + 40 < left(["MMMMMMMMMMMMMM", "b"]) < 200


def test_a_title_longer_than_its_panel_is_broken_and_not_cut() -> None:
    title = "margin over the best rival, in standard deviations of a score, as the mean over all seeds of a run"
    picture = drawn(go.Figure(curve([0, 1], [0, 1])).update_xaxes(title=title).update_yaxes(title=title), width=400)
    assert title not in texts(picture)
    lines = [text for text in texts(picture) if text and text in title]
    assert sorted(" ".join(lines).split()) == sorted([*title.split()] * 2)


def test_labels_are_shortened_to_what_tells_them_apart_and_say_their_full_name_when_pointed_at() -> None:
    picture = drawn(go.Figure(go.Bar(y=["short", "a label of many characters"], x=[1, 2], orientation="h")))
    assert "a label …cters" in texts(picture)
    tooltip = label(picture, "a label …cters").find(f"{SVG}title")
    assert tooltip is not None
    assert tooltip.text == "a label of many characters"
    alike = [f"ideal_W_{name}_least_squares" for name in ("KQ1", "KQ2", "OV2")]
    picture = drawn(go.Figure(go.Bar(y=alike, x=[1, 2, 3], orientation="h")))
    assert len({name for name in texts(picture) if name.startswith("ideal")}) == 3


def test_labels_that_do_not_fit_are_turned_and_then_every_kth_is_drawn() -> None:
    def labels(n: int) -> list[ET.Element]:
        picture = drawn(go.Figure(go.Bar(x=[f"name {i}" for i in range(n)], y=[1] * n)))
        return [element for element in picture.iter(f"{SVG}text") if shown(element).startswith("name")]

    assert all("transform" not in element.attrib for element in labels(5))
    assert all("rotate(-90" in element.attrib["transform"] for element in labels(30))
    assert len(labels(30)) == 30
    numbers = [int(shown(element).split()[1]) for element in labels(200)]
    assert 10 < len(numbers) < 60
    assert len({b - a for a, b in pairwise(numbers)}) == 1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1], ["0", "0.5", "1.0"]),
        ([-2e-6, 2e-6], ["−2e−6", "0", "2e−6"]),
        ([0, 40_000], ["0", "20,000", "40,000"]),
        ([7, 7], ["5", "10"]),
    ],
)
def test_ticks_are_round_numbers(values: list[float], expected: list[str]) -> None:
    found = texts(drawn(go.Figure(curve([0, 1], values)).update_layout(height=300)))
    assert set(expected) <= set(found)


def test_ticks_are_those_of_the_figure_if_it_names_them() -> None:
    figure = go.Figure(curve([1, 2, 4], [0, 1, 2])).update_xaxes(
        tickvals=[1, 4, 99], ticktext=["one", "four", "beyond"]
    )
    assert {"one", "four"} <= set(texts(drawn(figure)))
    assert not {"2", "beyond", "99"} & set(texts(drawn(figure)))


@pytest.mark.parametrize(
    ("name", "to_the_letter"),
    [
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),  # not a tag that plotly knows
        ("&lt;script&gt;", "<script>"),
        ("&amp;lt;b&amp;gt;", "&lt;b&gt;"),  # entities are read once
        ("<b>bold</b>, <i>slanted</i>", "bold, slanted"),
        ("d<sup>2</sup><br>W<sub>OV</sub>", "d2 WOV"),
        ('" onload="x', '" onload="x'),
        ("a < b > c & d", "a < b > c & d"),
        ("bell \x07", "bell \ufffd"),
    ],
)
def test_names_are_shown_to_the_letter_and_never_become_markup(name: str, to_the_letter: str) -> None:
    figure = make_subplots(rows=1, cols=1, subplot_titles=[name])
    figure.add_trace(go.Bar(x=[1, 2], y=[name, "b"], orientation="h", name=name, text=[name, ""]))
    figure.update_xaxes(title=name).update_layout(title=name)
    picture = drawn(figure)
    assert picture.attrib["aria-label"] == to_the_letter
    full = ["".join(element.itertext()) for element in picture.iter(f"{SVG}text")]
    assert sum(to_the_letter in text for text in full) == 5  # panel, axis, tick, bar and legend
    allowed = {"svg", "g", "path", "rect", "text", "title"}
    assert {element.tag.removeprefix(SVG) for element in picture.iter()} <= allowed
    assert not any(attribute.startswith("on") for element in picture.iter() for attribute in element.attrib)


def test_the_title_is_the_name_of_the_picture_and_is_not_drawn() -> None:
    picture = drawn(go.Figure(curve([0, 1], [0, 1])).update_layout(title="Loss by role"))
    assert picture.attrib["aria-label"] == "Loss by role"
    assert "Loss by role" not in texts(picture)


def test_the_legend_has_an_entry_for_each_trace_that_wants_one() -> None:
    long = "an answer that the context determines, in sequences that begin with no trigger"
    figure = go.Figure([curve([0, 1], [0, 1], name=name) for name in ("first", "second", long)])
    figure.data[1].showlegend = False
    picture = drawn(figure)
    assert "first" in texts(picture)
    assert "second" not in texts(picture)
    (short,) = (text for text in texts(picture) if text.startswith("an answer"))
    assert len(short) == 60
    assert "second" not in texts(drawn(figure.update_layout(showlegend=False)))


def test_rows_of_the_legend_stay_within_the_picture() -> None:
    picture = drawn(go.Figure([curve([0, 1], [0, 1], name=f"run number {i}") for i in range(20)]))
    places = [place(picture, f"run number {i}") for i in range(20)]
    assert len({y for _, y in places}) > 1
    assert max(x for x, _ in places) < 760 - 80
    assert max(y for _, y in places) < float(picture.attrib["viewBox"].split()[3])


@pytest.mark.parametrize("hidden", [False, "legendonly"])
def test_hidden_traces_are_neither_drawn_nor_in_the_legend(hidden: object) -> None:
    figure = go.Figure([curve([0, 1], [0, 1], name="seen"), curve([0, 1], [0, 900], name="hidden", visible=hidden)])
    assert len(paths(drawn(figure), stroke="red")) == 1
    assert not {"hidden", "800"} & set(texts(drawn(figure)))


def test_traces_of_other_types_are_counted_in_a_line_and_the_rest_is_drawn() -> None:
    strange = [go.Scatter3d(x=[1], y=[1], z=[1]), go.Scatter3d(x=[1], y=[1], z=[1]), go.Histogram(x=[1, 2])]
    picture = drawn(go.Figure([*strange, curve([0, 1], [0, 1])]))
    assert "2 traces of type scatter3d are drawn only with JavaScript" in texts(picture)
    assert "1 trace of type histogram is drawn only with JavaScript" in texts(picture)
    assert paths(picture, stroke="red")
    assert "nothing to draw" not in texts(drawn(go.Figure(strange)))


@pytest.mark.parametrize(
    "figure",
    [
        px.scatter(x=[1, 2], y=[3, 4], size=[5, 6], color=[7, 8], symbol=["a", "b"], marginal_x="histogram"),
        px.line(x=["2024-01-01", "2024-02-01"], y=[1, 2], error_y=[0.1, 0.2], error_y_minus=[0.2, 0.1]),
        px.bar(x=[1, 2], y=[3, 4], color=["a", "b"], base=[1, 1], text=[3, 4], pattern_shape=["a", "b"]),
        px.scatter(x=range(4), y=range(4), facet_col=[*"aabb"], facet_row=[*"abab"]),
        make_subplots(specs=[[{"secondary_y": True}]]).add_traces([curve([0, 1], [0, 1]), curve([0], [9], yaxis="y2")]),
        go.Figure(go.Heatmap(z=[[1], [2, 3]], x=[0, 1, 5], y=["a", "a"], colorscale=["white", "hsl(0,50%,50%)"])),
        go.Figure(go.Heatmap(z=[[1, 2]], x=[None, "b"], texttemplate="%{z:.2s} %{x}")).update_xaxes(type="log"),
        go.Figure(curve([1, 9], [1, 9])).update_xaxes(type="log", side="top", categoryarray=["c"], showgrid=False)
        .add_annotation(x=4000, y=1, text="far").add_annotation(x=0.5, y=0.5, xref="paper", yref="paper", text="paper")
        .add_shape(type="circle", x0=0, x1=1, y0=0, y1=1, xref="paper").add_hrect(y0=2, y1=3),
    ],
    ids=["sizes", "dates", "bars", "facets", "two y", "cells", "template", "layout"],
)  # fmt: skip
def test_a_figure_with_settings_of_a_stranger_is_drawn_plainly(figure: go.Figure) -> None:
    assert panels(drawn(figure))


def test_an_empty_figure_says_so() -> None:
    picture = drawn(go.Figure())
    assert texts(picture) == ["nothing to draw"]
    assert float(picture.attrib["viewBox"].split()[3]) < 60


@pytest.mark.parametrize("black", ["black", "#000", "#000000", "rgb(0, 0, 0)"])
def test_black_is_the_colour_of_the_text_around_the_picture(black: str) -> None:
    trace = go.Scatter(x=[0, 1], y=[0, 1], mode="lines+markers", line_color=black, marker_color=black)
    picture = drawn(go.Figure(trace))
    assert paths(picture, stroke="currentColor", fill="none")
    assert all(element.attrib["fill"] == "currentColor" for element in picture.iter(f"{SVG}text"))


def test_a_band_is_filled_and_has_no_outline() -> None:
    band = go.Scatter(x=[0, 1, 1, 0], y=[0, 0, 1, 1], fill="toself", line_width=0, fillcolor="red", opacity=0.2)
    picture = drawn(go.Figure(band))
    (path,) = paths(picture)
    assert paths(picture, fill="red") == [path]
    (group,) = picture.iter(f"{SVG}g")
    assert group.attrib["opacity"] == "0.2"


def test_error_bars_reach_from_below_to_above_their_points() -> None:
    trace = go.Scatter(x=[1, 2], y=[10, 20], mode="markers", marker_color="red", error_y={"array": [5, 2]})
    picture = drawn(go.Figure(trace))
    (bars,), (marks,) = paths(picture, stroke="red", fill="none"), paths(picture, fill="red")
    ends = [
        (float(x), float(low), float(high)) for x, low, high in re.findall(f"M({NUMBER}) ({NUMBER})V({NUMBER})", bars)
    ]
    for (at, low, high), (x, y) in zip(ends, points(marks), strict=True):
        assert at == x
        assert (low + high) / 2 == pytest.approx(y, abs=0.1)
        assert high < low
    assert ends[0][1] - ends[0][2] == pytest.approx(2.5 * (ends[1][1] - ends[1][2]), abs=0.3)


def test_lying_bars_have_error_bars_about_their_ends() -> None:
    picture = drawn(metric_bars({"a": 0.5, "b": 0.25}, {}, spreads={"a": 0.1, "b": 0.05}))
    bars, errors = paths(picture)
    found = re.findall(f"M({NUMBER}) ({NUMBER})H({NUMBER})", errors)
    for (left, end, low, high), error in zip(boxes(bars), found, strict=True):
        from_, at, to = map(float, error)
        assert (from_ + to) / 2 == pytest.approx(end, abs=0.1)
        assert to - from_ == pytest.approx(0.4 * (end - left), abs=0.2)  # twice a fifth of the value
        assert at == pytest.approx((low + high) / 2, abs=0.1)


def test_an_onset_is_a_star_on_its_curve() -> None:
    history = pd.DataFrame({"seed": 0, "step": [0, 10, 20], "recall/W": [0.0, 0.5, 1.0]})
    picture = drawn(curves(history, ["recall/W"], "recall", chance={}, levels={}, onsets={"recall/W": 10}))
    mean, star = paths(picture)
    assert points(star) == [points(mean)[1]]
    corners = np.array(re.findall(NUMBER, star.partition("m")[2]), float).reshape(-1, 2).cumsum(0)
    radii = np.hypot(*corners.T)
    assert radii[::2] == pytest.approx([8.4] * 5, abs=0.1)  # 1.4 times half of its size 12
    assert radii[1::2] == pytest.approx([3.2] * 5, abs=0.1)  # 0.38 of that


def test_markers_have_the_shape_of_what_they_stand_for() -> None:
    values = {"recall/W_OV2": 0.5}
    references = {"recall/W_OV2": Reference(ideal=1.0, hebbian=0.75, limit=0.9, theory=0.6, chance=0.1)}
    picture = drawn(metric_bars(values, references))
    shapes = [re.sub(NUMBER, "", path).replace(" ", "") for path in paths(picture)[1:]]
    assert len(set(shapes)) == 5
    found = [points(path)[0][0] for path in paths(picture)[1:]]
    assert sorted(found) == [found[i] for i in (4, 3, 1, 2, 0)]  # chance, theory, hebbian, limit, ideal


def test_lines_across_a_panel_and_their_remarks_are_drawn() -> None:
    figure = go.Figure(curve([0, 10], [0, 1])).add_vline(x=4, line_color="blue", annotation_text="theory: half")
    picture = drawn(figure)
    (path,) = paths(picture, stroke="blue")
    (x0, y0), (x1, y1) = points(path)
    assert x0 == x1 == pytest.approx(place(picture, "4")[0], abs=0.1)
    (panel,) = panels(picture)
    assert abs(y1 - y0) == pytest.approx(panel["height"], abs=0.1)
    assert "theory: half" in texts(picture)


def test_a_picture_needs_nothing_from_elsewhere_and_has_no_id_that_two_of_them_would_share() -> None:
    values = np.arange(4.0).reshape(2, 2)
    picture = drawn(heat_maps({"a": (values, ["r", "s"], ["t", "u"])}, "title"), width=500)
    assert picture.attrib["width"] == "500"
    assert "max-width:100%" in picture.attrib["style"]
    assert not any("id" in element.attrib for element in picture.iter())
    links = [element.attrib["href"] for element in picture.iter() if "href" in element.attrib]
    assert links
    assert all(link.startswith("data:image/png;base64,") for link in links)
