"""What is asked of the process that something runs in: CPU threads, and how it treats memory."""

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from functools import cache

import torch


@contextlib.contextmanager
def cpu_threads(n: int) -> Iterator[None]:
    """Use so many CPU threads, and leave the caller's process as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
