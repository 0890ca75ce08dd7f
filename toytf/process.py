"""What is asked of the process that something runs in: CPU threads."""

import contextlib
from collections.abc import Iterator

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
