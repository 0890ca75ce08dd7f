"""How full the learned matrices are.

utilisation = pairs recalled / p_c,   p_c δ(m) = d_in d_out ω²(rank), the capacity for random vectors (Giorlandino,
Goldt, Maillard 2026; derived). Learned vectors are not random: for them p_c is something to read against, not a bound.
"""

from dataclasses import replace

import torch

from probes.config import UtilisationProbeConfig
from probes.matrices import learned_matrices
from toytf.measurement import Measurement
from toytf.memory.measures import measure_utilisation
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task


class Utilisation(Probe):
    """`utilisation/<memory>`, and the pairs `/stored` and the `/capacity` it is the ratio of."""

    config: UtilisationProbeConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure every memory that is a matrix; the batch is not used."""
        found: list[Measurement] = []
        for held, W in learned_matrices(model, task):
            pairs = float(len(held.association.keys))
            guessed = pairs * held.association.chance
            measured = held.named(measure_utilisation(held.association, W, held.rank))
            capacity = next((one.value for one in measured if one.quantity.at.get("measure") == "capacity"), None)
            counted_in: dict[object, float | None] = {"stored": 1.0, None: capacity}
            for one in measured:
                unit = counted_in.get(one.quantity.at.get("measure"))
                levels = {} if unit is None else {"ideal": pairs / unit, "chance": guessed / unit}
                found.append(replace(one, reference=replace(one.reference, **levels)))
        return ProbeResult(found)
