"""Words in sentences: how many of something, and several of them in a row."""

from collections.abc import Sequence


def counted(n: int, word: str) -> str:
    """`1 seed`, `3 seeds`, `1,024 seeds`."""
    return f"{n:,} {word}" + ("" if n == 1 else "s")


def listed(words: Sequence[str], joint: str = "and") -> str:
    """`a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} {joint} {last}" if first else last
