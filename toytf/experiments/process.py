"""What an experiment asks of the process it runs in: CPU threads, and an orderly end on Ctrl-C."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from types import FrameType


@contextlib.contextmanager
def cpu_threads(n: int) -> Iterator[None]:
    """Use so many CPU threads, and leave the caller's process as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a request to stop after the current step; the second one is immediate."""
    stop = threading.Event()

    def request(number: int, frame: "FrameType | None") -> None:
        stop.set()
        signal.signal(signal.SIGINT, previous)

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = signal.signal(signal.SIGINT, request)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
