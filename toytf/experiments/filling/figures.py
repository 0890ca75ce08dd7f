"""Figures of the experiment `filling`: what happens to each memory as its load p / p_c grows."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from toytf.experiments.filling.curves import ACCURACY, LEARNED, RULES, recalls
from toytf.figures import Series, scaling_curves

LOAD = "load: pairs to hold / capacity p_c"
MARGINS = {"min": "smallest margin", "median": "median margin"}
LOST = {"rarer": "rarer than a kept one", "crowded": "in a more crowded place"}


def filling_figures(table: pd.DataFrame, role: str) -> Iterator[tuple[str, go.Figure]]:
    """For each memory: recall, margins, spectrum and which pairs are lost, against its load.

    role: the one whose accuracy is drawn beside recall.
    """
    found = recalls(table, role)
    loads = found[["seed", "setting", "size", "memory", "load"]].drop_duplicates()
    for memory in found["memory"].unique():
        own = found[found["memory"] == memory]
        title = f"Recall of {memory} as the model is filled"
        hebbian = own[own["rule"] == "hebbian"].groupby(["seed", "size"])["recall"]
        if (hebbian.max() == hebbian.min()).all():  # the vectors are the same in every setting
            yield f"recall_{memory}", _recall(own, title)
        else:
            for setting, rows in own.groupby("setting", sort=False):
                yield f"recall_{memory}_{setting}", _recall(rows, f"{title}: {setting}")
        measured = table.merge(loads[loads["memory"] == memory], on=["seed", "setting", "size", "memory"])
        if "measure" not in measured:
            continue
        margins = _by_setting(measured, "margin", MARGINS)
        if margins:
            title = f"Margins of {memory}: the largest smallest margin in theory is dashed"
            y = "margin over the best rival (standard deviations of a score)"
            yield f"margins_{memory}", _with_limit(scaling_curves(margins, title, x=LOAD, y=y, guides={}, log_y=False))
        spectra = _by_setting(measured, "spectrum", {"fourth_moment": "⟨s⁴⟩"})
        if spectra:
            title = f"Spectrum of {memory}: spread of singular values (dashed: Gaussian)"
            y = "⟨s⁴⟩ of the singular values of √d W / |W|"
            yield f"spectrum_{memory}", _with_limit(scaling_curves(spectra, title, x=LOAD, y=y, guides={}, log_y=False))
        lost = _by_setting(measured, "lost", LOST)
        if lost:
            title = f"Which pairs {memory} loses: P(a lost pair is …)"
            guides = {"no relation": lambda load: 0.5}
            figure = scaling_curves(lost, title, x=LOAD, y="probability", guides=guides, log_y=False)
            yield f"lost_{memory}", _with_limit(figure)


def _recall(rows: pd.DataFrame, title: str) -> go.Figure:
    """One curve a rule, and one a setting for what was learned and for the accuracy of the model."""
    curves: dict[str, Series] = {}
    several = rows["setting"].nunique() > 1
    for rule, label in {LEARNED: "learned", **RULES, ACCURACY: "accuracy of the model"}.items():
        for setting, own in rows[rows["rule"] == rule].groupby("setting", sort=False):
            curves[label if rule in RULES or not several else f"{label}, {setting}"] = _mean_curve(own, "recall")
    figure = scaling_curves(curves, title, x=LOAD, y="pairs recalled / pairs to hold", guides={}, log_y=False)
    for trace in figure.data:
        if str(trace.legendgroup).startswith("learned"):
            trace.update(line={"width": 3}, marker_size=9)
        elif str(trace.legendgroup).startswith("accuracy"):
            trace.update(line={"dash": "dot"}, marker_symbol="x")
        else:
            trace.update(marker_symbol="circle-open")
    figure.update_yaxes(range=[-0.03, 1.06])
    return _with_limit(figure)


def _by_setting(rows: pd.DataFrame, group: str, measures: Mapping[str, str]) -> dict[str, Series]:
    """The curves of some measures of a group, for each setting."""
    found: dict[str, Series] = {}
    predicted: list[list[float | None]] = []
    chosen = rows[(rows["group"] == group) & ~rows["variant"] & rows["measure"].isin([*measures])]
    for measure, label in measures.items():
        for setting, own in chosen[chosen["measure"] == measure].groupby("setting", sort=False):
            curve = found[f"{label}, {setting}"] = _mean_curve(own, "value")
            rounded = [value if value is None else round(value, 6) for value in curve.theory]
            if rounded in predicted:
                curve.theory = [None] * len(curve.x)  # one line is enough
            predicted.append(rounded)
    return found


def _mean_curve(rows: pd.DataFrame, column: str) -> Series:
    """Mean and standard deviation over seeds at every size, by growing load, with the mean theory."""
    by_size = rows.groupby("size", sort=False)
    loads, means, spreads = by_size["load"].mean(), by_size[column].mean(), by_size[column].std(ddof=1)
    theory = by_size["theory"].mean() if "theory" in rows else pd.Series(dtype=float)
    curve = Series()
    for size in loads.sort_values().index:
        known = [None if pd.isna(value) else float(value) for value in (spreads[size], theory.get(size, float("nan")))]
        curve.add(float(loads[size]), float(means[size]), *known)
    return curve


def _with_limit(figure: Any) -> go.Figure:
    """A vertical line at load 1, and loads in two digits."""
    ticks = figure.layout.xaxis.tickvals
    figure.update_xaxes(ticktext=[f"{load:.2g}" for load in ticks])
    heights = [value for trace in figure.data for value in trace.y if value is not None]
    low, high = min(0.0, *heights), max(1.0, *heights)
    line = {"color": "black", "dash": "dash", "width": 1.5}
    limit = go.Scatter(x=[1, 1], y=[low, high], mode="lines", line=line, name="capacity limit", hoverinfo="name")
    return figure.add_trace(limit)
