"""Sentences of the literature as configs plus expectations; running one gives a verdict.

A claim is a YAML file under configs/claims/<area>/: title, source, statement, the runs to compare, what is expected of
their metrics, and how long it takes. An expectation holds on the mean over seeds or in every seed.
"""

import json
import operator
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, TypeAdapter

from toytf.claim_runs import ClaimRun, finish_runs
from toytf.config.compose import read_config
from toytf.config.plugins import ExperimentConfig, load_config
from toytf.config.sections import Config, digest, validate
from toytf.config.shipped import RENAMED_CLAIMS, claim_files, is_file, nearest_shipped
from toytf.engines import EngineOptions
from toytf.errors import Interrupted, RunFailed, SystemRefused, UserError, nearest, reason, shortened
from toytf.files import write_atomic
from toytf.runs import Run
from toytf.runs.lock import locked
from toytf.runs.provenance import Origin
from toytf.words import counted

if TYPE_CHECKING:
    import pandas as pd

ONE_BY_ONE = EngineOptions()
Verdict = Literal["confirmed", "refuted", "not reached"]
_COMPARE = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


class Expectation(Config):
    """What a metric of a run should be."""

    run: str
    metric: str
    comparison: Literal[">=", ">", "<=", "<", "=="]
    value: float | str
    """A number, or another metric."""
    of: str | None = None
    """The run that `value` is a metric of (default: the same); it must have the same seeds."""
    tolerance: NonNegativeFloat = 0.0
    over: Literal["mean", "every"] = "mean"
    """mean: of the seeds; every: each seed by itself."""
    seeds: PositiveInt = 1
    """How many seeds the run must have."""


class Claim(Config):
    """A sentence of the literature that can be checked."""

    title: str
    source: str
    statement: str
    note: str = ""
    """What a reader of the verdict should know."""
    minutes: PositiveFloat
    """Expected time on two cores."""
    runs: dict[str, dict[str, Any]] = Field(min_length=1)
    """Configs by name; `base:` is relative to the claim's file."""
    expect: tuple[Expectation, ...] = Field(min_length=1)


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


def load_claim(path: Path) -> tuple[Claim, dict[str, ExperimentConfig]]:
    """Read a claim and validate the configs it runs, with wandb off."""
    claim = validate(TypeAdapter(Claim), read_config(path), str(path))
    configs = {}
    for name, content in claim.runs.items():
        try:
            configs[name] = load_config(content, {"logging.wandb": "off"}, folder=path.parent)
        except UserError as error:
            raise UserError(f"{path}: runs.{name}: {error}") from None
    for expectation in claim.expect:
        for run in filter(None, (expectation.run, expectation.of)):
            if run not in configs:
                raise UserError(f'{path}: no run of this claim is called "{run}": {nearest(run, configs)}')
        if expectation.of is not None and not isinstance(expectation.value, str):
            raise UserError(f'{path}: "of: {expectation.of}" needs a metric as value, got {expectation.value:g}')
        seeds = {run: getattr(configs[run], "seeds", ()) for run in (expectation.run, expectation.of) if run}
        if len(set(seeds.values())) > 1:
            raise UserError(f"{path}: {' and '.join(seeds)} are compared seed by seed, but have different seeds")
    return claim, configs


def check_claims(names: Iterable[str], out: Path, options: EngineOptions = ONE_BY_ONE) -> list[Outcome]:
    """Run the named claims or areas (default: all); claims.json and claims.html grow with every verdict.

    Runs are kept by config: what a stopped check has finished, and what two claims share, is not run again. options:
    how many runs go on at a time, and where.
    """
    files = choose(names)
    chosen = [_Chosen(name, *load_claim(path), out, _origin(name, path, out)) for name, path in files.items()]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {reason(error)}") from None
    outcomes: dict[str, Outcome] = {}
    with locked(out):
        for outcome in _one_by_one(chosen) if options.in_this_process else _at_once(chosen, options):
            outcomes[outcome.name] = outcome
            _write([outcomes[name] for name in files if name in outcomes], out)
    return [outcomes[name] for name in files]


