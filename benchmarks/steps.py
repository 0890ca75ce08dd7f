"""Whole training steps, data and update included: the fast forward against the plain one, and against the machine.

The machine's peak is the best of products of 1024 × 1024 single-precision matrices on as many threads, timed in turns
with the steps. The share of the peak is the part of a step in which matrices would be multiplied if all products ran at
the peak; the rest is everything else, and what small products lose against the peak.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from toytf.bench import in_turns
from toytf.config.plugins import load_config
from toytf.models.counts import count_forward
from toytf.randomness import generator

from .operations import product_operations
from .training import learner_of, step_of

LARGE = {
    "task.n_subjects": 32,
    "task.n_relations": 32,
    "model.d_model": 128,
    "model.attention.n_heads": 8,
    "model.attention.d_head": 16,
    "model.feed_forward.width": 256,
    "train.batch_size": 1024,
}
CASES: dict[str, tuple[str, dict[str, int]]] = {
    "factual": ("configs/factual/quick.yaml", {}),
    "factual_large": ("configs/factual/quick.yaml", LARGE),
    "bigram": ("configs/quickstart.yaml", {}),
    "bigram_long": ("configs/quickstart.yaml", {"task.seq_len": 256}),
    "birth": ("configs/bigram/birth.yaml", {}),
}
"""By name: a config, and how it is changed."""

CALLS = {"factual": (10, 5), "factual_large": (8, 3), "bigram": (10, 3), "bigram_long": (6, 1), "birth": (2, 1)}
"""Rounds, and steps in each."""

PEAK_SIZE = 1024


def measure() -> dict[str, float]:
    """Seconds of training steps on one thread, forward=plain over forward=fast, for the cases of CASES.

    ratio: birth_ratio. Of every case: …_ratio: the plain step over the fast one; …_seconds: of a fast step; …_share: of
    the peak, in a fast step; …_data: the part of a fast step in which its sequences are drawn.
    birth_whole_ratio: against a plain step on the whole batch, not in chunks. two_threads_ratio: a fast step of birth
    on one thread over one on two; two_threads_share: of the peak of two threads. last_query_ratio, all_queries_ratio:
    the loss and its gradients in factual_large, by attention of the last query and of all queries, over that by counts.
    """
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    for case in CASES:
        found |= _case(case)
    return {"ratio": found["birth_ratio"], **found, **_attention()}


def _case(name: str) -> dict[str, float]:
    path, overrides = CASES[name]
    config: Any = load_config(path, overrides)
    rounds, calls = CALLS[name]
    learner, numbers = learner_of(config), count()
    step = step_of(learner)
    operations = product_operations(step)
    ways = {
        "fast": _on_threads(1, step),
        "plain": _on_threads(1, step_of(learner_of(config, forward="plain"))),
        "data": _on_threads(1, lambda: learner.sample(next(numbers))),
        "peak": _on_threads(1, _product()),
    }
    if name == "birth":
        whole = learner_of(config, forward="plain", chunk=config.train.batch_size)
        ways["whole"] = _on_threads(1, step_of(whole))
        ways["two"] = _on_threads(2, step_of(learner_of(config)))
        ways["peak of two"] = _on_threads(2, _product())
    seconds = in_turns(ways, rounds, calls)
    torch.set_num_threads(1)
    found = {
        f"{name}_ratio": seconds["plain"] / seconds["fast"],
        f"{name}_seconds": seconds["fast"],
        f"{name}_share": _share(operations, seconds["fast"], seconds["peak"]),
        f"{name}_data": seconds["data"] / seconds["fast"],
    }
    if name == "birth":
        found["birth_whole_ratio"] = seconds["whole"] / seconds["fast"]
        found["two_threads_ratio"] = seconds["fast"] / seconds["two"]
        found["two_threads_share"] = _share(operations, seconds["two"], seconds["peak of two"])
    return found


def _share(operations: int, seconds: float, peak_seconds: float) -> float:
    """operations / (seconds × peak), where the peak is 2 n³ operations in so many seconds."""
    return operations / (2 * PEAK_SIZE**3) * peak_seconds / seconds


def _product() -> Callable[[], object]:
    a, b = (torch.randn(PEAK_SIZE, PEAK_SIZE, generator=generator(0, "peak", side)) for side in (0, 1))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _on_threads(n: int, work: Callable[[], object]) -> Callable[[], object]:
    def call() -> object:
        torch.set_num_threads(n)
        return work()

    return call


def _attention() -> dict[str, float]:
    """Loss at the last position and its gradients, without data and update: three ways to the same numbers."""
    path, overrides = CASES["factual_large"]
    config: Any = load_config(path, overrides)
    learner = learner_of(config)
    model, batch = learner.model, learner.sample(0)
    forwards = {
        "counts": lambda: count_forward(model, batch.tokens),
        "last": lambda: model(batch.tokens, last=1),
        "all": lambda: model(batch.tokens),
    }

    def gradients(logits: Callable[[], torch.Tensor]) -> Callable[[], None]:
        def work() -> None:
            model.zero_grad()
            cross_entropy(logits()[:, -1], batch.targets[:, -1]).backward()  # type: ignore[no-untyped-call]

        return work

    seconds = in_turns({name: gradients(forward) for name, forward in forwards.items()}, rounds=6)
    return {
        "last_query_ratio": seconds["last"] / seconds["counts"],
        "all_queries_ratio": seconds["all"] / seconds["counts"],
    }
