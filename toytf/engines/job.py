"""What an engine is given and what it gives back: jobs, how they ended, and how many run at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from toytf.errors import RunFailed, ToytfError, UserError

LOOK = 0.1
"""Seconds between two looks of an engine whether somebody asked it to stop."""

GRACE = 30.0
"""Seconds that jobs have to save what they did, when nobody waits for their outcome any more."""


@dataclass(frozen=True)
class Job:
    """A call of a function, wherever it runs."""

    name: str
    """Unique, for people."""
    work: str
    """`module:function`, which is imported where the job runs."""
    arguments: Mapping[str, Any]
    """Keyword arguments, which pickle."""


@dataclass(frozen=True)
class Ended:
    """A job that came to its end, well or not."""

    job: Job
    result: Any
    """What the function returned; None if it failed."""
    error: ToytfError | None
    """Why it failed, of the class that was raised where it ran; `JobLost` if nobody foresaw it."""
    traceback: str
    """For `JobLost`: where it happened, or the last words of a worker that died; else empty."""
    seconds: float


class JobLost(RunFailed):
    """An exception that nobody foresaw, or a worker that died: it says nothing about what was measured."""


def lost(job: Job, how: str, deaths: int) -> JobLost:
    """What to say of a job whose worker died too often. how: `signal 9` or `exit code 1`; empty: unknown."""
    times = "" if deaths == 1 else f" {deaths} times"
    return JobLost(f"{job.name}: its worker died{f' ({how})' if how else ''}{times}")


@dataclass(frozen=True)
class EngineOptions:
    """Where jobs run, and how many at a time."""

    engine: Literal["process", "ray"] = "process"
    jobs: int = 1
    """Workers at a time; process with one: no worker, but this very process."""
    retries: int = 1
    """How often a job whose worker died is started again."""
    address: str | None = None
    """Of a Ray cluster; None: one on this machine."""
    gpus: float = 0.0
    """GPUs, or the fraction of one, that each job takes; ray only."""

    @property
    def in_this_process(self) -> bool:
        """Do jobs run here, one after the other?"""
        return self.engine == "process" and self.jobs == 1

    def __post_init__(self) -> None:
        if self.engine not in ("process", "ray"):
            raise UserError(f'engine "{self.engine}" does not exist: choose process or ray')
        if self.jobs < 1:
            raise UserError(f"jobs = {self.jobs}: give the number of jobs that run at a time, 1 or more")
        if self.retries < 0:
            raise UserError(f"retries = {self.retries}: give how often a lost job is started again, 0 or more")
        if self.gpus < 0:
            raise UserError(f"gpus = {self.gpus:g}: give the GPUs that a job takes, 0 or more")
        if self.engine == "process" and (self.address is not None or self.gpus):
            given = "address" if self.address is not None else "gpus"
            raise UserError(f"{given} is an option of the engine ray: choose that, or leave {given} out")


ONE_BY_ONE = EngineOptions()
"""Jobs run in this process, one after the other."""