@dataclass(frozen=True)
class _Chosen:
    """A claim that is to be checked, and where its runs go."""

    name: str
    claim: Claim
    configs: dict[str, ExperimentConfig]
    out: Path
    origin: Origin

    @property
    def directories(self) -> dict[str, Path]:
        """Of its runs, by their names in the claim."""
        return {run: self.out / "runs" / digest(config) for run, config in self.configs.items()}


def _one_by_one(chosen: Iterable[_Chosen]) -> Iterator[Outcome]:
    for one in chosen:
        sys.stderr.write(f"{one.name} (about {one.claim.minutes:g} minutes)\n")
        try:
            yield _checked(one)
        except Interrupted:
            raise Interrupted(f"stopped during {one.name}; to continue, run the same command again") from None


def _at_once(chosen: Sequence[_Chosen], options: EngineOptions) -> Iterator[Outcome]:
    """A verdict as soon as all runs of a claim have ended, whatever the order."""
    waiting = {one.name: {path for path in one.directories.values() if not Run(path).finished} for one in chosen}
    failures: dict[Path, RunFailed] = {}
    undecided = [*chosen]

    def decided() -> Iterator[Outcome]:
        for one in [one for one in undecided if not waiting[one.name]]:
            undecided.remove(one)
            failed = {run: failures[path] for run, path in one.directories.items() if path in failures}
            seeds = {run: Run.open(path).seeds for run, path in one.directories.items() if run not in failed}
            outcome = _outcome(one, seeds, failed)
            sys.stderr.write(f"{one.name}: {outcome.verdict}; {counted(len(undecided), 'claim')} left\n")
            yield outcome

    yield from decided()
    try:
        with closing(finish_runs(_runs(chosen), options)) as ending:
            for run, failure in ending:
                if failure is not None:
                    failures[run.directory] = failure
                for of_claim in waiting.values():
                    of_claim.discard(run.directory)
                yield from decided()
    except Interrupted:
        done = f"{len(chosen) - len(undecided)} of {counted(len(chosen), 'claim')} checked"
        raise Interrupted(f"stopped with {done}; to continue, run the same command again") from None


def _runs(chosen: Iterable[_Chosen]) -> list[ClaimRun]:
    """What is left to run, each config once; the runs of a claim are taken to be equally long."""
    runs: dict[Path, ClaimRun] = {}
    for one in chosen:
        for run, path in one.directories.items():
            if path not in runs and not Run(path).finished:
                minutes = one.claim.minutes / len(one.configs)
                runs[path] = ClaimRun(f"{one.name}: {run}", one.configs[run], path, one.origin, minutes)
    return [*runs.values()]


def _origin(name: str, path: Path, out: Path) -> Origin:
    """What to type to check this claim alone: a claim that ships goes by its name, one's own by its file."""
    asked = name if path in claim_files().values() else str(path)
    return Origin(command=shlex.join(["toytf", "claims", asked, "--out", str(out)]))


def _checked(one: _Chosen) -> Outcome:
    """Run one claim and compare."""
    from toytf.experiments.launch import run_config

    seeds: dict[str, pd.DataFrame] = {}
    failed: dict[str, RunFailed] = {}
    for run, config in one.configs.items():
        try:
            seeds[run] = run_config(config, one.directories[run], resume=True, origin=one.origin).seeds
        except SystemRefused:
            raise  # which says nothing about the claim
        except RunFailed as failure:
            failed[run] = failure
    return _outcome(one, seeds, failed)


def _outcome(one: _Chosen, seeds: "Mapping[str, pd.DataFrame]", failed: Mapping[str, RunFailed]) -> Outcome:
    """The verdict on a claim from the seeds of its runs, and why there are none of some."""
    claim = one.claim
    note = " ".join(filter(None, (claim.note, *(f"{run}: {failed[run]}." for run in one.configs if run in failed))))
    findings = tuple(
        compare(expectation, seeds.get(expectation.run), seeds.get(expectation.of or expectation.run))
        for expectation in claim.expect
    )
    order: tuple[Verdict, ...] = ("refuted", "not reached", "confirmed")
    worst = min(findings, key=lambda finding: order.index(finding.verdict))
    return Outcome(
        one.name, claim.title, claim.source, claim.statement, note.strip(),
        worst.predicted, worst.measured, worst.spread, worst.tolerance, worst.verdict,
        findings, {run: str(directory) for run, directory in one.directories.items()},
    )  # fmt: skip


