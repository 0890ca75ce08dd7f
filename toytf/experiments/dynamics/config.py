"""The config of the experiment `dynamics`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from toytf.config.sections import Config, Unique
from toytf.experiments.seeded import SeededConfig

Correlation = Annotated[float, Field(ge=-1, le=1)]
Frequency = Annotated[float, Field(gt=0, lt=1)]
Vector = tuple[float, float]
Window = tuple[float, float, float, float]


class TwoParticlesConfig(Config):
    """Two tokens, two orthonormal values: e_1 = (1, 0), e_2 = (a, √(1 − a²)), each with its own answer."""

    kind: Literal["two_particles"]
    correlations: Annotated[tuple[Correlation, ...], Unique] = Field(default=(0.95,), min_length=1)
    """a, the inner product of the two inputs. At 1 they are one vector, and never both right."""
    p1: Annotated[tuple[Frequency, ...], Unique] = Field(default=(0.75,), min_length=1)
    """Frequencies of the first token; that of the second is what is left."""
    start: Vector = (0.0, 0.0)
    """γ, the difference of the two rows of W at the start."""


class PlaneConfig(Config):
    """Tokens on the unit circle with two orthonormal values, x → x mod 2: more tokens than two dimensions can hold."""

    kind: Literal["plane"]
    angles: Annotated[tuple[float, ...], Field(min_length=2)] | None = None
    """Where the tokens are on the circle, in degrees; null: at random, for every seed elsewhere."""
    n_inputs: Annotated[int, Field(ge=2)] | None = None
    """N, how many tokens are drawn; angles say it themselves."""
    alpha: NonNegativeFloat = 1.0
    """Frequencies p(x) ∝ x^−α, x = 1 … N."""
    start: Vector = (0.0, 0.0)
    """γ, the difference of the two rows of W at the start."""

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "PlaneConfig":
        if (self.angles is None) == (self.n_inputs is None):
            raise ValueError("give either angles, in degrees, or n_inputs, for tokens at random angles")
        return self

    @property
    def n_tokens(self) -> int:
        """N."""
        return len(self.angles) if self.angles is not None else self.n_inputs or 0


class RandomConfig(Config):
    """Tokens and values with random vectors, x → x mod M."""

    kind: Literal["random"]
    n_inputs: PositiveInt = 5
    """N, the number of tokens."""
    n_outputs: Annotated[int, Field(ge=2)] = 5
    """M, the number of values."""
    dimensions: Annotated[tuple[PositiveInt, ...], Unique] = Field(default=(5,), min_length=1)
    """d, the dimension of all vectors; everything is done once for each."""
    alpha: NonNegativeFloat = 1.0
    """Frequencies p(x) ∝ x^−α, x = 1 … N."""
    embedding: Literal["sphere", "gaussian", "orthonormal"] = "sphere"
    """sphere: unit vectors; gaussian: entries N(0, 1/d); orthonormal: tokens do not feel each other."""
    start_scale: NonNegativeFloat = 0.0
    """The entries of W at the start are N(0, scale²/d); at 0, W = 0."""

    @model_validator(mode="after")
    def _fits(self) -> "RandomConfig":
        least, most = min(self.dimensions), max(self.n_inputs, self.n_outputs)
        if self.embedding == "orthonormal" and least < most:
            raise ValueError(
                f"dimensions: {most} orthonormal vectors do not fit into d = {least}: choose at least d = {most}, or "
                "embedding: sphere"
            )
        return self


System = Annotated[TwoParticlesConfig | PlaneConfig | RandomConfig, Field(discriminator="kind")]


class DynamicsConfig(SeededConfig):
    """Gradient descent on an associative memory, its tokens seen as particles that push each other."""

    implementation: ClassVar[str] = "toytf.experiments.dynamics.experiment:Dynamics"

    experiment: Literal["dynamics"]
    system: System
    """Which tokens there are: two_particles, plane or random."""
    learning_rates: Annotated[tuple[PositiveFloat, ...], Unique] = Field(default=(1.0,), min_length=1)
    """Step sizes η; every system is trained with each of them, from the same start and on the same batches."""
    steps: PositiveInt = 100
    batch_size: PositiveInt | None = None
    """Tokens of a step, drawn from p with replacement; null: the whole population."""
    points: Annotated[int, Field(ge=2)] = 64
    """Steps of which curves are kept: all if there are not more, else evenly spaced on a logarithmic scale."""
    report_at: Annotated[tuple[NonNegativeInt, ...], Unique] = ()
    """Steps at which loss and error are metrics of their own: loss/lr10/at35."""
    window: PositiveFloat | Window | None = None
    """What pictures of the loss over γ show: [left, right, bottom, top], or how far they reach from 0; null: what the
    training needs. For tokens in a plane."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "DynamicsConfig":
        late = [step for step in self.report_at if step > self.steps]
        if late:
            raise ValueError(f"report_at: there is no step {late[0]}: the last one is steps = {self.steps}")
        if self.window is not None and not self.is_planar:
            raise ValueError("window is for tokens in a plane: leave it out with system.kind: random")
        if isinstance(self.window, tuple):
            left, right, bottom, top = self.window
            if left >= right or bottom >= top:
                raise ValueError(f"window = {[*self.window]}: expected [left, right, bottom, top]")
        if not self.is_random and len(self.seeds) > 1:
            raise ValueError("seeds: nothing is random in this system with full batches: list only one seed")
        return self

    @property
    def is_planar(self) -> bool:
        """Two dimensions and two values: W acts by one vector γ."""
        return not isinstance(self.system, RandomConfig)

    @property
    def is_orthonormal(self) -> bool:
        """Do tokens not feel each other?"""
        return isinstance(self.system, RandomConfig) and self.system.embedding == "orthonormal"

    @property
    def is_random(self) -> bool:
        """Do seeds differ?"""
        system = self.system
        if isinstance(system, RandomConfig):
            drawn = system.embedding != "orthonormal" or system.start_scale > 0
        else:
            drawn = isinstance(system, PlaneConfig) and system.angles is None
        return drawn or self.batch_size is not None
