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


def check_memory(needs: Iterable[Need], free: float | None) -> None:
    """Refuse a run that needs more memory than is free, by the part that needs most and its largest key.

    free: in bytes; None if nobody knows.
    """
    parts = sorted(needs, key=lambda need: need.bytes, reverse=True)
    total = sum(need.bytes for need in parts)
    if free is None or total <= free:
        return
    largest = parts[0]
    key, value = max(largest.keys.items(), key=lambda item: item[1])
    raise UserError(
        f"{key} = {value:,.15g} needs too much memory: the run would take about {_amount(total)}, most of it for "
        f"{largest.what}, and {_amount(free)} are free: choose a smaller value, or add --force to try anyway"
    )


def free_memory(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Bytes that this process may still take, of the machine's and of the container's memory.

    group: where the system tells about the container. Files that it caches count as free: it gives them up.
    """
    import psutil

    free = float(psutil.virtual_memory().available)
    try:
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return min(free, limit - used + int(counts["inactive_file"]))
    except (OSError, ValueError, KeyError):  # there is no container, or no limit
        return free


def _amount(size: float) -> str:
    for unit in ("MB", "GB", "TB"):
        size /= 1e3 if unit != "MB" else 1e6
        if size < 1000:
            break
    return f"{size:,.3g} {unit}" if size < 1e6 else f"{size:.1e} {unit}"
