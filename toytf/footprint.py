"""How much memory a run needs, estimated from its config before anything is built. Imports no torch.

The estimates count the large tensors only. They say whether a run is possible, not what it will measure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toytf.errors import UserError

FLOAT, DOUBLE, INT = 4, 8, 8
"""Bytes of a number."""

NAME = 100
"""Bytes of a token's name, as Python keeps it."""


Keys = Mapping[str, float | int]
"""Keys of a config and their values."""


@dataclass(frozen=True)
class Need:
    """Bytes that one part of a run takes, and the keys of the config that decide how many."""

    what: str
    bytes: float
    keys: Keys


def check_memory(needs: Iterable[Need], free: float | None = None) -> None:
    """Refuse a run that needs more memory than is free here, by the part that needs most and its largest key."""
    free = free_memory() if free is None else free
    parts = sorted(needs, key=lambda need: need.bytes, reverse=True)
    total = sum(need.bytes for need in parts)
    if free is None or total <= free:
        return
    largest = parts[0]
    key, value = max(largest.keys.items(), key=lambda item: item[1])
    raise UserError(
        f"{key} = {value:,.15g} needs too much memory: the run would take about {_amount(total)}, most of it for "
        f"{largest.what}, and {_amount(free)} are free here: choose a smaller value, or add --force to try"
    )


def free_memory() -> float | None:
    """Bytes that this process may still take; None if the system does not tell."""
    try:
        import psutil
    except ImportError:
        return None
    free = float(psutil.virtual_memory().available)
    try:  # a container may allow for less than the machine has
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        return min(free, limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        return free


def _amount(size: float) -> str:
    for unit in ("MB", "GB", "TB"):
        size /= 1e3 if unit != "MB" else 1e6
        if size < 1000:
            break
    return f"{size:,.3g} {unit}" if size < 1e6 else f"{size:.1e} {unit}"
