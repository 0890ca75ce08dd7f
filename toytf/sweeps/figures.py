"""Figures of a sweep: a metric against what is varied, beside theory, ideal and chance.

By default every metric that is shown is drawn as curves: against the factor with most values, one curve for each value
of the next factor, one panel for each of a third. Two factors that are numbers also give a heat map. Whatever else is
varied is averaged over, and the title says so. Points that were drawn at random are dots.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from toytf.config.yaml_text import inline_yaml
from toytf.figures import COLOURS, LONGEST_LABEL, empty_figure, fractions, is_geometric, literal, styled
from toytf.measurement import KINDS
from toytf.sweeps.config import FigureConfig, LineConfig
from toytf.sweeps.expression import value_of
from toytf.words import listed

if TYPE_CHECKING:
    import pandas as pd

    from toytf.sweeps.opened import Sweep

LEVELS = {"theory": "dash", "ideal": "dash", "chance": "dot"}
"""What curves are drawn beside, and how; a limit far away would hide them."""
MOST_PANELS = 4
MOST_CURVES = 12
MOST_TICKS = 14
MOST_TEXTS = 200
"""Cells of a heat map that have room for their number."""


@dataclass(frozen=True)
class _Axes:
    """What a figure is drawn against: expressions of config keys."""

    x: str
    y: str | None = None
    color: str | None = None
    panel: str | None = None
    averaged: tuple[str, ...] = ()
    """Factors that differ among the points that a mean is taken over."""

    def named(self) -> dict[str, str]:
        """The expressions by what they are for."""
        given = {"x": self.x, "y": self.y, "color": self.color, "panel": self.panel}
        return {name: expression for name, expression in given.items() if expression}


def sweep_figures(sweep: "Sweep", measured: "pd.DataFrame") -> Iterator[tuple[str, go.Figure]]:
    """The figures of a sweep by name: those of its section, or those that its factors call for."""
    planned = [
        (f"{i}_{_file_name(given.metric)}", given, _Axes(given.x, given.y, given.color))
        for i, given in enumerate(sweep.section.figures, 1)
    ] or [
        (_file_name(metric) + name, FigureConfig(kind=kind, metric=metric, x=axes.x, y=axes.y, color=axes.color), axes)
        for metric in sweep.shown
        for name, kind, axes in _chosen(sweep)
    ]
    known = {member.id: {**member.known, **member.at} for member in sweep.members}
    for name, given, axes in planned:
        own = sweep.rows_of(measured, given.metric)
        rows = own[["run", "seed", "value", *KINDS]].copy()  # one a seed, with a column for each axis
        for axis, expression in axes.named().items():
            rows[axis] = [_hashable(value_of(expression, known[run])) for run in own["run"]]
        if rows.empty:
            continue
        mean = f", mean over {listed(axes.averaged)}" if axes.averaged else ""
        against = listed(list(axes.named().values()))
        title = given.title or f"{given.metric} by {against}{mean}{', as a map' if axes.y else ''}"
        if given.kind == "heatmap":
            figure = heat_map(rows, title, x=given.x, y=str(given.y), lines=given.lines)
        else:
            figure = curves(rows, title, axes, metric=given.metric, log=given.x in sweep.log, lines=given.lines)
        yield name, figure.update_layout(meta={"says": sweep.meaning(given.metric)})


def _file_name(metric: str) -> str:
    return re.sub(r"\W+", "_", metric)


# What is drawn against what


def _chosen(sweep: "Sweep") -> Iterator[tuple[str, Any, _Axes]]:
    """The figures of a metric: the end of the name, the kind, and the axes."""
    points = {member.point: member.at for member in sweep.members}
    values = {key: list(dict.fromkeys(_hashable(at.get(key)) for at in points.values())) for key in sweep.factors}
    several = [key for key in sweep.factors if len(values[key]) > 1]
    others_of_zip = [key for key in several if key in sweep.section.zip][1:]
    several = [key for key in several if key not in others_of_zip]  # the first one tells which point it is
    if not several:
        return
    numeric = [key for key in several if all(_is_number(value) for value in values[key])]
    if len(several) > 1 and len(points) < math.prod(len(values[key]) for key in several):
        for key in several:  # no grid: every point by itself
            yield f"_by_{_file_name(key)}", "curves", _Axes(key, averaged=tuple(k for k in several if k != key))
        return
    by_length = sorted(several, key=lambda key: (key not in numeric, -len(values[key])))
    x, *others = by_length
    color = next((key for key in others if len(values[key]) <= MOST_CURVES), None)
    panel = next((key for key in others if key != color and len(values[key]) <= MOST_PANELS), None)
    left = tuple(key for key in others if key not in (color, panel))
    yield "", "curves", _Axes(x, color=color, panel=panel, averaged=left)
    if len(numeric) > 1:
        across, up = by_length[:2]
        yield "_map", "heatmap", _Axes(across, y=up, averaged=tuple(key for key in several if key not in (across, up)))


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else inline_yaml(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# Drawing


def curves(
    rows: "pd.DataFrame", title: str, axes: _Axes, *, metric: str, log: bool, lines: Sequence[LineConfig] = ()
) -> go.Figure:
    """Means with their standard deviations as bars, beside theory, ideal and chance; one panel below another."""
    rows = rows.assign(**{name: "" for name in ("color", "panel") if name not in rows})
    panels, colors, ends = (_ordered(rows[name]) for name in ("panel", "color", "x"))
    named = [f"{_short(axes.panel)} = {_text(panel)}" for panel in panels] if axes.panel else None
    figure = make_subplots(
        figure=empty_figure(), rows=len(panels), cols=1, subplot_titles=named, vertical_spacing=0.24 / len(panels)
    )
    common = {
        kind: float(rows[kind].iloc[0])
        for kind in LEVELS
        if not rows[kind].isna().any() and np.allclose(rows[kind], rows[kind].iloc[0], rtol=1e-9, atol=0)
    }
    for i, panel in enumerate(panels, 1):
        traces: list[go.Scatter] = []
        for j, color in enumerate(colors):
            own = rows[(rows["panel"] == panel) & (rows["color"] == color)]
            label = f"{_short(axes.color)} = {_text(color)}" if axes.color else "measured"
            traces += _curve(own, label, COLOURS[j % len(COLOURS)], [*LEVELS.keys() - common.keys()])
        for kind, level in common.items():
            style = {"color": "black" if kind != "chance" else "gray", "dash": LEVELS[kind], "width": 1.5}
            traces.append(go.Scatter(x=[ends[0], ends[-1]], y=[level, level], name=kind, mode="lines", line=style))
        traces += [_theory(line.points, line.label, width=2) for line in lines]
        for trace in traces:
            figure.add_trace(trace.update(showlegend=i == 1), row=i, col=1)
    if all(map(_is_number, ends)):  # a tick at each of the values, if these are few
        ticks = {"tickvals": ends, "ticktext": [_text(value) for value in ends]} if len(ends) <= MOST_TICKS else {}
        figure.update_xaxes(type="log" if (log and ends[0] > 0) or is_geometric(ends) else "linear", **ticks)
    else:
        figure.update_xaxes(type="category")
    figure.update_xaxes(title=axes.x, row=len(panels))
    figure.update_yaxes(title=metric)
    height = 160 + 280 * len(panels)
    return styled(figure, title, height=height).update_layout(showlegend=True, legend_y=-80 / height)


def _curve(rows: "pd.DataFrame", label: str, colour: str, levels: Sequence[str]) -> Iterator[go.Scatter]:
    """A curve, and dashed in its colour what it can be read against."""
    if rows.empty:
        return
    by_x = rows.groupby("x", sort=False)
    places = _ordered(rows["x"])
    mean, spread = by_x["value"].mean().reindex(places), by_x["value"].std(ddof=1).reindex(places).fillna(0)
    label = literal(label, LONGEST_LABEL)
    bars = {"array": list(spread), "visible": bool((spread > 0).any())}
    yield go.Scatter(
        x=places, y=list(mean), error_y=bars, name=label, legendgroup=label, mode="markers+lines",
        line={"color": colour, "width": 1.5}, marker_size=7,
    )  # fmt: skip
    for kind, dash in LEVELS.items():
        level = by_x[kind].mean().reindex(places)
        if kind in levels and level.notna().any():
            style = {"color": colour, "dash": dash, "width": 1.5 if kind == "theory" else 1}
            beside = kind if label == "measured" else f"{kind}: {label}"
            yield go.Scatter(x=places, y=list(level), name=beside, legendgroup=label, mode="lines", line=style)


def heat_map(
    rows: "pd.DataFrame", title: str, *, x: str, y: str, lines: Sequence[LineConfig] = ()
) -> go.Figure:  # fmt: skip
    """The mean of a metric in cells, with lines of theory where they pass between the values of the axes."""
    across, up = _ordered(rows["x"]), _ordered(rows["y"])
    mean = rows.groupby(["x", "y"])["value"].mean()
    table = {_text(a): [float(mean.get((a, b), math.nan)) for b in up] for a in across}
    figure = fractions(table, [_text(b) for b in up], title)
    cells = [[f"{_short(x)} = {_text(a)}, {_short(y)} = {_text(b)}" for a in across] for b in up]
    figure.update_traces(x=list(range(len(across))), y=list(range(len(up))), customdata=cells)
    figure.update_traces(hovertemplate="%{customdata}: %{z:.3g}<extra></extra>")
    values = mean.to_numpy()
    if values.min() < 0 or values.max() > 1:
        figure.update_traces(zmin=float(values.min()), zmax=float(values.max()), texttemplate="%{z:.3g}")
    if len(across) * len(up) > MOST_TEXTS:
        figure.update_traces(texttemplate=None)
    for line in lines:
        places = [  # many: they are not proportional to values, so that a straight line bends
            (_place(a + (c - a) * part, across), _place(b + (d - b) * part, up))
            for (a, b), (c, d) in pairwise(line.points)
            for part in np.linspace(0, 1, 100).tolist()
        ]
        shown = [(a, b) for a, b in places if -0.5 <= a <= len(across) - 0.5 and -0.5 <= b <= len(up) - 0.5]
        if len(shown) > 1:
            figure.add_trace(_theory(shown, line.label, width=3).update(showlegend=True))
    ticks = [{"tickvals": list(range(len(v))), "ticktext": [_text(one) for one in v]} for v in (across, up)]
    figure.update_xaxes(**ticks[0], title=x, range=[-0.5, len(across) - 0.5])
    figure.update_yaxes(**ticks[1], title=y, range=[-0.5, len(up) - 0.5], autorange=False)
    return figure.update_layout(height=max(420, 200 + 36 * len(up)))


def _theory(points: Sequence[tuple[float, float]], label: str, *, width: int) -> go.Scatter:
    across, up = zip(*points, strict=True)
    return go.Scatter(x=across, y=up, name=label, mode="lines", line={"color": "red", "width": width, "dash": "dash"})


def _ordered(values: "pd.Series[Any]") -> list[Any]:
    """The different values: numbers ascending, others as they come."""
    found = list(dict.fromkeys(values.tolist()))
    return sorted(found) if all(map(_is_number, found)) else found


def _place(value: float, values: Sequence[Any]) -> float:
    """Where a value is on an axis with one place for each of the ascending values, beyond its ends too."""
    if len(values) == 1:
        return 0.0 if value == values[0] else math.inf
    i = min(max(int(np.searchsorted(values, value)), 1), len(values) - 1)
    return float(i - 1 + (value - values[i - 1]) / (values[i] - values[i - 1]))


def _short(expression: str | None) -> str:
    """The last part of a key; a product as it is."""
    text = expression or ""
    return text if "*" in text else text.rpartition(".")[2]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
