"""A worker: a process that takes jobs from its parent, one at a time, and ends when the parent does.

The parent writes jobs to its standard input and reads outcomes from its standard output, as pickles. Both are taken
away from the jobs: what these print goes to standard error, which the parent looks at only if the worker dies.
"""

import os
import pickle
import queue
import signal
import threading
from typing import IO

from toytf.engines.work import perform_pickled
from toytf.process import memory_limit

Message = tuple[str, str, bytes]
"""The name, the work and the pickled arguments of a job."""


def main(workers: int) -> None:
    """Do jobs until the parent closes our standard input; the memory that is free is shared by so many workers."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the parent decides; a job handles the interrupt that asks it to stop
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    jobs, outcomes = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    given: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(jobs, given), daemon=True).start()
    with memory_limit(workers):
        while True:
            job = given.get()
            os.ftruncate(2, 0)  # the last words of a worker are about its last job
            os.lseek(2, 0, os.SEEK_SET)
            answer = perform_pickled(*job)
            pickle.dump(answer, outcomes)
            outcomes.flush()


def _receive(jobs: IO[bytes], given: "queue.SimpleQueue[Message]") -> None:
    """Pass jobs on; when the parent has gone, end, whatever goes on: nobody would take its outcome."""
    try:
        while True:
            given.put(pickle.load(jobs))
    except Exception:  # the end of the pipe, perhaps in the middle of a job
        if hasattr(os, "killpg") and os.getpgrp() == os.getpid():  # those that jobs have left behind end with us
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)
