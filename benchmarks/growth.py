"""How the time of a training step grows with the size of the problem, by the fast forward and by the plain one."""

from typing import Any

import torch

from toytf.bench import in_turns
from toytf.config.plugins import load_config
from toytf.fits import log_slope

from .stacked_seeds import stack_of
from .training import learner_of, step_of

SIZES: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "T": ("configs/quickstart.yaml", "task.seq_len", (64, 128, 256, 512)),
    "d": ("configs/quickstart.yaml", "model.d_model", (64, 128, 256, 512)),
    "batch": ("configs/quickstart.yaml", "train.batch_size", (32, 64, 128, 256)),
    "facts": ("configs/factual/quick.yaml", "task.n_subjects", (16, 32, 64, 128, 256)),
}
"""By name: a config, the key that is doubled, and its values. There are 16 facts of every subject."""

ROUNDS = 6
MEMBERS = (1, 2, 4, 8, 16)


def measure() -> dict[str, float]:
    """The power b of seconds ∝ size^b, fitted to a few doublings of a size, on one thread.

    ratio: how many times as long a fast step takes if sequences are twice as long, 2^T. T, d, batch, facts: the power
    by the fast forward; …_plain: by the plain one. 0: the size costs nothing; 1: twice the size, twice the time.
    members: the power by which a step of stacked seeds of factual quick grows with their number, at a batch of 64.
    """
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    for name in SIZES:
        found |= _powers(name)
    found["members"] = _power_of_members()
    return {"ratio": 2 ** found["T"], **found}


def _powers(name: str) -> dict[str, float]:
    path, key, sizes = SIZES[name]
    seconds = []
    for size in sizes:
        config: Any = load_config(path, {key: size})
        ways = {forward: step_of(learner_of(config, forward=forward)) for forward in ("fast", "plain")}
        seconds.append(in_turns(ways, ROUNDS, calls=2))
    found = {}
    for forward, label in (("fast", name), ("plain", f"{name}_plain")):
        slope = log_slope(sizes, [at_size[forward] for at_size in seconds])
        assert slope is not None
        found[label] = slope.value
    return found


def _power_of_members() -> float:
    config: Any = load_config("factual/quick", {"train.batch_size": 64})
    steps = {n: step_of(stack_of(config, n)) for n in MEMBERS}
    seconds = in_turns({str(n): step for n, step in steps.items()}, ROUNDS, calls=4)
    slope = log_slope(MEMBERS, [seconds[str(n)] for n in MEMBERS])
    assert slope is not None
    return slope.value
