"""The config of the experiment `capacity`."""

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from toytf.config.sections import Unique
from toytf.experiments.pairs import DataConfig, Size, TrainedRulesConfig, any_has_width, check_rank, rules_named, sides
from toytf.experiments.seeded import SeededConfig
from toytf.memory.rules import RULES

if TYPE_CHECKING:
    CapacityRule: TypeAlias = str
else:
    CapacityRule = Literal[tuple(name for name, rule in RULES.items() if "capacity" in rule.experiments)]

Accuracy = Annotated[float, Field(gt=0, lt=1)]
Criterion: TypeAlias = Literal["all"] | Accuracy


class CapacityDataConfig(DataConfig):
    """Random pairs z → f(z), whose keys may have two inputs."""

    inputs: Literal[1, 2] = 1
    """2: keys are sums (e_x + ẽ_y)/√2 for pairs (x, y), k² of which are a k × k grid; with n_answers, one is drawn for
    each pair."""


class CapacityConfig(SeededConfig):
    """How many associations each rule stores, by size and width, compared with theory."""

    implementation: ClassVar[str] = "toytf.experiments.capacity.experiment:Capacity"

    experiment: Literal["capacity"]
    rules: Annotated[tuple[CapacityRule, ...], Unique] = Field(min_length=1)
    dimensions: Annotated[tuple[Size, ...], Unique] = Field(min_length=1)
    """The sizes of the matrix: d, or [d_in, d_out]."""
    widths: Annotated[tuple[PositiveInt, ...], Unique] = ()
    """Ranks of the rules low_rank…, hidden units of the rules mlp…"""
    width_ratios: Annotated[tuple[PositiveFloat, ...], Unique] = ()
    """The same as multiples of d_in, in place of widths."""
    data: CapacityDataConfig = CapacityDataConfig()
    criterion: Criterion = "all"
    """all: every pair must be recalled; a number: at least this fraction. Rules that store all pairs or none, such as
    optimum, always mean all."""
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
    starts: PositiveInt = 1
    """How often a training may begin, from other initial weights each time, if it fails because some key has no hidden
    unit that is on: nothing can be learned of such a key. Narrow layers need several."""

    @property
    def worth_threads(self) -> int:
        """Two: the solver uses them where the matrices of a case are large."""
        return 2

    @model_validator(mode="after")
    def _rules_fit(self) -> "CapacityConfig":
        for d in self.dimensions:
            if (d, d) in self.dimensions:
                raise ValueError(f"dimensions: {d} is listed twice, once as [{d}, {d}]")
        if self.widths and self.width_ratios:
            raise ValueError(
                f"widths = {list(self.widths)} and width_ratios = {list(self.width_ratios)} say the same thing in two "
                "ways: set one of them to []"
            )
        rules = rules_named(self.rules)
        for rule in rules:
            if self.data.inputs > 1 and rule.width != "hidden":
                raise ValueError(
                    f'data.inputs = {self.data.inputs} is for rules with hidden units, and "{rule.name}" has none: use '
                    "rules such as trained_mlp"
                )
            if rule.width != "none" and not (self.widths or self.width_ratios):
                raise ValueError(
                    f'widths is empty, but the rule "{rule.name}" has a width: give some, such as widths: [4, 8]'
                )
            for size in self.dimensions:
                check_rank(rule, max(self.widths_at(size), default=0), size)
        if self.criterion != "all" and all(rule.all_or_nothing for rule in rules):
            named = " and ".join(f'"{rule.name}"' for rule in rules)
            raise ValueError(f"criterion = {self.criterion}: {named} can only store all pairs: use criterion: all")
        for size in self.dimensions:
            widths = self.widths_at(size)
            if len(set(widths)) < len(widths):
                raise ValueError(f"width_ratios: two of them are one width at d = {sides(size)[0]}: {list(widths)}")
        guess = 1 / self.data.n_answers if self.data.n_answers else 0.0
        if self.criterion != "all" and self.criterion <= guess:
            raise ValueError(
                f"criterion = {self.criterion} is no better than a guess among {guess**-1:g} answers: choose more"
            )
        given = "widths" if self.widths else "width_ratios" if self.width_ratios else ""
        if given and not any_has_width(self.rules):
            raise ValueError(f"{given} is given, but none of the rules has a width")
        return self

    def widths_at(self, size: Size) -> tuple[int, ...]:
        """The widths at a size: those that are given, or the ratios times d_in."""
        return self.widths or tuple(max(1, round(ratio * sides(size)[0])) for ratio in self.width_ratios)

    def criterion_of(self, rule: str) -> Criterion:
        """What a rule is asked for: all pairs, if it stores all or none."""
        return "all" if RULES[rule].all_or_nothing else self.criterion

    def needs(self) -> float:
        """The largest matrices: searches come to their pairs only after long."""
        widths = {size: max(self.widths_at(size), default=0) for size in self.dimensions}
        return 4.0 * max(max(math.prod(sides(size)), width * sum(sides(size))) for size, width in widths.items())
