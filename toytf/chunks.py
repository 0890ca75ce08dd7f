"""A batch taken in chunks: the same loss and the same gradients, with the activations of one chunk at a time.

On a CPU the activations of a large batch leave the cache, and moving them costs as much as the products do.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from toytf.models.config import cached_chunk
from toytf.models.transformer import ToyTransformer
from toytf.task import Batch

SCORED = 2**19
"""Floats of the largest activation of a chunk in which only some positions are asked (2 MB)."""

SIMILAR = 16
"""Sequences of such a chunk at most: as many positions are asked in all of them as in the one that has most."""


def chunk_size(model: ToyTransformer, last: int) -> int | None:
    """How many sequences a chunk has by default, asked at their last positions; None: all of them, as on a GPU."""
    return cached_chunk(model.config, model.n_positions, last) if model.device.type == "cpu" else None


def small_chunk_size(model: ToyTransformer) -> int:
    """How many sequences a chunk has whose activations stay near a CPU core, or that is asked at few positions."""
    T = model.n_positions
    return max(1, min(SIMILAR, SCORED // (T * max(T, model.config.d_model))))


def chunks(batch: Batch, size: int | None) -> Iterator[Batch]:
    """The batch in pieces of so many sequences."""
    n = len(batch.tokens)
    if size is None or size >= n:
        yield batch
        return
    for start in range(0, n, size):
        yield batch.part(start, start + size)


def scored_chunks(batch: Batch, role: str, size: int) -> Iterator[tuple[Batch, Int[Tensor, "batch query"] | None]]:
    """The batch in pieces of so many sequences, asked only at positions of a role; and which these are, if not all.

    The pieces have no other role, and no latents.

    Sequences with about as many of them come together. One that has fewer than others of its piece is also asked at
    positions outside of the role. How many there are must be read: this is for a CPU, and for a batch that is asked at
    every position.
    """
    scored, T = batch.roles[role], batch.tokens.shape[1]
    numbers, order = scored.sum(1).sort(stable=True)
    most = numbers.tolist()
    for start in range(0, len(most), size):
        chosen = order[start : start + size]
        n = most[min(start + size, len(most)) - 1]
        if n == 0 and most[-1]:
            continue  # nothing is asked here, but it is elsewhere
        tokens, targets, here = batch.tokens[chosen], batch.targets[chosen], scored[chosen]
        if n in (0, T):
            yield Batch(tokens, targets, {role: here}), None
        else:
            asked = here.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, :n]
            yield Batch(tokens, targets.gather(1, asked), {role: here.gather(1, asked)}), asked
