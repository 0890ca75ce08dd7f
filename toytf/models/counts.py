"""The forward at the last position when order does not matter: a sequence is its last token and its token counts.

Without positions, all occurrences of a token have one key and one value, so attention runs over the vocabulary instead
of the sequence, and keys and values are made once for every token. With c_z = #{s: z_s = z},

    a = Σ_h Σ_z A_h(z) e_z W_V W_O,   A_h(z) = softmax_z(q_hᵀ k_h(z) / scale + ln c_z)   or   c_z q_hᵀ k_h(z) / scale

The softmax subtracts the largest score among the tokens of the sequence, so it is exact however far scores lie apart,
and no decision waits for a value. If all sequences end in the same token, scores ℓ_h(z) are one table, and attention is
one product with the counts,

    Σ_z A_h(z) v_h(z) = c·(w_h v_h) / c·w_h,   w_h(z) = exp(ℓ_h(z) − max ℓ_h),

which underflows where all tokens of a sequence score far below others. To see that this is not so, values must be read:
that costs nothing on a CPU, but is a wait on other devices, which always take the softmax. The product is in float64: a
head that always attends to the same token has tiny gradients, which would be lost in the rounding of the sums.
"""

import torch
from einops import rearrange
from jaxtyping import Float, Int, Num
from torch import Tensor
from torch.nn.functional import embedding, scaled_dot_product_attention

from toytf.models.transformer import Block, ToyTransformer

SAFE = 600.0
"""How far scores may lie apart: then weights exp(ℓ − max ℓ) and their inverses are far from the ends of float64."""

WEIGHING = 4
"""What weighing a token costs in a head besides its d_head multiplications, in such multiplications.

Measured: about 1 for the product, 16 for the softmax.
"""


def count_forward(model: ToyTransformer, tokens: Int[Tensor, "batch position"]) -> Float[Tensor, "batch 1 output"]:
    """The logits of `model(tokens, last=1)`, with the same gradients, for one layer without positions and LayerNorm."""
    attn, E, ends = model.attention(0), model.embed.W_E, tokens[:, -1]
    k, v = _heads(E, attn.W_K, attn.n_heads) / attn.scale, _heads(E, attn.W_V, attn.n_heads)
    scores = None if attn.linear else _common_scores(_heads(E[ends[:1]], attn.W_Q, attn.n_heads), k, ends)
    if scores is not None:
        z = _by_product(scores.double(), v.double(), _counts(tokens, len(E), torch.float64)).to(E.dtype)
    else:
        q = _heads(embedding(ends, E), attn.W_Q, attn.n_heads)
        if attn.linear:
            z = (q @ k.mT * _counts(tokens, len(E), E.dtype)) @ v
        else:
            ln = torch.arange(tokens.shape[1] + 1, device=E.device, dtype=E.dtype).log()
            ln_c = ln[_counts(tokens, len(E), tokens.dtype)]
            z = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=ln_c, scale=1.0)[0]
        z = rearrange(z, "head batch d -> batch (head d)")
    added = z @ attn.W_O.flatten(0, 1)
    e = embedding(ends, E)
    block: Block = model.blocks[0]  # type: ignore[assignment]
    x = block.finish(e, attn.add(e, added))
    return (x @ model.unembed.W_U)[:, None]


def counts_pay(model: ToyTransformer, n_positions: int) -> bool:
    """Do counts understand the model (`fast_options`), and do they save work?

    They do if it is less to weigh V tokens than to make keys and values at T positions.
    """
    (V, d), d_head = model.embed.W_E.shape, model.attention(0).W_K.shape[-1]
    return "counts" in model.fast_paths and V * (d_head + WEIGHING) <= n_positions * d * d_head


def _common_scores(
    q: Float[Tensor, "head 1 d"], k: Float[Tensor, "head token d"], ends: Int[Tensor, "batch"]
) -> Float[Tensor, "head token"] | None:
    """The scores of all tokens for the one query of a batch, if weights that are relative to the largest are exact.

    None if the batch has several queries, if scores lie too far apart, and wherever values cannot be read at no cost.
    """
    if ends.device.type != "cpu" or torch.compiler.is_compiling() or bool((ends != ends[0]).any()):
        return None
    scores = (k @ q.mT)[..., 0]
    spread = scores.detach().amax(1) - scores.detach().amin(1)
    return scores if bool((spread < SAFE).all()) else None


def _by_product(
    scores: Float[Tensor, "head token"], v: Float[Tensor, "head token d"], c: Float[Tensor, "batch token"]
) -> Float[Tensor, "batch head_d"]:
    """c·(w v) / c·w with w = exp(ℓ − max ℓ), for all heads in one product."""
    w = (scores - scores.detach().amax(1, keepdim=True)).exp()[..., None]
    table = rearrange(torch.cat([w * v, w], dim=2), "head token m -> token (head m)")
    sums = rearrange(c @ table, "batch (head m) -> batch head m", head=len(v))
    return (sums[..., :-1] / sums[..., -1:]).flatten(1)


def _counts(tokens: Int[Tensor, "batch position"], n_tokens: int, dtype: torch.dtype) -> Num[Tensor, "batch token"]:
    """How often each token occurs in each sequence."""
    none = torch.zeros(len(tokens), n_tokens, dtype=dtype, device=tokens.device)
    return none.scatter_add(1, tokens, torch.ones_like(tokens, dtype=dtype))


def _heads(
    x: Float[Tensor, "n d_model"], W: Float[Tensor, "head d_model d"] | None, n_heads: int
) -> Float[Tensor, "head n d"]:
    """x W for every head, in one product; x itself where a joint matrix leaves W out."""
    if W is None:
        return x.expand(n_heads, -1, -1)
    return rearrange(x @ rearrange(W, "head d_in d -> d_in (head d)"), "n (head d) -> head n d", head=n_heads)
