"""A study: a grid of cases, and one function from a case to measurements.

The rest is done here: names, rows, resuming, wandb, table, figures and page. A case is a dataclass whose fields are the
factors of the grid; one that is None is left out of it.

    @dataclass(frozen=True)
    class Case:
        rule: str
        d: int

    class Capacity(Study[Case]):
        def cases(self):
            return [Case(rule, d) for rule in self.config.rules for d in self.config.dimensions]

        def measure(self, case, seed):
            yield STORED.measurement(search(case.rule, case.d, seed), theory=theory.capacity(case.d, case.d))
"""

import math
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from toytf.engines import ONE_BY_ONE, EngineOptions, Job, run_jobs
from toytf.errors import Interrupted, UserError, shortened
from toytf.experiments.cases import CaseOrder, FoundAtStep, case_job
from toytf.experiments.experiment import Experiment
from toytf.measurement import (
    KINDS,
    Group,
    Measurement,
    Quantity,
    Reference,
    Scalar,
    as_row,
    check_measured,
    flat,
    is_reference,
    plain_scalar,
)
from toytf.process import cpu_threads
from toytf.report.story import Story, first_row
from toytf.report.terminal import CaseLine
from toytf.runs import Run
from toytf.runs.rows import MetricsFile, Row, read_rows
from toytf.runs.tracking import WandbMirror
from toytf.stopping import check_stop, stop_on_interrupt
from toytf.tidy import last_of_each, tidy
from toytf.words import counted, say

if TYPE_CHECKING:
    import pandas as pd

C = TypeVar("C")


@dataclass(frozen=True)
class Drawn:
    """A figure of what was measured, which is kept for the page: drawn at once, and for the first seed only."""

    name: str
    draw: Callable[[], Any]


Found = Iterable[Measurement | Drawn]
"""What a case gives."""


