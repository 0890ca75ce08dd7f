"""Plotly figures from rows and arrays: pure functions, used by the page and in notebooks alike."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.colors import qualitative

if TYPE_CHECKING:
    import pandas as pd

    from toytf.task import Reference

COLOURS = qualitative.Safe


def curves(
    history: "pd.DataFrame",
    names: Sequence[str],
    title: str,
    *,
    chance: Mapping[str, float],
    levels: Mapping[str, float],
) -> go.Figure:
    """Metrics against steps: mean over seeds, a band of one standard deviation, and what they can be read against.

    chance: by metric, dotted in the colour of its curve; levels: named horizontal lines.
    """
    ends = [int(history["step"].min()), int(history["step"].max())]
    figure = go.Figure()
    for i, name in enumerate(names):
        colour = COLOURS[i % len(COLOURS)]
        over_seeds = history.dropna(subset=[name]).groupby("step")[name]
        mean, spread = over_seeds.mean(), over_seeds.std(ddof=1).fillna(0)
        label = name.partition("/")[2]
        if (spread > 0).any():
            steps = [*mean.index, *mean.index[::-1]]
            band = [*(mean + spread), *(mean - spread)[::-1]]
            fill = go.Scatter(
                x=steps, y=band, fill="toself", line_width=0, fillcolor=colour, opacity=0.2, hoverinfo="skip",
                legendgroup=label, showlegend=False,
            )  # fmt: skip
            figure.add_trace(fill)
        line = {"color": colour, "width": 2}
        figure.add_trace(go.Scatter(x=list(mean.index), y=list(mean), name=label, line=line, legendgroup=label))
        if name in chance:
            dotted = {"color": colour, "width": 1, "dash": "dot"}
            level = go.Scatter(
                x=ends, y=[chance[name]] * 2, name=f"chance of {label}", line=dotted, mode="lines",
                legendgroup=label, showlegend=False,
            )  # fmt: skip
            figure.add_trace(level)
    for i, (label, value) in enumerate(levels.items()):
        line = {"dash": ("dash", "dashdot", "longdash")[i % 3], "width": 1, "color": "gray"}
        figure.add_trace(go.Scatter(x=ends, y=[value, value], name=label, line=line, mode="lines"))
    return _styled(figure, title, x="step")


def attention_map(pattern: "Any", tokens: Sequence[str], title: str) -> go.Figure:
    """One head's attention on one sequence: rows are queries, columns keys, brightness the weight."""
    T = len(tokens)
    axis = {"tickmode": "array", "tickvals": list(range(T)), "ticktext": list(tokens), "tickfont_size": 7}
    heat = go.Heatmap(
        z=pattern,
        zmin=0,
        zmax=1,
        colorscale="Viridis",
        customdata=[
            [f"{tokens[t]} (t={t + 1}) attends to {tokens[s]} (t={s + 1})" for s in range(T)] for t in range(T)
        ],
        hovertemplate="%{customdata}: %{z:.3f}<extra></extra>",
    )
    figure = go.Figure(heat)
    figure.update_yaxes(**axis, autorange="reversed", title="query")
    figure.update_xaxes(**axis, title="key", tickangle=0, constrain="domain")
    figure.update_yaxes(scaleanchor="x", constrain="domain")
    return _styled(figure, title, height=600)


def metric_bars(metrics: Mapping[str, float], references: Mapping[str, "Reference"]) -> go.Figure:
    """Each metric as a bar, with its ideal and its chance value as marks."""
    names = list(metrics)
    figure = go.Figure(go.Bar(x=list(metrics.values()), y=names, orientation="h", name="measured"))
    marks = {
        "ideal": ("diamond", [references[name].ideal if name in references else None for name in names]),
        "chance": ("line-ns-open", [references[name].chance if name in references else None for name in names]),
    }
    for label, (symbol, values) in marks.items():
        marker = {"symbol": symbol, "size": 10, "color": "black", "line_width": 2}
        figure.add_trace(go.Scatter(x=values, y=names, mode="markers", name=label, marker=marker))
    figure.update_yaxes(autorange="reversed")
    return _styled(figure, "", height=120 + 26 * len(names))


def _styled(figure: go.Figure, title: str, *, x: str | None = None, height: int = 400) -> go.Figure:
    figure.update_layout(
        title={"text": title, "font_size": 15},
        template="plotly_white",
        height=height,
        margin={"l": 60, "r": 20, "t": 50, "b": 50},
        hovermode="closest",
        legend={"orientation": "h", "y": -0.2, "font_size": 11},
    )
    if x:
        figure.update_xaxes(title=x)
    return figure
