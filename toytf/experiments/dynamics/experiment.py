"""The experiment `dynamics`: gradient descent on an associative memory, as particles that push each other.

With orthonormal vectors every margin grows like log t. Correlated tokens of different frequency oscillate and make the
loss spike, which is benign where all can be right; where they cannot, training too long forgets (Cabannes, Simsek,
Bietti 2024).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from toytf.experiments.dynamics.config import DynamicsConfig
from toytf.experiments.dynamics.findings import findings
from toytf.experiments.dynamics.measures import OfSeed
from toytf.experiments.dynamics.plane import planar
from toytf.experiments.dynamics.systems import System, planar_matrix, signed, systems, tokens
from toytf.experiments.dynamics.trajectory import law, simulate
from toytf.experiments.study import Drawn, Study, factors
from toytf.measurement import Measurement
from toytf.memory import Association, sharpness_of
from toytf.runs import Run

MOST_DRAWN = 6
"""Systems whose margins, losses and landscapes are drawn one by one; of more there are only pictures of all."""

KEPT = ("loss", "margins", "landscape")
"""Pictures of a system."""


class Dynamics(Study[System]):
    """Train every system with every step size, and look at the way."""

    config: DynamicsConfig

    def __init__(self, config: DynamicsConfig) -> None:
        super().__init__(config)
        self.last_step = config.steps

    def cases(self) -> list[System]:
        """The settings of the tokens; all step sizes of one are trained together."""
        return [*systems(self.config)]

    @property
    def plain(self) -> dict[str, float]:
        """What all systems have in common: names say only in what they differ."""
        cases = self.cases()
        found = {factor: {factors(case).get(factor) for case in cases} for factor in factors(cases[0])}
        return {factor: float(value) for factor, (value, *others) in found.items() if value is not None and not others}

    def measure(self, case: System, seed: int) -> list[Measurement | Drawn]:
        """What there is at the last step."""
        *_, (_, _, found) = self.seeds(case, [seed])
        return found

    def seeds(self, case: System, seeds: Sequence[int]) -> Iterator[tuple[int, int, list[Measurement | Drawn]]]:
        """All seeds at once; with the last step of each, what its curves say as a whole."""
        config, found, margins = self.config, simulate(self.config, case, seeds), law(self.config, case)
        for i, seed in enumerate(seeds):
            association = tokens(config, case, seed)
            assert association.weights is not None
            p = association.weights.cpu().numpy()
            plane, least = planar(signed(association).cpu().numpy(), p) if config.is_planar else None, None
            if plane is not None and plane.minimiser is not None:
                gamma = torch.tensor(plane.minimiser, dtype=torch.float64)
                least = sharpness_of(association, planar_matrix(gamma).to(association.keys))
            measured = OfSeed(config, case, found, i, p, None if margins is None else margins[-1], plane, least)
            for row, step in enumerate(found.recorded):
                here: list[Measurement | Drawn] = [*measured.at_step(row)]
                if step == config.steps:
                    here += [*measured.at_end(), *self._drawn(measured, association, margins)]
                yield seed, step, here

    def _drawn(self, measured: OfSeed, association: Association, margins: Any) -> Iterator[Drawn]:
        """Pictures of the first seed, step by step; margins: those of the exact law."""
        from toytf.experiments.dynamics import figures
        from toytf.experiments.dynamics.landscape import landscape

        if len(self.cases()) > MOST_DRAWN:
            return
        config, case, found, plane = self.config, measured.system, measured.found, measured.plane
        words = {"a": case.correlation, "p1": case.p, "d": case.d}
        title = ", ".join(f"{name} = {value:g}" for name, value in words.items() if value is not None)
        yield Drawn(self._figure("loss", case), lambda: figures.losses(config, found, title))
        yield Drawn(self._figure("margins", case), lambda: figures.margins(config, found, margins, title))
        if plane is not None:
            yield Drawn(self._figure("landscape", case), lambda: landscape(config, found, association, plane, title))

    def _figure(self, name: str, case: System) -> str:
        """The name of a picture of a system."""
        return "_".join(filter(None, [name, self.label(case).partition("/")[2]]))

    def findings(self, run: Run) -> Iterator[str]:
        """What large and small steps did, and what could not be learned."""
        return findings(self.config, self.cases(), run, self.plain)

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Pictures of every system as kept for the first seed, sharpness, and pictures over all systems."""
        from toytf.experiments.dynamics.figures import over_systems

        names = [self._figure(kind, case) for kind in KEPT for case in self.cases()]
        yield from ((name, figure) for name in names if (figure := run.kept_figure(name)) is not None)
        yield from over_systems(self.config, run.table)
