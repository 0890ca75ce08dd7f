"""Where the scores of the right values and of their rivals lie.

The Hebbian rule: right scores of mean √(d_in d_out / n) and spread 1. The best weights at capacity: right scores narrow
at t*, just above rivals cut at t*, which tends to √(2 log m) (Giorlandino, Goldt, Maillard 2026, arXiv 2605.10795;
derived).
"""

import torch
from torch import Tensor

from probes.config import ScoresProbeConfig
from probes.matrices import learned_memories
from toytf.measurement import Measurement
from toytf.memory.measures import measure_scores, score_levels, score_samples
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task


class Scores(Probe):
    """`scores/<memory>_correct_mean`, `_correct_spread`, `_rival_spread`, `_rival_max` in units of a generic score."""

    config: ScoresProbeConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure every memory of the task that the model has room for; the batch is not used."""
        found: list[Measurement] = []
        panels, lines = {}, {}
        for held in learned_memories(model, task):
            measured = measure_scores(held.association, held.memory)
            found += held.named(measured)
            if measured:
                panels[held.name] = score_samples(held.association, held.memory)
                lines[held.name] = score_levels(held.association) if isinstance(held.memory, Tensor) else {}

        def draw() -> object:
            from toytf.figures import histograms

            return histograms(panels, "Scores", lines=lines, x="score, in standard deviations of a score")

        return ProbeResult(found, draw=draw)
