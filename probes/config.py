"""What the probes of any task can be asked."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from toytf.config.plugins import ProbeConfig


class MemoryRecallProbeConfig(ProbeConfig):
    """How much of each memory that solves the task the learned matrices recall."""

    implementation: ClassVar[str] = "probes.memory_recall:MemoryRecall"
    reads_batch: ClassVar[bool] = False

    kind: Literal["memory_recall"]
    failures: PositiveInt = 10
    """How many failing pairs to name per memory."""


class HeadsProbeConfig(ProbeConfig):
    """Which heads attend to the previous token, to the same token, or to what followed it before."""

    implementation: ClassVar[str] = "probes.heads:Heads"

    kind: Literal["heads"]


class MarginsProbeConfig(ProbeConfig):
    """By how much each memory prefers the right answer, in units of a generic score."""

    implementation: ClassVar[str] = "probes.margins:Margins"
    reads_batch: ClassVar[bool] = False

    kind: Literal["margins"]
    worst: PositiveInt = 10
    """How many of the pairs with the smallest margins to name per memory."""
    best: bool = False
    """Find the largest margin that any matrix reaches on these very vectors, as the ideal. Takes up to seconds."""


class ScoresProbeConfig(ProbeConfig):
    """Where the scores of right answers and of their rivals lie: broad (Hebbian), or narrow, just above the rivals."""

    implementation: ClassVar[str] = "probes.scores:Scores"
    reads_batch: ClassVar[bool] = False

    kind: Literal["scores"]


class SpectrumProbeConfig(ProbeConfig):
    """The singular values of each learned matrix against a Gaussian matrix and a Hebbian one."""

    implementation: ClassVar[str] = "probes.spectrum:Spectrum"
    reads_batch: ClassVar[bool] = False

    kind: Literal["spectrum"]


class UtilisationProbeConfig(ProbeConfig):
    """How many pairs each learned matrix recalls, as a fraction of what a matrix of its size and rank can hold."""

    implementation: ClassVar[str] = "probes.utilisation:Utilisation"
    reads_batch: ClassVar[bool] = False

    kind: Literal["utilisation"]


class AlignmentProbeConfig(ProbeConfig):
    """Each learned matrix beside the ideal one, as scores of its keys and values."""

    implementation: ClassVar[str] = "probes.alignment:Alignment"
    reads_batch: ClassVar[bool] = False

    kind: Literal["alignment"]
    worst: PositiveInt = 10
    """How many of the pairs, or rows of a distribution, that are most wrong to name per memory."""


class TransplantProbeConfig(ProbeConfig):
    """What the model does when learned matrices are replaced by the ideal memories, one at a time and all together."""

    implementation: ClassVar[str] = "probes.transplant:Transplant"

    kind: Literal["transplant"]
    when: Literal["always", "end"] = "end"
    strength: PositiveFloat = 1.0
    """The norm of an ideal matrix, as a multiple of the norm of the learned one it replaces."""


class TruncationProbeConfig(ProbeConfig):
    """What the model does when one of its matrices keeps only its largest singular values, or is removed (LASER)."""

    implementation: ClassVar[str] = "probes.truncation:Truncation"

    kind: Literal["truncation"]
    when: Literal["always", "end"] = "end"
    matrices: tuple[str, ...] = ()
    """Weights by name, such as blocks.1.mlp.W_out, and products, such as blocks.1.attn.W_OV or W_KQ (default: every
    feed-forward weight and every W_OV)."""
    fractions: tuple[Annotated[float, Field(ge=0, le=1)], ...] = (0.0, 0.1, 0.2, 1.0)
    """ρ: which part of the rank to keep, rounded down, but at least one singular value; 0 removes the matrix."""
    ranks: tuple[int, ...] = ()
    """How many singular values to keep, besides the fractions."""
    sequences: PositiveInt = 128
    """How many of the held-out sequences to use: there is one forward for every matrix and every fraction."""
