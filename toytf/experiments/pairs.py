"""What the configs of the experiments on memories alone share: sizes, random pairs and rules."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PositiveFloat, PositiveInt

from toytf.config.sections import Config
from toytf.memory.rules import RULES, Rule

Size: TypeAlias = PositiveInt | tuple[PositiveInt, PositiveInt]
"""d, or [d_in, d_out]."""


def sides(size: Size) -> tuple[int, int]:
    """d_in and d_out."""
    return (size, size) if isinstance(size, int) else size


class DataConfig(Config):
    """Random pairs z → f(z)."""

    distribution: Literal["sphere", "gaussian"] = "sphere"
    """sphere: all vectors have the same norm; gaussian: independent entries, norms differ."""
    n_answers: Annotated[int, Field(ge=2)] | None = None
    """f(z) = z mod n_answers; null: every key has its own answer."""


class TrainedRulesConfig(Config):
    """How the rules trained_… are trained."""

    lr: PositiveFloat = 0.1
    """Learning rate of Adam, on vectors of unit length. A single matrix trains well with 1 to 10, an MLP with at
    most 0.3."""
    steps: PositiveInt = 4000


def rules_named(names: tuple[str, ...]) -> list[Rule]:
    """The rules of these names."""
    return [RULES[name] for name in names]


def any_has_width(names: tuple[str, ...]) -> bool:
    """Does any of these rules have a width, a rank or a number of hidden units?"""
    return any(rule.width != "none" for rule in rules_named(names))


def check_rank(rule: Rule, width: int, size: Size) -> None:
    """Refuse a rank that a matrix of this size cannot have."""
    d_in, d_out = sides(size)
    if rule.width == "rank" and width > min(d_in, d_out):
        raise ValueError(
            f'width = {width} is more than the rank of a {d_out} × {d_in} matrix ("{rule.name}"): '
            f"at most {min(d_in, d_out)}"
        )
