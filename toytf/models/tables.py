"""A second path for the forward of a ToyTransformer: the same function, with fewer multiplications.

Tokens are few, so what a matrix makes of x_s = e_{z_s} + p_s is looked up in a table of tokens and one of positions,

    x_s W = (E W)[z_s] + (P W)[s],

and so are the scores of the first layer, x_tᵀ W_KQ x_s, in E W_KQ Eᵀ, E W_KQ Pᵀ, P W_KQ Eᵀ and P W_KQ Pᵀ. Outputs are
few too: the last layer, with pattern A, is read out as x U + A x W_OV U. It needs no other queries than those that are
asked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import embedding

from toytf.models.causal import stream_attention, table_attention
from toytf.models.counts import count_forward, counts_pay
from toytf.models.transformer import Block, ToyTransformer, no_hook


@dataclass(frozen=True, eq=False)
class Tables:
    """What is made of the weights alone: the same for all chunks of a batch.

    A pair is what one matrix makes of every token and of every position.
    """

    direct: list[Tensor]
    """A pair: the stream before the first layer; in a model of one layer, what is read out of it, x U."""
    scores: list[list[Tensor]]
    """Of the first layer, by head: E W_KQ Eᵀ, E W_KQ Pᵀ, P W_KQ Eᵀ and P W_KQ Pᵀ, divided by the scale."""
    values: list[list[Tensor]]
    """Pairs, by head: what the first layer adds where it attends; in a model of one layer, as it is read out."""
    last: list[list[Tensor]]
    """Of the last layer after others, by head: W_KQ divided by the scale, and W_OV, or W_OV U."""
    U: Float[Tensor, "d_model output"] | None
    """W_U, with a linear feed-forward part of the last layer before it; None if that part must be computed."""

    @classmethod
    def of(cls, model: ToyTransformer) -> "Tables":
        """The tables of a model as it is now."""
        E, U, one_layer = model.embed.W_E, _read_out(model), model.config.n_layers == 1
        P = E.new_zeros(model.n_positions, E.shape[1]) if model.pos_embed is None else model.pos_embed.W_pos

        def read(W: Tensor) -> Tensor:
            return W if U is None else W @ U

        def pair(W: Tensor) -> list[Tensor]:
            return [E @ W, P @ W]

        direct = [E, P] if U is None or not one_layer else pair(U)
        scores = [[query @ key.T for query in pair(W_KQ) for key in (E, P)] for W_KQ in _scaled_scores(model, 0)]
        values = [pair(read(W_OV) if one_layer else W_OV) for W_OV in model.W_OV(0)]
        end = model.config.n_layers - 1
        last = (
            []
            if one_layer
            else [[W_KQ, read(W_OV)] for W_KQ, W_OV in zip(_scaled_scores(model, end), model.W_OV(end), strict=True)]
        )
        return cls(direct, scores, values, last, U)

    def cut(self) -> "Tables":
        """The same numbers, whose gradients end here; `send_back` passes them on to the weights."""

        def leaf(table: Tensor) -> Tensor:
            return table.detach().requires_grad_(table.requires_grad)

        scores, values, last = (
            [[leaf(table) for table in head] for head in heads] for heads in (self.scores, self.values, self.last)
        )
        return Tables([*map(leaf, self.direct)], scores, values, last, None if self.U is None else leaf(self.U))

    def send_back(self, leaves: "Tables") -> None:
        """Pass the gradients that have come to the leaves on to the weights."""
        reached = [
            (table, leaf.grad) for table, leaf in zip(self.all, leaves.all, strict=True) if leaf.grad is not None
        ]
        if reached:
            torch.autograd.backward([table for table, _ in reached], [grad for _, grad in reached])

    @property
    def all(self) -> list[Tensor]:
        """Every table, in a fixed order."""
        by_head = [table for heads in (self.scores, self.values, self.last) for head in heads for table in head]
        return [*self.direct, *by_head, *([] if self.U is None else [self.U])]


def fast_forward(
    model: ToyTransformer,
    tokens: Int[Tensor, "batch position"],
    last: int | None = None,
    *,
    asked: Int[Tensor, "batch query"] | None = None,
    tables: Tables | None = None,
) -> Float[Tensor, "batch query output"]:
    """The logits of `model(tokens, last=last)`, or those at the positions `asked` of each, with the same gradients.

    By counts where they pay, by tables where they pay, else by the plain forward: so always if the model has an option
    that `fast_options` does not list. tables: those of the model, if they are at hand.
    """
    if asked is None and by_counts(model, tokens, last):
        return count_forward(model, tokens)
    if tables_pay(model):
        logits = table_forward(model, tokens, asked, tables)
        return logits if last is None or asked is not None else logits[:, -last:]
    plain: Tensor = model(tokens, last=last if asked is None else None)
    return _at(plain, asked)


def by_counts(model: ToyTransformer, tokens: Int[Tensor, "batch position"], last: int | None) -> bool:
    """Does the fast forward go by token counts here?"""
    return last == 1 and counts_pay(model, tokens.shape[1])


def table_forward(
    model: ToyTransformer,
    tokens: Int[Tensor, "batch position"],
    asked: Int[Tensor, "batch query"] | None = None,
    tables: Tables | None = None,
    keep: Callable[[int, Tensor], object] | None = None,
) -> Float[Tensor, "batch query output"]:
    """The logits of `model(tokens)`, by tables, at all positions or at those that are asked.

    keep: is given every layer with the pattern of each of its heads.
    """
    blocks: list[Block] = list(model.blocks)  # type: ignore[arg-type]
    tables = Tables.of(model) if tables is None else tables
    kept = [None if keep is None else partial(keep, layer) for layer in range(len(blocks))]
    T, U, W_U = tokens.shape[1], tables.U, model.unembed.W_U

    def look_up(pair: list[Tensor]) -> Tensor:
        return embedding(tokens, pair[0]) + pair[1][:T]

    start = look_up(tables.direct)
    x = blocks[0].attn.skip(start)
    for (tt, tp, pt, pp), values in zip(tables.scores, tables.values, strict=True):
        x = table_attention(tokens, (tt, tp[:, :T], pt[:T], pp[:T, :T]), look_up(values), x, keep=kept[0])
    assert x is not None
    if len(blocks) == 1:
        return _at(x if U is not None else blocks[0].finish(start, x) @ W_U, asked)
    x = blocks[0].finish(start, x)
    for layer, block in enumerate(blocks[1:-1], 1):
        x = block(x, no_hook if keep is None else partial(_keep_pattern, keep, layer))
    x_asked, end = _at(x, asked), blocks[-1]
    found = end.attn.skip(x_asked if U is None else x_asked @ U)
    for W_KQ, W_OV in tables.last:
        query = x_asked @ W_KQ
        if _few(x_asked.shape[1], T, *W_OV.shape):
            read = stream_attention(query, x, x, None, asked, keep=kept[-1]) @ W_OV
            found = read if found is None else found + read
        else:
            found = stream_attention(query, x, x @ W_OV, found, asked, keep=kept[-1])
    assert found is not None
    return found if U is not None else end.finish(x_asked, found) @ W_U


def observe(
    model: ToyTransformer, tokens: Int[Tensor, "batch position"], chunk: int
) -> tuple[Float[Tensor, "batch position output"], list[Float[Tensor, "batch head position position"]]]:
    """Logits at all positions and the attention patterns of every layer, by one forward of so many sequences a time."""
    layers = range(model.config.n_layers)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in layers]
    tables = Tables.of(model) if tables_pay(model) else None
    logits, patterns = [], []
    for part in torch.split(tokens, chunk):
        if tables is None:
            found, seen = model.observe(part, *names)
            patterns.append([seen[name] for name in names])
        else:
            heads: dict[int, list[Tensor]] = {layer: [] for layer in layers}
            found = table_forward(model, part, tables=tables, keep=partial(_collect, heads))
            patterns.append([torch.stack(heads[layer], 1) for layer in layers])
        logits.append(found)
    return torch.cat(logits), [torch.cat(layer) for layer in zip(*patterns, strict=True)]


def tables_pay(model: ToyTransformer) -> bool:
    """Do tables understand the model (`fast_options`), and do they save work?

    They do if no table over tokens or outputs is wider than the stream, and no head is narrow.
    """
    config, attention = model.config, model.config.attention
    few = attention.n_heads * max(len(model.embed.W_E), model.unembed.W_U.shape[1]) <= config.d_model
    wide = attention.kq == attention.ov == "joint" or 2 * config.d_head >= config.d_model
    return "tables" in model.fast_paths and few and wide


def _collect(heads: dict[int, list[Tensor]], layer: int, pattern: Tensor) -> None:
    heads[layer].append(pattern)


def _keep_pattern(keep: Callable[[int, Tensor], object], layer: int, name: str, value: Tensor) -> Tensor:
    """A hook of a whole layer."""
    if name == "attn.hook_pattern":
        for pattern in value.unbind(1):
            keep(layer, pattern)
    return value


def _few(queries: int, keys: int, d: int, m: int) -> bool:
    """Is it less to apply a matrix [d m] to what queries have collected, (A x) W, than to the keys, A (x W)?"""
    return queries * d * (keys + m) < keys * m * (d + queries)


def _scaled_scores(model: ToyTransformer, layer: int) -> Float[Tensor, "head d_model d_model"]:
    return model.W_KQ(layer) / model.attention(layer).scale


def _at(
    x: Shaped[Tensor, "batch position m"], asked: Int[Tensor, "batch query"] | None
) -> Shaped[Tensor, "batch query m"]:
    """What is at the positions that are asked, or all of it."""
    if asked is None:
        return x
    first = torch.arange(len(x), device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (asked + first).flatten()).view(*asked.shape, -1)


def _read_out(model: ToyTransformer) -> Float[Tensor, "d_model output"] | None:
    """W_U with a linear feed-forward part of the last layer before it; None if that part cannot be folded in."""
    part, W_U = model.feed_forward(model.config.n_layers - 1), model.unembed.W_U
    if part is None:
        return W_U
    if not part.linear or model.config.feed_forward.reads == "block_input":
        return None
    return part.add(W_U, part.W_in @ W_U)
