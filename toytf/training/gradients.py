"""The loss of a training step and its gradients, chunk by chunk."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor

from toytf.chunks import chunk_size, chunks, scored_chunk_size, scored_chunks
from toytf.evaluation import plain_forward, token_loss
from toytf.models.reading import free_to_read
from toytf.models.tables import Tables, fast_forward, tables_pay
from toytf.models.transformer import ToyTransformer
from toytf.task import Batch, Task
from toytf.training.config import TrainConfig


def accumulate_gradients(model: ToyTransformer, task: Task, batch: Batch, config: TrainConfig) -> Float[Tensor, ""]:
    """Add the gradients of the mean cross-entropy over the positions of the role `config.loss`; return that mean."""
    role, total = config.loss, torch.zeros((), device=model.device)
    n = batch.roles[role].sum().clamp(min=1)
    fast = config.forward == "fast"
    with _shared_tables(model, fast) as tables:
        for part, asked in _parts(model, task, batch, config, by_tables=tables is not None):
            if fast:
                logits = fast_forward(model, part.tokens, part.last, asked=asked, tables=tables)
            else:
                logits = plain_forward(model, part.tokens, part.last)
            answers = task.answers(role, part) if asked is None else None
            loss = (token_loss(logits, part, answers) * part.roles[role]).sum() / n
            loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
    return total


@contextmanager
def _shared_tables(model: ToyTransformer, fast: bool) -> Iterator[Tables | None]:
    """The tables of a model, if it has any: made once for all chunks, whose gradients go to the weights at the end."""
    if not (fast and tables_pay(model)):
        yield None
        return
    made = Tables.of(model)
    leaves = made.cut()
    yield leaves
    made.send_back(leaves)


def _parts(
    model: ToyTransformer, task: Task, batch: Batch, config: TrainConfig, *, by_tables: bool
) -> Iterator[tuple[Batch, Int[Tensor, "batch query"] | None]]:
    """The chunks of a batch; if only some positions are asked in one, also which."""
    everywhere = batch.last == batch.tokens.shape[1]
    if by_tables and everywhere and free_to_read(batch.tokens) and task.answers(config.loss, batch.part(0, 1)) is None:
        yield from scored_chunks(batch, config.loss, config.chunk or scored_chunk_size(model))
    else:
        for part in chunks(batch, config.chunk or chunk_size(model, batch.last)):
            yield part, None
