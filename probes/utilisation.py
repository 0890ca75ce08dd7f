"""How full the learned matrices are.

utilisation = pairs recalled / p_c,   p_c δ(m) = d_in d_out ω²(rank), the capacity for random vectors (Giorlandino,
Goldt, Maillard 2026; derived). Learned vectors are not random: for them p_c is something to read against, not a bound.
"""

import torch

from probes.config import UtilisationConfig
from probes.matrices import learned_matrices
from toytf.memory.measures import measure_utilisation
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Reference, Task


class Utilisation(Probe):
    """`utilisation/<memory>`, and the pairs `/stored` and the `/capacity` it is the ratio of."""

    config: UtilisationConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure every memory that is a matrix; the batch is not used."""
        metrics: dict[str, float] = {}
        references: dict[str, Reference] = {}
        for held, W in learned_matrices(model, task):
            measured = measure_utilisation(held.association, W, held.rank)
            pairs, chance = float(len(held.association.keys)), held.association.chance
            name, theory = f"utilisation/{held.name}", measured.theory
            if "capacity" in measured.metrics:
                capacity = measured.metrics["capacity"]
                metrics |= {name: measured.metrics["utilisation"], f"{name}/capacity": capacity}
                references[name] = Reference(pairs / capacity, pairs * chance / capacity, theory["utilisation"])
            metrics[f"{name}/stored"] = measured.metrics["stored"]
            references[f"{name}/stored"] = Reference(pairs, pairs * chance, theory.get("stored"))
        return ProbeResult(metrics, references)
