"""A second path for the forward of a ToyTransformer: the same function, with fewer multiplications.

Tokens are few, so what a matrix makes of x_s = e_{z_s} + p_s is looked up in a table of tokens and one of positions,

    x_s W = (E W)[z_s] + (P W)[s],

and so are the scores of the first layer, x_tᵀ W_KQ x_s, with W = W_KQᵀ Eᵀ (queries by token) and W = W_KQᵀ Pᵀ (queries
by position). Outputs are few too: the last layer, with pattern A, is read out as x U + A x W_OV U.
"""

from collections.abc import Callable
from functools import partial

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding

from toytf.models.counts import count_forward, counts_pay
from toytf.models.transformer import Block, ToyTransformer, no_hook


def fast_forward(
    model: ToyTransformer, tokens: Int[Tensor, "batch position"], last: int | None = None
) -> Float[Tensor, "batch query output"]:
    """The logits of `model(tokens, last=last)`, with the same gradients.

    By counts where they pay, by tables where they pay, else by the plain forward: so always if the model has an option
    that `fast_options` does not list.
    """
    if last == 1 and counts_pay(model, tokens.shape[1]):
        return count_forward(model, tokens)
    if not tables_pay(model):
        plain: Tensor = model(tokens, last=last)
        return plain
    logits = table_forward(model, tokens)
    return logits if last is None else logits[:, -last:]


def table_forward(
    model: ToyTransformer, tokens: Int[Tensor, "batch position"]
) -> Float[Tensor, "batch position output"]:
    """The logits of `model(tokens)`, by tables."""
    blocks: list[Block] = list(model.blocks)  # type: ignore[arg-type]
    first, *others = blocks
    U = _read_out(model)
    look_up = partial(_look_up, model, tokens)
    pattern = _token_pattern(model, tokens)
    if U is not None and not others:
        return _logits(model, 0, pattern, look_up, U)
    x, values = look_up(), look_up(_side_by_side(model.W_OV(0)))
    x = first.finish(x, _attend(pattern, values, first.attn.skip(x)))
    for block in others if U is None else others[:-1]:
        x = block(x, no_hook)
    if U is None:
        return x @ model.unembed.W_U
    return _logits(model, len(others), _stream_pattern(model, len(others), x), lambda W: x @ W, U)


def tables_pay(model: ToyTransformer) -> bool:
    """Do tables understand the model (`fast_options`), and do they save work?

    They do if no table over tokens or outputs is wider than the stream, and no head is narrow.
    """
    config, attention = model.config, model.config.attention
    few = attention.n_heads * max(len(model.embed.W_E), model.unembed.W_U.shape[1]) <= config.d_model
    wide = attention.kq == attention.ov == "joint" or 2 * config.d_head >= config.d_model
    return "tables" in model.fast_paths and few and wide


def _look_up(
    model: ToyTransformer,
    tokens: Int[Tensor, "batch position"],
    W: Float[Tensor, "d_model m"] | None = None,
    offset: Float[Tensor, "position m"] | None = None,
) -> Float[Tensor, "batch position m"]:
    """(E W)[z_s] + (P W + offset)[s]; W is the identity if not given."""

    def through(vectors: Tensor) -> Tensor:
        return vectors if W is None else vectors @ W

    table = offset
    if model.pos_embed is not None:
        positions = through(model.pos_embed.W_pos[: tokens.shape[1]])
        table = positions if offset is None else positions + offset
    found = embedding(tokens, through(model.embed.W_E))
    return found if table is None else found + table


def _token_pattern(
    model: ToyTransformer, tokens: Int[Tensor, "batch position"]
) -> Float[Tensor, "batch_head query key"]:
    """Attention of the first layer: the scores of every key for all tokens, z_t among them, and for position t."""
    heads, (n_batch, T) = model.config.attention.n_heads, tokens.shape
    E, W_KQ = model.embed.W_E, model.W_KQ(0) / model.attention(0).scale
    future = _future(model, T).T.repeat(1, heads)

    def scores(table: Tensor) -> Float[Tensor, "batch_head query key"]:
        return rearrange(table, "batch key (head query) -> (batch head) query key", head=heads)

    by_token = scores(_look_up(model, tokens, _side_by_side((E @ W_KQ).mT)))
    if model.pos_embed is None:
        by_position = scores(future.expand(n_batch, -1, -1))
    else:
        P = model.pos_embed.W_pos[:T]
        by_position = scores(_look_up(model, tokens, _side_by_side((P @ W_KQ).mT), future))
    query = embedding(tokens, torch.eye(len(E), dtype=E.dtype, device=E.device)).repeat_interleave(heads, 0)
    return torch.baddbmm(by_position, query, by_token).softmax(-1)


def _stream_pattern(
    model: ToyTransformer, layer: int, x: Float[Tensor, "batch position d_model"]
) -> Float[Tensor, "batch_head query key"]:
    """Attention of a later layer, softmax_{s≤t}(x_tᵀ W_KQ x_s / scale)."""
    heads, (n_batch, T) = model.config.attention.n_heads, x.shape[:2]
    W_KQ = _side_by_side(model.W_KQ(layer) / model.attention(layer).scale)
    query = rearrange(x @ W_KQ, "batch query (head d) -> (batch head) query d", head=heads)
    key = x if heads == 1 else x.repeat_interleave(heads, 0)
    future = _future(model, T).expand(n_batch * heads, -1, -1)
    return torch.baddbmm(future, query, key.mT).softmax(-1)


def _future(model: ToyTransformer, T: int) -> Float[Tensor, "query key"]:
    """−∞ where the key comes after the query, 0 elsewhere."""
    mask = model.attention(0).mask[:T, :T]
    return torch.zeros_like(mask, dtype=model.embed.W_E.dtype).masked_fill(mask, -torch.inf)


def _attend(
    pattern: Float[Tensor, "batch_head query key"],
    values: Float[Tensor, "batch key head_m"],
    skip: Float[Tensor, "batch query m"] | None,
) -> Float[Tensor, "batch query m"]:
    """skip + Σ_h A_h v_h, as one product over all heads and keys."""
    heads = len(pattern) // len(values)
    A = rearrange(pattern, "(batch head) query key -> batch query (head key)", head=heads)
    v = rearrange(values, "batch key (head m) -> batch (head key) m", head=heads)
    return A @ v if skip is None else torch.baddbmm(skip, A, v)


def _logits(
    model: ToyTransformer,
    layer: int,
    pattern: Float[Tensor, "batch_head query key"],
    read: Callable[[Tensor], Tensor],
    U: Float[Tensor, "d_model output"],
) -> Float[Tensor, "batch query output"]:
    """The last layer and what follows, x U + A x W_OV U, where read(W) is x W."""
    both = read(_side_by_side(model.W_OV(layer) @ U, U))
    values, direct = torch.tensor_split(both, [-U.shape[1]], dim=2)
    return _attend(pattern, values, model.attention(layer).skip(direct))


def _read_out(model: ToyTransformer) -> Float[Tensor, "d_model output"] | None:
    """W_U with a linear feed-forward part of the last layer before it; None if that part cannot be folded in."""
    part, W_U = model.feed_forward(model.config.n_layers - 1), model.unembed.W_U
    if part is None:
        return W_U
    if not part.linear or model.config.feed_forward.reads == "block_input":
        return None
    return part.add(W_U, part.W_in @ W_U)


def _side_by_side(heads: Float[Tensor, "head d m"], *more: Float[Tensor, "d m"]) -> Float[Tensor, "d columns"]:
    """The matrices of all heads as one, to be applied in one product."""
    return torch.cat([*heads, *more], dim=1)
