"""How much memory a run needs at least, estimated from its config before anything is built. Imports no torch.

A run is limited to what is free (`toytf.process`). An estimate is for what would come to that limit only after long,
and for where there is no such limit: trainings on GPUs, or on another system than Linux.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from toytf.errors import UserError

FLOAT, INT = 4, 8
"""Bytes of a number."""

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
        f"{key} = {value:,.15g} needs too much memory: the run would take about {amount(total)}, most of it for "
        f"{largest.what}, and {amount(free)} are free: choose a smaller value, or add --force to try anyway"
    )


def too_large(content: Mapping[str, object], asked: float | None, free: float) -> UserError:
    """What to say of a run that came to its limit; content: its config, whose largest size is the likely cause."""
    sizes = sorted(_sizes(content).items(), key=lambda item: item[1], reverse=True)
    cause, *others = [f"{key} = {value:,}" for key, value in sizes[:3]] or ["the config"]
    at_once = "" if asked is None else f"the run asked for {amount(asked)} more, and "
    also = f" (other large sizes: {', '.join(others)})" if others else ""
    return UserError(
        f"{cause} needs too much memory: {at_once}{amount(free)} were free when it began{also}: choose smaller "
        "values, or add --force to try anyway"
    )


def _sizes(content: Mapping[str, object], path: str = "") -> dict[str, int]:
    """The whole numbers of a config by their keys, the largest of each list."""
    found: dict[str, int] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            found |= _sizes(value, f"{path}{key}.")
        elif key not in ("seeds", "threads"):
            numbers = [one for one in (value if isinstance(value, list | tuple) else [value]) if type(one) is int]
            found |= {f"{path}{key}": max(numbers)} if numbers else {}
    return found


def amount(size: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("MB", "GB", "TB"):
        size /= 1e3 if unit != "MB" else 1e6
        if size < 1000:
            break
    return f"{size:,.3g} {unit}" if size < 1e6 else f"{size:.1e} {unit}"
