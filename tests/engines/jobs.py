"""What the jobs of these tests do; imported where they run."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from toytf.errors import UserError
from toytf.stopping import check_stop


def describe(n: int) -> dict[str, Any]:
    print("on standard output")  # noqa: T201
    sys.stderr.write("on standard error\n")
    return {"n": n, "square": n * n, "where": Path("somewhere"), "asked": sys.stdin.read()}


def die(marks: Path, times: int) -> str:
    """Be killed so many times, as by a system without memory."""
    with marks.open("a") as file:
        file.write("x")
    if marks.stat().st_size <= times:
        sys.stderr.write("these are my last words\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def refuse() -> None:
    raise UserError("n should be even")


def stumble() -> None:
    raise ZeroDivisionError("nobody foresaw this")


def leave() -> None:
    sys.exit(3)


def give_what_does_not_pickle() -> Any:
    return lambda: None


def save_when_asked(at: Path) -> None:
    """Go on until asked to stop; then save, which takes a moment."""
    at.with_suffix(".pid").write_text(str(os.getpid()))
    try:
        while True:
            time.sleep(0.01)
            check_stop()
    finally:
        time.sleep(0.2)
        at.with_suffix(".saved").write_text("saved")


def hear_nothing(at: Path) -> None:
    """Go on for long, whoever asks."""
    at.with_suffix(".pid").write_text(str(os.getpid()))
    time.sleep(600)
