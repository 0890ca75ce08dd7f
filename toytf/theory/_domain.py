"""Which arguments the formulas accept, said in one sentence when one of them is not."""

import math

Real = int | float
"""A real argument. Annotations are checked when the tests run, and there an int is no float."""


def at_least(least: Real, **arguments: Real) -> None:
    """Refuse an argument below `least` or not finite; the keyword is the name the caller knows it by."""
    for name, value in arguments.items():
        if not (math.isfinite(value) and value >= least):
            raise ValueError(f"{name} is {value}, expected a finite number of at least {least}")


def within(low: Real, high: Real, **arguments: Real) -> None:
    """Refuse an argument outside [low, high]."""
    for name, value in arguments.items():
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}, expected a number from {low} to {high}")


def rank_fits(rank: int, d_in: int, d_out: int) -> None:
    """Refuse a rank that no d_out × d_in matrix has."""
    at_least(1, d_in=d_in, d_out=d_out)
    if not 1 <= rank <= min(d_in, d_out):
        raise ValueError(f"rank is {rank}, expected 1 to {min(d_in, d_out)} for a {d_out} × {d_in} matrix")
