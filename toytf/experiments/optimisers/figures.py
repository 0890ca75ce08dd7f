"""Drawings of the study `optimisers`: errors, schemes, recall by frequency, and vectors in the plane."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float, Int

from toytf.experiments.optimisers.config import OptimisersConfig
from toytf.experiments.optimisers.measures import BY_FREQUENCY, CURVE, ERROR, LEARNED_AT, RHO, SCHEME, STORED, octaves
from toytf.figures import COLOURS, MEASURED, Series, empty_figure, scaling_curves, series, styled
from toytf.measurement import Group

CURVES = 12
"""Curves that can be told apart in one figure."""

WORDS: dict[str, Callable[[Any], str]] = {
    "model": str,
    "optimiser": str,
    "layer_norm": lambda on: "LayerNorm" if on else "",
    "d": lambda d: f"d = {d}",
    "lr": lambda lr: f"lr {lr:g}",
    "batch": lambda batch: {"all": "one step"}.get(batch, batch) if isinstance(batch, str) else f"batch {batch}",
    "samples": lambda n: f"n = {n}",
    "n_outputs": lambda M: f"M = {M}",
}
"""How the factors of a case are said."""

AXES = {
    "d": "dimension d", "samples": "samples n", "batch": "batch", "lr": "learning rate", "n_outputs": "answers M",
}  # fmt: skip
"""The factors that can be across a figure, the first that varies being taken."""

APART = ("samples", "n_outputs", "model", "optimiser", "layer_norm", "d")
"""The factors by which curves come to different figures, if they are too many for one."""


def optimiser_figures(
    config: OptimisersConfig, table: pd.DataFrame, p: Float[np.ndarray, "N"]
) -> Iterator[tuple[str, go.Figure]]:
    """Every figure that the cases give; table: rows of `over_seeds`."""
    table = table[~table["variant"]]
    yield from _errors(config, _of(table, ERROR))
    x, rows = _across(config), _of(table, STORED)
    if x is not None and len(rows) and (rows["value"] > 0).all() and len(_curves_of(rows, config, x)) <= CURVES:
        title, curves = f"How many of {config.n_inputs} inputs are recalled", _curves_of(rows, config, x)
        yield "stored", scaling_curves(curves, title, x=AXES[x], y="inputs recalled", guides={})
    rows = _of(table, RHO)
    curves = _curves_of(rows[rows["name"] == ("counts" if config.samples else "frequency")], config, "lr")
    if len(config.learning_rates) > 1 and 0 < len(curves) <= CURVES:
        title, y = "How steeply inputs are stored by their frequency", "exponent ρ"
        yield "rho", scaling_curves(curves, title, x="learning rate", y=y, guides={}, log_y=False)
    of_octave = octaves(len(p))
    mean_p = [float(f"{p[of_octave == k].mean():.2g}") for k in range(int(of_octave[-1]) + 1)]
    yield from _schemes(config, _few(_of(table, SCHEME), config), mean_p)
    for group, (title, y, log_y) in {
        BY_FREQUENCY: ("Recall by how frequent inputs are", "fraction recalled", False),
        LEARNED_AT: ("When inputs are learned", "steps until probability 1/2", True),
    }.items():
        rows = _few(_of(table, group), config)
        if len(rows):
            curves = series(rows, lambda row: mean_p[int(row.octave)], _labels(rows, config))
            figure = scaling_curves(curves, title, x="frequency p of an input", y=y, guides={}, log_y=log_y)
            yield group.name, figure if log_y else figure.update_yaxes(range=[-0.03, 1.05])
    rows = _few(_of(table, CURVE), config)
    if len(rows):
        curves = series(rows, "after", _labels(rows, config))
        yield "curve", scaling_curves(curves, "Error over the steps", x="steps", y="error", guides={})


def label_of(row: Any, config: OptimisersConfig, without: Collection[str] = ()) -> str:
    """What varies over the cases, of one of them, in words; without: factors that are said elsewhere."""
    varied = [factor for factor in _varied(config) if factor not in without]
    said = (getattr(row, factor, None) for factor in varied)
    words = [WORDS[factor](value) for factor, value in zip(varied, said, strict=True) if not pd.isna(value)]
    return ", ".join(filter(None, words)) or (str(row.optimiser) if not without else MEASURED)


def vectors_in_the_plane(
    hidden: Float[np.ndarray, "N 2"],
    outputs: Float[np.ndarray, "M 2"],
    targets: Int[np.ndarray, "N"],
    p: Float[np.ndarray, "N"],
    title: str,
) -> go.Figure:
    """What is compared with output vectors, as dots that are larger for frequent inputs, and these as arrows.

    A dot and the arrow of its answer have one colour. It is right if no other arrow reaches further along it.
    """
    figure = empty_figure()
    dots, arrows = (max(float(np.abs(vectors).max()), 1e-12) for vectors in (hidden, outputs))
    scaled = 0.9 * outputs * dots / arrows
    for y, (along, up) in enumerate(scaled):
        colour = COLOURS[y % len(COLOURS)]
        own = targets == y
        size = 5 + 14 * np.sqrt(p[own] / p.max())
        names = [f"input {z + 1}" for z in np.flatnonzero(own)]
        line = go.Scatter(
            x=[0, along], y=[0, up], mode="lines", line={"color": colour, "width": 3}, legendgroup=f"{y}",
            name=f"answer {y + 1}", showlegend=len(outputs) <= CURVES, hoverinfo="name",
        )  # fmt: skip
        inputs = go.Scatter(
            x=hidden[own, 0], y=hidden[own, 1], mode="markers", legendgroup=f"{y}", showlegend=False, text=names,
            marker={"color": colour, "size": size, "line": {"color": "white", "width": 1}}, hoverinfo="text",
        )  # fmt: skip
        figure.add_traces([line, inputs])
    figure.update_yaxes(scaleanchor="x", constrain="domain")
    figure.update_xaxes(constrain="domain")
    return styled(figure, title, height=620)


def _errors(config: OptimisersConfig, rows: pd.DataFrame) -> Iterator[tuple[str, go.Figure]]:
    """Error against the first factor that varies, and against the learning rate at the largest of it.

    Where there are too many curves, the first is at the best learning rate only, and there are several figures.
    """
    x, title, shown = _across(config), "Error", rows
    if x is None or rows.empty:
        return
    if x != "lr" and len(config.learning_rates) > 1 and len(_curves_of(rows, config, x)) > CURVES:
        others = [factor for factor in _varied(config) if factor != "lr"]
        best = rows.groupby(others, dropna=False, sort=False)["value"].idxmin()  # of the mean error over seeds
        title, shown = "Error at the best learning rate", rows.loc[best].assign(lr=math.nan)
    yield from _drawn(config, shown, x, "error", title)
    if x != "lr" and len(config.learning_rates) > 1:
        largest = rows[x].max() if x != "batch" else None
        at_largest = rows if largest is None else rows[rows[x] == largest]
        where = "" if largest is None else f", {WORDS[x](largest)}"
        yield from _drawn(config, at_largest, "lr", "learning_rate", f"Error by learning rate{where}")


def _drawn(
    config: OptimisersConfig, rows: pd.DataFrame, x: str, name: str, title: str
) -> Iterator[tuple[str, go.Figure]]:  # fmt: skip
    """One figure, or several with fewer curves each."""
    for words, some in _parts(rows, config, x):
        here, guides = _against(some, x), dict[str, Callable[[float], float]]()
        limits = here.groupby(x)["limit"]
        if (here["limit"] > 0).all() and not (limits.nunique() > 1).any():  # what is unseen is the same for all curves
            level = {float(at): float(value) for at, value in limits.first().items()}  # type: ignore[arg-type]
            guides["least error: what is not yet seen"] = level.__getitem__
        curves, whole = _curves_of(some, config, x), ", ".join([title, *words])
        figure = scaling_curves(curves, whole, x=AXES[x], y="error", guides=guides)
        yield "_".join([name, *(word.replace(" ", "").replace("=", "") for word in words)]), figure


def _parts(rows: pd.DataFrame, config: OptimisersConfig, x: str) -> Iterator[tuple[list[str], pd.DataFrame]]:
    """Rows in parts with no more curves than can be told apart, and what each part has in common."""
    left = [factor for factor in APART if factor != x and rows[factor].nunique() > 1]
    if len(_curves_of(rows, config, x)) <= CURVES or not left:
        yield [], rows
        return
    for value, some in rows.groupby(left[0], sort=False):
        word = WORDS[left[0]](value) or "no LayerNorm"
        for words, part in _parts(some, config, x):
            yield [word, *words], part


def _schemes(
    config: OptimisersConfig, rows: pd.DataFrame, mean_p: list[float]
) -> Iterator[tuple[str, go.Figure]]:  # fmt: skip
    """q against p, each scheme over its largest value, with the slopes 1 and 0."""
    if rows.empty:
        return
    curves: dict[str, Series] = {}
    for label, own in series(rows, lambda row: mean_p[int(row.octave)], _labels(rows, config)).items():
        top = max((value for value in own.measured if value > 0), default=math.nan)
        scaled = Series(own.x)
        scaled.measured = [value / top if value > 0 else math.nan for value in own.measured]
        scaled.spread = [None if spread is None else spread / top for spread in own.spread]
        scaled.theory = [None if value is None else value / top for value in own.theory]
        curves[label] = scaled
    first = mean_p[0]
    guides: Mapping[str, Callable[[float], float]] = {"q ∝ p": lambda p: p / first, "q the same": lambda p: 1.0}
    title = "The scheme that is stored: q against p, by octaves of the rank"
    yield "scheme", scaling_curves(curves, title, x="frequency p of an input", y="q, over its largest", guides=guides)


def _curves_of(rows: pd.DataFrame, config: OptimisersConfig, x: str) -> dict[str, Series]:
    rows = _against(rows, x)
    return series(rows, x, _labels(rows, config, x))


def _against(rows: pd.DataFrame, x: str) -> pd.DataFrame:
    """The rows that have a number x: not those of all samples, or of the population, against the batch."""
    return rows[~rows["batch"].isin(["all", "population"])] if x == "batch" else rows.dropna(subset=x)


def _labels(rows: pd.DataFrame, config: OptimisersConfig, x: str = "") -> Callable[[Any], str]:
    """How the curves of some rows are told apart."""
    same = {factor for factor in _varied(config) if rows[factor].nunique(dropna=False) == 1}
    return lambda row: label_of(row, config, {x, *same})


def _few(rows: pd.DataFrame, config: OptimisersConfig) -> pd.DataFrame:
    """The rows of no more cases than can be told apart: those of most samples, then of the largest d; else none."""
    for factor in ("samples", "d"):
        if len({label_of(row, config) for row in rows.itertuples()}) > CURVES and factor in rows:
            rows = rows[rows[factor] == rows[factor].max()]
    return rows if len({label_of(row, config) for row in rows.itertuples()}) <= CURVES else rows[:0]


def _varied(config: OptimisersConfig) -> list[str]:
    values = {
        "model": config.models, "optimiser": config.optimisers, "layer_norm": config.layer_norm,
        "d": config.dimensions, "lr": config.learning_rates, "batch": config.batches, "samples": config.samples,
        "n_outputs": config.n_outputs,
    }  # fmt: skip
    return [factor for factor, listed in values.items() if len(listed) > 1]


def _across(config: OptimisersConfig) -> str | None:
    """The factor across the figure of errors: the first that has several numbers."""
    sizes = [batch for batch in config.batches if isinstance(batch, int)]
    varied = (factor for factor in AXES if factor in _varied(config) and (factor != "batch" or len(sizes) > 1))
    return next(varied, None)


def _of(table: pd.DataFrame, group: Group) -> pd.DataFrame:
    return table[table["group"] == group.name]