class Study(Experiment, Generic[C]):
    """An experiment that is a grid of cases, each measured for every seed."""

    @abstractmethod
    def cases(self) -> Iterable[C]:
        """The cases, in the order in which they are done."""

    @abstractmethod
    def measure(self, case: C, seed: int) -> Found:
        """The measurements of one case and seed, one at least; their factors are those of the case, and their own."""

    def steps(self, case: C, seed: int) -> Iterator[tuple[int, Found]]:
        """The same by step, for a case that gives a curve; its last step is `last_step`."""
        yield 0, self.measure(case, seed)

    def seeds(self, case: C, seeds: Sequence[int]) -> Iterator[tuple[int, int, Found]]:
        """Seed, step and measurements of several seeds, for a case that can do them at once."""
        for seed in seeds:
            for step, found in self.steps(case, seed):
                yield seed, step, found

    last_step: int = 0
    """The step of the row with which a case is done."""
    table: "pd.DataFrame"
    """While it concludes: the last value of every metric in every seed."""

    @property
    def plain(self) -> Mapping[str, Scalar]:
        """Values of factors that go without saying: flat names leave them out."""
        return {}

    def conclude(self, table: "pd.DataFrame") -> Iterable[Measurement]:
        """What the cases together say, such as fits, from the tidy table of one seed; `self.table` has all seeds."""
        return ()

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Every group against the first factor with several numbers, one curve for each value of the others."""
        from toytf.figures import group_figures

        varied = dict.fromkeys(factor for case in self.cases() for factor in factors(case))
        yield from group_figures(run.table, run.columns, list(varied))

    def story(self, run: Run) -> Story:
        """Its findings, or if it has not ended, how far it is."""
        cases = list(self.cases())
        before = self._before(read_rows(run.metrics_file), run.columns)
        done = min(before.n_done(map(factors, cases), seed) for seed in self.config.seeds)
        if not run.finished and done < len(cases):
            are = "is" if 1 in (done, len(cases)) else "are"
            so_far = f"The run has not ended: {done} of {counted(len(cases), 'case')} {are} done."
            return Story((so_far, *first_row(run)), self.next_step(run))
        return super().story(run)

    def findings(self, run: Run) -> Iterable[str]:
        """What came out of it; by default how many cases were measured, and the first row of the short table."""
        cases, seeds = counted(len(list(self.cases())), "case"), counted(len(self.config.seeds), "seed")
        return (f"Measured {cases} in {seeds}.", *first_row(run))

    def run(self, run: Run, engine: EngineOptions = ONE_BY_ONE) -> None:
        """Measure what is not measured yet, and conclude."""
        metrics = MetricsFile(run.metrics_file)
        metrics.check_seeds(self.config.seeds)
        cases = list(self.cases())
        labels = [self.label(case) for case in cases]
        if not cases:
            raise UserError(f"{self.config.experiment}: there are no cases to measure")
        if len(set(labels)) < len(labels):
            raise UserError(f"{max(labels, key=labels.count)} is the name of two cases: give each its own")
        before = self._before(metrics.rows, metrics.columns)
        named = dict(zip(labels, cases, strict=True))
        with CaseLine(len(cases)) as line:
            if engine.in_this_process:
                self._one_by_one(named, run, metrics, before, line)
            else:
                self._at_once(named, run, metrics, before, line, engine=engine)
        self.table = last_of_each(tidy(metrics.rows, metrics.columns))
        for seed in self.config.seeds:
            known = {name for row in metrics.of(seed) for name in row}
            found = map(_if_finite, self.conclude(self.table[self.table["seed"] == seed]))
            new = [measured for measured in found if not as_row([measured]).keys() <= known]
            if new:
                metrics.record(seed, 0, new)
        metrics.note(closed=True)
        self._mirror(run, metrics)

    def label(self, case: C) -> str:
        """What a case is called on the terminal, such as `capacity/optimum_d64`."""
        at = factors(case)
        return flat(Quantity(Group(self.config.experiment, ""), at=at, plain=self._unsaid(at)))

    def _before(self, rows: Iterable[Row], columns: Mapping[str, Quantity]) -> "_Before":
        return _Before(rows, columns, self.last_step, {factor for case in self.cases() for factor in factors(case)})

    def _one_by_one(
        self, cases: Mapping[str, C], run: Run, metrics: MetricsFile, before: "_Before", line: CaseLine
    ) -> None:
        """Measure in this process; every row is written as soon as it is there."""
        with stop_on_interrupt(), cpu_threads(self.config.n_threads):
            for name, case in cases.items():
                line.begin(name)
                started = time.perf_counter()
                try:
                    left = self._left(case, before)
                    if left:
                        check_stop()
                        for found in self.found(case, left):
                            self._record(found, run, metrics, before)
                except Interrupted:
                    raise Interrupted(f"stopped before {name} was done; to continue: {run.resume_command}") from None
                except UserError as error:
                    raise UserError(f"{name}: {error}") from None
                metrics.note()
                run.add_seconds({name: time.perf_counter() - started})
                line.done()

    def _at_once(
        self, cases: Mapping[str, C], run: Run, metrics: MetricsFile, before: "_Before", line: CaseLine,
        *, engine: EngineOptions,
    ) -> None:  # fmt: skip
        """Measure in workers; what a job found is written when it has ended, and in the end all is put in order."""
        run.add_seconds(dict.fromkeys(cases, 0.0))
        left = {name: self._left(case, before) for name, case in cases.items()}
        planned = [job for name, case in cases.items() for job in self._jobs(name, case, left[name])]
        case_of = {job.name: name for name, job in planned}
        open_jobs = Counter(case_of.values())
        order = CaseOrder([*case_of], metrics)
        for name in (name for name in cases if name not in open_jobs):
            line.begin(name)
            line.done()

        def begun() -> Iterator[Job]:
            for name, job in planned:
                line.begin(name)
                yield job

        try:
            with closing(run_jobs(begun(), engine)) as jobs:
                for ended in jobs:
                    name = case_of[ended.job.name]
                    if isinstance(ended.error, UserError):
                        raise UserError(f"{name}: {ended.error}")
                    if ended.error is not None:
                        say(ended.traceback.rstrip())
                        raise ended.error
                    try:
                        for found in ended.result:
                            self._record(found, run, metrics, before)
                    except UserError as error:
                        raise UserError(f"{name}: {error}") from None
                    order.note(ended.job.name, ended.result, metrics)
                    metrics.note()
                    run.add_seconds({name: ended.seconds})
                    open_jobs[name] -= 1
                    if not open_jobs[name]:
                        line.done()
        except Interrupted:
            raise Interrupted(f"stopped before all cases were done; to continue: {run.resume_command}") from None
        order.restore(metrics)

    def _jobs(self, name: str, case: C, seeds: Sequence[int]) -> Iterator[tuple[str, Job]]:
        """The jobs of a case with its name: one for each seed, unless it can do several at once."""
        at_once = type(self).seeds is not Study.seeds
        for some in [seeds] if at_once else [[seed] for seed in seeds]:
            if some:
                label = name if at_once or len(self.config.seeds) == 1 else f"{name}, seed {some[0]}"
                yield name, case_job(label, self.config, case, some)

    def _left(self, case: C, before: "_Before") -> list[int]:
        """The seeds in which a case is not done."""
        at = factors(case)
        return [seed for seed in self.config.seeds if not before.is_done(at, seed)]

    def found(self, case: C, seeds: Sequence[int]) -> Iterator[FoundAtStep]:
        """What a case gives in these seeds, ready to be written down; figures of the first seed only."""
        at = factors(case)
        for seed, step, found in self.seeds(case, seeds):
            if found is None:
                raise UserError("measure returned nothing: it should yield measurements")
            measured, figures = [], []
            for one in found:
                if not isinstance(one, Drawn):
                    check_measured([one], "measure")
                    measured.append(_if_finite(one.placed(at, self._unsaid(at))))
                elif seed == self.config.seeds[0]:
                    figures.append((one.name, one.draw()))
            if not measured:
                raise UserError("measure yielded no measurement: it should yield at least one")
            yield FoundAtStep(seed, step, tuple(measured), tuple(figures))

    def _record(self, found: FoundAtStep, run: Run, metrics: MetricsFile, before: "_Before") -> None:
        """Write down what is not in the files yet."""
        run.keep_figures(dict(found.figures))
        references = found.step == self.last_step
        if before.has({"seed": found.seed, "step": found.step, **as_row(found.measured, references=references)}):
            metrics.describe(found.measured)
        else:
            metrics.record(found.seed, found.step, found.measured, references=references)

    def _unsaid(self, at: Mapping[str, Scalar]) -> tuple[str, ...]:
        return tuple(factor for factor, value in self.plain.items() if at.get(factor) == value)

    def _mirror(self, run: Run, metrics: MetricsFile) -> None:
        """Everything of a seed as one curve to wandb; what was measured once belongs to the last step."""
        seeds = run.seeds
        for seed in self.config.seeds:
            by_step: dict[int, Row] = {}
            for row in metrics.of(seed):
                by_step.setdefault(int(row["step"]), {}).update(row)
            last = {str(name): float(value) for name, value in seeds.loc[seed].dropna().items()}
            with WandbMirror(self.config.logging, run.directory, seed, self.config.model_dump(mode="json")) as mirror:
                for step in sorted(by_step)[:-1]:
                    mirror.log(by_step[step])
                mirror.log({**last, "seed": seed, "step": max(by_step)})


def _if_finite(measured: Measurement) -> Measurement:
    """What is not a finite number did not come, and cannot be read against."""

    def finite(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    levels = {kind: finite(getattr(measured.reference, kind)) for kind in KINDS}
    return replace(measured, value=finite(measured.value), reference=Reference(**levels))


class _Before:
    """The rows that a run has already: what is in them is not measured, or written, again."""

    def __init__(
        self, rows: Iterable[Row], columns: Mapping[str, Quantity], last_step: int, factors: set[str]
    ) -> None:  # fmt: skip
        rows = list(rows)
        self._silent = [row["seed"] for row in rows if row["step"] == last_step and {*row} == {"seed", "step"}]
        self._rows = {_identity(row) for row in rows}
        self._done: dict[int, set[frozenset[tuple[str, Scalar]]]] = {}
        for row in rows:
            if row["step"] == last_step:
                cases = self._done.setdefault(int(row["seed"]), set())
                # What did not come may have a reference only.
                names = (name.partition("/")[2] if is_reference(name) else name for name in row)
                for about in (columns[name] for name in names if name in columns):
                    cases.add(frozenset((factor, value) for factor, value in about.at.items() if factor in factors))

    def has(self, row: Row) -> bool:
        """Is there a row of this seed and step with the same metrics?"""
        return _identity(row) in self._rows

    def is_done(self, at: Mapping[str, Scalar], seed: int) -> bool:
        """Is there a row of the last step about this case?"""
        return frozenset(at.items()) in self._done.get(seed, ())

    def n_done(self, cases: Iterable[Mapping[str, Scalar]], seed: int) -> int:
        """How many cases have a row of the last step, also those of which nothing came."""
        return self._silent.count(seed) + sum(self.is_done(at, seed) for at in cases)


def _identity(row: Row) -> tuple[float, float, frozenset[str]]:
    """What a row is about: seed, step and the names of its metrics."""
    return row["seed"], row["step"], frozenset(row)


def factors(case: Any) -> dict[str, Scalar]:
    """The fields of a case that are not None; a tuple, such as a shape, as `48x32`."""
    found: dict[str, Scalar] = {}
    for part in fields(case):
        value = getattr(case, part.name)
        if value is not None:
            scalar = "x".join(map(str, value)) if isinstance(value, tuple) else plain_scalar(value)
            if not isinstance(scalar, str | int | float) or not str(scalar).isprintable():
                raise UserError(f"{part.name} = {shortened(str(value))} cannot be a factor: give a number or a word")
            found[part.name] = scalar
    return found
