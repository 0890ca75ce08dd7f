"""Searching for a capacity: the largest number of pairs that a rule stores.

Three situations. If the first p pairs of a stream can be stored, so can fewer: whether they can changes once, and
`bisect` finds where. A one-shot rule has no such order (one more pair may repair another), so `half_point` asks many
streams at several p and finds where half of them succeed. A training may fail at a size and succeed at a larger one,
and each takes long: `climb` asks about few sizes, all on one `ladder`, and looks around where it ends.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Float

from toytf.errors import UserError
from toytf.memory.solver import Real, Status

Name = TypeVar("Name")

START_FRACTION = 0.95
"""Where a search begins, as a fraction of the guess: what it finds should be its own."""

MAX_PAIRS = 2**22
"""As many pairs as anybody can wait for: a search that gets there has no end."""


@dataclass(frozen=True)
class Bracket:
    """Between which p the answer changes, and the estimate: the midpoint, or the p at which no answer was found.

    Of a `climb`: the largest p that was stored, 0 for none, and the smallest above it that was not.
    """

    feasible: int
    infeasible: int | None
    """None: nothing was shown to be impossible."""
    estimate: float
    failed: int | None = None
    """Of a `climb`: the smallest p that was not stored, also below `feasible`; 13 if 12 is stored, 13 to 15 are not,
    and 16 is."""


def bisect(guess: Real, resolution: Real, *, doubling: bool = False) -> Generator[int, Status, Bracket]:
    """Yield the p to ask about next, get its status sent, return the bracket at last.

    Begins below the guess and takes longer and longer strides; doubling: begins at it, which is no guess but a start
    that knows nothing of the answer, and doubles. Stops when the two ends are neighbours or within the fraction
    `resolution`, or at an UNKNOWN, which whoever answers should send only where the margin is tiny.
    """
    low, high = 1, None
    p, stride = max(2, round((1 if doubling else START_FRACTION) * guess)), 1.0 if doubling else 0.05
    growth = 1 if doubling else 2
    while high is None or high - low > max(1, resolution * low):
        status = yield p
        if status is Status.UNKNOWN:
            return Bracket(low, high, float(p))
        if status is Status.FEASIBLE:
            low = p
        else:
            high = p
        if high is None:
            _refuse_endless(p)
            p, stride = max(p + 1, round(p * (1 + stride))), growth * stride
        elif low == 1 and high > 3:
            p, stride = max(2, round(high / (1 + stride))), growth * stride
            p = min(p, high - 1)
        else:
            p = (low + high) // 2
    return Bracket(low, high, (low + high) / 2)


def ladder(start: int, growth: Real, smallest: int, largest: int) -> list[int]:
    """Sizes to ask about, ascending: each about the factor 1 + growth above the one before, and `start` is one of them.

    It depends on nothing that is measured, so searches on one ladder can be compared. largest: the last size.
    """
    down, up = [start], [start]
    while down[-1] > smallest:
        down.append(max(smallest, min(down[-1] - 1, round(down[-1] / (1 + growth)))))
    while up[-1] < largest:
        up.append(min(largest, max(up[-1] + 1, round(up[-1] * (1 + growth)))))
    return [*reversed(down[1:]), *up]


def climb(sizes: Sequence[int], start: int, scan: int) -> Generator[int, Status, Bracket]:
    """Yield the size to ask about next, get its status sent, return the largest stored and the smallest not stored.

    sizes: a ladder that has `start`. The size is doubled until one is not stored, or halved until one is; then the
    ladder is bisected in between. As success may come and go, the search ends only when the `scan` sizes above the
    largest stored one have all failed, and the `scan` sizes below the smallest that failed are all stored. No size is
    asked about twice.
    """
    stored: dict[int, bool] = {}
    rung: int | None = sizes.index(start)
    while rung is not None:
        stored[rung] = (yield sizes[rung]) is Status.FEASIBLE
        rung = _next_rung(sizes, stored, scan)
    largest = max((sizes[i] for i, found in stored.items() if found), default=0)
    failed = sorted(sizes[i] for i, found in stored.items() if not found)
    above = next((size for size in failed if size > largest), None)
    estimate = float(largest) if above is None else (largest + above) / 2
    return Bracket(largest, above, estimate, failed[0] if failed else None)


def _next_rung(sizes: Sequence[int], stored: Mapping[int, bool], scan: int) -> int | None:
    """The rung of the ladder to ask about after these answers; None if all that matters is known."""
    top = len(sizes) - 1
    best = max((rung for rung, found in stored.items() if found), default=-1)
    failed = min((rung for rung in stored if rung > best), default=None)
    if failed is None and best < top:
        return next((rung for rung in range(best + 1, top) if sizes[rung] >= 2 * sizes[best]), top)
    if failed is not None and failed > best + 1:
        if best < 0:
            return next((rung for rung in range(failed - 1, 0, -1) if 2 * sizes[rung] <= sizes[failed]), 0)
        return (best + failed) // 2
    worst = min((rung for rung, found in stored.items() if not found), default=0)
    around = [*range(best + 1, best + 1 + scan), *range(worst - 1, worst - 1 - scan, -1)]
    return next((rung for rung in around if 0 <= rung <= top and rung not in stored), None)


def run_together(
    searches: Mapping[Name, Generator[int, Status, Bracket]], ask: Callable[[dict[Name, int]], dict[Name, Status]]
) -> dict[Name, Bracket]:
    """Drive several searches in step, so that their questions can be answered as one batch."""
    found: dict[Name, Bracket] = {}
    questions = {name: next(search) for name, search in searches.items()}
    while questions:
        answers = ask(questions)
        questions = {}
        for name, status in answers.items():
            try:
                questions[name] = searches[name].send(status)
            except StopIteration as end:
                found[name] = end.value
    return found


def half_point(
    succeed: Callable[[int], Float[np.ndarray, "draws"]], guess: Real, level: Real = 0.5, *, steep: bool
) -> float:
    """The p at which the mean success over many streams falls to a level; 0 if it never reaches it.

    steep: success is 0 or 1 (all recalled or not), its mean noisy, and the half point that of the likeliest logistic
    curve in log p. Otherwise success is an accuracy, its mean smooth, and the point is interpolated.
    """
    known: dict[int, float] = {}
    n_draws = 1

    def mean(p: int) -> float:
        nonlocal n_draws
        if p not in known:
            answers = succeed(p)
            known[p], n_draws = float(answers.mean()), len(answers)
        return known[p]

    surely, hardly = (0.95, 0.05) if steep else (level, level)
    low = high = max(2, round(guess))
    while mean(low) < surely:
        if low == 1:
            break
        low = max(1, min(low - 1, math.floor(low / 1.4)))
    while mean(high) >= max(hardly, 1e-12):
        _refuse_endless(high)
        high = max(high + 1, math.ceil(high * 1.4))
    if mean(low) < level:
        return 0.0
    if steep:
        for p in np.unique(np.geomspace(low, high, 12).round().astype(int)):
            mean(int(p))
        return _logistic_half(known, n_draws)
    while high - low > max(1, 0.02 * low):
        middle = round(math.sqrt(low * high)) if high - low > 2 else low + 1
        middle = min(max(middle, low + 1), high - 1)
        low, high = (middle, high) if mean(middle) >= level else (low, middle)
    fraction = (mean(low) - level) / max(mean(low) - mean(high), 1e-12)
    return low + fraction * (high - low)


def _refuse_endless(p: int) -> None:
    if p > MAX_PAIRS:
        raise UserError(f"all of {p} pairs are still stored: there seems to be no limit to search for")


def _logistic_half(known: Mapping[int, float], n_draws: int) -> float:
    """The half point of the likeliest P(success) = 1 / (1 + exp(a (log p − b)))."""
    from scipy.optimize import minimize
    from scipy.special import log_expit

    ps = np.array(sorted(known), dtype=float)
    rates = np.array([known[int(p)] for p in ps])
    x = np.log(ps)
    sure = x[rates >= 0.5]
    start = (sure.max() if len(sure) else x.min(), math.log(10.0))

    def unlikelihood(parameters: np.ndarray) -> float:
        b, log_a = parameters
        t = np.exp(np.clip(log_a, -2, 8)) * (x - b)
        ridge = 1e-3 * (log_a - start[1]) ** 2  # keeps the slope finite when success is a clean cut
        return float(-n_draws * (rates * log_expit(-t) + (1 - rates) * log_expit(t)).sum() + ridge)

    return float(
        np.exp(minimize(unlikelihood, start, method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-6}).x[0])
    )
