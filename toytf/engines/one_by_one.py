"""Jobs in this very process, one after the other: what a person gets who asks for nothing else."""

from collections.abc import Generator, Iterable

from toytf.engines.job import Ended, Job
from toytf.engines.work import perform
from toytf.errors import Interrupted


def run_here(jobs: Iterable[Job]) -> Generator[Ended, None, None]:
    """Each job ends before the next one is asked for."""
    for job in jobs:
        outcome = perform(job)
        if outcome.interrupted:
            raise Interrupted(str(outcome.error))
        yield outcome.ended(job)
