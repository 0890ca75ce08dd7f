"""What the task `association` can be."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pydantic

from tasks.kept_file import KeptFile, one_answer_each, read_table
from toytf.config.plugins import TaskConfig, TaskSizes
from toytf.config.sections import Config
from toytf.errors import UserError, shortened

N_INPUTS, N_OUTPUTS, ALPHA = 100, 5, 2.0
"""N, M and α, unless others are given."""

Pair = tuple[str, str, pydantic.PositiveFloat | None]
"""Input, answer, and how often the input comes, on any scale."""

COLUMNS, FREQUENCY = ("input", "answer"), "frequency"


def read_pairs(path: Path) -> tuple[Pair, ...]:
    """The pairs of a CSV file with the columns input and answer, and perhaps frequency, in the order of its lines."""
    table = read_table(path, COLUMNS, PAIRS.what, optional=[FREQUENCY])
    pairs: list[Pair] = []
    for (given, answer, *rest), line in zip(table.rows, table.lines, strict=True):
        try:
            frequency = float(rest[0]) if rest else None
        except ValueError:
            frequency = math.nan
        if frequency is not None and not 0 < frequency < math.inf:
            what = shortened(rest[0])
            raise UserError(f'{path}, line {line}: a frequency should be a number above 0, got "{what}"')
        pairs.append((given, answer, frequency))
    try:
        return clear_pairs(tuple(pairs), lines=table.lines)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


PAIRS = KeptFile("pairs.json", "pairs", COLUMNS, read_pairs, or_else="mod, bijective, or ")
"""The pairs of a user's file."""


def clear_pairs(pairs: tuple[Pair, ...], *, lines: Sequence[int] = ()) -> tuple[Pair, ...]:
    """Each pair once; refuses two answers or two frequencies for one input. lines: where in a file each pair is."""
    one_answer_each(pairs, 1, lines=lines)
    known = {pair[2] is not None for pair in pairs}
    if len(known) > 1:
        raise ValueError("some pairs have a frequency and some do not: give all of them one, or none")
    different = tuple(dict.fromkeys(pairs))
    inputs = [pair[0] for pair in different]
    if len(set(inputs)) < len(inputs):
        twice = max(inputs, key=inputs.count)
        raise ValueError(f'"{shortened(twice)}" has two frequencies: keep one of them')
    return different


def _read(given: object) -> object:
    """The name of a rule, or pairs, each with a frequency or None."""
    rows = given if given in ("mod", "bijective") else PAIRS.read(given)
    if not isinstance(rows, list | tuple):
        return rows
    return [(*row, None) if isinstance(row, list | tuple) and len(row) == len(COLUMNS) else row for row in rows]


def _kept(answers: str | Sequence[Pair]) -> str | dict[str, str]:
    """How config.yaml names the pairs, which can be too many for it."""
    return answers if isinstance(answers, str) else PAIRS.reference(answers)


_Rule = Annotated[Literal["mod", "bijective"], pydantic.Tag("rule")]
_Pairs = Annotated[
    tuple[Pair, ...], pydantic.AfterValidator(clear_pairs), pydantic.Field(min_length=1), pydantic.Tag("pairs")
]
_Given = str | list[tuple[str, str] | tuple[str, str, float]] | dict[Literal["file", "sha256"], str]

Answers = Annotated[
    _Rule | _Pairs,
    pydantic.Discriminator(lambda given: "rule" if isinstance(given, str) else "pairs"),
    pydantic.BeforeValidator(_read, json_schema_input_type=_Given),
    pydantic.PlainSerializer(_kept, when_used="json"),
]


class ConstructionConfig(Config):
    """How `model.init: ideal` stores the pairs, each with the same strength, which `model.beta` has (default 1)."""

    rule: Literal["hebbian", "least_squares"] = "hebbian"
    """hebbian: the sum of outer products; least_squares: the same with dual vectors, exact if there are no more inputs
    and outputs than dimensions."""


class AssociationConfig(TaskConfig):
    """Associations: one input token, drawn from a Zipf distribution, has one answer that must be remembered."""

    implementation: ClassVar[str] = "tasks.association.task:AssociationTask"
    roles: ClassVar[tuple[str, ...]] = ("all",)

    kind: Literal["association"]
    n_inputs: pydantic.PositiveInt | None = None
    """N (default 100, or those of the file)."""
    n_outputs: pydantic.PositiveInt | None = None
    """M, of `answers: mod` (default 5). More outputs than inputs compete, but are never right."""
    alpha: float | None = pydantic.Field(default=None, ge=0, le=20)
    """The z-th input has probability ∝ z^−α (default 2); 0: all are equally likely. The N inputs cut the distribution
    off, so that any α will do; the laws of Cabannes, Dohmatob, Bietti 2024 are about α > 1."""
    answers: Answers = "mod"
    """f. mod: the z-th input, counted from 0, has the answer z mod M. bijective: every input has an answer of its own,
    M = N, in one random order. Or pairs of your own: the path of a CSV file with the columns input and
    answer (`configs/…`: one that ships with toytf), the most frequent input first, or in any order with a third column
    frequency; or the pairs themselves. A run keeps them in its own pairs.json."""
    construction: ConstructionConfig = ConstructionConfig()

    @pydantic.model_validator(mode="after")
    def _parts_fit(self) -> "AssociationConfig":
        if self.answers != "mod" and self.n_outputs is not None:
            says = "the file already says it" if self.pairs else "every input has an output of its own"
            raise ValueError(f"n_outputs has an effect only with answers: mod; {says}")
        if self.pairs and self.n_inputs is not None:
            raise ValueError("n_inputs has no effect with pairs: the file already says it")
        if self.pairs and self.pairs[0][2] is not None and self.alpha is not None:
            raise ValueError("alpha has no effect with pairs that have a frequency: leave out one of the two")
        return self

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs of a user; none if answers follow a rule."""
        return () if isinstance(self.answers, str) else self.answers

    @property
    def exponent(self) -> float | None:
        """α; None if the frequencies are given."""
        if self.pairs and self.pairs[0][2] is not None:
            return None
        return ALPHA if self.alpha is None else self.alpha

    def files(self) -> dict[str, bytes]:
        """The pairs of a user, if there are any."""
        return {PAIRS.name: PAIRS.content(self.pairs)} if self.pairs else {}

    def sizes(self) -> TaskSizes:
        """A token for each input; all outputs; one position."""
        if self.pairs:
            return TaskSizes(len(self.pairs), len({pair[1] for pair in self.pairs}), 1, 1)
        N = N_INPUTS if self.n_inputs is None else self.n_inputs
        M = N if self.answers == "bijective" else N_OUTPUTS if self.n_outputs is None else self.n_outputs
        return TaskSizes(N, M, 1, 1)
