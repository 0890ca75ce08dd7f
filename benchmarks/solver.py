"""Deciding storage: the certified solver against training, and many instances at once against one by one."""

import torch

from toytf.bench import in_turns
from toytf.memory import AssociationStream, Status, StorageProblem, decide, train_linear
from toytf.randomness import generator

ROUNDS = 3


def measure() -> dict[str, float]:
    """Seconds to decide d = 64, p = 555, against Adam on the cross-entropy until every pair is recalled.

    ratio: against Adam at the default learning rate of the suite; ratio_lr1, ratio_lr3: at 10 and 30 times that, the
    best in hindsight. solver_seconds: of the solver. batch_ratio: eight seeds of d = 32, p = 170 as one tensor program,
    against a loop over them. At d = 64 one instance fills the cache of a CPU core, and the solver takes the eight one
    by one: batch_ratio_d64 is 1.
    """
    torch.set_num_threads(1)  # small matrices: a second thread brings little, and suffers from other work
    stream = AssociationStream(0, 64, 64)
    problem, association = stream.problem(555), stream.prefix(555)

    def solve() -> None:
        if decide(problem)[0].status is not Status.FEASIBLE:
            raise RuntimeError("d = 64, p = 555 should be storable")

    def train(lr: float) -> None:
        if train_linear(association, generator(0, "benchmark"), lr=lr, steps=20_000).recall < 1:
            raise RuntimeError("Adam should reach perfect recall at d = 64, p = 555")

    ways = {"solver": solve, "0.1": lambda: train(0.1), "1": lambda: train(1.0), "3": lambda: train(3.0)}
    seconds = in_turns(ways, ROUNDS)
    return {
        "ratio": seconds["0.1"] / seconds["solver"],
        "ratio_lr1": seconds["1"] / seconds["solver"],
        "ratio_lr3": seconds["3"] / seconds["solver"],
        "solver_seconds": seconds["solver"],
        "batch_ratio": _batch_ratio(32, 170),
        "batch_ratio_d64": _batch_ratio(64, 555),
    }


def _batch_ratio(d: int, p: int, seeds: int = 8) -> float:
    problems = [AssociationStream(seed, d, d).problem(p) for seed in range(seeds)]
    together = StorageProblem.stack(problems)
    ways = {"together": lambda: decide(together), "loop": lambda: [decide(problem) for problem in problems]}
    seconds = in_turns(ways, ROUNDS)
    return seconds["loop"] / seconds["together"]
