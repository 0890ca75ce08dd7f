"""By how much the right answer wins.

margin(z) = u_{f(z)}ᵀ W e_z − max_{y ≠ f(z)} u_yᵀ W e_z, in units of a generic score (`toytf.memory.measures`).
"""

from dataclasses import replace

import torch
from torch import Tensor

from probes.config import MarginsProbeConfig
from probes.matrices import learned_memories, worst_pairs
from toytf.measurement import Measurement
from toytf.memory import StorageProblem, exact, maximise_margin
from toytf.memory.measures import measure_margins, score_unit
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task


class Margins(Probe):
    """`margin/<memory>_min`, `_median`, `_mean`, `_negative`; the pairs with the smallest margins are named.

    The theory of `_min` is the largest margin that any matrix reaches on as many random vectors; its ideal, if asked
    for by `best`, what one reaches on these.
    """

    config: MarginsProbeConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure every memory of the task that the model has room for; the batch is not used."""
        found: list[Measurement] = []
        failures: dict[str, list[str]] = {}
        panels, lines = {}, {}
        for held in learned_memories(model, task):
            measured = {
                one.quantity.at["measure"]: one for one in held.named(measure_margins(held.association, held.memory))
            }
            if "min" in measured:
                smallest = measured["min"]
                if self.config.best and isinstance(held.memory, Tensor):
                    reached = maximise_margin(StorageProblem.of(held.association))[0].margin_lower
                    measured["min"] = replace(smallest, reference=replace(smallest.reference, ideal=reached))
                unit = score_unit(held.association, held.memory)
                margins = exact(held.association.margins(held.memory)) / unit
                failures[smallest.flat] = worst_pairs(held, unit, self.config.worst)
                panels[held.name] = {"margin": margins[margins.isfinite()].numpy()}
                best = smallest.reference.theory
                lines[held.name] = {"not recalled below": 0.0} | (
                    {"largest possible minimum (theory)": best} if best else {}
                )
            found += measured.values()

        def draw() -> object:
            from toytf.figures import histograms

            return histograms(panels, "Margins", lines=lines, x="margin, in standard deviations of a score")

        return ProbeResult(found, failures, draw)
