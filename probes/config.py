"""What the probes of any task can be asked."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from toytf.config.plugins import ProbeConfig
from toytf.config.sections import Unique
from toytf.measurement import Section


class MemoryRecallProbeConfig(ProbeConfig):
    """How much the learned matrices recall of each memory that solves the task."""

    implementation: ClassVar[str] = "probes.memory_recall:MemoryRecall"
    reads_batch: ClassVar[bool] = False

    kind: Literal["memory_recall"]
    failures: PositiveInt = 10
    """How many failing pairs to name per memory."""


class HeadsProbeConfig(ProbeConfig):
    """Which heads attend to the previous token, to an earlier copy of the token, or to what followed that copy."""

    implementation: ClassVar[str] = "probes.heads:Heads"
    section: ClassVar[Section] = "attention"

    kind: Literal["heads"]


class LimitsProbeConfig(ProbeConfig):
    """How many pairs each learned matrix recalls, compared with the best matrix, the Hebbian one and the capacity."""

    implementation: ClassVar[str] = "probes.limits:LimitsProbe"
    reads_batch: ClassVar[bool] = False
    by_default: ClassVar[bool] = True
    section: ClassVar[Section] = "memories"
    details: ClassVar[tuple[str, ...]] = ("margins", "scores", "spectrum")

    kind: Literal["limits"]
    worst: PositiveInt = 10
    """How many of the pairs with the smallest margins to name per memory."""


class AlignmentProbeConfig(ProbeConfig):
    """Each learned matrix compared with the ideal one, as scores of keys and values."""

    implementation: ClassVar[str] = "probes.alignment:Alignment"
    section: ClassVar[Section] = "memories"
    reads_batch: ClassVar[bool] = False

    kind: Literal["alignment"]
    worst: PositiveInt = 10
    """How many of the worst pairs, or rows of a distribution, to name per memory."""


class TransplantProbeConfig(ProbeConfig):
    """Accuracy when learned parts are replaced by ideal ones, one at a time and all together."""

    implementation: ClassVar[str] = "probes.transplant:Transplant"

    kind: Literal["transplant"]
    when: Literal["always", "end"] = "end"
    strength: PositiveFloat = 1.0
    """The size of an ideal part, as a multiple of that of the learned one it replaces."""
    rules: (
        Annotated[tuple[Literal["hebbian", "least_squares", "construction"], ...], Unique, Field(min_length=1)] | None
    ) = None
    """How ideal parts are made (default: in every way that the task has and the model can take). hebbian: sums of outer
    products; least_squares: the same with dual vectors, which remove crosstalk; construction: of facts only, the parts
    that `model.init: ideal` writes."""


class TruncationProbeConfig(ProbeConfig):
    """Accuracy when one matrix keeps only its largest singular values, or is removed (LASER)."""

    implementation: ClassVar[str] = "probes.truncation:Truncation"
    section: ClassVar[Section] = "interventions"

    kind: Literal["truncation"]
    when: Literal["always", "end"] = "end"
    matrices: tuple[str, ...] = ()
    """Weights by name, such as blocks.1.mlp.W_out, and products, such as blocks.1.attn.W_OV or W_KQ (default: every
    feed-forward weight and every W_OV)."""
    fractions: tuple[Annotated[float, Field(ge=0, le=1)], ...] = (0.0, 0.1, 0.2, 1.0)
    """ρ: fractions of the rank to keep, rounded down to at least one singular value; 0 removes the matrix."""
    ranks: tuple[int, ...] = ()
    """Numbers of singular values to keep, in addition to the fractions."""
    sequences: PositiveInt = 128
    """How many held-out sequences to use: every matrix and fraction takes one forward pass."""


class AblationProbeConfig(ProbeConfig):
    """Accuracy when one head or feed-forward part is taken out: put at its mean over the sequences, or at zero."""

    implementation: ClassVar[str] = "probes.ablation:Ablation"

    kind: Literal["ablation"]
    when: Literal["always", "end"] = "end"
    sequences: PositiveInt = 128
    """How many held-out sequences to use, for the means too; every head and feed-forward part takes two forwards."""


class MarginsOverTimeProbeConfig(ProbeConfig):
    """How the margins of each learned matrix grew over all checkpoints of a training, and the spikes of its loss."""

    implementation: ClassVar[str] = "probes.margins_over_time:MarginsOverTime"
    reads_batch: ClassVar[bool] = False
    section: ClassVar[Section] = "memories"

    kind: Literal["margins_over_time"]
    when: Literal["end"] = "end"
    """Only after the last step: it looks at the whole training."""
    since: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """The slope against the logarithm of the step is fitted from this fraction of the steps on."""
    delta: PositiveFloat = 0.1
    """A loss that is higher than the best before by this fraction of it is part of a spike."""
    keys: PositiveInt = 5
    """How many keys of each memory the figure shows, from the most to the least frequent."""
    worst: PositiveInt = 10
    """How many of the pairs that were lost most often to name per memory."""
