"""The training of memories on a stream of inputs, against a loop with autograd for every seed.

Both take the same steps on the same inputs, from the same weights.
"""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from toytf.memory.online import random_memory
from toytf.memory.online_training import Descent, batches, stream, train
from toytf.theory import zipf

SEEDS = range(10)
D, N_INPUTS, N_OUTPUTS, BATCH, SAMPLES, LR = 100, 100, 5, 64, 10240, 10.0


def ways() -> Mapping[str, Callable[[], torch.Tensor]]:
    """`autograd` and `closed_form`: SGD on 10240 inputs in batches of 64, d = 100, ten seeds; each gives every W."""
    torch.set_num_threads(1)
    memory = random_memory("matrix", SEEDS, N_INPUTS, N_OUTPUTS, D, start="random")
    inputs = stream(SEEDS, zipf(N_INPUTS, 2.0), SAMPLES)

    def closed_form() -> torch.Tensor:
        W = train(memory, Descent("sgd", LR), batches(memory, inputs, BATCH), [SAMPLES // BATCH]).memory.W
        assert W is not None
        return W

    def autograd() -> torch.Tensor:
        assert memory.W is not None
        seeds = zip(memory.E, memory.U, memory.W, inputs, strict=True)
        return torch.stack([_alone(E, U, W, own, memory.targets) for E, U, W, own in seeds])

    return {"autograd": autograd, "closed_form": closed_form}


def _alone(
    E: torch.Tensor, U: torch.Tensor, start: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """The training of one seed as anyone would write it first."""
    W = nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([W], lr=LR)
    for batch in torch.split(inputs, BATCH):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(E[batch] @ W.T @ U.T, targets[batch])
        torch.autograd.backward(loss)
        optimizer.step()
    return W.detach()
