"""The singular values of the learned matrices.

The best weights at capacity behave as a Gaussian matrix: s of √d W / ‖W‖_F follows the quarter circle √(4 − s²)/π. The
Hebbian matrix is a product of two Gaussian ones, ⟨s⁴⟩ = 2 + d/n (Giorlandino, Goldt, Maillard 2026; derived).
"""

import torch

from probes.config import SpectrumProbeConfig
from probes.matrices import learned_matrices
from toytf.measurement import Measurement
from toytf.memory.measures import compared_spectra, measure_spectrum
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task


class Spectrum(Probe):
    """`spectrum/<memory>_fourth_moment`, `_largest`, `_effective_rank`, `_distance` and `_distance_hebbian`."""

    config: SpectrumProbeConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure every memory that is a matrix; the batch is not used."""
        found: list[Measurement] = []
        panels = {}
        for held, W in learned_matrices(model, task):
            n = len(held.association.keys)
            found += held.named(measure_spectrum(W, n))
            panels[held.name] = compared_spectra(W, n)

        def draw() -> object:
            from toytf.figures import ranked

            drawn = {name: spectra for name, spectra in panels.items() if spectra}
            return ranked(drawn, "Singular values of √d W / ‖W‖", measured="measured", y="singular value")

        return ProbeResult(found, draw=draw)
