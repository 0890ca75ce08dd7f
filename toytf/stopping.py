"""An orderly end: Ctrl-C or SIGTERM asks for it, and whatever takes long looks now and then whether it was asked."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

from toytf.errors import Interrupted

if TYPE_CHECKING:
    from types import FrameType

_asked: ContextVar[threading.Event | None] = ContextVar("asked", default=None)
"""Whether the run of this thread was asked to stop; None outside of one."""


def stop_asked() -> bool:
    """Has somebody asked this run to stop?"""
    asked = _asked.get()
    return asked is not None and asked.is_set()


def check_stop() -> None:
    """Raise Interrupted if somebody has asked this run to stop."""
    if stop_asked():
        raise Interrupted("stopped")


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Work that has to come to its end, such as an evaluation: `check_stop` lets it, and what was asked acts later."""
    token = _asked.set(None)
    try:
        yield
    finally:
        _asked.reset(token)


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[None]:
    """Turn the first Ctrl-C into a request to stop after the current step; the second one is immediate.

    So do SIGTERM, by which a batch system ends a job, and SIGHUP, of a terminal that was closed: these come more than
    once. One that somebody ignores, as nohup does, or handles is left alone.

    Within another one it is part of that: whoever asked the whole to stop has asked its parts.
    """
    if _asked.get() is not None:
        yield
        return
    asked = threading.Event()

    def request(number: int, frame: "FrameType | None") -> None:
        asked.set()
        if number == signal.SIGINT:
            signal.signal(number, before[number])

    others = [number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None]
    ours = [signal.SIGINT, *(number for number in others if signal.getsignal(number) is signal.SIG_DFL)]
    in_main = threading.current_thread() is threading.main_thread()  # only there signals can be handled
    before = {number: signal.signal(number, request) for number in ours if in_main}
    token = _asked.set(asked)
    try:
        yield
    finally:
        _asked.reset(token)
        for number, handler in before.items():
            signal.signal(number, handler)
