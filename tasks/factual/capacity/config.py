"""The config of the experiment `fact_capacity`."""

import math
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from toytf.config.sections import Unique
from toytf.experiments.seeded import SeededConfig

Mix: TypeAlias = tuple[PositiveFloat, NonNegativeFloat]
"""α and β: what a model of dimension d has of attention and of hidden units, H d_head = α d and m = β d."""

AtLeastTwo = Annotated[int, Field(ge=2)]

N_ANSWERS = 8
"""Answers of a relation, unless others are given."""


def head_dimension(alpha: float, d_model: int, n_heads: int) -> int:
    """d_head = ⌊α d / H⌋."""
    return math.floor(alpha * d_model / n_heads + 1e-9)


def hidden_units(beta: float, d_model: int) -> int:
    """m = ⌊β d⌋."""
    return math.floor(beta * d_model + 1e-9)


class FactCapacityConfig(SeededConfig):
    """How many facts models of each size learn, compared with 0.15 facts per parameter."""

    implementation: ClassVar[str] = "tasks.factual.capacity.experiment:FactCapacity"

    # When a model counts as knowing a table, and how it is trained
    goal: Annotated[float, Field(gt=0, le=1)] = 0.99
    """The accuracy at which training ends and the table counts as stored; it is confirmed on further sequences."""
    initializations: PositiveInt = 3
    """Models that are drawn anew, vectors and weights, and trained on the same table; it counts as stored if one of
    them reaches the goal, because a training may get stuck where another does not."""
    prune_at: Annotated[float, Field(gt=0, le=1)] = 0.25
    """The share of the steps after which only the best of these models so far is trained on; 1: all are, to the end."""
    learning_rates: Annotated[tuple[PositiveFloat, ...], Unique] = Field(default=(1e-2, 3e-3, 1e-3), min_length=1)
    """Learning rates of AdamW, tried in this order from the same initial weights until one reaches the goal."""
    steps: PositiveInt = 2**14
    """Steps after which a training has failed. Nothing else ends it early, unless its loss is no longer finite."""
    batch_size: PositiveInt = 1024
    """Fresh sequences in each step."""
    check_every: PositiveInt = 64
    """Steps between two checks of the accuracy."""
    check_sequences: PositiveInt = 4096
    """Fresh sequences in each check."""
    seq_len: Annotated[int, Field(ge=3)] = 32
    """Tokens per sequence, T: a subject, a relation, noise and the end token."""

    # The models, and the tables that are tried
    experiment: Literal["fact_capacity"]
    dimensions: Annotated[tuple[PositiveInt, ...], Unique] = Field(min_length=1)
    """The dimensions d of the model."""
    mixes: Annotated[tuple[Mix, ...], Unique] = Field(default=((1.0, 2.0),), min_length=1)
    """Pairs [α, β], each tried at every d: heads of dimension ⌊α d / n_heads⌋ and ⌊β d⌋ hidden units; β = 0: none."""
    n_heads: PositiveInt = 8
    table: Literal["equal", "square", "distinct"] = "equal"
    """How a table of S subjects grows. equal: R = S relations; square: R = ⌊√S⌋; distinct: R = S with D = S answers."""
    n_answers: AtLeastTwo | None = None
    """D: answers of each relation (default 8; with `table: distinct` they are S)."""
    start: AtLeastTwo = 8
    """The S from which every search begins, whatever the model: it is doubled while tables are stored, else halved."""
    largest: AtLeastTwo = 512
    """The largest S that is tried."""
    resolution: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Relative distance of two sizes S of the ladder on which all searches go; in facts it is twice as much."""
    scan: PositiveInt = 2
    """A search ends when so many sizes above the largest table stored have failed, and so many below the smallest one
    not stored are stored: success may come and go."""

    @model_validator(mode="after")
    def _starts_below_its_end(self) -> "FactCapacityConfig":
        if self.start > self.largest:
            raise ValueError(f"start = {self.start} is above largest = {self.largest}, where a search ends: change one")
        return self

    @model_validator(mode="after")
    def _models_exist(self) -> "FactCapacityConfig":
        if self.table == "distinct" and self.n_answers is not None:
            raise ValueError(f"n_answers = {self.n_answers} has no effect with table: distinct, where it is S")
        D = self.n_answers or N_ANSWERS
        if self.table != "distinct" and self.goal <= 1 / D:
            raise ValueError(f"goal = {self.goal:g} is reached by knowing the relation alone: choose more than 1/{D}")
        for d in self.dimensions:
            for alpha, beta in self.mixes:
                if head_dimension(alpha, d, self.n_heads) < 1:
                    raise ValueError(
                        f"mixes: α = {alpha:g} at d = {d} leaves {self.n_heads} heads without a dimension, as "
                        f"⌊{alpha:g} · {d} / {self.n_heads}⌋ = 0: choose d ≥ {math.ceil(self.n_heads / alpha)}, "
                        "a larger α, or fewer n_heads"
                    )
                if beta and hidden_units(beta, d) < 1:
                    raise ValueError(
                        f"mixes: β = {beta:g} at d = {d} leaves no hidden unit: choose d ≥ {math.ceil(1 / beta)}, "
                        "a larger β, or 0 for no feed-forward part"
                    )
        return self
