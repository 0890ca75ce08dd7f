"""What the experiment `three_steps` can be."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from toytf.config.sections import Config, Unique
from toytf.experiments.seeded import SeededConfig


class ReadOutConfig(Config):
    """The gains at which the memories are read out after the three steps, as the mean score of what they store."""

    W_KQ1: PositiveFloat = 20.0
    """Mean of p_tᵀ W_KQ1 p_{t−1}. accuracy/step3 already uses it, through the learning rate of step 3."""
    W_KQ2: PositiveFloat = 20.0
    """Mean of e_kᵀ W_KQ2 ẽ_k."""


class ThreeStepsConfig(SeededConfig):
    """One gradient step each on W_OV2, W_KQ2 and W_KQ1 from zero, compared with the theorem entry by entry."""

    implementation: ClassVar[str] = "tasks.bigram.three_steps.experiment:ThreeSteps"

    experiment: Literal["three_steps"]
    n_tokens: int = Field(default=64, ge=3)
    """Vocabulary, N. The theorem is for N ≫ T."""
    seq_len: int = Field(default=16, ge=5)
    """T. In shorter sequences the signal of step 2 has the wrong sign (`toytf.theory.trigger_strength`)."""
    model: Literal["clean", "residual"] = "clean"
    """clean: layer 1 attends by position alone and passes on ẽ alone, layer 2 copies e alone; residual: one stream
    carries tokens, positions and what layer 1 adds."""
    embedding: Literal["orthonormal", "normal_over_d"] = "orthonormal"
    """orthonormal: every vector is its own axis; normal_over_d: independent entries N(0, 1/d)."""
    dimension: PositiveInt | None = None
    """d of normal_over_d; orthonormal vectors have the dimension they need."""
    samples: Annotated[tuple[PositiveInt, ...], Unique] = Field(default=(8192,), min_length=1)
    """Fresh sequences for each of the three steps. The experiment is repeated for each number. Metrics of the
    largest have plain names, those of another number name it: recall/W_OV2_n512."""
    beta_1: PositiveFloat = 1.0
    """Gain of W_OV2 after step 1. The theorem needs β_1 ≪ T."""
    beta_2: PositiveFloat = 1.0
    """Gain of W_KQ2 after step 2."""
    read_out: ReadOutConfig = ReadOutConfig()
    evaluation_samples: PositiveInt = 8192
    """Fresh sequences that accuracy is measured on."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "ThreeStepsConfig":
        if self.embedding == "orthonormal" and self.dimension is not None:
            raise ValueError(
                f"dimension = {self.dimension} has no effect: orthonormal vectors have the dimension they need: "
                "leave it out, or use embedding: normal_over_d"
            )
        if self.embedding == "normal_over_d" and self.dimension is None:
            raise ValueError("dimension is missing: embedding: normal_over_d needs the dimension d of its vectors")
        return self
