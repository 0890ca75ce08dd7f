"""A case of the experiment `capacity`: one rule at one size, and what theory predicts for it."""

import math
from dataclasses import dataclass

from toytf import theory
from toytf.experiments.capacity.config import CapacityConfig
from toytf.experiments.pairs import Size, sides
from toytf.memory.rules import RULES


@dataclass(frozen=True)
class CapacityCase:
    """One rule at one size."""

    rule: str
    d: Size
    width: int | None = None

    @property
    def d_in(self) -> int:
        """The dimension of the keys."""
        return sides(self.d)[0]

    @property
    def d_out(self) -> int:
        """The dimension of the values."""
        return sides(self.d)[1]

    @property
    def side(self) -> float:
        """√(d_in d_out): the dimension of a square matrix with as many entries."""
        return math.sqrt(self.d_in * self.d_out)

    @property
    def n_parameters(self) -> int:
        """Entries of the matrix, or of the two matrices of a rule with a width."""
        return self.width * (self.d_in + self.d_out) if self.width else self.d_in * self.d_out

    @property
    def stream(self) -> str:
        """The name of its random numbers, such as `mlp_h2_d48x32_m512`: with another name, every draw differs."""
        d = "x".join(map(str, self.d)) if isinstance(self.d, tuple) else self.d
        return f"{self.rule}_d{d}" + (f"_m{self.width}" if self.width is not None else "")


def predicted_capacity(config: CapacityConfig, case: CapacityCase) -> float | None:
    """What theory predicts for this case; None where it tells nothing about finite sizes.

    Of trained hidden units nothing is derived: theirs is the line through the memories of Nichani et al. 2024.
    """
    rule, n_answers, criterion = RULES[case.rule], config.data.n_answers, config.criterion_of(case.rule)
    if min(case.d_in, case.d_out) == 1 or config.data.inputs > 1:
        return None  # theory is for many dimensions, and for independent keys
    if rule.theory == "best_weights" and criterion == "all":
        rank = case.width if rule.width == "rank" else None
        return theory.capacity(case.d_in, case.d_out, rank=rank, n_values=n_answers, shared=not rule.decoupled)
    one_to_one_on_sphere = n_answers is None and config.data.distribution == "sphere"
    if rule.theory == "hebbian" and one_to_one_on_sphere and case.d_in == case.d_out:
        accuracy = None if criterion == "all" else criterion
        return theory.hebbian_capacity(case.d_in, accuracy=accuracy, crosstalk=1.0 if rule.decoupled else 2.0)
    if rule.theory == "trained_hidden" and criterion == theory.TRAINED_RECALL:
        return theory.mlp_capacity(case.d_in, case.d_out, case.width or 1, n_values=n_answers)
    return None
