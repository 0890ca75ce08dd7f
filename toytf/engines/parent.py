"""A worker process as its parent sees it.

It is a fresh interpreter, started by its command line: it does not import the caller's script, so that jobs can be run
from a command, a script, a notebook or a test alike.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

from toytf.engines.job import Job

if TYPE_CHECKING:
    from toytf.engines.worker import Message

LAST_WORDS = 4000
"""Bytes of what a worker wrote before it died."""


@dataclass(frozen=True)
class Told:
    """What a worker says: the pickled outcome of its job, or None: it died."""

    worker: "Worker"
    answer: bytes | None
    how: str = ""
    """How it died, such as `signal 9`."""
    last_words: str = ""


class Worker:
    """A process that does one job at a time; what it says is put into a queue, in a thread of its own."""

    def __init__(self, told: "SimpleQueue[Told]", workers: int) -> None:
        self.job: Job | None = None
        """What it was given last; whoever reads the queue takes it away."""
        self._told, self._began = told, 0.0
        # It looks for modules where we do: a notebook or a test may have added folders.
        code = f"import sys; sys.path[:] = {sys.path!r}; from toytf.engines.worker import main; main({workers})"
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (until `end`)
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # a Ctrl-C of the terminal is for us alone
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, job: Job) -> None:
        """Give it a job; if it has died meanwhile, the reader says so."""
        message: Message = (job.name, job.work, pickle.dumps(dict(job.arguments)))
        self.job, self._began = job, time.perf_counter()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(pickle.dumps(message))
            self._process.stdin.flush()

    @property
    def seconds(self) -> float:
        """Since it was given its last job."""
        return time.perf_counter() - self._began

    def ask_to_stop(self) -> None:
        """Send the job the signal that a Ctrl-C would be; where there are no such signals, it runs to its end."""
        if self.job is not None and sys.platform != "win32":
            self._process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """End the process, and with it what its jobs have left behind."""
        if sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _read(self) -> None:
        """Pass on what the worker says."""
        assert self._process.stdout is not None
        while True:
            try:
                answer: bytes = pickle.load(self._process.stdout)
            except Exception:  # it died, perhaps in the middle of an answer
                break
            self._told.put(Told(self, answer))
        code = self._process.wait()
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - LAST_WORDS))
        words = self._errors.read().decode(errors="replace").strip()
        self._told.put(Told(self, None, f"signal {-code}" if code < 0 else f"exit code {code}", words))
