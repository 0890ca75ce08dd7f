"""What the study `optimisers` measures of a trained memory: errors, the scheme it stores, and what is learned when."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from toytf.fits import log_slope
from toytf.measurement import Group, Headline, Measurement
from toytf.memory.readout import ReadOut, storage_exponent

_SETTING = "{optimiser} on {model}, lr {lr}, d = {d}, M = {n_outputs}"

ERROR = Group(
    "error", "Error", "Frequency of the inputs that are answered wrongly after the last step; limit is (1 − 1/M) of "
    "what n samples leave unseen.", format="power",
    headline=(
        Headline("*_layer_norm_*", f"error with LayerNorm, {_SETTING}, batch {{batch}}, n = {{samples}}", 1),
        Headline("*", f"error, {_SETTING}, batch {{batch}}, n = {{samples}}"),
        Headline("*", f"error, {_SETTING}, {{batch}}, {{steps}} steps"),
    ),
)  # fmt: skip
LOSS = Group(
    "loss", "Cross-entropy", "Cross-entropy over all inputs by their frequency after the last step, in nats; 0 is "
    "best.", place="full", headline=(),
)  # fmt: skip
STORED = Group(
    "stored", "Inputs recalled", "How many inputs are answered rightly after the last step, each counting once; at "
    "most N.", format="whole",
    headline=(Headline("*", f"inputs recalled, {_SETTING}, batch {{batch}}, n = {{samples}}", 2),
              Headline("*", f"inputs recalled, {_SETTING}, {{batch}}, {{steps}} steps", 2)),
)  # fmt: skip
RHO = Group(
    "rho", "Exponent ρ of the scheme q ∝ frequency^ρ", "1: inputs are stored by their frequency, as one large "
    "step does. 0: all alike.",
    headline=(Headline("counts_*", f"exponent ρ of q ∝ counts^ρ, {_SETTING}, batch {{batch}}"),
              Headline("frequency_*", f"exponent ρ of q ∝ p^ρ, {_SETTING}, {{batch}}, {{steps}} steps")),
    meanings=(
        ("counts_*", "Exponent ρ in q ∝ counts^ρ, with q read back from W; 1 if inputs are stored by how often they "
         "came, 0 if all alike."),
        ("frequency_*", "Exponent ρ in q ∝ p^ρ, with q read back from W; theory takes inputs to be learned one by one, "
         "undisturbed by others."),
    ),
)  # fmt: skip
READ_OUT = Group(
    "read_out", "What the scheme leaves open", "How much of W is no sum of outer products of the vectors, and how many "
    "inputs the fit of ρ has to leave out.", place="full", headline=(),
    meanings=(
        ("residual_*", "Relative part of W that is no sum of outer products u eᵀ; 0 for sgd and muon, most of it for "
         "adam, which goes by signs."),
        ("left_out_*", "Fraction of the inputs seen whose strength q is not above 0, which the fit of ρ leaves out."),
    ),
)  # fmt: skip
SCHEME = Group(
    "scheme", "Scheme q", "How strongly inputs are stored, by octaves of their rank: 1, 2 to 3, 4 to 7 … Theory takes "
    "inputs to be learned undisturbed by others.", format="power", place="full", headline=(),
    meanings=(("*_octave*", "Mean strength q of the inputs of ranks 2^k to 2^(k+1) − 1 that were seen, k being the "
               "number at the end of the name."),),
)  # fmt: skip
BY_FREQUENCY = Group(
    "by_frequency", "Recall by frequency", "Fraction recalled of the inputs of an octave of ranks: 1, 2 to 3, 4 to 7 …",
    place="full", headline=(),
    meanings=(("*_octave*", "Fraction recalled of the inputs of ranks 2^k to 2^(k+1) − 1, k being the number at the "
               "end of the name; the last are the rarest."),),
)  # fmt: skip
CURVE = Group(
    "curve", "Error on the way", "The error after some steps.", place="full", headline=(),
    meanings=(("*_after*", "Frequency of the inputs that are answered wrongly after this many steps."),),
)  # fmt: skip
LEARNED_AT = Group(
    "learned_at", "Learned at step", "The evaluation from which on half of the inputs of an octave of ranks have "
    "the right answer with a probability above 1/2, for good.", format="whole", place="full", headline=(),
    meanings=(("*_octave*", "Steps after which half of the inputs of ranks 2^k to 2^(k+1) − 1 have the right answer "
               "with a probability above 1/2; none if that never comes."),),
)  # fmt: skip
TIME_EXPONENT = Group(
    "time_exponent", "Exponent b in learning time ∝ p^−b", "Exponent b in steps until the right answer has "
    "probability 1/2 ∝ p^−b; 1 by frequency, 0 evenly, over the inputs that were learned.",
    headline=(Headline("*", f"exponent b in learning time ∝ p^−b, {_SETTING}, batch {{batch}}"),),
)  # fmt: skip


LEARNED_LOSS = float(np.log(2))
"""The loss of an input whose right answer has probability 1/2. Rank alone would not do: from W = 0, one step with
orthogonal vectors ranks all answers rightly."""


def octaves(n_inputs: int) -> Int[np.ndarray, "N"]:
    """The octave of every input, by its rank z = 1 … N: ⌊log₂ z⌋."""
    return np.frexp(np.arange(1, n_inputs + 1))[1].astype(np.int64) - 1


def by_octave(
    group: Group, values: Shaped[np.ndarray, "N"], *, chance: float | None = None, theory: np.ndarray | None = None,
    known: Bool[np.ndarray, "N"] | None = None,
) -> Iterator[Measurement]:  # fmt: skip
    """The mean over each octave of the inputs that are known; nothing for an octave without any."""
    octave = octaves(len(values))
    for k in range(int(octave[-1]) + 1):
        own = (octave == k) if known is None else (octave == k) & known
        if own.any():
            predicted = None if theory is None else float(theory[own].mean())
            yield group.measurement(float(values[own].mean()), octave=k, chance=chance, theory=predicted)


def exponents(
    read: ReadOut, q: Float[np.ndarray, "N"], alone: Float[np.ndarray, "N"] | None,
    frequencies: dict[str, Shaped[np.ndarray, "N"]],
) -> Iterator[Measurement]:  # fmt: skip
    """ρ against each kind of frequency; alone: the strengths that inputs would have if each were learned alone."""
    yield READ_OUT.measurement(read.residual, "residual")
    for name, frequency in frequencies.items():
        found = storage_exponent(q, frequency)
        expected = None if alone is None else storage_exponent(alone, frequency).slope
        theory = None if expected is None else expected.value
        yield RHO.measurement(None if found.slope is None else found.slope.value, name, theory=theory)
    yield READ_OUT.measurement(storage_exponent(q, next(iter(frequencies.values()))).left_out, "left_out")


def learning_times(steps: Sequence[int], learned: Sequence[Bool[np.ndarray, "N"]]) -> Float[np.ndarray, "N"]:
    """The first of some steps from which on an input is learned at all later ones; ∞ if it is not at the last."""
    for_good = np.logical_and.accumulate(np.stack(learned)[::-1])[::-1]
    first: Float[np.ndarray, "N"] = np.where(for_good.any(0), np.asarray(steps, float)[for_good.argmax(0)], np.inf)
    return first


def learning_order(
    times: Float[np.ndarray, "N"], p: Float[np.ndarray, "N"], theory: float | None
) -> Iterator[Measurement]:  # fmt: skip
    """When each octave is learned, and how learning times depend on the frequency."""
    octave = octaves(len(times))
    for k in range(int(octave[-1]) + 1):
        half = float(np.median(times[octave == k]))
        yield LEARNED_AT.measurement(half if np.isfinite(half) else None, octave=k)
    learned = np.isfinite(times)
    slope = log_slope(p[learned].tolist(), times[learned].tolist())
    yield TIME_EXPONENT.measurement(None if slope is None else -slope.value, theory=theory)
