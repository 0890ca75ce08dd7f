"""How often two tokens agree by chance: 1/N."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd
import torch

from toytf.experiments.study import Study
from toytf.fits import power_law
from toytf.measurement import Group, Measurement
from toytf.randomness import generator

COINCIDENCE = Group("coincidence", "Two tokens agree by chance", "It should fall like one over the number of tokens.")
POWER = Group("coincidence_exponent", "It falls like the number of tokens to the power of", variants=("error",))


@dataclass(frozen=True)
class Case:
    """A number of tokens."""

    n_tokens: int


class Coincidence(Study[Case]):
    """Draw pairs of tokens and count those that agree."""

    def cases(self) -> Iterable[Case]:
        """Every number of tokens."""
        return map(Case, self.config.n_tokens)

    def measure(self, case: Case, seed: int) -> Iterable[Measurement]:
        """Count."""
        random = generator(seed, "pairs", case.n_tokens)
        first, second = torch.randint(case.n_tokens, (2, self.config.samples), generator=random)
        yield COINCIDENCE.measurement(float((first == second).float().mean()), theory=1 / case.n_tokens)

    def conclude(self, table: pd.DataFrame) -> Iterable[Measurement]:
        """The power of N."""
        return power_law(table[table["group"] == "coincidence"], POWER, x="n_tokens")
