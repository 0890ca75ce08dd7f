"""The config of the experiment `fact_dynamics`."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from toytf.config.sections import Unique
from toytf.experiments.seeded import SeededConfig

SMALLEST = 1e-30
"""The smallest α: less is hardly a number in float32."""


class FactDynamicsConfig(SeededConfig):
    """In which order linear attention learns the parts of a fact: the relation's answers, then the subject's."""

    implementation: ClassVar[str] = "tasks.factual.dynamics.experiment:FactDynamics"

    experiment: Literal["fact_dynamics"]
    n_subjects: int = Field(default=16, ge=2)
    """S."""
    n_relations: int = Field(default=4, ge=2)
    """R."""
    n_answers: int = Field(default=8, ge=2)
    """D: answers of each relation, not shared with other relations."""
    table: Literal["structured", "random"] = "structured"
    """structured: subjects in D groups, a group has one answer per relation; random: every answer uniform among the D
    of its relation, another table for every seed."""
    n_noise: NonNegativeInt = 20
    """Noise tokens in the vocabulary."""
    seq_len: int = Field(default=32, ge=3)
    """T: a subject, a relation, an end token, and noise in all other places."""
    method: Literal["flow", "sgd"] = "flow"
    """flow: Euler steps on the mean over all facts, noise at its mean, in float64; sgd: steps on fresh sequences."""
    batch_size: PositiveInt | None = None
    """Sequences per step of sgd; a flow needs none."""
    lr: PositiveFloat = 0.1
    """Learning rate. Times are proportional to 1/lr."""
    steps: PositiveInt = 8192
    init_scales: Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], Unique] = Field(
        default=(1e-5,), min_length=1
    )
    """Initial weights α; the training is done once for each. Metrics of the smallest, which is nearest to the theory,
    have plain names, those of another end in it: stage/relation/a0.01."""
    initial: Literal["equal", "theory"] = "equal"
    """equal: w = W = α; theory: w = α √(|A| + 1), so that w² − ΣW² = α² > 0 and w cannot vanish."""
    evaluate_every: PositiveInt = 32
    """Steps between evaluations. A stage is dated by the first evaluation that shows it."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "FactDynamicsConfig":
        S, D, T = self.n_subjects, self.n_answers, self.seq_len
        if self.table == "structured" and S % D:
            raise ValueError(
                f"n_subjects = {S} is not a multiple of n_answers = {D}: the groups of a structured table have equal "
                "size; use table: random for other sizes"
            )
        if T > 3 and not self.n_noise:
            raise ValueError(f"n_noise = 0 leaves no token to fill seq_len = {T} with: use seq_len = 3")
        if T == 3 and self.n_noise:
            raise ValueError(
                f"n_noise = {self.n_noise}: seq_len = 3 has no room for noise: use n_noise = 0 or longer sequences"
            )
        if self.method == "flow" and self.batch_size is not None:
            raise ValueError(f"batch_size = {self.batch_size} has an effect only with method: sgd")
        if self.method == "sgd" and self.batch_size is None:
            raise ValueError("batch_size is missing: method: sgd needs the number of sequences per step")
        if self.method == "flow" and self.table == "structured" and len(self.seeds) > 1:
            raise ValueError(
                "seeds: a flow on a structured table has nothing random: list only one seed, or use table: random or "
                "method: sgd"
            )
        if min(self.init_scales) < SMALLEST:
            raise ValueError(f"init_scales: {min(self.init_scales):g} is too small: choose at least {SMALLEST:g}")
        if self.initial_attention(max(self.init_scales)) >= 2:
            raise ValueError(
                f"init_scales: {max(self.init_scales):g} is too large for initial: theory: w = α √(|A| + 1) must be < 2"
            )
        return self

    def initial_attention(self, alpha: float) -> float:
        """The initial w."""
        return alpha * math.sqrt(self.n_relations * self.n_answers + 1) if self.initial == "theory" else alpha
