"""What a factual recall task can be."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pydantic

from tasks.kept_file import KeptFile, one_answer_each, read_table
from toytf.config.plugins import TaskConfig, TaskSizes
from toytf.config.sections import Config, Unique
from toytf.errors import UserError

SIZES = {"n_subjects": 16, "n_relations": 16, "n_answers": 8}
"""The sizes of a drawn table, unless others are given."""

Fact = tuple[str, str, str]
"""Subject, relation, attribute."""


COLUMNS = ("subject", "relation", "attribute")


def read_facts(path: Path) -> tuple[Fact, ...]:
    """The facts of a CSV file with the columns subject, relation and attribute, in the order of its lines."""
    table = read_table(path, COLUMNS, FACTS.what)
    try:
        facts = one_attribute_each(tuple((s, r, a) for s, r, a in table.rows), lines=table.lines)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    return tuple(dict.fromkeys(facts))


FACTS = KeptFile("facts.json", "facts", COLUMNS, read_facts)
"""The facts of a user's file."""


def one_attribute_each(facts: tuple[Fact, ...], *, lines: Sequence[int] = ()) -> tuple[Fact, ...]:
    """The same facts; refuses two answers for one subject and relation. lines: where in a file each fact is."""
    return one_answer_each(facts, 2, lines=lines)


def _kept(facts: Sequence[Fact] | None) -> dict[str, str] | None:
    """How config.yaml names the facts, which can be too many for it."""
    return FACTS.reference(facts) if facts else None


FactList = Annotated[
    tuple[Fact, ...],
    pydantic.BeforeValidator(
        FACTS.read, json_schema_input_type=str | list[Fact] | dict[Literal["file", "sha256"], str]
    ),
    pydantic.AfterValidator(one_attribute_each),
    pydantic.PlainSerializer(_kept, when_used="json"),
    pydantic.Field(min_length=1),
]


class ConstructionConfig(Config):
    """How `model.init: ideal` solves the task; `model.beta` has the strengths W_KQ1 (default 60) and FF1 (10)."""

    keys: Literal["least_squares", "hebbian"] = "least_squares"
    """How heads find their tokens: exact if there are no more tokens than dimensions, or a sum of token vectors."""
    values: Literal["optimised", "hebbian"] = "optimised"
    """Without a feed-forward part, the values of subjects and relations: tables found by Adam on the cross-entropy, or
    sums of output vectors."""
    pairs: Literal["least_squares", "hebbian"] = "least_squares"
    """With a feed-forward part, how it stores the pairs: by least squares on random hidden units, or by a sum over
    facts, which takes very many hidden units."""
    steps: pydantic.PositiveInt = 300
    """Steps of Adam for optimised values."""


class FactualConfig(TaskConfig):
    """Factual recall: a subject and a relation among noise tokens; the answer is in a table of facts."""

    implementation: ClassVar[str] = "tasks.factual.task:FactualTask"
    roles: ClassVar[tuple[str, ...]] = ("fact", "relation", "within_set")

    kind: Literal["factual"]
    n_subjects: pydantic.PositiveInt | None = None
    """S (default 16, or those of the file)."""
    n_relations: pydantic.PositiveInt | None = None
    """R (default 16, or those of the file)."""
    n_answers: pydantic.PositiveInt | None = None
    """D: answers of each relation, |A_r| (default 8, or those of the file)."""
    table: Literal["random", "structured"] = "random"
    """random: every answer uniform in A_r; structured: subjects in D groups, a group has one answer per relation."""
    table_seed: pydantic.NonNegativeInt = 0
    """The seed of the random table."""
    pools: Literal["disjoint", "shared"] = "disjoint"
    """Whether every relation has its own answers, or all relations share them."""
    facts: FactList | None = None
    """Facts instead of a drawn table: the path of a CSV file with the columns subject, relation and attribute
    (`configs/…`: one that ships with toytf), or the facts themselves. A run keeps them in its own facts.json."""
    subjects: Annotated[tuple[str, ...], Unique] = ()
    """Only these subjects of the file (default: all)."""
    relations: Annotated[tuple[str, ...], Unique] = ()
    """Only these relations of the file (default: all)."""
    n_noise: pydantic.NonNegativeInt | None = None
    """Noise tokens in the vocabulary (default: S + R)."""
    seq_len: pydantic.PositiveInt = 32
    """Tokens per sequence, T."""
    last: Literal["eos", "relation"] = "eos"
    """What comes last, where the answer is asked for: an end token, or the relation itself."""
    subject_exponent: float = pydantic.Field(default=0.0, ge=0, le=20)
    """The k-th subject has probability ∝ k^−exponent; 0: all are equally likely."""
    relation_exponent: float = pydantic.Field(default=0.0, ge=0, le=20)
    """The same for relations."""
    construction: ConstructionConfig = ConstructionConfig()

    @pydantic.model_validator(mode="after")
    def _parts_fit(self) -> "FactualConfig":
        least = 3 if self.last == "eos" else 2
        parts = "a subject, a relation and the end token" if self.last == "eos" else "a subject and a relation"
        if self.seq_len < least:
            raise ValueError(f"seq_len = {self.seq_len} is too short: {parts} need at least {least}")
        if self.seq_len > least and self.n_noise == 0:
            raise ValueError(
                f"n_noise = 0 leaves no token to fill seq_len = {self.seq_len} with: {parts} take only {least}"
            )
        drawn = {"n_subjects": None, "n_relations": None, "n_answers": None, "table": "random", "table_seed": 0}
        for name, default in {**drawn, "pools": "disjoint"}.items() if self.facts is not None else ():
            if getattr(self, name) != default:
                raise ValueError(f"{name} has no effect with facts: the file already says it")
        for name in ("subjects", "relations"):
            if getattr(self, name) and self.facts is None:
                raise ValueError(f"{name} has an effect only with facts: the path of a CSV file")
        if self.table == "structured" and self.table_seed:
            raise ValueError("table_seed has an effect only with table: random")
        return self

    def size(self, name: str) -> int:
        """n_subjects, n_relations or n_answers of a drawn table."""
        given: int | None = getattr(self, name)
        return SIZES[name] if given is None else given

    def files(self) -> dict[str, bytes]:
        """The facts of a user, if there are any."""
        return {} if self.facts is None else {FACTS.name: FACTS.content(self.facts)}

    def sizes(self) -> TaskSizes:
        """Subjects, relations, noise and the end token; all answers; one position."""
        if self.facts is not None:  # all answers of the file, even if only some of its facts are chosen
            S, R, A = (len(set(column)) for column in zip(*self.facts, strict=True))
            S, R = len(self.subjects) or S, len(self.relations) or R
        else:
            S, R, D = (self.size(name) for name in SIZES)
            A = D if self.pools == "shared" else R * D
        n_noise = S + R if self.n_noise is None else self.n_noise
        return TaskSizes(S + R + n_noise + (self.last == "eos"), A, self.seq_len, 1)
