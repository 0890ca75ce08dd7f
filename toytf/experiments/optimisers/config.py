"""The config of the experiment `optimisers`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from toytf.config.sections import Config, Unique
from toytf.experiments.seeded import SeededConfig, with_float64

Fraction = Annotated[float, Field(ge=0, lt=1)]
NO_MEMORY = (0.0, 0.0)

WORKED_ON, HELD = 2**21, 2**24
"""Numbers of all seeds that are trained at once: those of a step, which should fit in a fast cache, and all."""


class LateConfig(Config):
    """Smaller steps later on."""

    after: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """The fraction of the steps that are taken before."""
    factor: Annotated[float, Field(gt=0)] = 0.03
    """What the learning rate is multiplied with from then on."""


class OptimisersConfig(SeededConfig):
    """Which scheme each optimiser stores in a memory: one pass over a stream of inputs, and the exact error."""

    implementation: ClassVar[str] = "toytf.experiments.optimisers.experiment:Optimisers"

    experiment: Literal["optimisers"]
    optimisers: Annotated[tuple[Literal["sgd", "normalised", "adam", "muon"], ...], Unique] = Field(
        default=("sgd",), min_length=1
    )
    """sgd: lr times the gradient. normalised: the gradient scaled to the length lr. adam: steps of lr/d for entries of
    W, and lr/√d for those of vectors that are trained. muon: orthogonalised, of spectral norm lr; vectors by adam."""
    learning_rates: Annotated[tuple[PositiveFloat, ...], Unique] = Field(default=(1.0,), min_length=1)
    dimensions: Annotated[tuple[PositiveInt, ...], Unique] = Field(default=(100,), min_length=1)
    batches: Annotated[tuple[PositiveInt | Literal["all", "population"], ...], Unique] = Field(
        default=(64,), min_length=1
    )
    """Samples of a step; the last step may have fewer. all: one step on all samples. population: no samples, but all
    inputs by their frequencies, for `steps` steps."""
    samples: Annotated[tuple[PositiveInt, ...], Unique] = ()
    """n: samples of the stream, each used once, the first of the same draws for all n. population needs none."""
    steps: PositiveInt | None = None
    """Steps with batches: [population]."""
    models: Annotated[tuple[Literal["matrix", "learnable", "exponential"], ...], Unique] = Field(
        default=("matrix",), min_length=1
    )
    """matrix: scores u_yᵀ W e_z, with W trained. learnable: vectors are trained, too. exponential: u_yᵀ relu(e_z), with
    vectors trained."""
    layer_norm: Annotated[tuple[bool, ...], Unique] = Field(default=(False,), min_length=1)
    """true: W e_z, or relu(e_z), is divided by its length."""
    n_inputs: PositiveInt = 100
    """N: inputs z, of frequency p(z) ∝ z^−α."""
    n_outputs: Annotated[tuple[PositiveInt | Literal["n_inputs"], ...], Unique] = Field(default=(5,), min_length=1)
    """M: answers, f(z) = z mod M. n_inputs: every input has an answer of its own. Names of metrics have M only if it
    varies."""
    alpha: Annotated[float, Field(ge=0, le=20)] = 2.0
    """α: 0 is uniform."""
    distribution: Literal["gaussian", "sphere"] = "gaussian"
    """Of the vectors: independent entries N(0, 1/d), or of length 1."""
    start: Literal["zeros", "random"] = "zeros"
    """Initial W: 0, or independent entries N(0, 1/d)."""
    betas: tuple[Fraction, Fraction] = NO_MEMORY
    """Of adam. Without memory it goes by the sign of the gradient."""
    momentum: Fraction = 0.0
    """Of muon."""
    late: LateConfig | None = None
    """Smaller steps later on; null: the learning rate stays."""
    evaluations: PositiveInt = 1
    """Looks on the way, evenly spaced in log steps: for curves, and for when each input is learned. 1: at the end."""
    inside: bool = True
    """Look into the memories: the scheme, the spectrum, recall by frequency. false: errors only, for large grids."""
    precision: Literal["float32", "float64"] = "float32"

    @model_validator(mode="after")
    def _parts_fit(self) -> "OptimisersConfig":
        drawn = [batch for batch in self.batches if batch != "population"]
        if drawn and not self.samples:
            raise ValueError("samples is missing: say how many inputs a training sees, such as samples: [1024]")
        if self.samples and not drawn:
            raise ValueError("samples is given, but batches: [population] draws none: leave it out")
        for batch in drawn:
            if isinstance(batch, int) and batch > min(self.samples):
                raise ValueError(
                    f"batches: {batch} is more than samples = {min(self.samples)}: a step cannot have more samples "
                    "than there are"
                )
        if "population" in self.batches and self.steps is None:
            raise ValueError("steps is missing: batches: [population] needs a number of steps")
        if "population" not in self.batches and self.steps is not None:
            raise ValueError(
                f"steps = {self.steps} is for batches: [population]; otherwise it is samples divided by the batch"
            )
        if "muon" in self.optimisers and "exponential" in self.models:
            raise ValueError('muon trains the matrix W, which the model "exponential" does not have: use adam for it')
        if True in self.layer_norm and self.start == "zeros" and set(self.models) != {"exponential"}:
            raise ValueError("layer_norm: [true] needs start: random: W = 0 has no direction to be normalised")
        adam_helps_muon = "muon" in self.optimisers and "learnable" in self.models
        if self.betas != NO_MEMORY and "adam" not in self.optimisers and not adam_helps_muon:
            raise ValueError(f"betas = {list(self.betas)} has an effect only with the optimiser adam")
        if self.momentum and "muon" not in self.optimisers:
            raise ValueError(f"momentum = {self.momentum} has an effect only with the optimiser muon")
        if self.late is not None and set(self.batches) == {"all"}:
            raise ValueError("late has no effect with batches: [all], which is a single step")
        answers = self.answers
        if len(set(answers)) < len(answers):
            raise ValueError(f"n_outputs: {self.n_inputs} is listed twice, once as n_inputs")
        return self

    @property
    def computed_on(self) -> str:
        """The device, or the CPU for numbers that it does not have."""
        return with_float64(self.device) if self.precision == "float64" else self.device

    @property
    def answers(self) -> list[int]:
        """The numbers of answers."""
        return [self.n_inputs if M == "n_inputs" else M for M in self.n_outputs]

    def seeds_at_once(self, d: int, n_outputs: int, batch: int) -> int:
        """How many seeds of a case are trained together; batch: samples of a step, 0 for the population."""
        N = self.n_inputs
        rows = min(N, batch or N)
        together = min(WORKED_ON // (d * d + rows * (d + n_outputs)), HELD // (d * d + N * (d + n_outputs)))
        return max(1, min(len(self.seeds), together))

    def needs(self) -> float:
        """The largest matrix and the scores of all inputs: filling memory with these takes long."""
        N, d = self.n_inputs, max(self.dimensions)
        return 4.0 * (d * d + N * (d + max(self.answers)))
