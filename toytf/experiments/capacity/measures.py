"""What the experiment `capacity` measures: its groups, and what many cases together say."""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from toytf.fits import power_law
from toytf.measurement import Group, Headline, Measurement
from toytf.memory.rules import RULES

STORED = Group(
    "capacity", "Associations stored", "Pairs that this rule stores at this dimension d, and width m if it has one; "
    "more is better, and theory is about random vectors.", variants=("end",),
    headline=(
        Headline("*", "pairs stored by {rule}, width {width}, at d = {d}"),
        Headline("*", "pairs stored by {rule} at d = {d}"),
    ),
    meanings=(
        ("*/feasible", "Largest number of pairs that was found to be stored: the lower end of the search."),
        ("*/infeasible", "Smallest number of pairs that no matrix stores with a margin above 0.01, by a certificate or "
         "as far as the solver can tell: the upper end of the search."),
        ("*/not_found", "Smallest number of pairs for which no memory was found, which does not prove that there is "
         "none: the upper end of the search."),
        ("trained_mlp*", "Pairs that trained hidden units store at this dimension d and width m; theory is a line that "
         "others drew through what they measured, nothing derived."),
    ),
)  # fmt: skip
OVER_THEORY = Group(
    "over_theory", "Measured / theory", "Pairs stored over what theory predicts for random vectors; 1 if theory is "
    "exact.", headline=(),
    meanings=(("trained_mlp*", "Pairs stored over the line that others drew through trained memories; 1 if it fits."),),
)  # fmt: skip
LOAD = Group(
    "load", "Load p log p / (d_in d_out) of p pairs", "Load p log p / (d_in d_out) of the p pairs stored; more is "
    "better, and that of the best weights falls slowly to 1/2 as d grows.", headline=(),
)  # fmt: skip
FACTS = Group(
    "facts_per_parameter", "Associations per parameter", "Pairs stored per weight; more is better.", headline=(),
)  # fmt: skip
BITS = Group(
    "bits_per_parameter", "Bits per parameter", "Bits per weight that the stored answers take to write down; more is "
    "better.", headline=(),
)  # fmt: skip
EXPONENT = Group(
    "exponent", "Exponent b in capacity ∝ dimension^b", "Exponent b in pairs ∝ d^b for this rule; 2 if capacity is "
    "proportional to the number of weights of a square matrix.", variants=("error",),
    headline=(
        Headline("*", "exponent b in pairs ∝ d^b, {rule}, width {width}"),
        Headline("*", "exponent b in pairs ∝ d^b, {rule}"),
    ),
    meanings=(("*/error", "Standard error of this exponent; the smaller, the better the power law fits."),),
)  # fmt: skip
WIDTH_EXPONENT = Group(
    "width_exponent", "Exponent b in capacity ∝ width^b", "Exponent b in pairs ∝ width^b for this rule; 1 if twice "
    "the width stores twice as many pairs.", variants=("error",),
    headline=(Headline("*", "exponent b in pairs ∝ width^b, {rule}, d = {d}"),),
    meanings=(("*/error", "Standard error of this exponent; the smaller, the better the power law fits."),),
)  # fmt: skip
HIDDEN_LOAD = Group(
    "hidden_load", "Load p log V / (m d) of hidden units", "Load p log V / (m d) of the p pairs stored by m hidden "
    "units, V answers competing; theory is 2.86, a line that others drew through trained memories.", headline=(),
)  # fmt: skip
WEIGHTS_EXPONENT = Group(
    "weights_exponent", "Exponent b in capacity ∝ weights^b", "Exponent b in pairs ∝ weights^b over all sizes and "
    "widths; 1, less a logarithm if every pair has its own answer.", variants=("error",),
    headline=(Headline("*", "exponent b in pairs ∝ weights^b, {rule}, all widths"),),
    meanings=(("*/error", "Standard error of this exponent; the smaller, the better one power law fits all widths."),),
)  # fmt: skip
BITS_EXPONENT = Group(
    "bits_exponent", "Exponent b in bits ∝ weights^b", "Exponent b in p log V ∝ weights^b over all sizes and widths; "
    "1 if every weight holds as much at all sizes.", variants=("error",),
    headline=(Headline("*", "exponent b in bits ∝ weights^b, {rule}"),),
    meanings=(("*/error", "Standard error of this exponent; the smaller, the better one power law fits all sizes."),),
)  # fmt: skip
COLLAPSE = Group(
    "collapse", "Relative spread of the load over widths", "Standard deviation of the load p log V / (m d) over all "
    "sizes and widths, divided by its mean; 0 if all are on one curve.",
    headline=(Headline("*", "spread of the load over widths, {rule}, d = {d}", rank=1),
              Headline("*", "spread of the load over all sizes and widths, {rule}")),
    meanings=(("*_d*", "Standard deviation of the load p log V / (m d) over the widths at this d, divided by its mean; "
               "0 if all are on one curve."),),
)  # fmt: skip
PRECISION = Group(
    "precision", "Bits per weight", "Fewest bits per weight, by rounding, with which a trained memory still recalls "
    "what the criterion asks for; never below theory, the information bound.", headline=(),
)  # fmt: skip
BITS_USED = Group(
    "bits_used", "Bits of answers per bit of weights", "Bits that the recalled answers take at least, over the bits "
    "of the rounded weights, at the best number of bits; more is better, and above 1 is impossible.", headline=(),
)  # fmt: skip


def nats(p: float, n_answers: int | None) -> float:
    """p log V: V answers compete, as many as pairs if each has its own."""
    return p * math.log(max(p, 1.0) if n_answers is None else n_answers)


def exponents(stored: pd.DataFrame, n_answers: int | None) -> Iterator[Measurement]:
    """The powers of the number of weights, of d and of the width that capacity grows with.

    stored: rows of capacities with the columns rule, d, width, side and weights.
    """
    # A limited rank has fewer weights to choose freely than entries.
    yield from power_law(with_width(stored, "hidden"), WEIGHTS_EXPONENT, x="weights", by=("rule",))
    free = with_width(stored, "hidden", "none")
    in_nats = {name: [nats(value, n_answers) for value in free[name]] for name in ("value", "theory")}
    yield from power_law(free.assign(**in_nats), BITS_EXPONENT, x="weights", by=("rule",))
    yield from power_law(stored, EXPONENT, x="side", by=("rule", "width"))
    yield from power_law(stored.dropna(subset="width"), WIDTH_EXPONENT, x="width", by=("rule", "d"))


def collapse(loads: pd.DataFrame) -> Iterator[Measurement]:
    """How far the loads of several widths are apart: standard deviation / mean, for each d and over all of them.

    loads: rows of hidden_load with the columns rule, d and width.
    """
    for rule, of_rule in loads.groupby("rule", sort=False):
        by_size = [(d, part) for d, part in of_rule.groupby("d", sort=False) if part["width"].nunique() > 1]
        for d, part in by_size:
            yield COLLAPSE.measurement(_relative_spread(part["value"].to_numpy()), rule=str(rule), d=d)  # type: ignore[arg-type]
        if len(by_size) > 1:
            yield COLLAPSE.measurement(_relative_spread(of_rule["value"].to_numpy()), rule=str(rule))


def with_width(stored: pd.DataFrame, *kinds: str) -> pd.DataFrame:
    """The rows of rules whose width means one of these."""
    return stored[stored["rule"].isin([name for name, rule in RULES.items() if rule.width in kinds])]


def _relative_spread(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / values.mean())
