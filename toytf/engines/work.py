"""Do the work of one job, in whichever process, and say how it went in a form that pickles."""

import importlib
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toytf.engines.job import Ended, Job, JobLost
from toytf.errors import Interrupted, ToytfError, plugin_of, reason
from toytf.stopping import stop_on_interrupt


@dataclass(frozen=True)
class Outcome:
    """What a job gave where it ran."""

    result: Any
    error: ToytfError | None
    traceback: str
    seconds: float

    @property
    def interrupted(self) -> bool:
        """Did it stop because it was asked to? Then it has not ended: it can go on."""
        return isinstance(self.error, Interrupted)

    def ended(self, job: Job) -> Ended:
        """The same, for those who gave the job."""
        return Ended(job, self.result, self.error, self.traceback, self.seconds)


def perform(job: Job) -> Outcome:
    """Do a job in this process; whatever it raises is part of the outcome, but not a Ctrl-C that nobody handled."""
    try:
        return _timed(job.name, lambda: _found(job.work)(**job.arguments))
    except SystemExit as error:  # of somebody's code; a worker would end by it, and so would we
        return _lost(job.name, error, 0.0)


def perform_pickled(name: str, work: str, arguments: bytes) -> bytes:
    """Do a job in a worker, asked to stop by an interrupt; the outcome as bytes.

    Arguments and outcome are pickled here, so that what does not pickle is an outcome too.
    """
    outcome = _timed(name, lambda: pickle.dumps(_stoppable(work, pickle.loads(arguments))))
    try:
        whole = type(pickle.loads(pickle.dumps(outcome.error))) is type(outcome.error)
    except Exception:  # a class that wants other arguments than its text cannot be built again
        whole = False
    if not whole:
        lost = JobLost(f"{name}: {type(outcome.error).__name__}: {outcome.error}")
        outcome = Outcome(None, lost, outcome.traceback, outcome.seconds)
    return pickle.dumps(outcome)


def unpickled(name: str, answer: bytes) -> Outcome:
    """The outcome that a worker sent."""
    outcome: Outcome = pickle.loads(answer)
    if outcome.error is not None:
        return outcome
    read = _timed(name, lambda: pickle.loads(outcome.result))
    return Outcome(read.result, read.error, read.traceback, outcome.seconds)


def _found(work: str) -> Callable[..., Any]:
    """The function that `module:function` means."""
    module, _, name = work.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _stoppable(work: str, arguments: Mapping[str, Any]) -> Any:
    """The result of a job that shares the machine with others: one thread, unless it sets more itself."""
    try:
        with stop_on_interrupt():
            function = _found(work)
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(1)
            return function(**arguments)
    except KeyboardInterrupt:  # of a job that handles interrupts by itself
        raise Interrupted("stopped") from None


def _timed(name: str, call: Callable[[], Any]) -> Outcome:
    began = time.perf_counter()
    try:
        return Outcome(call(), None, "", time.perf_counter() - began)
    except ToytfError as foreseen:
        return Outcome(None, foreseen, "", time.perf_counter() - began)
    except Exception as unforeseen:
        return _lost(name, unforeseen, time.perf_counter() - began)


def _lost(name: str, error: BaseException, seconds: float) -> Outcome:
    """What nobody foresaw, with its traceback."""
    whose = filter(None, [name, plugin_of(error)])
    lost = JobLost(": ".join([*whose, type(error).__name__, reason(error)]))
    return Outcome(None, lost, traceback.format_exc(), seconds)
