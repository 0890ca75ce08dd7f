"""The learned matrices in the coordinates of their memories.

M[z, y] = u_yᵀ Ŵ e_z  against  M*[z, y] = u_yᵀ W* e_z,   W* = Σ_z u_{f(z)} e_zᵀ

Where a distribution p(y|z) should be stored, softmax_y M is compared with the distribution itself.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from probes.config import AlignmentProbeConfig
from probes.matrices import Learned, cosine, learned_memories, worst_pairs
from toytf.measurement import Group, Headline, Measurement
from toytf.memory import Association, exact, hebbian
from toytf.memory.association import Readable
from toytf.memory.measures import score_unit, split_scores
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task

ALIGNMENT = Group(
    "alignment", "Learned matrix compared with the ideal one", "At cosine 1 the learned scores are those of the "
    "ideal memory; a matrix can recall all pairs at a much smaller cosine.",
    section="memories", headline=(Headline("*_cosine", "cosine between the learned and the ideal {memory}", 2),),
    meanings=(
        ("*_cosine", "Cosine between the learned scores and those of the ideal memory; 1 if they agree, but all pairs "
         "can be recalled at less."),
        ("*_signal_to_crosstalk", "Mean score of the right values over the standard deviation of their rivals' scores; "
         "the larger, the safer the recall."),
    ),
)  # fmt: skip

MAX_SHOWN = 64
"""How many keys and values of a memory the figure shows at most."""


class Alignment(Probe):
    """`alignment/<memory>_cosine` = ⟨M, M*⟩ / (|M| |M*|), not centred, and `_signal_to_crosstalk`.

    signal / crosstalk = mean_z M[z, f(z)] / std_{z, y ≠ f(z)} M[z, y]

    Only values that may compete for a key count. A distribution has the cosine only. The pairs of smallest margin, or
    the rows of largest divergence from the distribution, are named.
    """

    config: AlignmentProbeConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Compare every memory of the task that the model has room for; the batch is not used."""
        learned = learned_memories(model, task)
        vectors = [x for held in learned for x in (held.association.keys, held.association.values)]
        if not all(bool(x.isfinite().all()) for x in vectors):
            return ProbeResult()  # diverged: no ideal matrix is known to compare with
        found: list[Measurement] = []
        failures: dict[str, list[str]] = {}
        panels: dict[str, tuple[np.ndarray, list[str], list[str]]] = {}
        for held in learned:
            stored, M = held.association, held.association.scores(held.memory)
            chance: float | None = 0.0
            if held.conditional is None:
                W = hebbian(stored)
                ideal, unit = stored.scores(W), score_unit(stored, held.memory)
                wrong = worst_pairs(stored, held.memory, unit, self.config.worst) if 0 < unit < math.inf else []
            else:
                ideal, wrong = held.conditional, worst_rows(held, held.conditional, self.config.worst)
                M = M.softmax(1)
                chance = cosine(exact(torch.ones_like(M)), exact(ideal))
            aligned = cosine(exact(M), exact(ideal))
            measured = [ALIGNMENT.measurement(aligned, ideal=1.0, chance=chance, measure="cosine")]
            if held.conditional is None:
                ratio, largest = (signal_to_crosstalk(stored, memory) for memory in (held.memory, W))
                measured.append(ALIGNMENT.measurement(ratio, ideal=largest, chance=0.0, measure="signal_to_crosstalk"))
            measured = held.named(one for one in measured if one.value is not None)
            failures |= {one.flat: wrong for one in measured if one.quantity.at["measure"] == "cosine"}
            found += measured
            panels |= {f"{held.name}, {label}": _panel(stored, m) for label, m in (("learned", M), ("ideal", ideal))}

        def draw() -> object:
            from toytf.figures import heat_maps

            shown = f"(at most {MAX_SHOWN} keys and values shown)"
            return heat_maps(
                panels, f"Score of each value for each key, the largest set to 1 {shown}", x="value", y="key"
            )

        return ProbeResult(found, failures, draw)


def signal_to_crosstalk(association: Association, memory: Readable) -> float | None:
    """Mean score of the right values / standard deviation of the scores of their rivals; None without crosstalk."""
    right, rivals = split_scores(association, memory)
    spread = float(rivals.std(correction=0)) if len(rivals) > 1 else 0.0
    rounding = 10 * torch.finfo(association.keys.dtype).eps * float(right.abs().max())
    return float(right.mean()) / spread if rounding < spread < math.inf else None


def worst_rows(held: Learned, conditional: Float[Tensor, "n m"], limit: int) -> list[str]:
    """The keys of largest KL(conditional ‖ softmax M), as "key: KL 0.35, says answer, likeliest is target"."""
    stored = held.association
    scores = stored.scores(held.memory)
    divergence = torch.nn.functional.kl_div(scores.log_softmax(1), conditional, reduction="none").sum(1)
    predicted, likeliest = scores.argmax(1).tolist(), conditional.argmax(1).tolist()
    return [
        f"{stored.key_name(z)}: KL {float(divergence[z]):.2f}, says {stored.value_name(predicted[z])}, "
        f"likeliest is {stored.value_name(likeliest[z])}"
        for z in divergence.argsort(descending=True).tolist()[:limit]
    ]


def _panel(association: Association, M: Float[Tensor, "n m"]) -> tuple[np.ndarray, list[str], list[str]]:
    """The first keys, and as many values: those that these ask for, then the first of the rest.

    They are scaled to a maximum of 1; what may not compete is NaN.
    """
    asked = dict.fromkeys([*association.targets[:MAX_SHOWN].tolist(), *range(len(association.values))])
    keys, values = range(len(association.targets))[:MAX_SHOWN], sorted([*asked][:MAX_SHOWN])
    shown = M[:MAX_SHOWN, values].cpu().double()
    shown = shown.masked_fill(shown.isneginf(), torch.nan)
    largest = shown.nan_to_num().abs().max().clamp_min(1e-30)
    names = [association.key_name(z) for z in keys], [association.value_name(y) for y in values]
    return (shown / largest).numpy(), *names
