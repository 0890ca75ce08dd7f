"""The forward at the last position when order does not matter: a sequence is its last token and its token counts.

Without positions, all occurrences of a token have one key and one value, so attention runs over the vocabulary instead
of the sequence, and keys and values are made once for every token. With c_z = #{s: z_s = z},

    a = Σ_h Σ_z A_h(z) e_z W_V W_O,   A_h(z) = softmax_z(q_hᵀ k_h(z) / scale + ln c_z)   or   c_z q_hᵀ k_h(z) / scale

The softmax subtracts the largest score among the tokens of the sequence, so it is exact however far scores lie apart,
and no decision waits for a value. If all sequences end in the same token, scores ℓ_h(z) are one table, and attention is
one product with the counts,

    Σ_z A_h(z) v_h(z) = c·(w_h v_h) / c·w_h,   w_h(z) = exp(ℓ_h(z) − max ℓ_h),

which underflows where all tokens of a sequence score far below others. To see that this is not so, values must be read:
that costs nothing on a CPU, but is a wait on other devices, which always take the softmax.

The gradients of saturated heads are tiny, and would be lost in the rounding of these sums: terms v_h(z) and
−Σ_z A_h(z) v_h(z) that cancel are added up over the batch. Two things keep them. Values are taken relative to their
mean over the batch, which no result depends on, since attention adds up to 1: so a head that always attends to the same
token has small terms only. And if scores lie so far apart that a head may be saturated, the product is in double
precision.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from einops import rearrange
from jaxtyping import Float, Int, Num
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, scaled_dot_product_attention

from toytf.models.fast_options import is_recall_network
from toytf.models.reading import free_to_read, is_mapped
from toytf.models.transformer import Attention, Block, ToyTransformer

SAFE = {torch.float32: 12.0, torch.float64: 600.0}
"""How far scores may lie apart in a precision.

In single precision, so that no token has all but e^−12 = 6e-6 of the attention: sums are exact to some 1e-7. In double,
so that weights exp(ℓ − max ℓ) and their inverses are far from the ends of it.
"""

WEIGHING = 4
"""What weighing a token costs in a head besides its d_head multiplications, in such multiplications.

