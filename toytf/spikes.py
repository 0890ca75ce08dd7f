"""Spikes of a loss: where a training lost ground, and whether it made it good."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spike:
    """Steps in a row whose loss is above the best before them."""

    first: int
    last: int
    benign: bool
    """Does a later loss come below the best before it?"""


def spikes(losses: Sequence[float], delta: float = 0.1) -> list[Spike]:
    """The maximal runs of steps t with L_t > (1 + δ) min_{s<t} L_s.

    A spike is benign if the loss later falls below what it was at its best before.
    """
    loss = np.asarray(losses, dtype=float)
    best = np.minimum.accumulate(loss)
    high = np.flatnonzero(loss[1:] > (1 + delta) * best[:-1]) + 1
    runs = np.split(high, np.flatnonzero(np.diff(high) > 1) + 1) if len(high) else []
    return [Spike(int(run[0]), int(run[-1]), bool((loss[run[-1] + 1 :] < best[run[0] - 1]).any())) for run in runs]


def increases(losses: Sequence[float]) -> int:
    """In how many steps the loss rose."""
    return int((np.diff(np.asarray(losses, dtype=float)) > 0).sum())
