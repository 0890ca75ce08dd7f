"""The values of a factor: a list, or `log(lo, hi, n)`, `linear(lo, hi, n)`, `range(lo, hi, step)`; and random draws.

    log       lo (hi / lo)^(i / (n − 1)),  three significant digits, more only where two values would be the same
    linear    lo + (hi − lo) i / (n − 1)
    range     lo, lo + step, … up to hi, which belongs to it

Ends are kept as they are written. Where both are whole numbers, `whole` has the values as whole numbers too: which of
the two a config wants is for the config to say.
"""

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from toytf.config.yaml_text import load_yaml
from toytf.errors import UserError, nearest, shortened
from toytf.sweeps.config import MOST_RUNS

DIGITS = 3
"""Significant digits of a value between two ends: ids and labels stay short."""
MOST_DIGITS = 15
_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)
_FORMS = {"log": "log(lo, hi, n)", "linear": "linear(lo, hi, n)", "range": "range(lo, hi, step)"}
_DRAWS = {"log": "log(lo, hi)", "uniform": "uniform(lo, hi)", "integer": "integer(lo, hi)"}


@dataclass(frozen=True)
class Values:
    """The values of one factor in their order."""

    values: tuple[Any, ...]
    log: bool = False
    """Do they belong on a logarithmic axis?"""
    whole: tuple[int, ...] | None = None
    """The same as whole numbers, if the ends are whole and the others are not."""


def is_spread(value: Any) -> bool:
    """Is this a text such as `log(1e-4, 1e-1, 7)`, which stands for several values?"""
    called = _CALL.fullmatch(value) if isinstance(value, str) else None
    return called is not None and called[1] in _FORMS


def values_of(key: str, given: Any) -> Values:
    """The values that a list or a text gives for a key."""
    if isinstance(given, list | tuple):
        if not given:
            raise UserError(f"{key}: the list of its values is empty")
        return Values(tuple(given))
    name, (lo, hi, last) = _called(key, given, _FORMS, 3)
    if name == "range":
        steps = (hi - lo) / last + 1e-9 if last else 0.0
        if not 1 <= steps < MOST_RUNS:
            wanted = f"range goes from lo to hi by a step, and should give 2 to {MOST_RUNS:,} values"
            raise UserError(f"{key} = {shortened(given)}: {wanted}")
        found = [lo + last * i for i in range(math.floor(steps) + 1)]
        if not (isinstance(lo, int) and isinstance(last, int)):
            found = [float(f"{value:.{MOST_DIGITS - 3}g}") for value in found]
        return Values(tuple(found))
    if not isinstance(last, int) or not 2 <= last <= MOST_RUNS:
        raise UserError(f"{key} = {shortened(str(given))}: the number of values should be a whole number, 2 or more")
    if lo == hi or (name == "log" and min(lo, hi) <= 0):
        ends = "two different numbers above 0" if name == "log" else "two different numbers"
        raise UserError(f"{key} = {shortened(str(given))}: {name} goes between {ends}")
    between = [_at(name, lo, hi, i / (last - 1)) for i in range(1, last - 1)]
    values = (lo, *between, hi)
    for digits in range(DIGITS if name == "log" else MOST_DIGITS - 3, MOST_DIGITS + 1):  # that keep them in their order
        rounded = (lo, *(float(f"{value:.{digits}g}") for value in between), hi)
        if tuple(sorted(set(rounded), reverse=lo > hi)) == rounded:
            values = rounded
            break
    if not isinstance(lo, int) or not isinstance(hi, int):
        return Values(values, log=name == "log")
    values = tuple(int(value) if float(value).is_integer() else value for value in values)
    whole = None if all(isinstance(value, int) for value in values) else (lo, *map(round, between), hi)
    return Values(values, log=name == "log", whole=whole)


def draw_of(key: str, given: Any) -> Callable[[random.Random], Any]:
    """How a random value of a key is drawn: one of a list, or by `log`, `uniform` or `integer`."""
    if isinstance(given, list | tuple):
        choices = values_of(key, given).values
        return lambda source: source.choice(choices)
    name, (lo, hi) = _called(key, given, _DRAWS, 2)
    whole = isinstance(lo, int) and isinstance(hi, int)
    if lo >= hi or (name == "log" and lo <= 0) or (name == "integer" and not whole):
        wanted = {"log": "numbers above 0", "uniform": "numbers", "integer": "whole numbers"}[name]
        raise UserError(f"{key} = {shortened(str(given))}: {name} goes from one to another of two {wanted}")
    if name == "integer":
        return lambda source: source.randint(int(lo), int(hi))
    return lambda source: float(f"{_at('log' if name == 'log' else 'linear', lo, hi, source.random()):.{DIGITS}g}")


def _called(key: str, given: Any, forms: dict[str, str], n: int) -> tuple[str, Sequence[Any]]:
    """The name and the n numbers of a text such as `log(1, 10, 3)`."""
    called = _CALL.fullmatch(given) if isinstance(given, str) else None
    if called is None:
        quotes = ", in quotes" if isinstance(given, str) and "(" in given else ""
        accepted = f"a list, {', '.join(forms.values())}{quotes}"
        raise UserError(f"{key} = {shortened(str(given))}: its values should be {accepted}")
    name = called[1]
    if name not in forms:
        raise UserError(f'{key} = {shortened(given)}: "{shortened(name)}" is unknown: {nearest(name, forms)}')
    found = load_yaml(f"[{called[2]}]", key)
    numbers = [value for value in found if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) != n or len(found) != n or not all(map(math.isfinite, numbers)):
        raise UserError(f"{key} = {shortened(given)}: expected {n} numbers, {forms[name]}")
    return name, numbers


def _at(name: str, lo: float, hi: float, part: float) -> float:
    """The value a part of the way from lo to hi."""
    return float(lo * (hi / lo) ** part) if name == "log" else float(lo + (hi - lo) * part)
