"""Words in sentences, such as how many of something there are; and how a line is said to whoever watches."""

import contextlib
import sys
from collections.abc import Sequence
from typing import Any


def counted(n: int, word: str) -> str:
    """`1 seed`, `3 seeds`, `1,024 seeds`."""
    return f"{n:,} {word}" + ("" if n == 1 else "s")


def listed(words: Sequence[str], joint: str = "and") -> str:
    """`a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} {joint} {last}" if first else last


class Stderr:
    """The stderr of this moment, whose failures do no harm: what cannot be written is dropped.

    It may be closed, as by a daemon, on a disk that is full, or a pipe that nobody reads: no run should end by that.
    """

    def write(self, text: str) -> int:
        """Write a text, or drop it."""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # None, where there is no stderr at all
            sys.stderr.write(text)
            sys.stderr.flush()
        return len(text)

    def flush(self) -> None:
        """What could be written was written at once."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


def say(line: str) -> None:
    """Write a line to stderr, or drop it."""
    Stderr().write(f"{line}\n")
