"""Causal attention of one head, out = skip + softmax(S) V with S[t, s] = −∞ for s > t, without the future.

On a CPU, queries are taken in blocks, and a block meets no key that lies after its last query. Blocks and their keys
are slices of larger tensors; autograd would surround the gradient of each slice with zeros, so gradients are written
down here. Other devices, compilers and `torch.func` take the whole square, in the usual operations.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding

from toytf.models.reading import free_to_read

Keep = Callable[[Tensor], object]
"""What is given an attention pattern, [batch query key]."""

BLOCK = 64
"""Queries of a block. Smaller ones meet fewer keys in vain, but there are more of them."""


def table_attention(
    tokens: Int[Tensor, "batch position"],
    scores: tuple[Tensor, Tensor, Tensor, Tensor],
    values: Float[Tensor, "batch position m"],
    skip: Float[Tensor, "batch position m"] | None,
    *,
    keep: Keep | None = None,
) -> Float[Tensor, "batch position m"]:
    """Attention whose scores are looked up, S[t, s] = tt[z_t, z_s] + tp[z_t, s] + pt[t, z_s] + pp[t, s].

    scores: these four tables, [token token], [token position], [position token] and [position position].
    keep: is given the pattern softmax(S), if that is wanted.
    """
    tt, tp, pt, pp = scores
    of_tokens = embedding(tokens, tt) + pt  # by the token of the key, [batch query token]
    if keep is None and free_to_read(tokens):
        return cast(Tensor, _TableAttention.apply(tokens, of_tokens, tp, pp, values, skip))  # type: ignore[no-untyped-call]
    S = of_tokens @ _indicator(tokens, tt).mT + embedding(tokens, tp) + pp + _future(pp)
    return _on_the_square(S, values, skip, keep)


def stream_attention(
    query: Float[Tensor, "batch query d"],
    key: Float[Tensor, "batch position d"],
    values: Float[Tensor, "batch position m"],
    skip: Float[Tensor, "batch query m"] | None,
    asked: Int[Tensor, "batch query"] | None = None,
    *,
    keep: Keep | None = None,
) -> Float[Tensor, "batch query m"]:
    """Attention of queries at the positions that are asked, or at all of them, S[t, s] = q_t · k_s."""
    if keep is None and free_to_read(key):
        return cast(Tensor, _StreamAttention.apply(query, key, values, skip, asked))  # type: ignore[no-untyped-call]
    future = _future(key.new_zeros(key.shape[1], key.shape[1]))
    S = query @ key.mT + (future if asked is None else future[asked])
    return _on_the_square(S, values, skip, keep)


class _TableAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, tokens: Tensor, of_tokens: Tensor, tp: Tensor, pp: Tensor, values: Tensor, skip: Tensor | None
    ) -> Tensor:
        n_batch, T = tokens.shape
        fixed, key = pp + _future(pp), tokens[:, None]
        out, patterns = values.new_empty(n_batch, T, values.shape[2]), []
        for block in _blocks(T):
            end = block.stop
            S = of_tokens[:, block].gather(2, key[:, :, :end].expand(-1, end - block.start, -1))
            S += tp[:, :end].index_select(0, tokens[:, block].flatten()).view_as(S)
            S += fixed[block, :end]
            patterns.append(S.softmax(-1))
            _write_block(patterns[-1], values[:, :end], skip, out, block)
        ctx.save_for_backward(tokens, tp, values, *patterns)
        ctx.skips = skip is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tokens, tp, values, *patterns = ctx.saved_tensors
        z, T = _indicator(tokens, tp), tokens.shape[1]
        of_of_tokens, of_tp, of_pp = torch.empty_like(z), torch.zeros_like(tp), tp.new_zeros(T, T)
        of_values = torch.zeros_like(values) if ctx.needs_input_grad[4] else None
        for block, pattern in zip(_blocks(T), patterns, strict=True):
            end = block.stop
            of_S = _through_softmax(pattern, values[:, :end], grad[:, block], of_values)
            torch.bmm(of_S, z[:, :end], out=of_of_tokens[:, block])
            of_tp[:, :end].index_add_(0, tokens[:, block].flatten(), of_S.flatten(0, 1))
            torch.sum(of_S, 0, out=of_pp[block, :end])
        return None, of_of_tokens, of_tp, of_pp, of_values, grad if ctx.skips else None


class _StreamAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, query: Tensor, key: Tensor, values: Tensor, skip: Tensor | None, asked: Tensor | None
    ) -> Tensor:
        n_batch, n, T = len(query), query.shape[1], key.shape[1]
        future = _future(key.new_zeros(T, T))
        out, patterns = values.new_empty(n_batch, n, values.shape[2]), []
        for block in _blocks(n):
            if asked is None:
                end = block.stop
                hidden = future[block, :end].expand(n_batch, -1, -1)
            else:
                end = int(asked[:, block].max()) + 1
                hidden = future[:, :end].index_select(0, asked[:, block].flatten()).view(n_batch, -1, end)
            patterns.append(torch.baddbmm(hidden, query[:, block], key[:, :end].mT).softmax(-1))
            _write_block(patterns[-1], values[:, :end], skip, out, block)
        ctx.save_for_backward(query, key, values, *patterns)
        ctx.skips = skip is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, values, *patterns = ctx.saved_tensors
        of_query, of_key = torch.empty_like(query), torch.zeros_like(key)
        of_values = torch.zeros_like(values) if ctx.needs_input_grad[2] else None
        for block, pattern in zip(_blocks(query.shape[1]), patterns, strict=True):
            end = pattern.shape[2]
            of_S = _through_softmax(pattern, values[:, :end], grad[:, block], of_values)
            torch.bmm(of_S, key[:, :end], out=of_query[:, block])
            of_key[:, :end].baddbmm_(of_S.mT, query[:, block])
        return of_query, of_key, of_values, grad if ctx.skips else None, None


def _blocks(n: int) -> list[slice]:
    return [slice(start, min(n, start + BLOCK)) for start in range(0, n, BLOCK)]


def _write_block(
    pattern: Float[Tensor, "batch block key"],
    values: Float[Tensor, "batch key m"],
    skip: Float[Tensor, "batch query m"] | None,
    out: Float[Tensor, "batch query m"],
    block: slice,
) -> None:
    """Write skip + A v of a block of queries."""
    if skip is None:
        torch.bmm(pattern, values, out=out[:, block])
    else:
        torch.baddbmm(skip[:, block], pattern, values, out=out[:, block])


def _through_softmax(
    pattern: Float[Tensor, "batch block key"],
    values: Float[Tensor, "batch key m"],
    grad: Float[Tensor, "batch block m"],
    of_values: Float[Tensor, "batch position m"] | None,
) -> Float[Tensor, "batch block key"]:
    """The gradient of the scores of a block, from that of A v; that of the values is added to `of_values`."""
    if of_values is not None:
        of_values[:, : values.shape[1]].baddbmm_(pattern.mT, grad)
    return torch._softmax_backward_data(grad @ values.mT, pattern, -1, pattern.dtype)


def _indicator(tokens: Int[Tensor, "batch position"], table: Float[Tensor, "token _"]) -> Tensor:
    """1 where a position has a token, [batch position token], in the kind of numbers of a table."""
    return embedding(tokens, torch.eye(len(table), dtype=table.dtype, device=table.device))


def _future(like: Float[Tensor, "position position"]) -> Float[Tensor, "position position"]:
    """−∞ where the key comes after the query, 0 elsewhere."""
    return torch.full_like(like, -torch.inf).triu(1)


def _on_the_square(
    S: Float[Tensor, "batch query key"],
    values: Float[Tensor, "batch key m"],
    skip: Float[Tensor, "batch query m"] | None,
    keep: Keep | None,
) -> Float[Tensor, "batch query m"]:
    """skip + softmax(S) v, on the whole square."""
    pattern = S.softmax(-1)
    if keep is not None:
        keep(pattern)
    return pattern @ values if skip is None else torch.baddbmm(skip, pattern, values)
