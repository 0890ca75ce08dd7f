"""The config of the experiment `scaling`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from toytf.config.sections import Unique
from toytf.experiments.seeded import SeededConfig
from toytf.memory.schemes import Scheme

Alpha = Annotated[float, Field(ge=0, le=20)]


class ScalingConfig(SeededConfig):
    """How the error of a memory falls with its dimension and the samples, by how strongly inputs are stored."""

    implementation: ClassVar[str] = "toytf.experiments.scaling.experiment:Scaling"

    experiment: Literal["scaling"]
    n_inputs: Annotated[tuple[PositiveInt, ...], Unique] = Field(default=(1000,), min_length=1)
    """N: inputs z, of frequency p(z) ∝ z^−α."""
    n_outputs: Annotated[tuple[PositiveInt | Literal["n_inputs"], ...], Unique] = Field(default=(5,), min_length=1)
    """M: answers, f(z) = z mod M. n_inputs: every input has an answer of its own."""
    alphas: Annotated[tuple[Alpha, ...], Unique] = Field(default=(2.0,), min_length=1)
    """α: 0 is uniform. The laws are for α > 1; at most 1 there are none to compare with."""
    dimensions: Annotated[tuple[PositiveInt, ...], Unique] = Field(
        default=(10, 18, 32, 56, 100, 178, 316, 562, 1000), min_length=1
    )
    samples: Annotated[tuple[NonNegativeInt | Literal["infinite"], ...], Unique] = Field(
        default=("infinite",), min_length=1
    )
    """n: how many inputs are drawn before they are stored, the first of the same draws for all n. infinite: all are
    stored by their frequencies. 0: nothing is stored, and everything is a tie, which is an error."""
    schemes: Annotated[tuple[Scheme, ...], Unique] = Field(min_length=1)
    """How strongly inputs are stored: counts, seen, at_least (count), top (share, squared), power (rho)."""
    distribution: Literal["gaussian", "sphere"] = "gaussian"
    """Of the vectors, at every dimension."""
    fit_dimensions_from: PositiveInt = 50
    """The smallest dimension that counts for the power of d."""
    fit_samples_from: PositiveInt = 100
    """The smallest number of samples that counts for the power of n."""

    def answers_of(self, n_inputs: int) -> list[int]:
        """The numbers of answers for so many inputs, each once."""
        return [*dict.fromkeys(n_inputs if M == "n_inputs" else M for M in self.n_outputs)]

    @property
    def finite_samples(self) -> list[int]:
        """The numbers of samples that are finite, in ascending order."""
        return sorted(n for n in self.samples if n != "infinite")
