"""Plotly figures from rows and arrays: pure functions, used by the page and in notebooks alike."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.subplots import make_subplots

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from toytf.measurement import Quantity, Reference

COLOURS = qualitative.Safe
MEASURED = "measured"
"""The label of a curve that is alone."""

LONGEST_TICK, LONGEST_LABEL, LONGEST_NAME = 14, 60, 200
"""Characters of a name at an axis, in a legend, and where it is pointed at."""

_AXIS = {"gridcolor": "#e5e9ee", "linecolor": "#c5ccd4", "zerolinecolor": "#c5ccd4", "automargin": True}
_LOOK = {
    "layout": {
        "paper_bgcolor": "white", "plot_bgcolor": "white", "colorway": list(COLOURS), "xaxis": _AXIS, "yaxis": _AXIS,
        "font": {"color": "#1f2328"}, "hoverlabel": {"align": "left"}, "colorscale": {"sequential": "Viridis"},
    }
}  # fmt: skip
"""Light, with a thin grid."""

_BINS = 40
_NAMED_CELLS = 2**14
_TICKS = 32
_DASHES = ("solid", "dash", "dot", "dashdot")


def literal(name: str, longest: int | None = None) -> str:
    """A name as plotly shows it to the letter, since it obeys markup in text; shortened if it is longer."""
    cut = name if longest is None or len(name) <= longest else f"{name[: longest - 1]}…"
    return escape(cut, quote=False)


def attention_map(
    pattern: "Any", tokens: Sequence[str], title: str, *, heads: Sequence[str] | None = None
) -> go.Figure:
    """Attention on one sequence: columns are keys, brightness the weight.

    Rows are the queries of one head, which may be the last positions only, or with `heads` the heads at one query.
    Weights of linear attention, which may be negative, are red and blue.
    """
    keys = [f"{literal(token)} (t={s + 1})" for s, token in enumerate(tokens)]
    queries = keys[len(keys) - len(pattern) :] if heads is None else heads
    largest = float(np.abs(pattern).max(initial=0))
    signed = largest > 1.001 or bool((np.asarray(pattern) < 0).any())
    heat = go.Heatmap(
        z=pattern, zmin=-largest if signed else 0, zmax=largest if signed else 1,
        colorscale="RdBu_r" if signed else "Viridis",
        customdata=[[f"{query} attends to {key}" for key in keys] for query in queries],
        hovertemplate="%{customdata}: %{z:.3f}<extra></extra>",
    )  # fmt: skip
    figure = empty_figure(heat)
    size = 7 if heads is None else 10
    rows, columns = (
        _named_ticks(names, size=size, most=None)
        for names in (tokens[len(tokens) - len(pattern) :] if heads is None else heads, tokens)
    )
    figure.update_yaxes(**rows, autorange="reversed")
    figure.update_xaxes(**columns, title="key", constrain="domain")
    if heads is not None:
        figure.update_xaxes(tickangle=-90)
        return styled(figure, title, height=240 + 24 * len(heads))
    figure.update_xaxes(tickangle=0)
    figure.update_yaxes(title="query", scaleanchor="x", constrain="domain")
    return styled(figure, title, height=600)


def heat_maps(
    panels: Mapping[str, tuple["NDArray[np.floating]", Sequence[str], Sequence[str]]],
    title: str,
    *,
    columns: int = 2,
    x: str = "",
    y: str = "",
) -> go.Figure:
    """Matrices side by side: panels[panel] = (values [row, column], row names, column names), red > 0 > blue.

    Each panel has its own scale, symmetric about zero; entries that are NaN stay white.
    """
    columns = max(min(columns, len(panels)), 1)
    rows = max(-(-len(panels) // columns), 1)
    figure = make_subplots(
        figure=empty_figure(), rows=rows, cols=columns, subplot_titles=list(panels) or None,
        vertical_spacing=0.24 / rows, horizontal_spacing=0.2 / columns,
    )  # fmt: skip
    for i, (values, row_names, column_names) in enumerate(panels.values()):
        row, column = i // columns + 1, i % columns + 1
        finite = np.abs(values[np.isfinite(values)])
        largest = float(finite.max()) if finite.size else 0.0
        down, across = ([literal(name, LONGEST_NAME) for name in names] for names in (row_names, column_names))
        few = len(down) * len(across) <= _NAMED_CELLS  # more are too many to write its name into each cell
        heat = go.Heatmap(
            z=values, zmin=-largest, zmax=largest, colorscale="RdBu_r", showscale=i == 0,
            customdata=[[f"{name}, {other}" for other in across] for name in down] if few else None,
            hovertemplate="%{customdata}: %{z:.3g}<extra></extra>",
        )  # fmt: skip
        figure.add_trace(heat, row=row, col=column)
        figure.update_xaxes(**_named_ticks(column_names), title=x if row == rows else "", row=row, col=column)
        figure.update_yaxes(
            **_named_ticks(row_names), title=y if column == 1 else "", autorange="reversed", row=row, col=column
        )
    return styled(figure, title, height=140 + 380 * rows).update_layout(margin_t=90)  # room for the panels' titles


def fractions(columns: Mapping[str, Sequence[float]], rows: Sequence[str], title: str) -> go.Figure:
    """A table of numbers from 0 to 1, coloured on that scale: columns[column][row]."""
    heat = go.Heatmap(
        z=np.array([*columns.values()]).T, x=list(columns), y=list(rows), zmin=0, zmax=1, colorscale="Viridis",
        texttemplate="%{z:.2f}", hovertemplate="%{y} %{x}: %{z:.3f}<extra></extra>",
    )  # fmt: skip
    figure = styled(empty_figure(heat), title, height=160 + 40 * len(rows))
    return figure.update_yaxes(autorange="reversed")


def lines(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], title: str, *, x: str) -> go.Figure:
    """Curves over one variable, a panel per quantity: panels[quantity][label] = points (x, y)."""
    figure = _panels(panels)
    for row, series in enumerate(panels.values(), start=1):
        for i, (label, points) in enumerate(series.items()):
            across, up = zip(*sorted(points), strict=True)
            style = {"color": COLOURS[i % len(COLOURS)], "dash": _DASHES[i // len(COLOURS) % len(_DASHES)]}
            trace = go.Scatter(x=across, y=up, name=label, line=style, mode="lines+markers", legendgroup=label)
            figure.add_trace(trace, row=row, col=1)
    return _styled_panels(figure, title, x=x, rows=len(panels))


MARKS = {
    "ideal": "diamond", "hebbian": "square-open", "limit": "line-ns-open", "theory": "x-thin-open",
    "chance": "circle-open",
}  # fmt: skip
"""How the things that a value can be read against are marked."""


def metric_bars(
    metrics: Mapping[str, float],
    references: Mapping[str, "Reference"],
    title: str = "",
    *,
    x: str | None = None,
    spreads: Mapping[str, float] | None = None,
) -> go.Figure:
    """Each metric as a bar, with what it can be read against as marks; x: what they are; spreads: over seeds."""
    names = list(metrics)
    spread = {"array": [(spreads or {}).get(name, 0.0) for name in names]} if spreads else None
    bars = go.Bar(x=list(metrics.values()), y=names, orientation="h", name="measured", error_x=spread)
    figure = empty_figure(bars.update(marker_color=COLOURS[0]))
    for label, symbol in MARKS.items():
        values = [getattr(references.get(name), label, None) for name in names]
        if values.count(None) == len(values):
            continue
        marker = {"symbol": symbol, "size": 10, "color": "black", "line_width": 2}
        figure.add_trace(go.Scatter(x=values, y=names, mode="markers", name=label, marker=marker))
    figure.update_yaxes(autorange="reversed", type="category")
    return styled(figure, title, x=x, height=120 + 26 * len(names))


def histograms(
    panels: Mapping[str, Mapping[str, "NDArray[np.float64]"]],
    title: str,
    *,
    lines: Mapping[str, Mapping[str, float]],
    x: str,
) -> go.Figure:
    """Samples as densities, one panel below the other: panels[panel][label], and named vertical lines[panel][label]."""
    figure = _panels(panels)
    for row, (panel, all_samples) in enumerate(panels.items(), start=1):
        samples = {label: values for label, values in all_samples.items() if len(values)}
        edges = np.histogram_bin_edges(np.concatenate([*samples.values()]) if samples else [], bins=_BINS)
        tallest = 0.0
        for i, (label, values) in enumerate(samples.items()):
            density = np.histogram(values, edges, density=True)[0]
            tallest = max(tallest, float(density.max()))
            bars = go.Bar(
                x=(edges[1:] + edges[:-1]) / 2, y=density, width=np.diff(edges), name=label, legendgroup=label,
                marker_color=COLOURS[i % len(COLOURS)], marker_line_width=0, opacity=0.6,
            )  # fmt: skip
            figure.add_trace(bars, row=row, col=1)
        for i, (label, level) in enumerate(lines.get(panel, {}).items()):
            line = {"dash": _DASHES[i % len(_DASHES)], "width": 1.5, "color": "black"}
            mark = go.Scatter(
                x=[level, level], y=[0, tallest], name=label, legendgroup=label, mode="lines", line=line,
                hovertemplate=f"{label}: {level:.3f}<extra></extra>",
            )  # fmt: skip
            figure.add_trace(mark, row=row, col=1)
    figure.update_layout(barmode="overlay", bargap=0)
    return _styled_panels(figure, title, x=x, rows=len(panels))


def ranked(
    panels: Mapping[str, Mapping[str, "NDArray[np.float64]"]], title: str, *, measured: str, y: str
) -> go.Figure:
    """Values in descending order against their rank, one panel below another: `measured` as dots, others as lines."""
    figure = _panels(panels)
    for row, values_by_label in enumerate(panels.values(), start=1):
        for i, (label, values) in enumerate(values_by_label.items()):
            curve = go.Scatter(
                x=np.arange(1, len(values) + 1), y=np.sort(values)[::-1], name=label, legendgroup=label,
                mode="markers" if label == measured else "lines", marker_size=4,
                line={"dash": _DASHES[i % len(_DASHES)], "width": 1.5}, marker_color=COLOURS[i % len(COLOURS)],
            )  # fmt: skip
            figure.add_trace(curve, row=row, col=1)
        figure.update_yaxes(title=y, row=row)
    return _styled_panels(figure, title, x="rank", rows=len(panels))


@dataclass
class Series:
    """Points of one curve: measured with spread, and what the theory predicts, where it does."""

    x: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    spread: list[float | None] = field(default_factory=list)
    theory: list[float | None] = field(default_factory=list)

    def add(self, x: float, measured: float, spread: float | None, theory: float | None) -> None:
        """One more point."""
        self.x.append(x)
        self.measured.append(measured)
        self.spread.append(spread)
        self.theory.append(theory)


def scaling_curves(
    curves: Mapping[str, Series],
    title: str,
    *,
    x: str,
    y: str,
    guides: Mapping[str, Callable[[float], float]],
    log_x: bool = True,
    log_y: bool = True,
) -> go.Figure:
    """Curves in doubly logarithmic axes: dots with error bars are measured, dashed lines are theory, grey ones guides.

    log_y=False: for fractions. An axis on which something is not above 0 is linear in any case.
    """
    figure = empty_figure()
    for i, (label, curve) in enumerate(curves.items()):
        colour = COLOURS[i % len(COLOURS)]
        dots = go.Scatter(
            x=curve.x, y=curve.measured, error_y={"array": [spread or 0 for spread in curve.spread]}, name=label,
            legendgroup=label, mode="markers+lines", line={"color": colour, "width": 1}, marker_size=7,
        )  # fmt: skip
        figure.add_trace(dots)
        if any(value is not None for value in curve.theory):
            dashed = {"color": colour, "dash": "dash", "width": 2}
            name = "theory" if label == MEASURED else f"theory: {label}"
            figure.add_trace(
                go.Scatter(x=curve.x, y=curve.theory, name=name, legendgroup=label, mode="lines", line=dashed)
            )
    across = sorted({value for curve in curves.values() for value in curve.x})
    for (label, guide), dash in zip(guides.items(), itertools.cycle(("dot", "dashdot", "longdash", "longdashdot"))):
        line = {"color": "gray", "dash": dash, "width": 1.5}
        figure.add_trace(go.Scatter(x=across, y=[*map(guide, across)], name=label, mode="lines", line=line))
    log_x = log_x and not any(value <= 0 for value in across)
    places = np.log(across) if log_x else np.asarray(across)
    ticks: list[int] = []  # those that can be read side by side on the axis: each 1/25 of it from the next
    for i, place in enumerate(places):
        if not ticks or place - places[ticks[-1]] >= (places[-1] - places[0]) / 25:
            ticks.append(i)
    at = [across[i] for i in ticks]
    up = [value for curve in curves.values() for value in (*curve.measured, *curve.theory) if value is not None]
    figure.update_xaxes(type="log" if log_x else "linear", tickvals=at, ticktext=[f"{value:g}" for value in at])
    figure.update_yaxes(type="log" if log_y and not any(value <= 0 for value in up) else "linear", title=y)
    return styled(figure, title, x=x, height=520)


def is_geometric(values: Sequence[float]) -> bool:
    """Are ascending values above 0, and ratios of neighbours more alike than their differences, as of 16, 32, 64?"""
    if len(values) < 3 or values[0] <= 0:
        return False
    steps, ratios = np.diff(values), np.divide(values[1:], values[:-1])
    return bool(ratios.max() / ratios.min() < steps.max() / steps.min())


def series(table: "pd.DataFrame", x: Callable[[Any], float] | str, label: Callable[[Any], str]) -> dict[str, Series]:
    """Rows of `toytf.tidy.over_seeds` as curves: by the x of each, a column or a function of it, and its label."""
    found: dict[str, Series] = {}
    rows: Iterator[Any] = table.itertuples()
    for row in rows:
        at = getattr(row, x) if isinstance(x, str) else x(row)
        spread, predicted = (None if np.isnan(value) else float(value) for value in (row.spread, row.theory))
        found.setdefault(label(row), Series()).add(float(at), float(row.value), spread, predicted)
    return found


def group_figures(
    table: "pd.DataFrame", columns: Mapping[str, "Quantity"], factors: Sequence[str]
) -> Iterator[tuple[str, go.Figure]]:
    """Every group of a tidy table against the first factor that has several numbers, the others as curves.

    Axes are logarithmic if the numbers are geometric; not that of fractions, unless the group says they are powers.
    """
    from toytf.tidy import over_seeds

    table = over_seeds(table)
    groups = {quantity.group.name: quantity.group for quantity in columns.values()}
    for name, all_rows in table[~table["variant"]].groupby("group", sort=False):
        among = [factor for factor in factors if factor in all_rows]
        several = [factor for factor in among if all_rows[factor].nunique() > 1]
        numeric = [factor for factor in several if all_rows[factor].dtype.kind in "iuf"]
        rows = all_rows.dropna(subset=numeric[:1])
        if not numeric or groups[str(name)].place != "first":
            continue
        others = [factor for factor in among if factor != numeric[0] and rows[factor].nunique() > 1]

        def label(row: Any, others: Sequence[str] = others) -> str:
            words = [*filter(None, [row.name]), *(f"{factor} {getattr(row, factor)}" for factor in others)]
            return ", ".join(words) or MEASURED

        group, log = groups[str(name)], is_geometric(sorted(rows[numeric[0]].unique()))
        figure = scaling_curves(
            series(rows.sort_values(numeric[0], kind="stable"), numeric[0], label), group.title,
            x=numeric[0], y=group.unit, guides={},
            log_x=log, log_y=log and (group.format == "power" or bool((rows["value"] > 1).any())),
        )  # fmt: skip
        yield str(name), figure


def _named_ticks(names: Sequence[str], *, size: int = 9, most: int | None = _TICKS) -> dict[str, Any]:
    """A tick at every index, or at evenly spaced ones where there is no room for all names."""
    every = max(1, -(-len(names) // (most or len(names) or 1)))
    shown = range(0, len(names), every)
    text = [literal(names[i], LONGEST_TICK) for i in shown]
    return {"tickmode": "array", "tickvals": [*shown], "ticktext": text, "tickfont_size": size}


def _panels(panels: Mapping[str, Any]) -> go.Figure:
    rows = max(len(panels), 1)
    return make_subplots(
        figure=empty_figure(), rows=rows, cols=1, subplot_titles=list(panels) or None, vertical_spacing=0.24 / rows
    )


def _styled_panels(figure: go.Figure, title: str, *, x: str, rows: int) -> go.Figure:
    """The axis named and the legend shown once, below the last panel, with every name once, however many there are."""
    names: set[str] = set()
    for trace in figure.data:
        trace.showlegend = trace.name not in names
        names.add(trace.name)
    height = 160 + 240 * max(rows, 1)
    figure.update_xaxes(title=x, row=max(rows, 1))
    return styled(figure, title, height=height).update_layout(legend_y=-80 / height)


def empty_figure(*traces: Any) -> go.Figure:
    """A figure in the look of all figures; plotly's own templates take longer to copy than most figures to draw."""
    return go.Figure([*traces], layout={"template": _LOOK})


def styled(figure: go.Figure, title: str, *, x: str | None = None, height: int = 400) -> go.Figure:
    """A figure with a title and the look of all figures."""
    figure.update_layout(
        title={"text": title, "font": {"size": 15}},
        height=height,
        margin={"l": 60, "r": 20, "t": 50, "b": 50},
        hovermode="closest",
        legend={"orientation": "h", "y": -0.2, "font": {"size": 11}},
        overwrite=True,
    )
    if x:
        figure.update_xaxes(title=x)
    return figure
