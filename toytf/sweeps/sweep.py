"""Run a sweep: what is not finished yet, wherever the engine runs it; table, figures and page grow with it."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from toytf.config.compose import Overrides
from toytf.config.plugins import ExperimentConfig
from toytf.engines import Ended, EngineOptions, Job, JobLost, check_engine, run_jobs
from toytf.errors import Interrupted, SystemRefused, ToytfError, UserError, reason
from toytf.files import remove_temporary, write_atomic
from toytf.report.terminal import SweepLine
from toytf.runs.checksums import read_bytes
from toytf.runs.lock import locked
from toytf.runs.provenance import Origin
from toytf.stopping import stop_asked, stop_on_interrupt
from toytf.sweeps.opened import FIGURES, RUNS, WRITTEN, Failure, Sweep, member_label, sweep_yaml, write_sweep
from toytf.sweeps.page import write_page
from toytf.sweeps.plan import PLAN, SWEEP_FILE, Plan, PlannedRun, Source, plan_sweep
from toytf.sweeps.table import CSV, with_factors
from toytf.words import listed, say

if TYPE_CHECKING:
    import pandas as pd

TABLE_EVERY = 30.0
"""Seconds between two tables while runs go on, at least."""
TABLE_SHARE = 20
"""And so many times what the last one took: of many runs it is long, and workers wait for it."""

Told = tuple[str, str] | None
"""Of a run: nothing if it is finished, else the class of the error and its sentence."""


def sweep(
    source: Source,
    overrides: Overrides = (),
    *,
    out: Path | str | None = None,
    resume: bool = False,
    retry: bool = False,
    engine: str = "process",
    jobs: int | None = None,
    address: str | None = None,
    gpus: float = 0.0,
) -> Sweep:
    """Run a config (a file, the bare name of one that ships, or a mapping) at many points.

    overrides: a list of values, or a text such as `log(1e-4, 1e-1, 7)`, is varied; any other value is set.
    resume: go on with what is not finished; retry: also with what failed. jobs: at a time, by default as many as there
    are cores.
    """
    given = cast(Literal["process", "ray"], engine)  # which says so itself if it is another
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    options = EngineOptions(given, cores if jobs is None else jobs, address=address, gpus=gpus)
    plan = plan_sweep(source, overrides)
    if out is None and (resume or retry) and isinstance(source, str | Path) and Path(source).name == SWEEP_FILE:
        out = Path(source).parent
    directory = plan.directory if out is None else Path(out)
    _check_directory(plan, directory, resume=resume or retry)
    check_engine(options)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file, but --out should be a directory" if directory.is_file() else reason(error)
        raise UserError(f"{directory}: cannot be written: {why}") from None
    with locked(directory):
        remove_temporary(directory, directory / FIGURES)
        found = write_sweep(plan, directory)
        found.measured()  # what is wrong with a finished run should show before others are trained
        work = _Work(plan, found, retry=retry)
        with stop_on_interrupt():
            try:
                work.run(options)
            except (Interrupted, KeyboardInterrupt) as stopped:
                if isinstance(stopped, KeyboardInterrupt) and stop_asked():
                    raise  # the second one
                work.conclude()
                raise Interrupted(f"stopped: {found.state}; to continue: {found.resume_command}") from None
            except SystemRefused as refused:
                why = str(refused).partition(";")[0]  # the rest is about one run
                raise SystemRefused(f"{why}; {found.state}; fix this, then continue: {found.resume_command}") from None
        work.conclude()
    return found


def _check_directory(plan: Plan, directory: Path, *, resume: bool) -> None:
    """Refuse a directory with files that would be overwritten, or a sweep that nobody asked to go on with.

    A sweep may have grown: by values, or by seeds. Without its plan.json it is known by its sweep.yaml.
    """
    there = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    taken = [name for name in (*WRITTEN, "config.yaml") if name in there]
    if PLAN in taken:
        if not {member.id for member in Sweep(directory).members} <= {run.id for run in plan.runs}:
            raise UserError(f"{directory} holds a different sweep: choose another --out")
    elif taken and not (SWEEP_FILE in taken and read_bytes(directory / SWEEP_FILE) == sweep_yaml(plan)):
        raise UserError(
            f"{directory} already has {listed(taken)}, which this sweep did not write: choose another --out"
        )
    if taken and not resume:
        raise UserError(f"{directory} already holds a sweep: add --resume to continue it, or choose another --out")


class _Work:
    """What is left of a sweep, and what has come out so far."""

    def __init__(self, plan: Plan, sweep: Sweep, *, retry: bool) -> None:
        self._plan, self._sweep = plan, sweep
        self._sizes = {run.group: len(group) for group in plan.groups for run in group}
        # What failed is left alone, unless only its worker was lost, or it has ended since.
        self._failures = {
            run: why
            for run, why in ({} if retry else sweep.failures).items()
            if why.error != JobLost.__name__ and not (sweep.directory / RUNS / run / "summary.json").exists()
        }
        sweep.write_failures(self._failures)
        self._next_table = time.monotonic() + TABLE_EVERY

    def run(self, options: EngineOptions) -> None:
        """Run every group that has something left, and note what fails."""
        finished = {run.id for run in self._plan.runs if self._sweep.run(run).finished}
        settled = finished | self._failures.keys()
        jobs: dict[str, list[PlannedRun]] = {}
        for group in self._plan.groups:
            left = [run for run in group if run.id not in settled]
            if left:
                others = f" and {len(left) - 1} more" if len(left) > 1 else ""
                jobs[f"{member_label(left[0])}{others}"] = left
        n_ended = 0
        with SweepLine(len(self._plan.runs), len(finished), len(self._failures)) as line:
            for ended in run_jobs(self._jobs(jobs), options):
                n_ended += 1
                failed = self._failed(ended, jobs[ended.job.name])
                if failed:
                    self._failures |= failed
                    self._sweep.write_failures(self._failures)
                line.ended(len(jobs[ended.job.name]), len(failed))
                if time.monotonic() > self._next_table:
                    self.write_table()
        if n_ended < len(jobs):
            raise Interrupted("stopped")

    def _jobs(self, groups: Mapping[str, Sequence[PlannedRun]]) -> Iterator[Job]:
        """A job for each group, one at a time, until somebody asks to stop.

        Configs have the size of their group, and the sweep as their wandb group. One that can be stacked but is alone
        now is trained as a stack, too: the sweep may grow, and bits depend on that.
        """
        for name, group in groups.items():
            if stop_asked():
                return
            configs = []
            for run in group:
                config, size = run.config, self._sizes[run.group]
                stackable = config.worth_stacking > 1 and getattr(config, "stack", 1) == "auto"
                changes: dict[str, Any] = {"stack": max(size, 2)} if size > 1 or stackable else {}
                logging = getattr(config, "logging", None)
                if logging is not None and logging.group is None:
                    changes["logging"] = logging.model_copy(update={"group": self._sweep.name})
                configs.append(config.model_copy(update=changes))
            arguments = {
                "configs": configs,
                "directories": [str(self._sweep.run(run).directory) for run in group],
                "page": self._sweep.section.pages,
                "origin": Origin(self._sweep.asked.title or None, self._sweep.resume_command),
            }
            yield Job(name, "toytf.sweeps.sweep:run_group", arguments)

    def _failed(self, ended: Ended, group: Sequence[PlannedRun]) -> dict[str, Failure]:
        """The runs of a group that failed, and why; if the whole group was lost, those that are not finished.

        A full disk, or too little memory, ends the sweep: it says nothing about the runs, which go on later.
        """
        if isinstance(ended.error, SystemRefused):
            raise ended.error
        if ended.error is not None:
            lost = Failure(type(ended.error).__name__, str(ended.error), ended.traceback)
            return {run.id: lost for run in group if not self._sweep.run(run).finished}
        told: Sequence[Told] = ended.result
        failed = {run.id: Failure(*one) for run, one in zip(group, told, strict=True) if one is not None}
        for why in failed.values():
            if why.error == SystemRefused.__name__:
                raise SystemRefused(why.message)
        return failed

    def write_table(self) -> "pd.DataFrame":
        """Write what has been measured so far."""
        began = time.monotonic()
        measured = self._sweep.measured()
        table = with_factors(measured, self._sweep.members, self._sweep.factors)
        write_atomic(self._sweep.directory / CSV, table.to_csv(index=False, lineterminator="\n").encode())
        ended = time.monotonic()
        self._next_table = ended + max(TABLE_EVERY, TABLE_SHARE * (ended - began))
        return measured

    def conclude(self) -> None:
        """Write table, figures and page."""
        write_page(self._sweep, self.write_table())
        for metric, hint in self._sweep.unknown.items():
            say(f'toytf: no run has the metric "{metric}", which the sweep should show: {hint}')


def run_group(
    configs: Sequence[ExperimentConfig], directories: Sequence[str], page: bool, origin: Origin
) -> list[Told]:  # fmt: skip
    """The job of a group, in whichever process: train its runs together, and say of each how it ended."""
    from toytf.experiments.launch import run_together

    ends = run_together(configs, [Path(directory) for directory in directories], page=page, origin=origin)
    return [(type(end).__name__, str(end)) if isinstance(end, ToytfError) else None for end in ends]