Measured: about 1 for the product, 16 for the softmax.
"""


def count_forward(model: ToyTransformer, tokens: Int[Tensor, "batch position"]) -> Float[Tensor, "batch 1 output"]:
    """The logits of `model(tokens, last=1)`, with the same gradients, for one layer without positions and LayerNorm."""
    attn, E, ends = model.attention(0), model.embed.W_E, tokens[:, -1]
    simple = _brings_gradients(model)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not simple):  # the network brings its own gradients
        scores = None if attn.linear else _common_scores(attn, E, ends)
        precise = None if scores is None else _precision(scores, float(_spread(scores)))
    if scores is not None and precise is not None and simple:
        return _network(model, tokens, scores.to(precise))[:, None]
    if scores is not None and precise is not None:
        c, v = _counts(tokens, len(E), precise), _heads(E, attn.W_V, attn.n_heads).mT
        z = cast(Tensor, _ByProduct.apply(scores.to(precise), v.to(precise), c)).T.to(E.dtype)  # type: ignore[no-untyped-call]
    else:
        k, v = _heads(E, attn.W_K, attn.n_heads) / attn.scale, _heads(E, attn.W_V, attn.n_heads)
        q = _heads(embedding(ends, E), attn.W_Q, attn.n_heads)
        if attn.linear:
            z = (q @ k.mT * _counts(tokens, len(E), E.dtype)) @ v
        else:
            ln = torch.arange(tokens.shape[1] + 1, device=E.device, dtype=E.dtype).log()
            ln_c = ln[_counts(tokens, len(E), tokens.dtype)]
            if is_mapped():  # the fused operation cannot be mapped on a CPU
                z = (q @ k.mT + ln_c).softmax(-1) @ v
            else:
                z = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=ln_c, scale=1.0)[0]
        z = rearrange(z, "head batch d -> batch (head d)")
    added = z @ attn.W_O.flatten(0, 1)
    e = embedding(ends, E)
    block: Block = model.blocks[0]  # type: ignore[assignment]
    x = block.finish(e, attn.add(e, added))
    return (x @ model.unembed.W_U)[:, None]


def stacked_count_forward(
    model: ToyTransformer, tokens: Int[Tensor, "member batch position"]
) -> list[tuple[Int[Tensor, "k"] | None, Float[Tensor, "k batch 1 output"] | None]] | None:
    """The same for a model whose parameters have an axis of members in front: some members at a time, and their logits.

    Members come together whose scores need the same precision, so that no member's numbers depend on others. Which they
    are is None if they are all. Logits are None of members whose scores lie too far apart for the product, and there is
    no answer at all for models and devices that do not take it.
    """
    attn, simple = model.attention(0), _brings_gradients(model)
    if attn.linear or not (simple or (model.feed_forward(0) is None and attn.W_V is not None)):
        return None
    with torch.set_grad_enabled(torch.is_grad_enabled() and not simple):
        scores = _common_scores(attn, model.embed.W_E, tokens[..., -1])
    if scores is None:
        return None
    logits_of = _network if simple else _heads_alone
    precisions = [_precision(scores, spread) for spread in _spread(scores).tolist()]
    found: list[tuple[Tensor | None, Tensor | None]] = []
    for precise in dict.fromkeys(precisions):
        which = [i for i, other in enumerate(precisions) if other is precise]
        members = None if len(which) == len(precisions) else torch.tensor(which)
        logits = None if precise is None else logits_of(model, tokens, scores.to(precise), members)[:, :, None]
        found.append((members, logits))
    return found


def _heads_alone(
    model: ToyTransformer,
    tokens: Int[Tensor, "member batch position"],
    scores: Float[Tensor, "member head token"],
    members: Int[Tensor, "k"] | None,
) -> Float[Tensor, "k batch output"]:
    """The logits at the last position of a model without a feed-forward part, of all members or of some."""
    attn, E = model.attention(0), model.embed.W_E
    assert attn.W_V is not None
    c, e = _counts(tokens, E.shape[-2], scores.dtype), E[:, int(tokens.flatten()[-1])]
    scores, c, E_here, e, U, W_V, W_O = (
        tensor if members is None else tensor[members]
        for tensor in (scores, c, E, e, model.unembed.W_U, attn.W_V, attn.W_O)
    )
    v = (W_V.mT.flatten(-3, -2) @ E_here.mT).view(*W_V.shape[:-2], W_V.shape[-1], -1)
    z = cast(Tensor, _ByProduct.apply(scores, v.to(scores.dtype), c)).mT.to(E.dtype)  # type: ignore[no-untyped-call]
    return attn.add(e[:, None], z @ W_O.flatten(-3, -2)) @ U


def _network(
    model: ToyTransformer,
    tokens: Int[Tensor, "*member batch position"],
    scores: Float[Tensor, "*member head token"],
    members: Int[Tensor, "k"] | None = None,
) -> Float[Tensor, "... batch output"]:
    """The logits at the last position, of all members or of some."""
    attn, part, E = model.attention(0), model.feed_forward(0), model.embed.W_E
    assert part is not None
    e = E[..., int(tokens.flatten()[-1]), :] / attn.scale
    c = _counts(tokens, E.shape[-2], scores.dtype)
    heads, units = (attn.W_Q, attn.W_K, attn.W_V, attn.W_O), (part.W_in, part.b_in, part.W_out)
    given: tuple[Tensor | None, ...] = (scores, c, E, e, model.unembed.W_U, *heads, *units)
    if members is not None:
        given = tuple(None if tensor is None else tensor[members] for tensor in given)
    return cast(Tensor, _Network.apply(*given))  # type: ignore[no-untyped-call]


def counts_pay(model: ToyTransformer, n_positions: int) -> bool:
    """Do counts understand the model (`fast_options`), and do they save work?

    They do if it is less to weigh V tokens than to make keys and values at T positions.
    """
    (V, d), d_head = model.embed.W_E.shape, model.attention(0).W_K.shape[-1]
    return "counts" in model.fast_paths and V * (d_head + WEIGHING) <= n_positions * d * d_head


def _brings_gradients(model: ToyTransformer) -> bool:
    """Is it the network of Nichani et al. (`is_recall_network`), all vectors frozen?"""
    frozen = not (model.embed.W_E.requires_grad or model.unembed.W_U.requires_grad)
    return frozen and is_recall_network(model.config)


def _common_scores(
    attn: Attention, E: Float[Tensor, "*member token d_model"], ends: Int[Tensor, "*member batch"]
) -> Float[Tensor, "*member head token"] | None:
    """The scores of all tokens for the one query of a batch.

    None if the batch has several queries, and wherever values cannot be read at no cost.
    """
    if not free_to_read(ends) or bool((ends != ends.flatten()[0]).any()):
        return None
    e = E[..., int(ends.flatten()[0]), :][..., None, None, :]
    q = e if attn.W_Q is None else e @ attn.W_Q  # [member head 1 d]
    return (attn.W_K @ q.mT)[..., 0] @ E.mT / attn.scale


def _spread(scores: Float[Tensor, "*member head token"]) -> Float[Tensor, "*member"]:
    """How far the scores of a head lie apart at most."""
    low, high = scores.detach().aminmax(dim=-1)
    return (high - low).amax(-1)


def _precision(scores: Tensor, spread: float) -> torch.dtype | None:
    """A precision in which the product is exact; None if scores lie too far apart."""
    return next((dtype for dtype in (scores.dtype, torch.float64) if spread < SAFE[dtype]), None)


@dataclass(frozen=True, eq=False)
class _Weighed:
    """c·(w v) / c·w with w = exp(ℓ − max ℓ), for all heads in one product. The batch comes last, and v is centred."""

    w: Float[Tensor, "*member head 1 token"]
    v: Float[Tensor, "*member head d token"]
    c: Float[Tensor, "*member batch token"]
    centre: Float[Tensor, "*member head d 1"]
    mean: Float[Tensor, "*member head d batch"]
    total: Float[Tensor, "*member head 1 batch"]

    @classmethod
    def of(
        cls,
        scores: Float[Tensor, "*member head token"],
        v: Float[Tensor, "*member head d token"],
        c: Float[Tensor, "*member batch token"],
    ) -> "_Weighed":
        *members, n_heads, d, n_tokens = v.shape
        w = (scores - scores.amax(-1, keepdim=True)).exp_()[..., None, :]
        on_average = w * c.sum(-2)[..., None, None, :]
        centre = (v @ on_average.mT) / on_average.sum(-1, keepdim=True)
        v = v - centre
        table = v.new_empty(*members, n_heads, d + 1, n_tokens)
        torch.mul(v, w, out=table[..., :d, :])
        table[..., d:, :] = w
        sums = (table.flatten(-3, -2) @ c.mT).view(*members, n_heads, d + 1, -1)
        return cls(w, v, c, centre, sums[..., :d, :] / sums[..., d:, :], sums[..., d:, :])

    @property
    def z(self) -> Float[Tensor, "*member head_d batch"]:
        """What the heads have collected."""
        return (self.mean + self.centre).flatten(-3, -2)

    def gradients(self, of_z: Float[Tensor, "*member head_d batch"]) -> tuple[Tensor, Tensor]:
        """Those of the scores and of v."""
        *members, n_heads, d, n_batch = self.mean.shape
        of_sums = of_z.new_empty(*members, n_heads, d + 1, n_batch)
        torch.div(of_z.view_as(self.mean), self.total, out=of_sums[..., :d, :])
        torch.sum(of_sums[..., :d, :] * self.mean, -2, out=of_sums[..., d, :])
        of_table = (of_sums.flatten(-3, -2) @ self.c).view(*members, n_heads, d + 1, -1)
        of_v = of_table[..., :d, :]
        of_scores = self.w * ((self.v * of_v).sum(-2, keepdim=True) - of_table[..., d:, :])
        return of_scores[..., 0, :], self.w * of_v


class _ByProduct(torch.autograd.Function):
    """The heads alone, [(head d) batch]."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, v: Tensor, c: Tensor) -> Tensor:
        ctx.weighed = _Weighed.of(scores, v, c)
        return cast(Tensor, ctx.weighed.z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return *ctx.weighed.gradients(grad), None


class _Network(torch.autograd.Function):
    """The heads, relu units beside them and what is read out: (a + relu(a W_in + b_in) W_out) U with a = z W_O.

    scores are those of W_Q and W_K for the query e, which is divided by the scale; they may have more precision than
    the rest. Token and output vectors are frozen. All tensors may have an axis of members in front.
    """

    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        scores: Tensor,
        c: Tensor,
        E: Tensor,
        e: Tensor,
        U: Tensor,
        W_Q: Tensor,
        W_K: Tensor,
        W_V: Tensor,
        W_O: Tensor,
        W_in: Tensor,
        b_in: Tensor | None,
        W_out: Tensor,
    ) -> Tensor:
        v = (W_V.mT.flatten(-3, -2) @ E.mT).view(*W_V.shape[:-2], W_V.shape[-1], -1)
        weighed = _Weighed.of(scores, v.to(scores.dtype), c)
        z = weighed.z.to(E.dtype)
        a = z.mT @ W_O.flatten(-3, -2)
        hidden = (a @ W_in if b_in is None else _plus(b_in[..., None, :], a, W_in)).relu_()
        ctx.save_for_backward(E, e, U, W_Q, W_K, W_O, W_in, W_out, z, a, hidden)
        ctx.weighed, ctx.has_bias = weighed, b_in is not None
        return _plus(a, hidden, W_out) @ U

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        E, e, U, W_Q, W_K, W_O, W_in, W_out, z, a, hidden = ctx.saved_tensors
        of_x = grad @ U.mT
        of_hidden = of_x @ W_out.mT
        torch.ops.aten.threshold_backward.grad_input(of_hidden, hidden, 0, grad_input=of_hidden)
        of_W_out, of_W_in = hidden.mT @ of_x, a.mT @ of_hidden
        of_b_in = of_hidden.sum(-2) if ctx.has_bias else None
        of_a = _plus(of_x, of_hidden, W_in.mT)
        of_z = (W_O.flatten(-3, -2) @ of_a.mT).to(ctx.weighed.w.dtype)
        of_scores, of_v = (gradient.to(E.dtype) for gradient in ctx.weighed.gradients(of_z))
        of_W_V = (of_v.flatten(-3, -2) @ E).view(*of_v.shape[:-1], -1).mT.contiguous()
        of_u = (of_scores @ E)[..., None, :]  # scores are E u, u = W_K q, q = e W_Q
        of_W_K = of_u.mT * (e[..., None, None, :] @ W_Q)
        of_W_Q = e[..., None, :, None] * (of_u @ W_K)
        return *5 * (None,), of_W_Q, of_W_K, of_W_V, (z @ of_a).view_as(W_O), of_W_in, of_b_in, of_W_out


def _plus(x: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """x + left right, in one operation."""
    return torch.addmm(x, left, right) if left.ndim == 2 else torch.baddbmm(x, left, right)


def _counts(
    tokens: Int[Tensor, "*member batch position"], n_tokens: int, dtype: torch.dtype
) -> Num[Tensor, "*member batch token"]:
    """How often each token occurs in each sequence."""
    none = torch.zeros(*tokens.shape[:-1], n_tokens, dtype=dtype, device=tokens.device)
    return none.scatter_add(-1, tokens, torch.ones_like(tokens, dtype=dtype))


def _heads(
    x: Float[Tensor, "n d_model"], W: Float[Tensor, "head d_model d"] | None, n_heads: int
) -> Float[Tensor, "head n d"]:
    """x W for every head, in one product; x itself where a joint matrix leaves W out."""
    if W is None:
        return x.expand(n_heads, -1, -1)
    return rearrange(x @ rearrange(W, "head d_in d -> d_in (head d)"), "n (head d) -> head n d", head=n_heads)
