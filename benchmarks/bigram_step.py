"""A training step of the bigram task: by tables and in chunks, against the plain forward on the whole batch."""

from collections.abc import Callable
from typing import Any

import torch

from toytf.bench import best_seconds
from toytf.config.plugins import load_config

from .training import learner_of, step_of


def measure() -> dict[str, float]:
    """Seconds for data, forward, backward and update, with two threads.

    ratio: T = 256, d = 256, batches of 512, SGD (configs/bigram/birth.yaml); table_ratio: the same with both in chunks;
    ratio_small: configs/quickstart.yaml, whose batch is a single chunk. data_fraction: the part of a fast step in which
    its sequences are drawn.
    """
    torch.set_num_threads(2)
    fast, plain, chunked, data = _seconds("configs/bigram/birth.yaml", repeats=2)
    small, plain_small, *_ = _seconds("configs/quickstart.yaml", repeats=40)
    return {
        "ratio": plain / fast,
        "table_ratio": chunked / fast,
        "seconds_per_step": fast,
        "plain_seconds_per_step": plain,
        "data_fraction": data / fast,
        "ratio_small": plain_small / small,
    }


def _seconds(path: str, repeats: int) -> list[float]:
    """Of a fast step, a plain one, a plain one in chunks, and of drawing the data."""
    config: Any = load_config(path)
    whole = {"chunk": config.train.batch_size}
    settings: tuple[dict[str, Any], ...] = ({}, {"forward": "plain", **whole}, {"forward": "plain"})
    learners = [learner_of(config, **changes) for changes in settings]
    ways: list[Callable[[], object]] = [*map(step_of, learners), lambda: learners[0].sample(0)]
    for work in ways:  # warm up
        work()
    best = [float("inf")] * len(ways)
    for _ in range(repeats):  # in turns, so that a busy moment of the machine meets all
        best = [min(seconds, best_seconds(work, 1)) for seconds, work in zip(best, ways, strict=True)]
    return best
