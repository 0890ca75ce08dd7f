"""Deciding storage: the certified solver against training, in batches, and against the limits of the machine."""

import torch

from toytf.bench import in_turns
from toytf.memory import AssociationStream, Status, StorageProblem, decide, maximise_margin, train_linear
from toytf.randomness import generator

ROUNDS = 3
RATES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
PAIRS = (500, 555, 575)
MOST_STEPS = 400
"""Steps that Adam has at most when rates are compared: one that needs more counts with these, in its favour."""
TRANSFERS = 30
"""How often an iteration reads or writes a whole score matrix, the products of matrices not counted."""


def measure() -> dict[str, float]:
    """Seconds to decide d = 64, against Adam on the cross-entropy until every pair is recalled.

    ratio: p = 555, against Adam at the default learning rate of the suite. ratio_best_adam: against the best of eight
    rates from 0.1 to 1000 in hindsight, the least of ratio_best_adam_500, ratio_best_adam_555 and ratio_best_adam_575.
    solver_seconds: of the solver, p = 555.

    batch_ratio: eight seeds of d = 32, p = 170 as one tensor program, against a loop over them; batch_ratio_d64: of
    d = 64, p = 555. gemm_fraction: the part of an iteration at d = 64 that its products of matrices take at the speed
    that the machine reaches on them alone (gemm_gflops); a batch cannot be faster than 1 / gemm_fraction.
    elementwise_fraction: the part that its passes over the scores take at the speed of the memory.

    margin_gap: what `maximise_margin` leaves between its bounds near capacity, relative to the upper one, the largest
    of d = 32, p = 180 and d = 48, p = 345; margin_seconds: of the latter.
    """
    torch.set_num_threads(1)  # small matrices: a second thread brings little, and suffers from other work
    stream = AssociationStream(0, 64, 64)
    best = {p: _against_adam(stream, p) for p in PAIRS}
    problem, association = stream.problem(555), stream.prefix(555)
    ways = {"solver": lambda: decide(problem), "adam": lambda: _train(stream, 555, 0.1, 20_000)}
    seconds = in_turns(ways, ROUNDS)
    if train_linear(association, generator(0, "benchmark"), steps=20_000).recall < 1:
        raise RuntimeError("Adam should reach perfect recall at d = 64, p = 555")
    return {
        "ratio": seconds["adam"] / seconds["solver"],
        "ratio_best_adam": min(best.values()),
        **{f"ratio_best_adam_{p}": ratio for p, ratio in best.items()},
        "solver_seconds": seconds["solver"],
        "batch_ratio": _batch_ratio(32, 170),
        "batch_ratio_d64": _batch_ratio(64, 555),
        **_roofline(stream.problem(575)),
        **_margins(),
    }


def _train(stream: AssociationStream, p: int, lr: float, steps: int) -> None:
    train_linear(stream.prefix(p), generator(0, "benchmark"), lr=lr, steps=steps)


def _against_adam(stream: AssociationStream, p: int) -> float:
    """How many times as long the best rate takes: all are tried once, and the best three have turns with the solver."""
    problem = stream.problem(p)
    if decide(problem)[0].status is not Status.FEASIBLE:
        raise RuntimeError(f"d = 64, p = {p} should be storable")
    needed = {
        lr: train_linear(stream.prefix(p), generator(0, "benchmark"), lr=lr, steps=MOST_STEPS).steps for lr in RATES
    }
    ways = {
        f"{lr}": lambda lr=lr: _train(stream, p, lr, MOST_STEPS) for lr in sorted(RATES, key=needed.__getitem__)[:3]
    }
    seconds = in_turns({**ways, "solver": lambda: decide(problem)}, ROUNDS)
    return min(seconds[lr] for lr in ways) / seconds["solver"]


def _batch_ratio(d: int, p: int, seeds: int = 8) -> float:
    problems = [AssociationStream(seed, d, d).problem(p) for seed in range(seeds)]
    together = StorageProblem.stack(problems)
    ways = {"together": lambda: decide(together), "loop": lambda: [decide(problem) for problem in problems]}
    seconds = in_turns(ways, ROUNDS)
    return seconds["loop"] / seconds["together"]


def _roofline(problem: StorageProblem) -> dict[str, float]:
    """What an iteration would take if its products and its passes ran as fast as they do alone."""
    iterations = decide(problem)[0].iterations
    given = problem.padded(16)  # as the solver does
    keys, values = given.keys[0], given.values[0]
    (n, d), m = keys.shape, len(values)
    W, scores, outputs = torch.randn(d, d), torch.randn(n, m), torch.empty(n, d)
    spare, other = torch.empty_like(scores), torch.randn(n, m)

    def products() -> None:
        torch.mm(keys, W, out=outputs)
        torch.mm(outputs, values.T, out=spare)
        torch.mm(scores, values, out=outputs)
        torch.mm(outputs.T, keys)

    iteration = in_turns({"solver": lambda: decide(problem)}, ROUNDS)["solver"] / iterations
    ways = {"products": products, "pass": lambda: torch.mul(scores, other, out=spare)}
    seconds = in_turns(ways, ROUNDS, calls=100)
    return {
        "gemm_fraction": seconds["products"] / iteration,
        "gemm_gflops": 4 * n * d * (m + d) / seconds["products"] / 1e9,
        "elementwise_fraction": TRANSFERS / 3 * seconds["pass"] / iteration,
    }


def _margins() -> dict[str, float]:
    gaps = []
    for d, p in ((32, 180), (48, 345)):
        problem = AssociationStream(0, d, d).problem(p)
        found = maximise_margin(problem)[0]
        gaps.append(1 - found.margin_lower / found.margin_upper)
    return {
        "margin_gap": max(gaps),
        "margin_seconds": in_turns({"margin": lambda: maximise_margin(problem)}, 1)["margin"],
    }
