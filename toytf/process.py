"""What is asked of the process that something runs in: CPU threads, and how it treats memory."""

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import psutil

if sys.platform == "linux":
    import resource


@contextlib.contextmanager
def cpu_threads(n: int) -> Iterator[None]:
    """Use so many CPU threads, and leave the caller's process as it was."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_memory(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Bytes that this process may still take, of the machine's and of the container's memory.

    group: where the system tells about the container. Files that it caches count as free: it gives them up.
    """
    free = float(psutil.virtual_memory().available)
    try:
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return min(free, limit - used + int(counts["inactive_file"]))
    except (OSError, ValueError, KeyError):  # there is no container, or no limit
        return free


_limits: list[tuple[int, int]] = []
"""What the limit on memory was before ours, if there is one of ours."""


@contextlib.contextmanager
def memory_limit(processes: int = 1) -> Iterator[float]:
    """Let this process take what is free, shared with as many others, and no more; yields how much that is.

    So Python, numpy and torch raise an error where the system would begin to kill. Within another limit that one
    holds; where the system has none on private memory, as only Linux does, there is none.
    """
    free = free_memory() / processes
    if sys.platform != "linux":
        yield free
        return
    held, (soft, hard) = psutil.Process().memory_info().data, resource.getrlimit(resource.RLIMIT_DATA)
    if soft != resource.RLIM_INFINITY:
        free = min(free, soft - held)
    if _limits:
        yield free
        return
    _limits.append((soft, hard))
    resource.setrlimit(resource.RLIMIT_DATA, (int(held + free), hard))
    try:
        yield free
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, _limits.pop())


@contextlib.contextmanager
def without_memory_limit() -> Iterator[None]:
    """Lift that limit while a process is started that may outlive it."""
    ours = resource.getrlimit(resource.RLIMIT_DATA) if _limits else None
    if ours is None:
        yield
        return
    resource.setrlimit(resource.RLIMIT_DATA, _limits[0])
    try:
        yield
    finally:
        if _limits:
            resource.setrlimit(resource.RLIMIT_DATA, ours)


@cache
def keep_freed_memory() -> None:
    """Let this process keep memory that it has freed, for the next step, where the C library is glibc.

    Given back to the system, it has to be asked for again in every step, and is filled with zeros each time: a third of
    a step of stacked models.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, 2**30)
        mallopt(_M_MMAP_THRESHOLD, 2**25)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Their numbers in malloc.h. Blocks above the second are never kept; 32 MB is the most that it can be."""
