"""A plotly figure as it is read for drawing: settings, and arrays in whatever form they are kept."""

import math
from base64 import b64decode
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

_LARGEST = 1e300
_WITHIN = frozenset({"title", "margin", "template", "layout", "marker", "line", "contours", "error_x", "error_y"})


class Part:
    """Settings of a figure, or of something in it, as attributes: None if they are not given.

    Reads like plotly's own objects, which check every access and so take ten times as long.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given

    def __getattr__(self, name: str) -> Any:
        value = self._given.get(name)
        return Part(value or {}) if name in _WITHIN else value

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def values(data: Any) -> NDArray[Any]:
    """The entries of an array of a figure: a sequence, numpy, base64 as plotly writes numbers, or nothing."""
    if data is None:
        return np.array([])
    if isinstance(data, dict):
        flat = np.frombuffer(b64decode(data["bdata"]), np.dtype(data["dtype"]).newbyteorder("<"))
        return flat.reshape([int(n) for n in str(data.get("shape", flat.size)).split(",")])
    if isinstance(data, np.ndarray):
        return data
    entries = [data] if isinstance(data, str) or not isinstance(data, Iterable) else list(data)
    array = np.empty(len(entries), dtype=object)
    array[:] = entries
    return array


def numbers(data: object) -> Numbers:
    """The entries as numbers; NaN where they are missing, too large to be added, or something else."""
    array = values(data)
    try:
        found = array.astype(float)
    except (TypeError, ValueError):
        found = np.array([number(value) for value in array])
    return np.where(np.abs(found) < _LARGEST, found, np.nan)


def number(value: Any) -> float:
    """A value as a number; NaN if it is none."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return math.nan
    return found if abs(found) < _LARGEST else math.nan


def each(given: Any, n: int) -> list[Any]:
    """A setting for each of n points: one for all, or its own for each."""
    if given is None or isinstance(given, str | int | float):
        return [given] * n
    own = values(given).tolist()[:n]
    return [*own, *[None] * (n - len(own))]
