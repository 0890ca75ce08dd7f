"""What every descent repeats, of models and of memories: clear the gradients, get new ones, take a step."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from toytf.optimizers import Optimizer


def updates(
    optimizer: Optimizer, backward: Callable[[int], Tensor], steps: int, start: int = 0
) -> Iterator[tuple[int, Tensor]]:
    """Take steps one by one, and yield after each how many there are by then and what `backward` returned.

    backward(step): accumulates the gradients of a step into the parameters and returns its loss, detached. The state
    between two steps is the caller's: whoever leaves the iteration has stopped the training.
    """
    for step in range(start, steps):
        optimizer.zero_grad()
        with torch.enable_grad():
            loss = backward(step)
        optimizer.step()
        yield step + 1, loss
