"""The runs of claims: in this process one by one, in workers the longest first, and how long the rest will take."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from toytf.config.plugins import ExperimentConfig
from toytf.engines import EngineOptions, Job, JobLost, run_jobs
from toytf.errors import RunFailed, SystemRefused, UserError
from toytf.runs.provenance import Origin
from toytf.words import counted, say


@dataclass(frozen=True)
class ClaimRun:
    """A run that one or several claims need."""

    name: str
    """Of the first of these claims and its name there, such as `bigram/birth: joint`."""
    config: ExperimentConfig
    directory: Path
    origin: Origin
    minutes: float
    """Expected, of one core or two."""


Ending = Generator[tuple[ClaimRun, RunFailed | None], None, None]


def finish_runs(runs: Sequence[ClaimRun], options: EngineOptions) -> Ending:
    """Each run when it has come to its end, and why it failed if it did; one line about it goes to stderr.

    What says nothing about a claim is raised: a mistake, a refusal of the system, a job that was lost. Runs that go on
    are asked to stop then, and can be continued.
    """
    by_name = {run.name: run for run in runs}
    left = Forecast(sum(run.minutes for run in runs), options.jobs)

    def jobs() -> Iterator[Job]:
        for run in runs if options.in_this_process else sorted(runs, key=lambda run: -run.minutes):
            if options.in_this_process:
                say(run.name)
            arguments = {"config": run.config, "directory": run.directory, "origin": run.origin}
            yield Job(run.name, f"{__name__}:finish_run", arguments)

    with closing(run_jobs(jobs(), options)) as ending:
        for n_ended, ended in enumerate(ending, 1):
            run, error = by_name[ended.job.name], ended.error
            if isinstance(error, UserError | SystemRefused | JobLost):
                if ended.traceback:
                    say(ended.traceback.rstrip())
                raise error
            left.ended(run.minutes, ended.seconds / 60)
            how = "failed" if error is not None else "done"
            rest = f"{counted(len(runs) - n_ended, 'run')} left" + (f", {left}" if n_ended < len(runs) else "")
            say(f"{run.name} {how} after {ended.seconds:.0f} s; {rest}")
            yield run, error if isinstance(error, RunFailed) else None


def finish_run(config: ExperimentConfig, directory: Path, origin: Origin) -> None:
    """Run a config to its end, from where it was stopped and without a page: the work of a job."""
    from toytf.experiments.launch import run_config

    run_config(config, directory, resume=True, origin=origin, page=False)


class Forecast:
    """How long is left: what was expected of it, times what the runs so far have taken of what was expected of them."""

    def __init__(self, minutes: float, at_a_time: int) -> None:
        self._left, self._at_a_time = minutes, at_a_time
        self._expected = self._taken = 0.0

    def ended(self, expected: float, taken: float) -> None:
        """A run has ended; both in minutes."""
        self._left -= expected
        self._expected += expected
        self._taken += taken

    def __str__(self) -> str:
        minutes = self._left * self._taken / self._expected / self._at_a_time
        return f"about {counted(max(1, round(minutes)), 'minute')}"
