"""Figures of the study `scaling`: errors against dimension, samples and answers."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pandas as pd

from toytf import theory
from toytf.experiments.scaling.config import ScalingConfig
from toytf.experiments.scaling.measures import ERROR, dimension_law
from toytf.figures import scaling_curves, series
from toytf.memory.schemes import CountsScheme, TopScheme, scheme_name, scheme_phrase

Guides = dict[str, Callable[[float], float]]

Y = "error (bars: standard error of the mean)"


def scaling_figures(config: ScalingConfig, table: pd.DataFrame) -> Iterator[tuple[str, Any]]:
    """Measured errors with their spread over seeds; dashed is the error without simulation, grey are laws."""
    errors = table[(table["group"] == ERROR.name)]
    errors = errors.reindex(columns=[*dict.fromkeys([*errors.columns, "n_inputs", "n_outputs", "samples"])])
    errors = errors.assign(spread=errors["spread"] / len(config.seeds) ** 0.5)  # of the mean: seeds vary too much
    phrases = {scheme_name(scheme): scheme_phrase(scheme) for scheme in config.schemes}
    infinite, finite = errors[errors["samples"].isna()], errors[~errors["samples"].isna()]
    for (N, M, alpha), rows in _by(infinite, ["n_inputs", "n_outputs", "alpha"]):
        if rows["d"].nunique() > 1:
            name = _name("error_by_dimension", config, N=N, M=M, alpha=alpha)
            title = f"Error by dimension: N = {N}, M = {M}, α = {alpha:g}"
            curves = series(rows, "d", lambda row: f"{row.scheme}: {phrases[row.scheme]}")
            guides = _laws(config, rows, float(alpha), answers_grow=M == N)
            yield name, scaling_curves(curves, title, x="dimension d", y=Y, guides=guides)
    for (N, M, alpha, scheme), rows in _by(finite, ["n_inputs", "n_outputs", "alpha", "scheme"]):
        if rows["samples"].nunique() > 1:
            name = _name(f"error_by_samples_{scheme}", config, N=N, M=M, alpha=alpha)
            title = f"Error by samples, stored {phrases[scheme]}: N = {N}, M = {M}, α = {alpha:g}"
            curves = series(rows[rows["samples"] > 0], "samples", lambda row: f"d = {row.d}")
            guides = {"least error: what is not yet seen": partial(_floor, int(N), int(M), alpha)}
            yield name, scaling_curves(curves, title, x="samples n", y=Y, guides=guides)
    for (N, alpha, scheme), rows in _by(infinite, ["n_inputs", "alpha", "scheme"]):
        if rows["n_outputs"].nunique() > 1:
            name = _name(f"error_by_answers_{scheme}", config, N=N, alpha=alpha)
            title = f"Error by dimension, stored {phrases[scheme]}: N = {N}, α = {alpha:g}"
            curves = series(rows, "d", lambda row: f"M = {row.n_outputs}")
            yield name, scaling_curves(curves, title, x="dimension d", y=Y, guides={})


def _laws(config: ScalingConfig, rows: pd.DataFrame, alpha: float, *, answers_grow: bool) -> Guides:
    """The powers of theory for counts and thresholds, through the last point of each."""
    guides: Guides = {}
    for scheme in config.schemes:
        power = dimension_law(scheme, alpha, answers_grow=answers_grow)
        here = rows[rows["scheme"] == scheme_name(scheme)].sort_values("d")
        if isinstance(scheme, CountsScheme | TopScheme) and power is not None and len(here):
            last = here.iloc[-1]
            label = f"law of {last['scheme']}: d^{power:.3g}".replace("-", "−")
            guides[label] = partial(_power_law, float(last["d"]), float(last["value"]), power)
    return guides


def _power_law(d: float, error: float, power: float, x: float) -> float:
    return error * float((x / d) ** power)


def _floor(N: int, M: int, alpha: float, samples: float) -> float:
    return theory.sampling_floor(theory.zipf(N, alpha), samples, M)


def _name(name: str, config: ScalingConfig, **at: float) -> str:
    """The name of a figure, with what there are several of."""
    several = {"N": len(config.n_inputs) > 1, "M": len(config.n_outputs) > 1, "alpha": len(config.alphas) > 1}
    said = [f"{'a' if key == 'alpha' else key}{value:g}" for key, value in at.items() if several[key]]
    return "_".join([name, *said])


def _by(rows: pd.DataFrame, factors: list[str]) -> Any:
    return rows.groupby(factors, sort=False)
