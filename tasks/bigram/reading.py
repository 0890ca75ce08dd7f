"""What comes right after which token of a bigram sequence: there an induction head should look."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from toytf.task import Batch


def tokens_before(batch: Batch) -> Int[Tensor, "b t"]:
    """z_{t−1}; −1 before the first position, and for what the task merely shows in front: it is no occurrence."""
    return torch.nn.functional.pad(batch.tokens.masked_fill(~batch.roles["all"], -1)[:, :-1], (1, 0), value=-1)


def followed(batch: Batch) -> Bool[Tensor, "b t t"]:
    """[b, t, s]: does s ≤ t come right after a token z_t?"""
    return (tokens_before(batch)[:, None, :] == batch.tokens[:, :, None]).tril()
