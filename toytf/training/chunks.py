"""A batch taken in chunks: the same loss and the same gradients, with the activations of one chunk at a time.

On a CPU the activations of a large batch leave the cache, and moving them costs as much as the products do.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from toytf.models.transformer import ToyTransformer
from toytf.task import Batch
from toytf.training.footprint import cached_chunk


def chunk_size(model: ToyTransformer, last: int) -> int | None:
    """How many sequences a chunk has by default, asked at their last positions; None if the whole batch is one chunk.

    It is on a GPU.
    """
    return cached_chunk(model.config, model.n_positions, last) if model.device.type == "cpu" else None


def chunks(batch: Batch, size: int | None) -> Iterator[Batch]:
    """The batch in pieces of so many sequences."""
    n = len(batch.tokens)
    for start in range(0, n, size or n):
        yield batch.part(start, start + (size or n))


def sum_over(
    parts: list[Batch], value: Callable[[Batch], Float[Tensor, ""]], parameters: list[nn.Parameter]
) -> Float[Tensor, ""]:
    """Σ value(part), whose gradients for the parameters are taken part by part."""
    if len(parts) == 1:
        return value(parts[0])
    total: Tensor = _SumOver.apply(parts, value, *parameters)  # type: ignore[no-untyped-call]
    return total


class _SumOver(torch.autograd.Function):
    """Takes the gradients together with the values, so that no part is held for later."""

    @staticmethod
    def forward(ctx: Any, parts: list[Batch], value: Callable[[Batch], Tensor], *parameters: nn.Parameter) -> Tensor:
        total = torch.zeros((), device=parts[0].tokens.device)
        gradients: list[Tensor | None] = [None] * len(parameters)
        for part in parts:
            with torch.enable_grad():
                found = value(part)
            new = torch.autograd.grad(found, parameters, allow_unused=True)
            gradients = [b if a is None else a if b is None else a + b for a, b in zip(gradients, new, strict=True)]
            total = total + found.detach()
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *of_total: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (None if g is None else of_total[0] * g for g in ctx.saved_tensors)
        return (None, None, *gradients)
