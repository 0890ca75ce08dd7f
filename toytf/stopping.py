"""An orderly end: the first Ctrl-C asks for it, and whatever takes long looks now and then whether it was asked."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from toytf.errors import Interrupted

if TYPE_CHECKING:
    from types import FrameType

_asked = threading.Event()


def stop_asked() -> bool:
    """Has somebody asked to stop?"""
    return _asked.is_set()


def check_stop() -> None:
    """Raise Interrupted if somebody has asked to stop."""
    if _asked.is_set():
        raise Interrupted("stopped")


def ask_to_stop() -> None:
    """Ask for an end after the current step, as the first Ctrl-C does."""
    _asked.set()


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[None]:
    """Turn the first Ctrl-C into a request to stop after the current step; the second one is immediate."""

    def request(number: int, frame: "FrameType | None") -> None:
        _asked.set()
        signal.signal(signal.SIGINT, previous)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, request)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        _asked.clear()
