"""The config of the experiment `noise_learning`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from toytf.config.sections import Unique
from toytf.experiments.seeded import SeededConfig

Vocabulary = Annotated[int, Field(ge=3, le=4096)]
Between = Annotated[float, Field(gt=0, lt=1)]


class NoiseLearningConfig(SeededConfig):
    """How many samples the feed-forward part and attention need to learn the noise that follows a trigger."""

    implementation: ClassVar[str] = "tasks.bigram.noise_learning.experiment:NoiseLearning"

    experiment: Literal["noise_learning"]
    n_tokens: Annotated[tuple[Vocabulary, ...], Unique] = Field(default=(32, 64, 128, 256), min_length=1)
    """Vocabulary sizes N; the noise token is one more. Memory grows like N²."""
    seq_len: int = Field(default=32, ge=2)
    """Tokens of a context, T; the last is the trigger."""
    noise_probabilities: Annotated[tuple[Between, ...], Unique] = Field(default=(0.5,), min_length=1)
    """Probabilities α that the noise token follows a trigger."""
    samples: Annotated[tuple[PositiveInt, ...], Unique] = Field(
        default=(4, 8, 16, 32, 64, 128, 256, 512, 1024), min_length=1
    )
    """Numbers m of contexts in the one gradient step. The spread is measured at the largest."""
    repeats: PositiveInt = 32
    """Steps per seed and size, each on its own contexts; recalls and spreads are averaged over them."""
    level: Between = 0.95
    """The recall at which the noise counts as learned."""

    @model_validator(mode="after")
    def _noise_stands_out(self) -> "NoiseLearningConfig":
        rarest, fewest = min(self.noise_probabilities), min(self.n_tokens)
        if rarest <= 1 / (fewest + 1):
            raise ValueError(
                f"noise_probabilities: {rarest} is not above the uniform probability of {fewest} + 1 tokens: "
                f"choose more than 1/{fewest + 1}"
            )
        return self
