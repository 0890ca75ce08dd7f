"""What a model does when one of its matrices keeps only its largest singular values.

W = Σ_i s_i a_i b_iᵀ  →  Σ_{i ≤ r} s_i a_i b_iᵀ,   r = ⌊ρ · rank⌋, at least 1;   ρ = 0 removes the matrix

Called LASER in Sharma, Ash, Misra 2023 (arXiv 2312.13558). In noisy in-context recall it takes the noise, which the
last feed-forward part stores, out of the predictions (Chen, Bruna, Bietti 2024).
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from probes.config import TruncationProbeConfig
from toytf.errors import UserError, nearest
from toytf.evaluation import at_goal, goal_metrics
from toytf.measurement import Group, Headline, Measurement, Reference, Scalar
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task

TRUNCATED = Group(
    "truncated", "Accuracy with one matrix truncated", "Accuracy at the task's goal with only the largest singular "
    "values of this matrix kept, rho: which fraction; high if the rest is not needed.", variants=("quantity",),
    headline=(Headline("*_rho0", "accuracy without {matrix}", 3),),
    meanings=(
        ("*/loss", "Loss at the task's goal with only the largest singular values of this matrix kept, rho: which "
         "fraction; low if the rest is not needed."),
        ("*/p_correct", "Probability of the right answer with only the largest singular values of this matrix kept; "
         "high if the rest is not needed."),
        ("*/p_*", "Probability of a certain wrong answer, such as noise, with only the largest singular values kept; "
         "it falls if the rest stored that answer."),
        ("*_rho0", "Accuracy at the task's goal without this matrix; near chance if the model cannot do without it."),
    ),
)  # fmt: skip

PRODUCTS = {"W_KQ": ("W_Q", "W_K"), "W_OV": ("W_V", "W_O")}
"""Pairs of weights that act only as a product, which can be truncated as such, head by head."""


def truncate(W: Float[Tensor, "*head m n"], rank: int) -> Float[Tensor, "*head m n"]:
    """The nearest matrix of a rank: Σ_{i ≤ rank} s_i a_i b_iᵀ of W = Σ_i s_i a_i b_iᵀ with s falling."""
    a, s, b = torch.linalg.svd(W, full_matrices=False)
    nearest_of_rank: Tensor = (a[..., :rank] * s[..., None, :rank]) @ b[..., :rank, :]
    return nearest_of_rank


def matrix_ranks(model: ToyTransformer) -> dict[str, int]:
    """The matrices that can be truncated, by name, and the largest rank of each.

    Weights by their own names, such as blocks.1.mlp.W_out, heads side by side; and the products blocks.1.attn.W_OV and
    W_KQ, the same rank in every head.
    """
    ranks: dict[str, int] = {}
    d = model.config.d_model
    for layer in range(model.config.n_layers):
        attention, feed_forward = model.attention(layer), model.feed_forward(layer)
        for name, W in attention.named_parameters():
            ranks[f"blocks.{layer}.attn.{name}"] = min(d, W.numel() // d)
        for product, (_, second) in PRODUCTS.items():
            ranks[f"blocks.{layer}.attn.{product}"] = min(getattr(attention, second).shape[1:])
        if feed_forward is not None:
            for name, W in feed_forward.named_parameters():
                if W.ndim > 1:  # not the bias
                    ranks[f"blocks.{layer}.mlp.{name}"] = min(W.shape)
    return ranks


@torch.no_grad()
def truncate_in(model: ToyTransformer, name: str, rank: int) -> None:
    """Truncate one matrix of a model, in place."""
    _, layer, part, leaf = name.split(".")
    attention = model.attention(int(layer))
    if leaf not in PRODUCTS:
        W = model.get_parameter(name)
        apart, flat = ("head k d", "(head k) d") if leaf == "W_O" else ("head d k", "d (head k)")
        if part == "mlp":
            W.copy_(truncate(W, rank))
        else:
            of_rank = truncate(rearrange(W, f"{apart} -> {flat}"), rank)
            W.copy_(rearrange(of_rank, f"{flat} -> {apart}", head=attention.n_heads))
        return
    first, second = (getattr(attention, weight) for weight in PRODUCTS[leaf])
    if first is None:  # joint: the second weight alone holds the product, or its transpose
        second.copy_(truncate(second, rank))
        return
    product = first @ (second if leaf == "W_OV" else second.mT)
    a, s, b = torch.linalg.svd(product, full_matrices=False)
    half = s[:, :rank].sqrt()
    left, right = a[..., :rank] * half[:, None], half[..., None] * b[:, :rank]
    first.zero_()[..., :rank] = left
    (second if leaf == "W_OV" else second.mT).zero_()[:, :rank] = right


class Truncation(Probe):
    """`truncated/<matrix>_rho<ρ>` or `_rank<r>`: accuracy at the task's goal; variants /loss, /p_correct, /p_noise."""

    config: TruncationProbeConfig

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a matrix that the model has not, and a rank that it cannot be cut to."""
        task.check_goal()
        for _ in self._cases(model):
            pass

    def _cases(self, model: ToyTransformer) -> Iterator[tuple[dict[str, Scalar], float, int]]:
        """Every truncation as factors, such as the matrix and ρ, and the fraction and the rank that are kept."""
        ranks = matrix_ranks(model)
        for name in self.config.matrices or [n for n in ranks if ".mlp." in n or n.endswith(".W_OV")]:
            if name not in ranks:
                layer = re.match(r"blocks\.(\d+)\.", name)
                if layer and int(layer[1]) >= model.config.n_layers:
                    raise UserError(
                        f'probe truncation: "{name}" is in layer {layer[1]}, but the model only has layers '
                        f"0 to {model.config.n_layers - 1}"
                    )
                raise UserError(f'probe truncation: the model has no matrix "{name}": {nearest(name, ranks)}')
            largest = ranks[name]
            for fraction in self.config.fractions:
                rank = max(int(fraction * largest + 1e-9), 1) if fraction else 0
                yield {"matrix": name, "rho": fraction}, fraction, rank
            for rank in self.config.ranks:
                if not 0 < rank <= largest:
                    remedy = "; to remove the matrix, use the fraction 0" if rank == 0 else ""
                    raise UserError(
                        f"probe truncation: rank = {rank}: expected 1 to {largest} for {name} of this model{remedy}"
                    )
                yield {"matrix": name, "rank": rank}, rank / largest, rank

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure the model with each matrix truncated, one at a time; the model stays as it is."""
        if self.config.sequences < len(batch.tokens):
            batch = batch.part(0, self.config.sequences)
        whole = at_goal(model, task, batch)
        if not whole or not all(bool(W.isfinite().all()) for W in model.parameters()):
            return ProbeResult()  # nothing to measure, or diverged: such a matrix has no singular values
        found: list[Measurement] = []
        kept: dict[str, dict[str, list[tuple[float, float]]]] = {}
        known, ranks = task.references(), matrix_ranks(model)
        for at, fraction, rank in self._cases(model):
            name, metrics = str(at["matrix"]), whole
            if rank < ranks[name]:
                changed = copy.deepcopy(model)
                truncate_in(changed, name, rank)
                metrics = goal_metrics(changed, task, batch)
            _, layer, _, leaf = name.split(".")
            label = f"{leaf}{int(layer) + 1} ({name})"  # counted as memories are: `W_OV1 (blocks.0.attn.W_OV)`
            for quantity, value in metrics.items():
                variant = None if quantity == "accuracy" else quantity
                measured = TRUNCATED.measurement(value, quantity=variant).placed(at)
                found.append(replace(measured, reference=known.get((task.goal, quantity), Reference())))
                answer = "the right answer" if quantity == "p_correct" else quantity.removeprefix("p_")
                panel = f"probability of {answer}" if quantity.startswith("p_") else quantity
                kept.setdefault(panel, {}).setdefault(label, []).append((fraction, value))

        def draw() -> object:
            from toytf.figures import lines

            title = "One matrix at a time, truncated to a fraction of its singular values"
            return lines(kept, title, x="fraction kept")

        return ProbeResult(found, draw=draw)
