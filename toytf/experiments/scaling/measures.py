"""What the study `scaling` measures, and what its seeds say together: powers of d and n, with bootstrap errors."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from toytf import theory
from toytf.experiments.scaling.config import ScalingConfig
from toytf.fits import log_slope
from toytf.measurement import Group, Headline, Measurement
from toytf.memory.schemes import CountsScheme, PowerScheme, Scheme, TopScheme, scheme_name

ERROR = Group(
    "error", "Error of the memory, over all inputs by frequency", "Frequency of the inputs that the memory gets "
    "wrong, exactly over all of them; 0 is best, and a tie is an error.", format="power",
)  # fmt: skip
DIMENSION = Group(
    "dimension_exponent", "The error falls like d to the power of", "Power of the dimension with which the error, "
    "averaged over seeds, falls; theory is for infinitely many inputs.", variants=("error",), pooled=True,
    meanings=(("*/error", "Standard error of the power of d, from seeds drawn again with replacement."),),
)  # fmt: skip
SAMPLES = Group(
    "sample_exponent", "The error falls like n to the power of", "Power of the samples with which the error, averaged "
    "over seeds, falls; theory is that of the inputs not yet seen.", variants=("error",), pooled=True,
    meanings=(("*/error", "Standard error of the power of n, from seeds drawn again with replacement."),),
)  # fmt: skip
MORE_DATA = Group(
    "more_data", "Error with most samples, over the least with fewer", "Error with the most samples over the least "
    "with any number of them; 1 if more data never hurts.", pooled=True,
)  # fmt: skip
TYPICAL = Group(
    "typical_error", "Median error over seeds at the largest dimension", "Median of the error over seeds; below the "
    "mean if few seeds lose a frequent input.", format="power", place="full", headline=(), pooled=True,
)  # fmt: skip

PHRASES = {
    DIMENSION: "power of d (fit to all seeds), {of}",
    SAMPLES: "power of n (fit to all seeds), {of}, d = {{d}}",
    MORE_DATA: "error with most samples / least error, {of}, d = {{d}}",
}
"""What the short table says of each."""

RESAMPLES = 400
MANY_ANSWERS = 64
"""Answers from which on the error without simulation takes longer than the simulation."""


def phrase_of(config: ScalingConfig) -> str:
    """What a row of the short table is about: the scheme, and what there are several of."""
    several = {
        "N = {n_inputs}": len(config.n_inputs) > 1,
        "M = {n_outputs}": len(config.n_outputs) > 1,
        "α = {alpha}": len(config.alphas) > 1,
    }
    return ", ".join(["{scheme}", *(said for said, there_are in several.items() if there_are)])


def dimension_law(scheme: Scheme, alpha: float, *, answers_grow: bool) -> float | None:
    """The power of d for infinitely many inputs; None where theory has none."""
    if alpha <= 1:
        return None
    match scheme:
        case CountsScheme():
            return theory.power_exponent(alpha, 1)
        case PowerScheme() if not answers_grow:
            return theory.power_exponent(alpha, scheme.exponent(alpha) or 1)
        case TopScheme() if not scheme.squared:
            return theory.threshold_exponent(alpha)
        case TopScheme() if answers_grow:
            return theory.threshold_exponent(alpha, answers_grow=True)
    return None


def together(config: ScalingConfig, table: pd.DataFrame) -> Iterator[Measurement]:
    """What all seeds say: fits to mean errors, whether more data hurts, and medians."""
    schemes, of = {scheme_name(scheme): scheme for scheme in config.schemes}, phrase_of(config)
    powers_of_d, powers_of_n, more_data = (
        replace(group, headline=tuple(_headlines(config, group, phrase.format(of=of))))
        for group, phrase in PHRASES.items()
    )
    errors = table[table["group"] == ERROR.name]
    errors = errors.reindex(columns=[*dict.fromkeys([*errors.columns, "n_inputs", "n_outputs", "samples"])])
    by: Any = errors.groupby(["n_inputs", "n_outputs", "scheme", "alpha"], sort=False)
    for (N, M, name, alpha), part in by:
        at: dict[str, Any] = {"n_inputs": N, "n_outputs": M, "scheme": name, "alpha": alpha}
        infinite, finite = part[part["samples"].isna()], part[~part["samples"].isna()]
        widest = part["d"].max()
        law = dimension_law(schemes[name], float(alpha), answers_grow=M == N)
        yield from _slope(powers_of_d, infinite, "d", least=config.fit_dimensions_from, law=law, at=at)
        law, here, least = None, finite[finite["d"] == widest], config.fit_samples_from
        if not isinstance(
            schemes[name], CountsScheme | PowerScheme
        ):  # of what samples leave unseen: all seen are alike
            p, used = theory.zipf(int(N), float(alpha)), [n for n in config.finite_samples if n >= least]
            unseen = log_slope(used, [theory.unseen_mass(p, n) for n in used])
            law = None if unseen is None else unseen.value
        yield from _slope(powers_of_n, here, "samples", least=least, law=law, at={**at, "d": widest})
        for d, with_samples in finite.groupby("d", sort=False):
            means = with_samples.groupby("samples")["value"].mean()
            if len(means) > 1 and means.min() > 0:
                yield more_data.measurement(means[means.index.max()] / means.min(), **at, d=d)
        if len(infinite):
            yield TYPICAL.measurement(infinite.loc[infinite["d"] == widest, "value"].median(), **at, d=widest)


def _headlines(config: ScalingConfig, group: Group, phrase: str) -> Iterator[Headline]:
    """The schemes that the laws are about come first."""
    for scheme in config.schemes:
        law = isinstance(scheme, CountsScheme | TopScheme) or scheme == PowerScheme()
        yield Headline(f"*{scheme_name(scheme)}_a*", phrase, int(group is MORE_DATA or not law))


def _slope(
    group: Group, rows: pd.DataFrame, x: str, *, least: int, law: float | None, at: dict[str, Any]
) -> Iterator[Measurement]:
    """The slope of log mean error against log x, and its standard error over resampled seeds."""
    chosen = rows[rows[x] >= least]
    values = chosen.pivot_table(index="seed", columns=x, values="value").dropna()
    found = log_slope([*values.columns], [*values.mean()]) if len(values) else None
    if found is None:
        return
    yield group.measurement(found.value, theory=law, **at)
    n, log_x = len(values), np.log(values.columns.to_numpy(dtype=float))
    drawn = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
    means: Float[np.ndarray, "resample k"] = values.to_numpy()[drawn].mean(1)
    means = means[(means > 0).all(1)]
    if n > 1 and len(means):
        centred: Float[np.ndarray, "k"] = log_x - log_x.mean()
        error = float((np.log(means) @ centred / (centred**2).sum()).std(ddof=1))
        yield group.measurement(error, **at, error=True)
