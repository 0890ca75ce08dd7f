"""The loss of a training step and its gradients, chunk by chunk."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.chunks import chunk_size, chunks, scored_chunks, small_chunk_size
from toytf.errors import UserError
from toytf.evaluation import Forward, plain_forward, token_loss
from toytf.models.cross_entropy import weighed_cross_entropy
from toytf.models.reading import free_to_read
from toytf.models.stack import Stack
from toytf.models.tables import Tables, by_counts, fast_forward, tables_pay
from toytf.models.transformer import Hook, ToyTransformer
from toytf.task import Batch, Task
from toytf.training.config import TrainConfig
from toytf.training.stacking import MOST
from toytf.words import listed

Start = tuple[Tensor, Tensor, Tensor]
"""The loss of a chunk, detached; and where its backward begins: a tensor, and the gradient of the loss by it."""

Part = tuple[Batch, Tensor | None]
"""A chunk and, if only some positions are asked in it, which."""

STACKED = 2**23
"""Floats of the largest activation of stacked models whose forward goes by counts, at a time (32 MB)."""


def accumulate_gradients(
    model: ToyTransformer, task: Task, batch: Batch, config: TrainConfig, compiled: Forward | None = None
) -> Float[Tensor, ""]:
    """Add the gradients of the mean cross-entropy over the positions of the role `config.loss`; return that mean.

    compiled: the forward of `config`, if it was compiled.
    """
    role, fast = config.loss, config.forward == "fast"
    n = batch.roles[role].sum().clamp(min=1)
    by_target = task.answers(role, batch.part(0, 1)) is None
    with _shared_tables(model, batch, fast and compiled is None) as tables:

        def start_of(part: Batch, asked: Tensor | None) -> Start:
            if compiled is not None:
                logits = compiled(model, part.tokens, part.last)
            elif config.forward == "right_attention":
                logits = model(part.tokens, right_attention(model, task, part), part.last)
            elif fast:
                logits = fast_forward(model, part.tokens, part.last, asked=asked, tables=tables)
            else:
                logits = plain_forward(model, part.tokens, part.last)
            weights = part.roles[role].to(logits.dtype) / n
            if by_target:
                losses, gradient = weighed_cross_entropy(logits, part.targets, weights)
                return losses.sum(), logits, gradient
            loss = (token_loss(logits, part, task.answers(role, part)) * weights).sum()
            return loss.detach(), loss, torch.ones_like(loss)

        parts: list[Part]
        scored = by_target and tables is not None and batch.last == batch.tokens.shape[1]
        if scored and free_to_read(batch.tokens):
            parts = [*scored_chunks(batch, role, config.chunk or small_chunk_size(model))]
        else:
            parts = [(part, None) for part in chunks(batch, config.chunk or chunk_size(model, batch.last))]
        threads = torch.get_num_threads() if free_to_read(batch.tokens) and compiled is None else 1
        if threads > 1 and len(parts) >= threads:
            weights = [weight for weight in model.parameters() if weight.requires_grad]
            leaves = weights + ([] if tables is None else [table for table in tables.all if table.requires_grad])
            return _side_by_side(start_of, parts, leaves, threads)
        total = torch.zeros((), device=model.device)
        for part in parts:
            loss, output, gradient = start_of(*part)
            torch.autograd.backward(output, gradient)
            total = total + loss
        return total


def right_attention(model: ToyTransformer, task: Task, batch: Batch) -> Hook:
    """A hook that lets each query attend evenly to the positions that are right for it, where the task says which.

    All heads of a layer look at the same positions.
    """
    right_keys = {
        f"blocks.{layer}.attn.hook_pattern": keys
        for layer, keys in task.annotate(batch).right_keys.items()
        if layer < model.config.n_layers
    }
    problem = "the task does not say where attention should look" if not right_keys else ""
    if rivals := task.rivals(batch):
        problem = f"where to look would tell the answer in a task with {listed([*rivals])}"
    if problem:
        raise UserError(f"train.forward = right_attention: {problem}; use fast or plain")

    def attend(name: str, value: Tensor) -> Tensor:
        if name not in right_keys:
            return value
        asked = min(value.shape[2], right_keys[name].shape[1])  # the task may speak of the last positions only
        right = right_keys[name][:, None, -asked:].to(value.dtype)
        n = right.sum(-1, keepdim=True)
        chosen = torch.where(n > 0, right / n.clamp(min=1), value[:, :, -asked:])
        return torch.cat([value[:, :, :-asked], chosen], 2)

    return attend


def accumulate_stacked_gradients(
    stack: Stack, task: Task, batch: Batch, config: TrainConfig
) -> Float[Tensor, "member"]:
    """The same for stacked models, whose sequences follow each other in the batch: one mean for each member.

    Each member has the gradients that it has alone, up to rounding. task: says what counts as right, for all of them.
    """
    role, fast, n_members = config.loss, config.forward == "fast", len(stack)
    n = batch.roles[role].view(n_members, -1).sum(1).clamp(min=1)
    by_target = task.answers(role, batch.part(0, 1)) is None
    total = torch.zeros(n_members, device=batch.tokens.device)
    for part in batch.of_each(n_members, config.chunk or _stacked_chunk(stack, batch, fast)):
        logits = stack.forward(part.tokens.view(n_members, -1, part.tokens.shape[1]), part.last, fast=fast).flatten(
            0, 1
        )
        weights = (part.roles[role].view(n_members, -1).to(logits.dtype) / n[:, None]).view(-1, part.last)
        if by_target:
            losses, gradient = weighed_cross_entropy(logits, part.targets, weights)
            torch.autograd.backward(logits, gradient)
        else:
            losses = token_loss(logits, part, task.answers(role, part)) * weights
            torch.autograd.backward(losses.sum())
        total = total + losses.detach().view(n_members, -1).sum(1)
    return total


def _stacked_chunk(stack: Stack, batch: Batch, fast: bool) -> int | None:
    """How many sequences of each member are taken at a time; None: all of them, as on a GPU.

    The same however many members there are: bits depend on it, and some may have failed or ended.
    """
    first = stack.models[0]
    size = chunk_size(first, batch.last)
    if size is not None and fast and by_counts(first, batch.tokens, batch.last):
        attn = first.attention(0)
        widest = max(attn.n_heads * (attn.W_O.shape[1] + 1), first.config.width, *first.unembed.W_U.shape)
        size = STACKED // max(widest, len(first.embed.W_E))
    return None if size is None else max(1, size // MOST)


def _side_by_side(
    start_of: Callable[[Batch, Tensor | None], Start], parts: Sequence[Part], leaves: Sequence[Tensor], threads: int
) -> Float[Tensor, ""]:
    """Add the gradients of several chunks at a time, each on one thread, to the leaves; return the sum of the losses.

    Threads then wait for each other once a step, not in every operation; if another process takes a core, the others
    take more of the chunks. Gradients are added up in the order of the chunks, so that bits depend on no timing.
    """

    def gradients_of(part: Part) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        with torch.enable_grad():
            loss, output, gradient = start_of(*part)
        return loss, torch.autograd.grad(output, leaves, gradient, allow_unused=True)

    total, left = torch.zeros(()), iter(parts)
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting = deque(pool.submit(gradients_of, part) for part in islice(left, 2 * threads))
        while waiting:
            loss, gradients = waiting.popleft().result()
            waiting.extend(pool.submit(gradients_of, part) for part in islice(left, 1))
            total = total + loss
            for leaf, gradient in zip(leaves, gradients, strict=True):
                if gradient is not None:
                    leaf.grad = gradient.contiguous() if leaf.grad is None else leaf.grad.add_(gradient)
    return total


@contextmanager
def _shared_tables(model: ToyTransformer, batch: Batch, fast: bool) -> Iterator[Tables | None]:
    """The tables of a model, if they are used: made once for all chunks; gradients go to the weights at the end."""
    if not fast or by_counts(model, batch.tokens, batch.last) or not tables_pay(model):
        yield None
        return
    made = Tables.of(model)
    leaves = made.cut()
    yield leaves
    made.send_back(leaves)
