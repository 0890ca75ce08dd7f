"""From the seeds of runs to a verdict: confirmed, refuted, or not reached."""

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from toytf.claims.claim import Claim, Expectation
from toytf.errors import UserError, nearest
from toytf.fits import at_infinity

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["confirmed", "refuted", "not reached"]
_COMPARE = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
_WORST_FIRST: tuple[Verdict, ...] = ("refuted", "not reached", "confirmed")


@dataclass(frozen=True)
class Finding:
    """An expectation beside what was measured."""

    run: str
    metric: str
    expected: str
    predicted: float | None
    measured: float | None
    spread: float | None
    tolerance: float
    verdict: Verdict


@dataclass(frozen=True)
class Outcome:
    """A claim's verdict: its worst finding, whose numbers stand for it, and all of them."""

    name: str
    title: str
    source: str
    statement: str
    note: str
    predicted: float | None
    measured: float | None
    spread: float | None
    tolerance: float
    verdict: Verdict
    findings: tuple[Finding, ...]
    runs: dict[str, str]
    quick: bool
    """Was it the quick check, with fewer seeds and smaller runs? Then its verdict is a hint."""


class MissingMetric(UserError):
    """A run does not have a metric: misspelt, or a study left it out because nothing came of it."""


def outcome_of(
    name: str,
    claim: Claim,
    seeds: "Mapping[str, pd.DataFrame]",
    runs: dict[str, str],
    note: str,
    *,
    studies: Collection[str] = (),
    quick: bool = False,
) -> Outcome:
    """The verdict on a claim from the seeds of its runs; a run that failed has none.

    studies: runs that leave out a metric if nothing came of it, such as the capacity of a search that found nothing.
    Then it is not reached, and the note says so; elsewhere a metric that is not there is a mistake.
    """
    findings, missing = [], []
    for expectation in claim.expect:
        try:
            if expectation.sizes:
                left, right = limits(expectation, seeds), None
            else:
                left, right = seeds.get(expectation.run), seeds.get(expectation.of or expectation.run)
            findings.append(compare(expectation, left, right, quick=quick))
        except MissingMetric as lacking:
            if not {*expectation.runs()} <= {*studies}:
                raise
            findings.append(compare(expectation, None))
            missing.append(f"{lacking}.")
    note = " ".join(filter(None, (note, *dict.fromkeys(missing))))
    worst = min(findings, key=lambda finding: _WORST_FIRST.index(finding.verdict))
    return Outcome(
        name, claim.title, claim.source, claim.statement, note,
        worst.predicted, worst.measured, worst.spread, worst.tolerance, worst.verdict,
        tuple(findings), runs, quick,
    )  # fmt: skip


def limits(expectation: Expectation, seeds: "Mapping[str, pd.DataFrame]") -> "pd.DataFrame | None":
    """A metric at infinite size, seed by seed; None if a run failed or a seed lacks it at some size."""
    import pandas as pd

    at_size = {size: _column(seeds.get(run), metric) for size, (run, metric) in expectation.places().items() if size}
    known = {size: column for size, column in at_size.items() if column is not None}
    if len(known) < len(at_size):
        return None
    rows = pd.DataFrame(known)
    found = [at_infinity([float(size) for size in known], row.tolist()) for _, row in rows.iterrows()]
    return pd.DataFrame({expectation.metric: found}, index=rows.index)


def compare(
    expectation: Expectation, seeds: "pd.DataFrame | None", others: "pd.DataFrame | None" = None, *, quick: bool = False
) -> Finding:
    """Confirmed if it holds; refuted if it fails by more than the spread over seeds; else not reached.

    others: the run that a metric given as value is of (default: the same). A metric that a seed does not have (an onset
    that never came, a run that diverged) is not reached. quick: fewer seeds than it asks for may confirm it, but not
    refute it.
    """
    value = expectation.value
    predicted = value if isinstance(value, float) else None
    measured = spread = None
    verdict: Verdict = "not reached"
    others = seeds if others is None and expectation.of is None else others
    left = _column(seeds, expectation.metric)
    right = _column(others, value) if isinstance(value, str) else None if left is None else left * 0 + value
    if left is not None and right is not None:
        measured, target = float(left.mean()), float(right.mean())
        predicted = target if predicted is None else predicted
        error, of_fit = None, f"{expectation.metric}/error"
        # A fit to all seeds together is the same in each: it has no spread over seeds, and its error takes that place.
        if seeds is not None and of_fit in seeds.columns and len(seeds) > 1 and left.nunique() == 1:
            error = float(seeds[of_fit].iloc[0])
        spread = error if error is not None else float(left.std(ddof=1)) if len(left) > 1 else None
        in_mean = _holds(expectation, measured, target)
        in_every = all(_holds(expectation, a, b) for a, b in zip(left, right, strict=True))
        missed = abs(measured - target) - expectation.tolerance
        doubt = error or (float((left - right).std(ddof=1)) if len(left) > 1 else 0.0)  # seeds are paired
        enough = len(left) >= expectation.seeds
        if not (enough or quick):
            verdict = "not reached"
        elif in_every if expectation.over == "every" else in_mean:
            verdict = "confirmed"
        elif enough and not in_mean and missed > doubt:
            verdict = "refuted"
    expected = f"{expectation.comparison} {value}" + (f" of {expectation.of}" if expectation.of else "")
    if expectation.sizes:
        expected += f" for size → ∞, from {', '.join(map(str, expectation.sizes))}"
    return Finding(
        expectation.run, expectation.metric, expected,
        predicted, measured, spread, expectation.tolerance, verdict,
    )  # fmt: skip


def _column(seeds: "pd.DataFrame | None", name: str) -> "pd.Series[float] | None":
    """A metric of every seed; None if a seed does not have it, an error if the run can never have it."""
    if seeds is None:
        return None
    if not {name, name.removeprefix("onset/").removeprefix("halfway/")} & set(seeds.columns):
        raise MissingMetric(
            f'a claim expects the metric "{name}", which its run does not have: {nearest(name, seeds.columns)}'
        )
    return None if name not in seeds.columns or seeds[name].isna().any() else seeds[name]


def _holds(expectation: Expectation, left: float, right: float) -> bool:
    if expectation.comparison == "==":
        return abs(left - right) <= expectation.tolerance
    slack = expectation.tolerance if expectation.comparison in (">=", ">") else -expectation.tolerance
    return bool(_COMPARE[expectation.comparison](left + slack, right))
