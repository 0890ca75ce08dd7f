"""Metrics over the steps of a training: of one run beside what they can be read against, or of several runs."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from toytf.figures import COLOURS, LONGEST_LABEL, empty_figure, literal, styled

if TYPE_CHECKING:
    import pandas as pd

ONSET = "onset"
"""The name of the marks of onsets."""


def curves(
    history: "pd.DataFrame",
    names: Sequence[str],
    title: str,
    *,
    chance: Mapping[str, float],
    levels: Mapping[str, float],
    ideal: Mapping[str, float] | None = None,
    onsets: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
    hidden: Collection[str] = (),
) -> go.Figure:
    """Metrics against steps: mean over seeds, a band of one standard deviation, and what they can be read against.

    chance: by metric, dotted in the colour of its curve; levels: named horizontal lines; ideal: by metric, one dashed
    line for each different value; onsets: by metric, a step that is marked on its curve; labels: instead of its name;
    hidden: metrics that the legend shows on request. Traces say in `meta` what they are: mean, band, or one seed.
    """
    ends = [int(history["step"].min()), int(history["step"].max())]
    figure = empty_figure()
    marks: list[tuple[float, float, str]] = []
    for i, name in enumerate(names):
        colour = COLOURS[i % len(COLOURS)]
        label = literal((labels or {}).get(name, name.partition("/")[2]), LONGEST_LABEL)
        shown = "legendonly" if name in hidden else True
        for trace in _over_seeds(history, name, label, colour):
            figure.add_trace(trace.update(visible=shown) if trace.visible is None else trace)
        if name in chance:
            dotted = {"color": colour, "width": 1, "dash": "dot"}
            level = go.Scatter(
                x=ends, y=[chance[name]] * 2, name=f"chance of {label}", line=dotted, mode="lines",
                legendgroup=label, showlegend=False, visible=shown,
            )  # fmt: skip
            figure.add_trace(level)
        if onsets and name in onsets and name not in hidden:
            mean = history.dropna(subset=[name]).groupby("step")[name].mean()
            marks.append((onsets[name], float(np.interp(onsets[name], mean.index, mean)), label))
    if marks:
        x, y, said = zip(*marks, strict=True)
        marker = {"symbol": "star", "size": 12, "color": "black"}
        hover = "%{customdata}: from step %{x:.0f} on<extra></extra>"
        figure.add_trace(
            go.Scatter(x=x, y=y, customdata=said, mode="markers", marker=marker, name=ONSET, hovertemplate=hover)
        )
    best = {value for name, value in (ideal or {}).items() if name in names and name not in hidden}
    for value in sorted(best):
        line = {"dash": "dash", "width": 1, "color": "black"}
        label = "ideal" if len(best) == 1 else f"ideal {value:.3g}"
        figure.add_trace(go.Scatter(x=ends, y=[value, value], name=label, line=line, mode="lines"))
    figure.add_traces([*_levels(levels, ends)])
    return styled(figure, title, x="step")


def _levels(levels: Mapping[str, float], ends: Sequence[int]) -> Iterator[go.Scatter]:
    """Named horizontal lines, in grey."""
    for i, (label, value) in enumerate(levels.items()):
        dash = {"ideal": "dash", "chance": "dot"}.get(label, ("dashdot", "longdash", "dash")[i % 3])
        line = {"dash": dash, "width": 1, "color": "gray"}
        yield go.Scatter(x=[*ends], y=[value, value], name=literal(label), line=line, mode="lines")


def _over_seeds(history: "pd.DataFrame", name: str, label: str, colour: str) -> Iterator[go.Scatter]:
    """The band of a metric, its mean, and every seed if there are several, which are shown on request."""
    known = history.dropna(subset=[name])
    over_seeds = known.groupby("step")[name]
    mean, spread = over_seeds.mean(), over_seeds.std(ddof=1).fillna(0)
    if (spread > 0).any():
        steps = [*mean.index, *mean.index[::-1]]
        band = [*(mean + spread), *(mean - spread)[::-1]]
        yield go.Scatter(
            x=steps, y=band, fill="toself", line_width=0, mode="lines", fillcolor=colour, opacity=0.2, hoverinfo="skip",
            legendgroup=label, showlegend=False, meta={"kind": "band"},
        )  # fmt: skip
    if known["seed"].nunique() > 1:
        for seed, rows in known.groupby("seed"):
            yield go.Scatter(
                x=list(rows["step"]), y=list(rows[name]), name=f"{label}, seed {seed}", legendgroup=label,
                showlegend=False, line={"color": colour, "width": 1}, mode="lines", visible=False, opacity=0.7,
                meta={"kind": "seed"},
            )  # fmt: skip
    line = {"color": colour, "width": 2}
    yield go.Scatter(
        x=list(mean.index), y=list(mean), name=label, line=line, mode="lines", legendgroup=label, meta={"kind": "mean"}
    )


def overlaid(
    curves: Mapping[str, "pd.DataFrame"], metric: str, says: str = "", levels: Mapping[str, float] | None = None
) -> go.Figure:
    """One metric of several runs against steps: by the name of the run, its history.

    says: what it is; levels: named horizontal lines.
    """
    figure = empty_figure()
    for i, (run, history) in enumerate(curves.items()):
        figure.add_traces([*_over_seeds(history, metric, literal(run, LONGEST_LABEL), COLOURS[i % len(COLOURS)])])
    steps = [step for history in curves.values() for step in (int(history["step"].min()), int(history["step"].max()))]
    figure.add_traces([*_levels(levels or {}, [min(steps), max(steps)])])
    return styled(figure, metric, x="step").update_layout(showlegend=True, meta={"steps": True, "says": says})
