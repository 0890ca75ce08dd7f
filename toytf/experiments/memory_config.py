"""The configs of the experiments on memories alone: `capacity` and `storage`."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from toytf.config import Config, Unique
from toytf.experiments.seeded import SeededConfig
from toytf.footprint import FLOAT, Keys, Need
from toytf.memory.rules import RULES, Rule

if TYPE_CHECKING:
    CapacityRule: TypeAlias = str
    StorageRule: TypeAlias = str
else:
    CapacityRule = Literal[tuple(name for name, rule in RULES.items() if "capacity" in rule.experiments)]
    StorageRule = Literal[tuple(RULES)]
"""The names of the rules; one that `storage` does not have gets a sentence of its own there."""

Size: TypeAlias = PositiveInt | tuple[PositiveInt, PositiveInt]
"""d, or [d_in, d_out]."""

Accuracy = Annotated[float, Field(gt=0, lt=1)]


def sides(size: Size) -> tuple[int, int]:
    """d_in and d_out."""
    return (size, size) if isinstance(size, int) else size


class DataConfig(Config):
    """Random pairs z → f(z)."""

    law: Literal["sphere", "gaussian"] = "sphere"
    """sphere: all vectors have the same norm; gaussian: independent entries, norms differ."""
    n_answers: Annotated[int, Field(ge=2)] | None = None
    """f(z) = z mod n_answers; null: every key has an answer of its own."""


class TrainedConfig(Config):
    """How the rules trained_… are trained."""

    lr: PositiveFloat = 0.1
    """Of Adam, on vectors of unit length. A single matrix likes up to 3, an MLP not more than 0.3."""
    steps: PositiveInt = 4000


class CapacityConfig(SeededConfig):
    """How many associations each rule stores, by size and width, beside what the theory predicts."""

    implementation: ClassVar[str] = "toytf.experiments.capacity:Capacity"

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
    """Steps after which the solver gives up on a question."""
    tolerance: Annotated[float, Field(gt=0, lt=0.5)] = 0.01
    """A margin below this counts as none, in standard deviations of a score of whitened vectors."""
    trained: TrainedConfig = TrainedConfig()

    @model_validator(mode="after")
    def _rules_fit(self) -> "CapacityConfig":
        for d in self.dimensions:
            if (d, d) in self.dimensions:
                raise ValueError(f"dimensions: {d} is listed twice, once as [{d}, {d}]")
        for rule in _of(self.rules):
            if rule.width != "none" and not self.widths:
                raise ValueError(
                    f'widths is empty, but the rule "{rule.name}" has a width: give some, such as widths: [4, 8]'
                )
            if rule.all_or_nothing and self.criterion != "all":
                raise ValueError(
                    f'criterion = {self.criterion}: the rule "{rule.name}" stores all pairs or none: use criterion: all'
                )
            for size in self.dimensions:
                _rank_fits(rule, max(self.widths, default=0), size)
        guess = 1 / self.data.n_answers if self.data.n_answers else 0.0
        if self.criterion != "all" and self.criterion <= guess:
            raise ValueError(f"criterion = {self.criterion} is not more than a guess gets with {guess**-1:g} answers")
        if self.widths and not _any_width(self.rules):
            raise ValueError("widths is given, but none of the rules has a width")
        return self

    def needs(self) -> list[Need]:
        """The largest case: the scores of as many pairs as a matrix, or hidden units, may store."""
        d_in, d_out = max(map(sides, self.dimensions), key=math.prod)
        width = max(self.widths, default=0)
        parameters = max(d_in * d_out, width * (d_in + d_out))
        many = any(rule.all_or_nothing for rule in _of(self.rules))
        n = parameters / (2 * math.log(parameters + math.e)) if many else 0.05 * parameters
        keys = {"dimensions": max(d_in, d_out), **({"widths": width} if width else {})}
        together = len(self.seeds) if many else 1
        memory = _memory_needs(n, (d_in, d_out), width, self.data.n_answers, keys)
        return [replace(need, bytes=together * need.bytes) for need in memory]


class PairsConfig(Config):
    """Facts about pairs: keys (e_s + ẽ_r)/√2, answers drawn from the pool of the second part."""

    first: PositiveInt = 16
    second: PositiveInt = 16
    answers: PositiveInt = 8
    """Answers in the pool of each second part; pools are disjoint."""


class StorageConfig(SeededConfig):
    """What each rule makes of the same associations: recall, margins, scores and spectrum."""

    implementation: ClassVar[str] = "toytf.experiments.storage:Storage"

    experiment: Literal["storage"]
    rules: Annotated[tuple[StorageRule, ...], Unique] = Field(min_length=1)
    dimension: Size = 64
    n: PositiveInt | None = None
    """How many associations (answers, if there is noise); with pairs it follows from them."""
    width: PositiveInt | None = None
    data: DataConfig = DataConfig()
    noise: PositiveInt | None = None
    """Add one of so many random vectors to every key: each answer is asked for with each of them."""
    pairs: PairsConfig | None = None
    iterations: PositiveInt = 1500
    """Steps of the rules optimum and max_margin, at most; max_margin takes up to ten times as many more if its W misses
    a pair."""
    trained: TrainedConfig = TrainedConfig()

    @model_validator(mode="after")
    def _rules_fit(self) -> "StorageConfig":
        for rule in _of(self.rules):
            if rule.width != "none" and self.width is None:
                raise ValueError(
                    f'width is missing, but the rule "{rule.name}" has a width: give one, such as width: 16'
                )
            if rule.pairs and self.pairs is None:
                raise ValueError(f'pairs is missing, but the rule "{rule.name}" is for keys that are sums of two parts')
            if "storage" not in rule.experiments:
                why = ": here all keys share the values" if rule.decoupled else ""
                raise ValueError(f'the rule "{rule.name}" is for the experiment {rule.experiments[0]}{why}')
            _rank_fits(rule, self.width or 0, self.dimension)
        if self.width is not None and not _any_width(self.rules):
            raise ValueError("width is given, but none of the rules has a width")
        if self.pairs is None and self.n is None:
            raise ValueError("n is missing: how many associations to store")
        if self.pairs is not None and (self.noise, self.n, self.data.n_answers) != (None, None, None):
            raise ValueError("pairs says how many associations there are: leave out n, noise and data.n_answers")
        return self

    def needs(self) -> list[Need]:
        """The scores of all pairs, and the hidden units."""
        d_in, d_out = sides(self.dimension)
        keys: dict[str, int] = {"dimension": max(d_in, d_out), "width": self.width or 0}
        n_answers = self.data.n_answers
        if self.pairs is not None:
            n, n_answers = self.pairs.first * self.pairs.second, self.pairs.second * self.pairs.answers
            keys |= {f"pairs.{name}": getattr(self.pairs, name) for name in ("first", "second", "answers")}
        else:
            n_answers = min(self.n or 0, n_answers or self.n or 0)
            n = (self.n or 0) * (self.noise or 1)
            keys |= {"n": self.n or 0, "noise": self.noise or 0}
        return _memory_needs(n, self.dimension, self.width or 0, n_answers, keys)


def _memory_needs(n: float, size: Size, width: int, n_answers: int | None, keys: Keys) -> list[Need]:
    """Of n pairs: their vectors, scores with all answers, the matrix and the hidden units."""
    d_in, d_out = sides(size)
    scores, vectors = n * (n_answers or n), n * (d_in + d_out + width) + d_in * d_out + width * (d_in + d_out)
    return [
        Need("the scores of pairs", 3 * FLOAT * scores, keys),
        Need("vectors and weights", 3 * FLOAT * vectors, keys),
    ]


def _of(names: tuple[str, ...]) -> list[Rule]:
    return [RULES[name] for name in names]


def _any_width(names: tuple[str, ...]) -> bool:
    return any(rule.width != "none" for rule in _of(names))


def _rank_fits(rule: Rule, width: int, size: Size) -> None:
    d_in, d_out = sides(size)
    if rule.width == "rank" and width > min(d_in, d_out):
        raise ValueError(
            f'width = {width} is more than a {d_out} × {d_in} matrix has rank ("{rule.name}"): '
            f"at most {min(d_in, d_out)}"
        )
