"""The loss of a training step and its gradients, chunk by chunk."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor

from toytf.chunks import chunk_size, chunks, scored_chunks, small_chunk_size
from toytf.evaluation import Forward, plain_forward, token_loss
from toytf.models.cross_entropy import weighed_cross_entropy
from toytf.models.reading import free_to_read
from toytf.models.tables import Tables, fast_forward, tables_pay
from toytf.models.transformer import ToyTransformer
from toytf.task import Batch, Task
from toytf.training.config import TrainConfig

Slope = tuple[Tensor, Tensor, Tensor]
"""The loss of a chunk, detached; a tensor that it depends on; and the gradient of the loss by that tensor."""


def accumulate_gradients(
    model: ToyTransformer, task: Task, batch: Batch, config: TrainConfig, compiled: Forward | None = None
) -> Float[Tensor, ""]:
    """Add the gradients of the mean cross-entropy over the positions of the role `config.loss`; return that mean.

    compiled: the forward of `config`, if it was compiled.
    """
    role, fast = config.loss, config.forward == "fast"
    n = batch.roles[role].sum().clamp(min=1)
    with _shared_tables(model, fast and compiled is None) as tables:

        def steepest(part: Batch, asked: Tensor | None) -> Slope:
            if compiled is not None:
                logits = compiled(model, part.tokens, part.last)
            elif fast:
                logits = fast_forward(model, part.tokens, part.last, asked=asked, tables=tables)
            else:
                logits = plain_forward(model, part.tokens, part.last)
            weights = part.roles[role] / n
            answers = task.answers(role, part) if asked is None else None
            if answers is None:
                loss, slope = weighed_cross_entropy(logits, part.targets, weights.to(logits.dtype))
                return loss, logits, slope
            loss = (token_loss(logits, part, answers) * weights).sum()
            return loss.detach(), loss, torch.ones_like(loss)

        parts = [*_parts(model, task, batch, config, by_tables=tables is not None)]
        threads = torch.get_num_threads() if free_to_read(batch.tokens) and compiled is None else 1
        if threads > 1 and len(parts) >= threads:
            weights = [weight for weight in model.parameters() if weight.requires_grad]
            leaves = weights + ([] if tables is None else [table for table in tables.all if table.requires_grad])
            return _side_by_side(steepest, parts, leaves, threads)
        total = torch.zeros((), device=model.device)
        for part, asked in parts:
            loss, output, slope = steepest(part, asked)
            torch.autograd.backward(output, slope)
            total = total + loss
        return total


def _side_by_side(
    steepest: Callable[[Batch, Tensor | None], Slope],
    parts: Sequence[tuple[Batch, Tensor | None]],
    leaves: Sequence[Tensor],
    threads: int,
) -> Float[Tensor, ""]:
    """The same with whole chunks side by side, each on one thread.

    Threads then wait for each other once a step, not in every operation; if another process takes a core, the others
    take more of the chunks. Gradients are added up in the order of the chunks, so that bits depend on no timing.
    """

    def gradients_of(part: tuple[Batch, Tensor | None]) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        with torch.enable_grad():
            loss, output, slope = steepest(*part)
        return loss, torch.autograd.grad(output, leaves, slope, allow_unused=True)

    total = torch.zeros(())
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for loss, gradients in pool.map(gradients_of, parts):
            total = total + loss
            for leaf, gradient in zip(leaves, gradients, strict=True):
                if gradient is not None:
                    leaf.grad = gradient if leaf.grad is None else leaf.grad.add_(gradient)
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
        yield from scored_chunks(batch, config.loss, config.chunk or small_chunk_size(model))
    else:
        for part in chunks(batch, config.chunk or chunk_size(model, batch.last)):
            yield part, None
