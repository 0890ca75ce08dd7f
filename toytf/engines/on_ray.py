"""Jobs as tasks of Ray: on this machine, or on a cluster that is given by its address."""

import contextlib
import os
import pickle
import sys
from collections.abc import Generator, Iterable, Sequence
from itertools import islice
from time import monotonic
from types import ModuleType
from typing import Any

from toytf.engines.job import GRACE, LOOK, Ended, EngineOptions, Job, JobLost, lost
from toytf.engines.ray_session import ray_session
from toytf.engines.work import Outcome, perform_pickled, unpickled
from toytf.errors import Interrupted, reason
from toytf.stopping import stop_asked, stop_on_interrupt


def run_on_ray(jobs: Iterable[Job], options: EngineOptions) -> Generator[Ended, None, None]:
    """Run jobs as tasks: on this machine so many at a time, on a cluster as many as it has room for."""
    waiting = iter(jobs)
    at_a_time = options.jobs if options.address is None else sys.maxsize
    n_stopped = 0
    with ray_session(options) as ray, stop_on_interrupt(), _Tasks(ray, options) as tasks:
        while True:
            if stop_asked():
                tasks.cancel()
            else:
                for job in islice(waiting, at_a_time - len(tasks.running)):
                    tasks.start(job)
            if not tasks.running:
                break
            for job, outcome in tasks.wait(LOOK):
                if outcome.interrupted:
                    n_stopped += 1
                else:
                    yield outcome.ended(job)
        if n_stopped or next(waiting, None) is not None:
            raise Interrupted("stopped before all jobs were done")


class _Tasks:
    """The tasks that run or wait in Ray's queue; left early, they may save what they did."""

    def __init__(self, ray: ModuleType, options: EngineOptions) -> None:
        self.running: dict[Any, Job] = {}
        self._ray, self._retries, self._cancelled = ray, options.retries, set[Any]()
        self._task = ray.remote(_perform).options(
            num_cpus=1, num_gpus=options.gpus, max_retries=options.retries, name="toytf"
        )

    def __enter__(self) -> "_Tasks":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is GeneratorExit and not stop_asked():  # the caller wants no more of it, but did not press Ctrl-C
            self.cancel()
            until = monotonic() + GRACE
            while self.running and monotonic() < until and not stop_asked():
                self.wait(LOOK)
        for reference in self.running:
            self._ray.cancel(reference, force=True)

    def start(self, job: Job) -> None:
        """Put a job into Ray's queue."""
        arguments = pickle.dumps(dict(job.arguments))
        self.running[self._task.remote(job.name, job.work, arguments, sys.path, os.getcwd())] = job  # noqa: PTH109

    def cancel(self) -> None:
        """Take jobs out of the queue, and send those that run what a Ctrl-C would be; each only once."""
        for reference in self.running.keys() - self._cancelled:
            self._ray.cancel(reference)
            self._cancelled.add(reference)

    def wait(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """Jobs that came back within so many seconds, one at most."""
        ready, _ = self._ray.wait([*self.running], num_returns=1, timeout=seconds)
        return [(job := self.running.pop(reference), self._outcome(job, reference)) for reference in ready]

    def _outcome(self, job: Job, reference: Any) -> Outcome:
        errors = self._ray.exceptions
        try:
            return unpickled(job.name, self._ray.get(reference))
        except errors.TaskCancelledError:  # Ray drops the outcome, even if the job came to its end
            return Outcome(None, Interrupted("stopped"), "", 0.0)
        except errors.WorkerCrashedError:
            return Outcome(None, lost(job, "", self._retries + 1), "", 0.0)
        except errors.RayError as error:  # a node that is gone, a cluster without toytf
            return Outcome(None, JobLost(f"{job.name}: {type(error).__name__}: {reason(error)}"), str(error), 0.0)


def _perform(name: str, work: str, arguments: bytes, path: Sequence[str], folder: str) -> bytes:
    """In a worker of Ray: do a job with the modules and the folder of the one who gave it, where they exist."""
    sys.path += [place for place in path if place not in sys.path]
    with contextlib.suppress(OSError):
        os.chdir(folder)
    return perform_pickled(name, work, arguments)
