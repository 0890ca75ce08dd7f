"""The config of the experiment `capacity`."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field, PositiveInt, model_validator

from toytf.config.footprint import Need
from toytf.config.sections import Unique
from toytf.experiments.pairs import (
    DataConfig,
    Size,
    TrainedRulesConfig,
    any_has_width,
    check_rank,
    memory_needs,
    rules_named,
    sides,
)
from toytf.experiments.seeded import SeededConfig
from toytf.memory.rules import RULES

if TYPE_CHECKING:
    CapacityRule: TypeAlias = str
else:
    CapacityRule = Literal[tuple(name for name, rule in RULES.items() if "capacity" in rule.experiments)]

Accuracy = Annotated[float, Field(gt=0, lt=1)]


class CapacityConfig(SeededConfig):
    """How many associations each rule stores, by size and width, compared with theory."""

    implementation: ClassVar[str] = "toytf.experiments.capacity.experiment:Capacity"

    experiment: Literal["capacity"]
    rules: Annotated[tuple[CapacityRule, ...], Unique] = Field(min_length=1)
    dimensions: Annotated[tuple[Size, ...], Unique] = Field(min_length=1)
    """The sizes of the matrix: d, or [d_in, d_out]."""
    widths: Annotated[tuple[PositiveInt, ...], Unique] = ()
    """Ranks of the rules low_rank…, hidden units of the rules mlp…"""
    data: DataConfig = DataConfig()
    criterion: Literal["all"] | Accuracy = "all"
    """all: every pair must be recalled; a number: at least this fraction."""
    resolution: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """Relative width at which a bisection stops."""
    draws: PositiveInt = 32
    """For a one-shot rule: streams per seed. Its capacity is where half of them are stored (criterion all), or where
    their mean recall falls to the criterion."""
    iterations: PositiveInt = 1000
    """Steps after which the solver gives up on a number of pairs."""
    tolerance: Annotated[float, Field(gt=0, lt=0.5)] = 0.01
    """A margin below this counts as zero, in standard deviations of a score of whitened vectors."""
    trained: TrainedRulesConfig = TrainedRulesConfig()

    @property
    def worth_threads(self) -> int:
        """Two: the solver uses them where the matrices of a case are large."""
        return 2

    @model_validator(mode="after")
    def _rules_fit(self) -> "CapacityConfig":
        for d in self.dimensions:
            if (d, d) in self.dimensions:
                raise ValueError(f"dimensions: {d} is listed twice, once as [{d}, {d}]")
        for rule in rules_named(self.rules):
            if rule.width != "none" and not self.widths:
                raise ValueError(
                    f'widths is empty, but the rule "{rule.name}" has a width: give some, such as widths: [4, 8]'
                )
            if rule.all_or_nothing and self.criterion != "all":
                raise ValueError(
                    f'criterion = {self.criterion}: the rule "{rule.name}" stores all pairs or none: use criterion: all'
                )
            for size in self.dimensions:
                check_rank(rule, max(self.widths, default=0), size)
        guess = 1 / self.data.n_answers if self.data.n_answers else 0.0
        if self.criterion != "all" and self.criterion <= guess:
            raise ValueError(
                f"criterion = {self.criterion} is no better than a guess among {guess**-1:g} answers: choose more"
            )
        if self.widths and not any_has_width(self.rules):
            raise ValueError("widths is given, but none of the rules has a width")
        return self

    def needs(self) -> list[Need]:
        """The largest case: the scores of as many pairs as a matrix, or hidden units, may store."""
        d_in, d_out = max(map(sides, self.dimensions), key=math.prod)
        width = max(self.widths, default=0)
        parameters = max(d_in * d_out, width * (d_in + d_out))
        many = any(rule.all_or_nothing for rule in rules_named(self.rules))
        n = parameters / (2 * math.log(parameters + math.e)) if many else 0.05 * parameters
        keys = {"dimensions": max(d_in, d_out), **({"widths": width} if width else {})}
        together = len(self.seeds) if many else 1
        memory = memory_needs(n, (d_in, d_out), width, self.data.n_answers, keys)
        return [replace(need, bytes=together * need.bytes) for need in memory]
