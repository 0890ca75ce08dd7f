"""Sweeps: what they cost beside the runs themselves, and what a second worker brings."""

import contextlib
import io
import tempfile
import time
from pathlib import Path
from typing import Any

from toytf.experiments.launch import run
from toytf.runs import Run
from toytf.sweeps.sweep import sweep

TINY: dict[str, Any] = {
    "task.seq_len": 16, "model.d_model": 32, "train.steps": 200, "train.batch_size": 16,
    "train.evaluation": {"every": 100, "sequences": 64}, "probes": [[]], "logging.wandb": "off", "device": "cpu",
}  # fmt: skip
RUNS, SEEDS, WORKERS = 200, 8, 2
QUICKSTART = {"logging.wandb": "off", "device": "cpu"}


def measure() -> dict[str, float]:
    """Two workers: what they save, and what a sweep adds to the times of its runs.

    ratio: 8 seeds of the quickstart as one run, over a sweep of them; overhead: the seconds of a sweep of 200 tiny runs
    over half of the sum that its runs took by their own clocks; tiny_seconds: those of the sweep.
    """
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        one_by_one = _seconds(lambda: run("quickstart", {**QUICKSTART, "seeds": [*range(SEEDS)]}, out=here / "one"))
        by_two = _seconds(lambda: sweep("quickstart", {**QUICKSTART, "seeds": SEEDS}, out=here / "two", jobs=WORKERS))
        tiny = _seconds(lambda: sweep("quickstart", {**TINY, "seeds": RUNS}, out=here / "tiny", jobs=WORKERS))
        own = sum(sum((Run(path).timing or {}).values()) for path in (here / "tiny/runs").iterdir())
    return {"ratio": one_by_one / by_two, "overhead": tiny / (own / WORKERS), "tiny_seconds": tiny}


def _seconds(work: Any) -> float:
    started = time.perf_counter()
    with contextlib.redirect_stderr(io.StringIO()):  # progress
        work()
    return time.perf_counter() - started
