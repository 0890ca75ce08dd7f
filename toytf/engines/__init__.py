"""Engines: where many jobs run, here one by one, in worker processes, or on a Ray cluster."""

from collections.abc import Generator, Iterable

from toytf.engines.job import ONE_BY_ONE, Ended, EngineOptions, Job, JobLost
from toytf.engines.work import perform
from toytf.errors import Interrupted

__all__ = ["ONE_BY_ONE", "Ended", "EngineOptions", "Job", "JobLost", "check_engine", "run_jobs"]


def check_engine(options: EngineOptions) -> None:
    """Refuse an engine that cannot be used here, before anything is written: Ray is missing, or does not answer."""
    if options.engine == "ray":
        from toytf.engines.ray_session import check_ray

        check_ray(options)


def run_jobs(jobs: Iterable[Job], options: EngineOptions) -> Generator[Ended, None, None]:
    """Run jobs and give each one when it has ended, in the order in which they end.

    They are started in the given order. The first Ctrl-C starts no further job and asks those that run to stop; what
    ends nevertheless is given, then Interrupted is raised. The second one ends them at once. Leaving the iteration
    early also asks those that run to stop, and waits for what they save.
    """
    if options.engine == "ray":
        from toytf.engines.on_ray import run_on_ray

        return run_on_ray(jobs, options)
    if options.in_this_process:
        return _run_here(jobs)
    from toytf.engines.pool import run_in_pool

    return run_in_pool(jobs, options)


def _run_here(jobs: Iterable[Job]) -> Generator[Ended, None, None]:
    """In this very process, one after the other: each job ends before the next one is asked for."""
    for job in jobs:
        outcome = perform(job)
        if outcome.interrupted:
            raise Interrupted(str(outcome.error))
        yield outcome.ended(job)
