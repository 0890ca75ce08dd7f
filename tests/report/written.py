"""Runs whose rows are written by hand: nothing is trained."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toytf.config.plugins import load_config
from toytf.measurement import Group, Headline, Measurement
from toytf.runs import Run
from toytf.runs.rows import MetricsFile

RECALL = Group("recalled", "Recalled", headline=(Headline("*", "recall of {memory}"),))
Rows = Mapping[tuple[int, int], Sequence[Measurement]]
"""By seed and step, what was measured."""


def recall(value: float, memory: str = "W_OV2", **reference: float) -> Measurement:
    return RECALL.measurement(value, memory=memory, **reference)


def written(directory: Path, config: Path | str, rows: Rows, *, finished: bool = True, **overrides: Any) -> Run:
    """A run of a config with these rows: `written(path, tiny_config, {(0, 0): [recall(0.5)]}, task__seq_len=9)`."""
    directory.mkdir(parents=True)
    changes = {key.replace("__", "."): to for key, to in overrides.items()}
    run = Run.start(directory, load_config(config, changes), resume=False)
    metrics = MetricsFile(run.metrics_file)
    for (seed, step), measured in rows.items():
        metrics.record(seed, step, measured)
    if finished:
        metrics.note(closed=True)
        run.finish()
    return run
