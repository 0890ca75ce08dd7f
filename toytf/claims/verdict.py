"""From the seeds of runs to a verdict: confirmed, refuted, or not reached."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from toytf.claims.claim import Claim, Expectation
from toytf.errors import UserError, nearest
from toytf.experiments.seeded import in_short
from toytf.fits import at_infinity

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["confirmed", "refuted", "not reached"]
CONFIDENCE = 0.95
FEWEST_SEEDS = 5
"""A coin falls on the same side in every seed with p = 1/16 for four seeds, 1/32 for five."""

_WORST_FIRST: tuple[Verdict, ...] = ("refuted", "not reached", "confirmed")


@dataclass(frozen=True)
class Finding:
    """An expectation beside what was measured."""

    run: str
    metric: str
    expected: str
    predicted: float | None
    measured: float | None
    """The mean over seeds, or what a fit to all of them gave."""
    spread: float | None
    """Standard deviation over seeds, or the error of the fit."""
    tolerance: float
    verdict: Verdict
    n: int = 0
    seeds: str = ""
    """0..7 for those in a row, else one by one."""
    standard_error: float | None = None
    """Of what is measured; where another metric is compared, `doubt` is of their difference."""
    doubt: float | None = None
    """Of a mean: it has to hold or to fail by more than that (`doubt_of`); 0 where nothing is random."""
    held: int | None = None
    """Of an expectation in every seed: in how many seeds it holds."""
    p: float | None = None
    """The chance that a fair coin falls on one side in so many of the seeds (sign test)."""


@dataclass(frozen=True)
class Outcome:
    """A claim's verdict: its worst finding, whose numbers stand for it, and all of them."""

    name: str
    title: str
    kind: str
    source: str
    statement: str
    note: str
    predicted: float | None
    measured: float | None
    spread: float | None
    tolerance: float
    verdict: Verdict
    n: int
    seeds: str
    standard_error: float | None
    findings: tuple[Finding, ...]
    runs: dict[str, str]
    seconds: float
    """What its runs took, without the waiting for one another; a run that claims share counts in each."""
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
    seconds: float = 0.0,
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
        name, claim.title, claim.kind, claim.source, claim.statement, note,
        worst.predicted, worst.measured, worst.spread, worst.tolerance, worst.verdict,
        worst.n, worst.seeds, worst.standard_error, tuple(findings), runs, seconds, quick,
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
    """Confirmed if the mean holds by more than the doubt (`doubt_of`), refuted if it fails by more, else not reached.

    In every seed: confirmed if it holds in each of five or more, refuted if it fails in so many that a fair coin would
    not (p ≤ 0.05). others: the run that a metric given as value is of (default: the same). A metric that a seed
    does not have (an onset that never came, a run that diverged) is not reached. quick: no doubt is asked for, and only
    what is exact can be refuted.
    """
    value = expectation.value
    times = "" if expectation.factor == 1 else f"{expectation.factor:g} × "
    expected = f"{expectation.comparison} {times}{value}" + (f" of {expectation.of}" if expectation.of else "")
    if expectation.sizes:
        expected += f" for size → ∞, from {', '.join(map(str, expectation.sizes))}"
    others = seeds if others is None and expectation.of is None else others
    left = _column(seeds, expectation.metric)
    right = _column(others, value) if isinstance(value, str) else None if left is None else left * 0 + value
    if seeds is None or left is None or right is None:
        predicted = value if isinstance(value, float) else None
        asked = [] if seeds is None else [*map(int, seeds.index)]
        return Finding(
            expectation.run, expectation.metric, expected, predicted, None, None, expectation.tolerance, "not reached",
            n=len(asked), seeds=in_short(asked) if asked else "",
        )  # fmt: skip
    right = right * expectation.factor
    n, of_fit = len(left), f"{expectation.metric}/error"
    # A fit to all seeds together is the same in each: it has no spread over seeds, and its error takes that place.
    fitted = float(seeds[of_fit].iloc[0]) if of_fit in seeds.columns and n > 1 and left.nunique() == 1 else None
    spread = fitted if fitted is not None else float(left.std(ddof=1)) if n > 1 else None
    error = fitted if fitted is not None or spread is None else spread / math.sqrt(n)
    differences = left - right  # seeds are paired
    doubt = held = p = None
    verdict: Verdict = "not reached"
    if expectation.over == "every":
        held = sum(_holds(expectation, difference) for difference in differences)
        p = sign_test(max(held, n - held), n)
        if held == n and (n >= FEWEST_SEEDS or expectation.exact or quick):
            verdict = "confirmed"
        elif held < n and (expectation.exact or (2 * held < n and p <= 1 - CONFIDENCE and not quick)):
            verdict = "refuted"
    else:
        mean = float(differences.mean())
        doubt = 0.0 if expectation.exact else doubt_of(differences.tolist(), fitted)
        if _holds(expectation, mean, 0.0 if quick else doubt):
            verdict = "confirmed"
        elif -_slack(expectation, mean) > doubt and (expectation.exact or not quick):
            verdict = "refuted"
    return Finding(
        expectation.run, expectation.metric, expected,
        float(right.mean()) if isinstance(value, str) else value, float(left.mean()), spread, expectation.tolerance,
        verdict, n=n, seeds=in_short([*map(int, left.index)]), standard_error=error,
        doubt=doubt if doubt is not None and math.isfinite(doubt) else None, held=held, p=p,
    )  # fmt: skip


def doubt_of(values: Sequence[float], fitted: float | None = None) -> float:
    """How far the mean of these seeds may be from that of all seeds: half of its 95 % confidence interval.

    t(0.975, n − 1) · sd / √n; infinite for one seed, and for fewer than five that agree. fitted: the error of a fit to
    all seeds, in the place of sd / √n.
    """
    from scipy.special import stdtrit

    n = len(values)
    if n < 2:
        return math.inf
    error = statistics.stdev(values) / math.sqrt(n) if fitted is None else fitted
    if not error and n < FEWEST_SEEDS:
        return math.inf
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * error


def sign_test(held: int, n: int) -> float:
    """The chance that of n fair coins at least so many fall on one side: Σ_{k ≥ held} C(n, k) / 2ⁿ."""
    return math.fsum(math.comb(n, k) / 2**n for k in range(held, n + 1))


def _column(seeds: "pd.DataFrame | None", name: str) -> "pd.Series[float] | None":
    """A metric of every seed; None if a seed has no finite one, an error if the run can never have it."""
    if seeds is None:
        return None
    if not {name, name.removeprefix("onset/").removeprefix("halfway/")} & set(seeds.columns):
        raise MissingMetric(
            f'a claim expects the metric "{name}", which its run does not have: {nearest(name, seeds.columns)}'
        )
    return seeds[name] if name in seeds.columns and seeds[name].map(math.isfinite).all() else None


def _slack(expectation: Expectation, difference: float) -> float:
    """How far measured minus expected may still go the wrong way; below 0 it has gone too far."""
    if expectation.comparison == "==":
        return expectation.tolerance - abs(difference)
    return expectation.tolerance + (difference if expectation.comparison.startswith(">") else -difference)


def _holds(expectation: Expectation, difference: float, doubt: float = 0.0) -> bool:
    slack = _slack(expectation, difference)
    return slack > doubt or (slack == doubt and expectation.comparison not in ("<", ">"))
