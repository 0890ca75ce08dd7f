"""Gradient descent by scores alone: the same memories as by steps of W."""

from collections.abc import Callable, Iterator

import pytest
import torch

from toytf.memory import online_training
from toytf.memory.online import Batch, OnlineMemory, random_memory
from toytf.memory.online_training import Descent, batches, population, stream, train
from toytf.theory import zipf

SEEDS, N, M, D = (0, 1, 2), 12, 4, 16
P = zipf(N, 1.5)


def memory_of(start: str = "random") -> OnlineMemory:
    return random_memory("matrix", SEEDS, N, M, D, start=start, dtype=torch.float64)  # type: ignore[arg-type]


DATA: dict[str, Callable[[OnlineMemory], Iterator[Batch]]] = {
    "single": lambda memory: batches(memory, stream(SEEDS, P, 30), 1),
    "few": lambda memory: batches(memory, stream(SEEDS, P, 50), 7),  # the last batch has one input
    "counted": lambda memory: batches(memory, stream(SEEDS, P, 100), 40),  # more than there are inputs
    "population": lambda memory: population(memory, P, 9),
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("descent", [Descent("sgd", 3.0), Descent("sgd", 3.0, late_from=2, late_factor=0.1)])
@pytest.mark.parametrize("start", ["zeros", "random"])
def test_scores_and_matrix_are_those_of_steps_of_the_matrix(
    data: str, descent: Descent, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = memory_of(start)
    by_scores = train(memory, descent, DATA[data](memory), [0, 2, 3])
    monkeypatch.setattr(online_training, "_scores_suffice", lambda memory: False)
    by_matrix = train(memory, descent, DATA[data](memory), [0, 2, 3])
    torch.testing.assert_close(by_scores.memory.W, by_matrix.memory.W, rtol=1e-9, atol=1e-9)
    for left, right in zip(by_scores.looks, by_matrix.looks, strict=True):
        assert left.step == right.step
        assert left.losses == pytest.approx(right.losses)
    torch.testing.assert_close(by_scores.memory.scores(), by_matrix.memory.scores(), rtol=1e-9, atol=1e-9)


def test_inputs_that_come_twice_in_a_batch_count_twice() -> None:
    memory = memory_of()
    twice = torch.tensor([[3, 3]] * len(SEEDS))
    (batch,) = batches(memory, twice, 2)
    (once,) = batches(memory, twice[:, :1], 1)
    moved = [train(memory, Descent("sgd", 2.0), [given], []).memory.W for given in (batch, once)]
    torch.testing.assert_close(*moved)


def test_it_serves_a_plain_matrix_with_no_more_inputs_than_dimensions() -> None:
    suffice = online_training._scores_suffice
    assert suffice(memory_of())
    assert not suffice(random_memory("matrix", SEEDS, D + 1, M, D))
    assert not suffice(random_memory("matrix", SEEDS, N, M, D, start="random", layer_norm=True))
    assert not suffice(random_memory("learnable", SEEDS, N, M, D, start="random"))
