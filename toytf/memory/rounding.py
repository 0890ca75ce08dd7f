"""How few bits the weights of a memory need: what it still recalls when they are rounded."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory.association import Association, Readable
from toytf.memory.mlp import MLPMemory

MOST_BITS = 16
"""As many bits as are tried: with more, a memory is as good as with 32."""


def rounded(W: Float[Tensor, "rows columns"], bits: int) -> Float[Tensor, "rows columns"]:
    """The matrix with every entry one of 2^b values, b = bits: the middles of as many equal parts of its range.

    W → Δ (⌊W/Δ⌋ + 1/2),   Δ = 2 max|W| / 2^b

    Its scale max|W| counts for nothing: recall does not depend on the scale of a matrix, nor on that of either layer of
    a ReLU memory.
    """
    if bits < 1:
        raise ValueError(f"bits = {bits} leaves one value for all weights: choose 1 or more")
    half = 2.0 ** (bits - 1)
    step = (W.abs().max() / half).clamp_min(torch.finfo(W.dtype).tiny)
    return ((W / step).floor().clamp(-half, half - 1) + 0.5) * step


def rounded_memory(memory: Readable, bits: int) -> Readable:
    """The same memory with b bits for each weight, matrix by matrix."""
    if isinstance(memory, Tensor):
        return rounded(memory, bits)
    if not isinstance(memory, MLPMemory):
        raise TypeError(f"only matrices and two-layer memories have weights to round, not {type(memory).__name__}")
    return replace(memory, W_in=rounded(memory.W_in, bits), W_out=rounded(memory.W_out, bits))


def recall_by_bits(association: Association, memory: Readable) -> list[float]:
    """The fraction that is recalled with 1, 2, … bits for each weight."""
    return [float(association.recall(rounded_memory(memory, bits))) for bits in range(1, MOST_BITS + 1)]
