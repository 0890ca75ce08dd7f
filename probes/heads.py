"""Which head is which, by where it attends: found from the tokens alone, so for every task.

With z_t the token at t, a head of each kind attends from t to (Elhage et al. 2021, Olsson et al. 2022)

    previous_token    s = t − 1
    duplicate_token   s < t with z_s = z_t
    induction         s ≤ t with z_{s−1} = z_t, the position after an earlier z_t
"""

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.config import HeadsProbeConfig
from toytf.measurement import Group, Headline, Measurement
from toytf.models.transformer import ToyTransformer
from toytf.observed import observed
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task

HEADS = Group(
    "heads", "Attention that fits a known kind of head", "Near 1 the head is of that kind; chance is uniform "
    "attention on the same tokens.", variants=("score",),
    section="attention", headline=(
        Headline("*_induction", "attention of {head} on what followed the same token", 1),
        Headline("*_previous_token", "attention of {head} on the token before", 1),
    ),
    meanings=(
        ("*/detect_head", "Share of all attention of this head that fits this kind, as detect_head of TransformerLens "
         "counts it; at the ideal the head is of that kind."),
        ("*_previous_token", "Attention of this head on the position before; near 1 it is a previous-token head."),
        ("*_duplicate_token", "Attention of this head on earlier occurrences of the same token; near 1 it is a "
         "duplicate-token head."),
        ("*_induction", "Attention of this head on what followed earlier occurrences of the same token; near 1 it is "
         "an induction head."),
    ),
)  # fmt: skip


def detection_patterns(tokens: Int[Tensor, "batch t"]) -> dict[str, Bool[Tensor, "batch t t"]]:
    """Where a head of each kind attends: [b, t, s] is whether s is a place for the query at t."""
    same = tokens[:, :, None] == tokens[:, None, :]
    after_same = torch.nn.functional.pad(same[:, :, :-1], (1, 0))
    ones = torch.ones_like(same)
    return {"previous_token": ones.tril(-1).triu(-1), "duplicate_token": same.tril(-1), "induction": after_same.tril()}


def mass_on_pattern(
    attention: Float[Tensor, "batch head t t"], pattern: Bool[Tensor, "batch t t"]
) -> Float[Tensor, "head"]:
    """How much of its attention each head puts on the pattern D, averaged over the queries with a place in it.

    ⟨Σ_s a_ts D_ts⟩ over all t with Σ_s D_ts > 0;  not a number if there is none.
    """
    on_pattern = einsum(attention, pattern.to(attention.dtype), "batch head t s, batch t s -> head")
    return on_pattern / pattern.any(-1).sum()


def detect_head_score(
    attention: Float[Tensor, "batch head t t"], pattern: Bool[Tensor, "batch t t"]
) -> Float[Tensor, "head"]:
    """The fraction of all its attention that each head puts on the pattern D, averaged over sequences.

    ⟨Σ_ts a_ts D_ts / Σ_ts a_ts⟩: TransformerLens' `detect_head` with error measure `mul`. A query without a place in D
    counts as a miss, so with Σ_s a_ts = 1 this is `mass_on_pattern` times the fraction of the queries that have one.
    """
    on_pattern = einsum(attention, pattern.to(attention.dtype), "batch head t s, batch t s -> batch head")
    return (on_pattern / attention.sum((-2, -1))).mean(0)


def uniform_attention(tokens: Int[Tensor, "batch t"]) -> Float[Tensor, "batch 1 t t"]:
    """A head that attends to all positions s ≤ t alike, a_ts = 1/t: what the chance values are taken from."""
    past = torch.ones(tokens.shape[1], tokens.shape[1], device=tokens.device).tril()
    return (past / past.sum(-1, keepdim=True)).expand(len(tokens), 1, -1, -1)


class Heads(Probe):
    """`heads/L<layer>H<head>_<kind>`, the mass on the pattern, and `…/detect_head`, as TransformerLens normalises it.

    Layers and heads are counted from 0, as in TransformerLens; the matrices W_KQ1 … W_OV2 from 1, as in the papers.

    A kind for which the batch has no place to attend to is left out. Chance is uniform attention on the same tokens;
    the ideal of `…/detect_head` is the fraction of the queries that have a place to attend to.
    """

    config: HeadsProbeConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure every head of every layer on the batch."""
        layers = observed(model, batch).patterns
        heads = [f"L{layer}H{h}" for layer, pattern in enumerate(layers) for h in range(pattern.shape[1])]
        uniform = uniform_attention(batch.tokens)
        found: list[Measurement] = []
        masses: dict[str, list[float]] = {}
        for kind, pattern in detection_patterns(batch.tokens).items():
            has_place = pattern.any(-1)
            if not has_place.any():
                continue
            for variant, score, ideal in (
                (None, mass_on_pattern, 1.0),
                ("detect_head", detect_head_score, float(has_place.float().mean())),
            ):
                chance = float(score(uniform, pattern))
                values = torch.cat([score(attention, pattern) for attention in layers]).tolist()
                found += [
                    HEADS.measurement(value, ideal=ideal, chance=chance, head=head, kind=kind, score=variant)
                    for head, value in zip(heads, values, strict=True)
                ]
                if variant is None:
                    masses[f"{kind}<br>(chance {chance:.3f})"] = values

        def draw() -> object:
            from toytf.figures import fractions

            return fractions(masses, heads, "Attention that fits each known kind of head")

        return ProbeResult(found, draw=draw)
