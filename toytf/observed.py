"""One forward of a model for all that look at it in an evaluation."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.chunks import small_chunk_size
from toytf.models.tables import observe
from toytf.models.transformer import ToyTransformer
from toytf.sharing import shared
from toytf.task import Batch


@dataclass(frozen=True, eq=False)
class Observed:
    """What a model does on a batch."""

    logits: Float[Tensor, "batch t output"]
    patterns: tuple[Float[Tensor, "batch head t t"], ...]
    """The attention of every layer."""


@shared
@torch.no_grad()
def observed(model: ToyTransformer, batch: Batch) -> Observed:
    """Logits and attention patterns at all positions, by one forward of each chunk."""
    size = small_chunk_size(model) if model.device.type == "cpu" else len(batch.tokens)
    logits, patterns = observe(model, batch.tokens, size)
    return Observed(logits, tuple(patterns))
