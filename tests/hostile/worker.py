"""A process that does hostile cases in limited memory."""

import resource
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

MEMORY = 2 * 2**30
"""Bytes of data that a worker may have."""


def work(folder: Path, seed: int, numbers: range, at: "Synchronized[int]", results: Any) -> None:
    """Do some cases, one after the other; `at` says which one is being done."""
    import torch

    from tests.hostile.cases import Fuzzer

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    folder.mkdir(parents=True, exist_ok=True)
    fuzzer = Fuzzer(folder)
    fuzzer.prepare()
    for number in numbers:
        at.value = number
        results.put((number, fuzzer.run(number, seed)))
    results.put((None, (fuzzer.ended, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)))
