"""The config of the experiment `fact_grid`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from tasks.factual.capacity.config import N_ANSWERS, AtLeastTwo, FactTrainingsConfig
from toytf.config.footprint import Need
from toytf.config.sections import Unique


class FactGridConfig(FactTrainingsConfig):
    """The accuracy that models reach on one table of facts, by number of heads and hidden units."""

    implementation: ClassVar[str] = "tasks.factual.grid.experiment:FactGrid"

    experiment: Literal["fact_grid"]
    n_subjects: AtLeastTwo = 16
    """S."""
    n_relations: AtLeastTwo = 16
    """R."""
    n_answers: AtLeastTwo = N_ANSWERS
    """D: answers of each relation."""
    d_model: PositiveInt = 16
    d_head: PositiveInt = 4
    heads: Annotated[tuple[PositiveInt, ...], Unique] = Field(min_length=1)
    """Numbers of heads, H."""
    widths: Annotated[tuple[NonNegativeInt, ...], Unique] = Field(min_length=1)
    """Numbers of hidden units, m; 0: no feed-forward part."""
    learning_rates: Annotated[tuple[PositiveFloat, ...], Unique] = Field(default=(1e-2,), min_length=1)
    """Learning rates of AdamW, tried in this order until one reaches the goal; the best accuracy counts."""

    def needs(self) -> list[Need]:
        """The largest model."""
        heads, width = max(self.heads), max(self.widths)
        parameters = self.d_model * (4 * heads * self.d_head + 2 * width)
        sizes = {"d_model": self.d_model, "d_head": self.d_head, "heads": heads, "widths": width}
        sizes |= {name: getattr(self, name) for name in ("n_subjects", "n_relations", "n_answers")}
        return self._training_needs(self.n_subjects, self.n_relations, self.n_answers, parameters, sizes)
