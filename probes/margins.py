"""By how much the right answer wins.

margin(z) = u_{f(z)}ᵀ W e_z − max_{y ≠ f(z)} u_yᵀ W e_z, in units of a generic score (`toytf.memory.measures`).
"""

from dataclasses import replace

import torch
from torch import Tensor

from probes.config import MarginsConfig
from probes.matrices import as_metrics, learned_memories, worst_pairs
from toytf.memory import StorageProblem, maximise_margin
from toytf.memory.measures import measure_margins, score_unit
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Reference, Task


class Margins(Probe):
    """`margin/<memory>_min`, `_median`, `_mean`, `_negative`; the pairs with the smallest margins are named.

    The theory of `_min` is the largest margin that any matrix reaches on as many random vectors; its ideal, if asked
    for by `best`, what one reaches on these.
    """

    config: MarginsConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure every memory of the task that the model has room for; the batch is not used."""
        learned = learned_memories(model, task)
        metrics, references = as_metrics(
            (f"margin/{held.name}", measure_margins(held.association, held.memory)) for held in learned
        )
        if self.config.best:
            for held in learned:
                smallest = f"margin/{held.name}_min"
                if smallest in metrics and isinstance(held.memory, Tensor):
                    reached = maximise_margin(StorageProblem.of(held.association))[0].margin_lower
                    references[smallest] = replace(references.get(smallest, Reference()), ideal=reached)
        failures: dict[str, list[str]] = {}
        panels, lines = {}, {}
        for held in learned:
            smallest = f"margin/{held.name}_min"
            if smallest in metrics:
                unit = score_unit(held.association, held.memory)
                margins = held.association.margins(held.memory).cpu().double() / unit
                failures[smallest] = worst_pairs(held, unit, self.config.worst)
                panels[held.name] = {"margin": margins[margins.isfinite()].numpy()}
                best = references[smallest].theory if smallest in references else None
                lines[held.name] = {"not recalled below": 0.0} | ({"largest minimum in theory": best} if best else {})

        def draw() -> object:
            from toytf.figures import histograms

            return histograms(panels, "Margins", lines=lines, x="margin in units of a generic score")

        return ProbeResult(metrics, references, failures, draw)
