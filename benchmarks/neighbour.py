"""Beside another busy process: training with as many threads as the config chooses, against one thread."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

from toytf.bench import least_in_turns
from toytf.config.plugins import load_config

CASES = {
    "bigram": "configs/quickstart.yaml",
    "factual": "configs/factual/quick.yaml",
    "birth": "configs/bigram/birth.yaml",
}

BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(100_000):\n        pass"
"""Keeps one core busy as long as the process that started it lives."""

ROUNDS = 2


def measure() -> dict[str, float]:
    """Training steps per second in new processes, by the threads of the config over one thread.

    ratio: the smallest of …_busy. …_idle: with nothing else to do; …_busy: while another process spins on one core.
    …_kept: what is left beside the busy process of the steps per second without it, by the threads of the config.
    …_seconds: of a step without it. …_threads: those of the config.
    """
    found: dict[str, float] = {}
    for name, path in CASES.items():
        ways = {
            f"{threads} {load}": partial(_seconds, path, threads, load)
            for load in ("idle", "busy")
            for threads in ("own", "one")
        }
        seconds = least_in_turns(ways, ROUNDS)
        found[f"{name}_idle"] = seconds["one idle"] / seconds["own idle"]
        found[f"{name}_busy"] = seconds["one busy"] / seconds["own busy"]
        found[f"{name}_kept"] = seconds["own idle"] / seconds["own busy"]
        found[f"{name}_seconds"] = seconds["own idle"]
        found[f"{name}_threads"] = load_config(path).resolved().threads  # type: ignore[attr-defined]
    return {"ratio": min(found[f"{name}_busy"] for name in CASES), **found}


@contextmanager
def spinning() -> Iterator[subprocess.Popen[bytes]]:
    """One process that does nothing useful, as fast as it can."""
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _seconds(path: str, threads: str, load: str) -> float:
    """Of a training step, by a new process: how its threads wait is decided before torch is loaded."""
    overrides = ["threads=1"] if threads == "one" else []
    command = [sys.executable, "-m", f"{__package__}.worker", path, *overrides]
    with spinning() if load == "busy" else nullcontext():
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(ended.stdout)
