"""What a factual recall task can be."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

from toytf.compose import locate
from toytf.config import Config
from toytf.errors import UserError
from toytf.plugins import TaskConfig

SIZES = {"n_subjects": 16, "n_relations": 16, "n_answers": 8}
"""The sizes of a drawn table, unless others are given."""


def _read(facts: object) -> object:
    """The facts of a file, so that a run has them whatever becomes of it."""
    if not isinstance(facts, str):
        return facts
    from tasks.factual.table import read_facts

    path = locate(Path(facts).expanduser(), Path())
    if not path.is_file():
        raise ValueError("no such file: give the path of a CSV file with the columns subject, relation, attribute")
    try:
        return read_facts(path)
    except UserError as error:
        raise ValueError(str(error)) from None


Facts = Annotated[
    tuple[tuple[str, str, str], ...],
    BeforeValidator(_read, json_schema_input_type=str | list[tuple[str, str, str]]),
    Field(min_length=1),
]


class ConstructionConfig(Config):
    """How `model.init: ideal` solves the task; `model.beta` has the strengths W_KQ1 (default 60) and FF1 (10)."""

    keys: Literal["least_squares", "hebbian"] = "least_squares"
    """What heads attend by: exact as long as there are no more tokens than dimensions, or a sum of token vectors."""
    values: Literal["optimised", "hebbian"] = "optimised"
    """Without a feed-forward part, what subjects and relations say: tables found by Adam on the cross-entropy, or sums
    of output vectors."""
    pairs: Literal["least_squares", "hebbian"] = "least_squares"
    """With a feed-forward part, how it stores the pairs: by least squares on random hidden units, or by a sum over
    facts, which takes very many hidden units."""
    steps: PositiveInt = 300
    """Steps of Adam for optimised values."""


class FactualConfig(TaskConfig):
    """A subject and a relation somewhere among noise, to be answered with the attribute that a fact table has."""

    implementation: ClassVar[str] = "tasks.factual.task:FactualTask"
    roles: ClassVar[tuple[str, ...]] = ("fact", "relation", "within_set")

    kind: Literal["factual"]
    n_subjects: PositiveInt | None = None
    """S (default 16, or those of the file)."""
    n_relations: PositiveInt | None = None
    """R (default 16, or those of the file)."""
    n_answers: PositiveInt | None = None
    """D: answers of each relation, |A_r| (default 8, or those of the file)."""
    table: Literal["random", "structured"] = "random"
    """random: every answer uniform in A_r; structured: subjects in D groups, a group has one answer per relation."""
    table_seed: NonNegativeInt = 0
    """Which random table."""
    pools: Literal["disjoint", "shared"] = "disjoint"
    """Every relation has answers of its own, or all have the same."""
    facts: Facts | None = None
    """Facts instead of a drawn table: the path of a CSV file with the columns subject, relation and attribute
    (`configs/…` may be a file that ships), or the facts themselves, which is what the config of a run has."""
    subjects: tuple[str, ...] = ()
    """Only these subjects of the file (default: all)."""
    relations: tuple[str, ...] = ()
    """Only these relations of the file (default: all)."""
    n_noise: NonNegativeInt | None = None
    """Noise tokens in the vocabulary (default: S + R)."""
    seq_len: PositiveInt = 32
    """Tokens per sequence, T."""
    last: Literal["eos", "relation"] = "eos"
    """What stands last, where the answer is asked for: an end token, or the relation itself."""
    subject_exponent: float = Field(default=0.0, ge=0, le=20)
    """The k-th subject comes with probability ∝ k^−exponent; 0: all alike."""
    relation_exponent: float = Field(default=0.0, ge=0, le=20)
    """The same for relations."""
    construction: ConstructionConfig = ConstructionConfig()

    @model_validator(mode="after")
    def _parts_fit(self) -> "FactualConfig":
        least = 3 if self.last == "eos" else 2
        parts = "a subject, a relation and the end token" if self.last == "eos" else "a subject and a relation"
        if self.seq_len < least:
            raise ValueError(f"seq_len = {self.seq_len} is too short: {parts} need at least {least}")
        if self.seq_len > least and self.n_noise == 0:
            raise ValueError(f"n_noise = 0 leaves nothing to fill seq_len = {self.seq_len} with: {parts} take {least}")
        drawn = {"n_subjects": None, "n_relations": None, "n_answers": None, "table": "random", "table_seed": 0}
        for name, default in {**drawn, "pools": "disjoint"}.items() if self.facts is not None else ():
            if getattr(self, name) != default:
                raise ValueError(f"{name} has no effect with facts: the file says what there is")
        answers: dict[tuple[str, str], str] = {}
        for subject, relation, attribute in self.facts or ():
            before = answers.setdefault((subject, relation), attribute)
            if before != attribute:
                raise ValueError(
                    f'facts: "{subject}, {relation}" has two answers, "{before}" and "{attribute}": a fact has one'
                )
        for name in ("subjects", "relations"):
            chosen = getattr(self, name)
            if chosen and self.facts is None:
                raise ValueError(f"{name} has an effect only with facts, the path of a CSV file")
            if len(set(chosen)) < len(chosen):
                raise ValueError(f"{name}: {max(chosen, key=chosen.count)} is listed twice")
        if self.table == "structured" and self.table_seed:
            raise ValueError("table_seed has an effect only with table: random")
        return self

    def size(self, name: str) -> int:
        """n_subjects, n_relations or n_answers of a drawn table."""
        given: int | None = getattr(self, name)
        return SIZES[name] if given is None else given
