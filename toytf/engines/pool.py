"""Jobs in worker processes of this machine, which stay: they import torch once, and each does one job at a time."""

from collections.abc import Generator, Iterable
from itertools import chain
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Self

from toytf.engines.job import GRACE, LOOK, Ended, EngineOptions, Job, lost
from toytf.engines.parent import Told, Worker
from toytf.engines.work import unpickled
from toytf.errors import Interrupted
from toytf.stopping import stop_asked, stop_on_interrupt


def run_in_pool(jobs: Iterable[Job], options: EngineOptions) -> Generator[Ended, None, None]:
    """Run jobs in so many workers at a time; one whose worker died is started again in a new worker."""
    waiting = iter(jobs)
    deaths: dict[str, int] = {}
    n_stopped = 0
    with stop_on_interrupt(), _Pool(options.jobs) as pool:
        while True:
            while not stop_asked() and pool.n_busy < options.jobs and (job := next(waiting, None)) is not None:
                pool.start(job)
            if not pool.n_busy:
                break
            if stop_asked():
                pool.ask_to_stop()
            heard = pool.wait()
            if heard is None:
                continue
            job, told = heard
            outcome = None if told.answer is None else unpickled(job.name, told.answer)
            if outcome is not None and not outcome.interrupted:
                yield outcome.ended(job)
            elif stop_asked() or outcome is not None:
                n_stopped += 1
            else:
                deaths[job.name] = deaths.get(job.name, 0) + 1
                if deaths[job.name] <= options.retries:
                    waiting = chain([job], waiting)
                else:
                    yield Ended(job, None, lost(job, told.how, deaths[job.name]), told.last_words, told.worker.seconds)
        if n_stopped or next(waiting, None) is not None:
            raise Interrupted("stopped before all jobs were done")


class _Pool:
    """Workers, some of them busy; left early, it lets them save what they did."""

    def __init__(self, size: int) -> None:
        self._size, self._workers = size, list[Worker]()
        self._told: SimpleQueue[Told] = SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is GeneratorExit and not stop_asked():  # the caller wants no more of it, but did not press Ctrl-C
                until = monotonic() + GRACE
                while self.n_busy and monotonic() < until and not stop_asked():
                    self.ask_to_stop()
                    self.wait()
        finally:
            for worker in self._workers:
                worker.end()

    @property
    def n_busy(self) -> int:
        """How many workers have a job."""
        return sum(worker.job is not None for worker in self._workers)

    def start(self, job: Job) -> None:
        """Give a job to a worker that has none, or to a new one."""
        idle = next((worker for worker in self._workers if worker.job is None), None)
        if idle is None:
            idle = Worker(self._told, self._size)
            self._workers.append(idle)
        idle.start(job)

    def ask_to_stop(self) -> None:
        """Ask every job to stop. Again and again: a job that was about to begin does not hear the first time."""
        for worker in self._workers:
            worker.ask_to_stop()

    def wait(self) -> tuple[Job, Told] | None:
        """A job and what its worker says of it; None if nothing happened for a moment."""
        try:
            told = self._told.get(timeout=LOOK)
        except Empty:
            return None
        job, told.worker.job = told.worker.job, None
        if told.answer is None:
            told.worker.end()
            self._workers.remove(told.worker)
        return None if job is None else (job, told)
