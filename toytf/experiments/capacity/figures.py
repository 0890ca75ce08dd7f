"""Figures of the experiment `capacity`: pairs stored against the dimension, the width, and the number of weights."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pandas as pd

from toytf import theory
from toytf.experiments.capacity.config import CapacityConfig
from toytf.experiments.capacity.measures import with_width
from toytf.figures import scaling_curves, series
from toytf.memory.rules import RULES

Guides = dict[str, Callable[[float], float]]

FLOAT_BITS = 32
"""Bits of a weight as it is trained."""


def capacity_figures(
    config: CapacityConfig, stored: pd.DataFrame, precision: dict[str, float]
) -> Iterator[tuple[str, Any]]:
    """Measured capacity with its spread, the theory's curve, and lines to compare with.

    stored: capacities over seeds, with rule, d, width, side and weights; precision: bits per weight, by rule.
    """
    by_size = series(stored, "side", lambda row: row.rule + _width(config, row))
    by_width = series(stored.dropna(subset="width"), "width", lambda row: f"{row.rule}, d = {row.d}")
    y = f"associations stored (criterion: {config.criterion})"
    if config.criterion != "all" and any(RULES[rule].all_or_nothing for rule in config.rules):
        y = f"associations stored (criterion: {config.criterion}; optimum: all)"
    hidden = with_width(stored, "hidden")
    hidden = hidden.assign(units=hidden["weights"] / 2, theory=float("nan"))  # the line is one for all of them
    hidden = hidden.assign(ratio=hidden["units"] / hidden["side"] ** 2).sort_values(["rule", "ratio", "units"])
    if any(len(curve.x) > 1 for curve in by_size.values()) or (by_size and not by_width):
        guides = _guides_by_size(config, precision)
        yield "capacity", scaling_curves(by_size, "Capacity by dimension", x="dimension d", y=y, guides=guides)
    if hidden["side"].nunique() > 1 and hidden["ratio"].nunique() > 1:
        curves = series(hidden, "units", lambda row: f"{row.rule}, m/d = {row.ratio:.3g}")
        guides = _guides_by_units(config, precision)
        title, x = "Capacity by hidden units times dimension", "m d"
        yield "capacity_by_weights", scaling_curves(curves, title, x=x, y=y, guides=guides)
    if any(len(curve.x) > 1 for curve in by_width.values()):
        yield "capacity_by_width", scaling_curves(by_width, "Capacity by width", x="width m", y=y, guides={})


def _width(config: CapacityConfig, row: Any) -> str:
    """How the curve of a width is called: by its ratio, if those are given, which is the same at all sizes."""
    if pd.isna(row.width):
        return ""
    return f", m/d = {row.weights / (2 * row.side**2):.2g}" if config.width_ratios else f", width {row.width}"


def _guides_by_size(config: CapacityConfig, precision: dict[str, float]) -> Guides:
    """Lines for matrices: the limit of the best one, and what trained ones were found to follow."""
    guides: Guides = {}
    if config.data.n_answers is not None or config.data.inputs > 1:
        return guides
    if config.criterion == "all" or "optimum" in config.rules:
        guides["limit of the optimum: p log p = d²/2"] = partial(_pairs_of_load, 0.5)
    if "trained_linear" in config.rules and config.criterion == theory.TRAINED_RECALL:
        label = f"through the authors' trained matrices: p log p = {theory.MATRIX_LOAD} d²"
        guides[label] = partial(_pairs_of_load, theory.MATRIX_LOAD)
    return guides | _information_bounds(config, precision, "trained_linear", lambda d: d**2)


def _guides_by_units(config: CapacityConfig, precision: dict[str, float]) -> Guides:
    """Lines for hidden units: what trained ones were found to follow, and the information bound."""
    n_answers, guides = config.data.n_answers, Guides()

    def trained(units: float) -> float:
        """The p with p log V = 2.86 m d, m d = units."""
        if n_answers is None:
            return _pairs_of_load(theory.HIDDEN_LOAD, units**0.5)
        return units * theory.mlp_capacity(1, 1, 1, n_values=n_answers)

    if config.data.inputs == 1 and "trained_mlp" in config.rules and config.criterion == theory.TRAINED_RECALL:
        log_v = "log p" if n_answers is None else f"log {n_answers}"
        guides[f"through the authors' trained memories: p {log_v} = {theory.HIDDEN_LOAD} m d"] = trained
    return guides | _information_bounds(config, precision, "trained_mlp", lambda units: 2 * units)


def _pairs_of_load(load: float, d: float) -> float:
    """The p with p log p = load · d²."""
    return theory.asymptotic_capacity(1, 1, constant=load * d**2)


def _information_bounds(
    config: CapacityConfig, precision: dict[str, float], rule: str, weights: Callable[[float], float]
) -> Guides:
    """The most pairs that so many weights can hold: those of the training, and the shortest that did as well."""
    error = 0.0 if config.criterion == "all" else 1 - config.criterion

    def most(bits: float, x: float) -> float:
        return theory.pairs_within(bits * weights(x), config.data.n_answers, error=error)

    each = (precision[rule], FLOAT_BITS) if rule in precision else ()
    return {f"information bound at {bits:.2g} bits per weight": partial(most, bits) for bits in each}
