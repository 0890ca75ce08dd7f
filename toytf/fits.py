"""Fits over points: power laws with their errors, and limits of infinite size."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from toytf.errors import UserError, nearest
from toytf.measurement import Group, Measurement

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Slope:
    """The power b of y ∝ x^b, and its standard error from how far the points are off the line; None for two points."""

    value: float
    error: float | None


def log_slope(x: Sequence[float], y: Sequence[float]) -> Slope | None:
    """Least squares of log y against log x; None with fewer than two different x, or where one is not above 0.

    b = Σ (X − X̄)(Y − Ȳ) / Σ (X − X̄)²,   error² = Σ (Y − Ŷ)² / ((n − 2) Σ (X − X̄)²),   X = ln x, Y = ln y
    """
    if len(set(x)) < 2 or not all(value > 0 and math.isfinite(value) for value in (*x, *y)):
        return None
    X, Y = np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float))
    X, Y = X - X.mean(), Y - Y.mean()
    squares = float((X**2).sum())
    slope = float((X * Y).sum()) / squares
    if len(X) < 3:
        return Slope(slope, None)
    return Slope(slope, math.sqrt(float(((Y - slope * X) ** 2).sum()) / (len(X) - 2) / squares))


def at_infinity(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The value at infinite size by least squares: a in values ≈ a + b / size."""
    x = 1 / np.asarray(sizes, dtype=float)
    return float(np.polynomial.polynomial.polyfit(x, np.asarray(values, dtype=float), 1)[0])


def power_law(
    table: "pd.DataFrame",
    group: Group,
    *,
    x: str,
    by: Sequence[str] = (),
    name: str = "",
    theory: float | None = None,
    points: int = 2,
) -> Iterator[Measurement]:
    """The power of x that `value` grows with, and its `/error`: one fit for each value of the factors `by`.

    theory: the power by theory; if not given, that of the column `theory` where it is complete.
    points: how many different x a fit needs.
    """
    import pandas as pd

    for factor in (x, *by):
        if factor not in table:
            raise UserError(
                f'power_law: the table has no factor "{factor}": {nearest(factor, map(str, table.columns))}'
            )
    for key, part in table.groupby(list(by), dropna=False, sort=False) if by else [((), table)]:
        of_part: dict[str, Any] = dict(zip(by, key, strict=True))
        at = {factor: value for factor, value in of_part.items() if not pd.isna(value)}
        slope = log_slope(part[x].tolist(), part["value"].tolist())
        if slope is None or part[x].nunique() < points:
            continue
        predicted = None if part["theory"].isna().any() else log_slope(part[x].tolist(), part["theory"].tolist())
        expected = theory if theory is not None or predicted is None else predicted.value
        yield group.measurement(slope.value, name, theory=expected, **at)
        if slope.error is not None:
            yield group.measurement(slope.error, name, **at, error=True)
