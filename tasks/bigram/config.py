"""What a bigram task can be."""

import hashlib
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from toytf.config.plugins import TaskConfig, TaskSizes
from toytf.config.sections import Config
from toytf.errors import reason

SHAKESPEARE = "shakespeare"
"""The corpus that ships: 42 plays and poems, as a table of 65 characters."""

EXTRA = "extra"
"""The noise token that is no character of the corpus."""


class NoiseConfig(Config):
    """One fixed token that sometimes follows a trigger instead of its output (Chen, Bruna, Bietti 2024)."""

    probability: float = Field(ge=0, lt=1)
    """α: the probability of noise, independent at every occurrence of a trigger."""
    token: str = Field(default="!", min_length=1)
    """A character of the corpus, or "extra": a further token τ that occurs nowhere else; unigrams follow it."""


class ConstructionConfig(Config):
    """How `model.init: ideal` writes the three memories; `model.beta` has their strengths (default 1)."""

    rule: Literal["hebbian", "least_squares"] = "hebbian"
    """hebbian: sums of outer products; least_squares: the same with dual vectors, which see nothing else of what is in
    the stream with theirs, as far as there are dimensions for it."""


class BigramConfig(TaskConfig):
    """Bigram text in which each trigger is always followed by an output drawn anew for every sequence."""

    implementation: ClassVar[str] = "tasks.bigram.task:BigramTask"
    roles: ClassVar[tuple[str, ...]] = (
        "all",
        "in_context",
        "untrapped",
        "clean_start",
        "first_seen",
        "trigger",
        "global",
    )

    kind: Literal["bigram"]
    seq_len: int = Field(default=256, ge=2)
    """Input tokens per sequence, T."""
    n_triggers: PositiveInt = 5
    triggers: Literal["fixed", "random"] = "fixed"
    """fixed: the most frequent characters; random: drawn per sequence by frequency, without replacement."""
    trigger_offset: NonNegativeInt = 0
    """With fixed triggers, skip this many of the most frequent characters."""
    outputs: Literal["uniform", "bigram"] = "uniform"
    """How a trigger's output is drawn: uniformly from the vocabulary, or as what follows the trigger in the corpus."""
    no_repeat: bool = False
    """Never let a trigger be its own output."""
    noise: NoiseConfig | None = None
    """A token that sometimes follows a trigger in place of its output (default: none)."""
    show_latents: bool = False
    """Put the triggers of a sequence in front of it."""
    corpus: str = SHAKESPEARE
    """The bigram table that ships with toytf, or the path of a UTF-8 text file."""
    corpus_sha256: str | None = Field(default=None, validate_default=True)
    """Filled in for a text file, so that a run notices when the text has changed."""
    n_tokens: int = Field(default=65, ge=2)
    """Vocabulary: at most this many characters, the most frequent ones."""
    construction: ConstructionConfig = ConstructionConfig()

    @field_validator("corpus")
    @classmethod
    def _corpus_exists(cls, corpus: str) -> str:
        if corpus == SHAKESPEARE:
            return corpus
        try:
            path = Path(corpus).expanduser().resolve()
            there = path.is_file()
        except (OSError, RuntimeError) as error:  # a name that is too long, a user who does not exist
            raise ValueError(f"cannot be read: {reason(error)}") from None
        if not there:
            raise ValueError(f'no such text file (give a path, or "{SHAKESPEARE}" for the table that ships with toytf)')
        return str(path)

    @field_validator("corpus_sha256")
    @classmethod
    def _corpus_is_the_same(cls, expected: str | None, info: Any) -> str | None:
        corpus = info.data.get("corpus", SHAKESPEARE)
        if corpus == SHAKESPEARE:
            return None
        try:
            found = hashlib.sha256(Path(corpus).read_bytes()).hexdigest()
        except OSError as error:
            raise ValueError(f"the text {corpus} cannot be read: {reason(error)}") from None
        if expected not in (None, found):
            raise ValueError(f"the text {corpus} has changed since the run began: restore it, or start a new run")
        return found

    @model_validator(mode="after")
    def _triggers_fit(self) -> "BigramConfig":
        if self.n_triggers + self.trigger_offset > self.n_tokens:
            raise ValueError(
                f"n_triggers + trigger_offset = {self.n_triggers + self.trigger_offset} "
                f"exceeds n_tokens = {self.n_tokens}"
            )
        if self.trigger_offset and self.triggers == "random":
            raise ValueError("trigger_offset has an effect only with triggers: fixed")
        if self.show_latents and self.seq_len < self.n_triggers + 2:
            raise ValueError(
                f"show_latents puts {self.n_triggers} triggers in front: seq_len must be at least "
                f"{self.n_triggers + 2}, got {self.seq_len}"
            )
        return self

    def sizes(self) -> TaskSizes:
        """All characters, as inputs and outputs, at every position."""
        n_characters = 65
        if self.corpus != SHAKESPEARE:
            n_characters = len(set(Path(self.corpus).read_text(encoding="utf-8", errors="replace")))
        n = min(self.n_tokens, n_characters)
        return TaskSizes(n + 1, n + 1, self.seq_len, self.seq_len)
