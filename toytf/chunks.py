"""A batch taken in chunks: the same loss and the same gradients, with the activations of one chunk at a time.

On a CPU the activations of a large batch leave the cache, and moving them costs as much as the products do.
"""

from collections.abc import Iterator

from toytf.models.config import cached_chunk
from toytf.models.transformer import ToyTransformer
from toytf.task import Batch


def chunk_size(model: ToyTransformer, last: int) -> int | None:
    """How many sequences a chunk has by default, asked at their last positions; None: all of them, as on a GPU."""
    return cached_chunk(model.config, model.n_positions, last) if model.device.type == "cpu" else None


def chunks(batch: Batch, size: int | None) -> Iterator[Batch]:
    """The batch in pieces of so many sequences."""
    n = len(batch.tokens)
    for start in range(0, n, size or n):
        yield batch.part(start, start + (size or n))