def compare(expectation: Expectation, seeds: "pd.DataFrame | None", others: "pd.DataFrame | None" = None) -> Finding:
    """Confirmed if it holds; refuted if it fails by more than the spread over seeds; else not reached.

    others: the run that a metric given as value is of (default: the same). A metric that a seed does not have (an onset
    that never came, a run that diverged) is not reached.
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
        spread = float(left.std(ddof=1)) if len(left) > 1 else None
        in_mean = _holds(expectation, measured, target)
        in_every = all(_holds(expectation, a, b) for a, b in zip(left, right, strict=True))
        missed = abs(measured - target) - expectation.tolerance
        doubt = float((left - right).std(ddof=1)) if len(left) > 1 else 0.0  # seeds are paired
        if len(left) < expectation.seeds:
            verdict = "not reached"
        elif in_every if expectation.over == "every" else in_mean:
            verdict = "confirmed"
        elif not in_mean and missed > doubt:
            verdict = "refuted"
    expected = f"{expectation.comparison} {value}" + (f" of {expectation.of}" if expectation.of else "")
    return Finding(
        expectation.run, expectation.metric, expected,
        predicted, measured, spread, expectation.tolerance, verdict,
    )  # fmt: skip


def _column(seeds: "pd.DataFrame | None", name: str) -> "pd.Series[float] | None":
    """A metric of every seed; None if a seed does not have it, an error if the run can never have it."""
    if seeds is None:
        return None
    if not {name, name.removeprefix("onset/").removeprefix("halfway/")} & set(seeds.columns):
        raise UserError(
            f'a claim expects the metric "{name}", which its run does not have: {nearest(name, seeds.columns)}'
        )
    return None if name not in seeds.columns or seeds[name].isna().any() else seeds[name]


def _holds(expectation: Expectation, left: float, right: float) -> bool:
    if expectation.comparison == "==":
        return abs(left - right) <= expectation.tolerance
    slack = expectation.tolerance if expectation.comparison in (">=", ">") else -expectation.tolerance
    return bool(_COMPARE[expectation.comparison](left + slack, right))


def choose(names: Iterable[str]) -> dict[str, Path]:
    """The claims that names, areas and paths of files mean, by name."""
    files = claim_files()
    chosen: dict[str, Path] = {}
    for name in list(names) or files:
        for claim, path in _meant(name, files).items():
            if chosen.setdefault(claim, path) != path:
                raise UserError(f'two claims are called "{claim}": {chosen[claim]} and {path}')
    return chosen


def _meant(name: str, files: dict[str, Path]) -> dict[str, Path]:
    """The claims that one word means: an area, area/name, a name that one area has, or the path of a file."""
    areas = {claim.partition("/")[0] for claim in files}
    if name in areas:
        return {claim: path for claim, path in files.items() if claim.startswith(f"{name}/")}
    path = Path(name)
    if not is_file(path):
        bare = path.as_posix().removeprefix("configs/").removeprefix("claims/").removesuffix(".yaml")
        known = {claim: file for claim, file in files.items() if bare in (claim, claim.partition("/")[2])}
        if len(known) > 1:
            raise UserError(f'several claims are called "{bare}": choose {" or ".join(known)}')
        if known:
            return known
    else:
        shipped = {claim: file for claim, file in files.items() if file.samefile(path)}
        return shipped or {path.stem: path}
    former = path.name.removesuffix(".yaml")
    if former in RENAMED_CLAIMS:
        raise UserError(f'claim "{former}" is now called {RENAMED_CLAIMS[former]}')
    hint = nearest_shipped(name, [*files, *areas])
    raise UserError(f"{shortened(name)}: no such claim{hint} (`toytf list claims` shows all that ship with toytf)")


def _write(outcomes: list[Outcome], out: Path) -> None:
    from toytf.report.verdicts import verdict_page

    write_atomic(out / "claims.json", (json.dumps([asdict(o) for o in outcomes], indent=2) + "\n").encode())
    write_atomic(out / "claims.html", verdict_page(outcomes, out).encode())
