"""What came out of a run in a few words, with numbers from its summary only."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toytf.measurement import KINDS, flat, reference_name, spread_name
from toytf.report.headlines import short_table

if TYPE_CHECKING:
    from toytf.runs import Run

ROUNDING = 1e-9
"""A spread over seeds below this fraction of the mean comes from rounding."""
MOST_PLACES = 4

Form = Callable[[float, float | None], str]
"""How a number and its spread are said."""


@dataclass(frozen=True)
class Story:
    """What a run says at its end."""

    sentences: tuple[str, ...]
    """What was learned or measured; remarks without which its table would be misread."""
    next_step: str
    """A command to go on with, and what it does."""

    def __str__(self) -> str:
        return " ".join(self.sentences)


def first_row(run: "Run") -> tuple[str, ...]:
    """The first group of the short table in a sentence, by its last row, of the largest size; nothing without a row."""
    summary = run.summary
    rows = short_table(summary, run.columns).rows
    first = [(phrase, row) for phrase, row in rows if row.quantity.group.name == rows[0][1].quantity.group.name]
    return tuple(
        f"{phrase[:1].upper()}{phrase[1:]}: {told(summary, flat(row.quantity))}." for phrase, row in first[-1:]
    )


def told(summary: Mapping[str, float], metric: str, form: Form | None = None) -> str:
    """A metric with its spread, and in brackets what it can be read against: `182 ± 3 (theory 181)`."""
    return amount(summary, metric, form) + against(summary, metric, form)


def amount(summary: Mapping[str, float], metric: str, form: Form | None = None) -> str:
    """A metric with its spread over seeds; form: how a number is said, by default `short`."""
    return (form or short)(summary[metric], summary.get(spread_name(metric)))


def against(summary: Mapping[str, float], metric: str, form: Form | None = None) -> str:
    """What a metric can be read against, in brackets; nothing if there is nothing."""
    levels = {kind: summary.get(reference_name(kind, metric)) for kind in KINDS}
    known = [f"{kind} {(form or short)(level, None)}" for kind, level in levels.items() if level is not None]
    return f" ({', '.join(known)})" if known else ""


def short(value: float, spread: float | None = None) -> str:
    """A number for a sentence, of three digits, or as many as its spread leaves sure: `61.7`, `182 ± 3`, `1696`."""
    if spread is None or not _is_spread(value, spread):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    places = max(0, -math.floor(math.log10(spread)))
    return f"{value:.{places}f} ± {spread:.{places}f}"


def percent(value: float, spread: float | None = None) -> str:
    """A fraction in percent; what only rounds to 0 or 100 is not said to be so: `98.4 %`, `100 %`, `> 99.9 %`."""
    if not math.isfinite(value):
        return f"{value} %"
    away = 100 * abs(value - round(value))
    places = max(1, -math.floor(math.log10(2 * away))) if away else 1  # as many as tell it from 0 and 100
    if spread is not None and _is_spread(value, spread) and places <= MOST_PLACES:
        return f"{100 * value:.{places}f} ± {max(100 * spread, 10**-places):.{places}f} %"
    if value in (0, 1):
        return f"{100 * value:.0f} %"
    if abs(value - round(value)) < 5e-4:
        return f"{'>' if value < 1 else '<'} 99.9 %" if value > 0.5 else f"{100 * value:.1g} %"
    return f"{100 * value:.1f} %"


def _is_spread(value: float, spread: float) -> bool:
    """Is it more than none, and than what floating-point numbers make of equal values?"""
    return math.isfinite(value) and math.isfinite(spread) and spread > ROUNDING * abs(value)
