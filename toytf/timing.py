"""Where the seconds of a run go: every moment belongs to one part."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

PARTS = {
    "start": "start-up",
    "steps": "training steps",
    "evaluation": "evaluation",
    "probes": "probes",
    "checkpoints": "checkpoints",
    "wandb": "wandb",
    "page": "page",
}
"""The parts of a training in timing.json, and what they are called."""

SHOWN = 0.05
"""Seconds below which a part is not told."""


class Clock:
    """Seconds by part; begins with the start-up of a run, which may lie before the clock was made."""

    def __init__(self, began: float | None = None) -> None:
        self._seconds: dict[str, float] = {}
        self._part, self._since = "start", time.perf_counter() if began is None else began

    def turn_to(self, part: str) -> str:
        """From now on, time is spent on this part; gives the one before."""
        now, before = time.perf_counter(), self._part
        self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        self._part, self._since = part, now
        return before

    def take(self) -> dict[str, float]:
        """What each part has taken since this was last asked."""
        self.turn_to(self._part)
        seconds, self._seconds = self._seconds, {}
        return seconds


_clock: ContextVar[Clock | None] = ContextVar("clock", default=None)
"""The clock of the run that goes on; None outside of one."""


@contextmanager
def timed(began: float | None = None) -> Iterator[None]:
    """A run with a clock of its own."""
    token = _clock.set(Clock(began))
    try:
        yield
    finally:
        _clock.reset(token)


def taken() -> dict[str, float]:
    """What the parts of the run that goes on have taken since this was last asked, in the order of `PARTS`."""
    clock = _clock.get()
    seconds = {} if clock is None else clock.take()
    return {part: seconds[part] for part in PARTS if part in seconds}


@contextmanager
def spent_on(part: str) -> Iterator[None]:
    """Until its end, time is spent on this part of the run; nothing outside of one."""
    clock = _clock.get()
    before = None if clock is None else clock.turn_to(part)
    try:
        yield
    finally:
        if clock is not None and before is not None:
            clock.turn_to(before)


def told(timing: Mapping[str, float]) -> str:
    """Seconds by part in one line, the longest first: `12.3 s: training steps 7.1, probes 2.0`, or nothing."""
    known = sorted(((timing[part], name) for part, name in PARTS.items() if part in timing), reverse=True)
    if not known:
        return ""
    parts = ", ".join(f"{name} {seconds:.1f}" for seconds, name in known if seconds >= SHOWN)
    return f"{sum(seconds for seconds, _ in known):.1f} s: {parts}"
