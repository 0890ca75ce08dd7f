"""What the probes can be asked."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from toytf.errors import UserError
from toytf.plugins import ProbeConfig, TaskConfig


class MemoryRecallConfig(ProbeConfig):
    """How much of each memory that solves the task the learned matrices recall."""

    implementation: ClassVar[str] = "probes.memory_recall:MemoryRecall"
    reads_batch: ClassVar[bool] = False

    kind: Literal["memory_recall"]
    failures: PositiveInt = 10
    """How many failing pairs to name per memory."""


class AttentionConfig(ProbeConfig):
    """Whether layer 1 attends to the previous token and layer 2 to what followed the trigger before."""

    implementation: ClassVar[str] = "probes.attention:Attention"
    needs_roles: ClassVar[tuple[str, ...]] = ("all", "trigger", "first_seen", "in_context")

    kind: Literal["attention"]


class HeadsConfig(ProbeConfig):
    """Which heads attend to the previous token, to the same token, or to what followed it before."""

    implementation: ClassVar[str] = "probes.heads:Heads"

    kind: Literal["heads"]


class MarginsConfig(ProbeConfig):
    """By how much each memory prefers the right answer, in units of a generic score."""

    implementation: ClassVar[str] = "probes.margins:Margins"
    reads_batch: ClassVar[bool] = False

    kind: Literal["margins"]
    worst: PositiveInt = 10
    """How many of the pairs with the smallest margins to name per memory."""
    best: bool = False
    """Find the largest margin that any matrix reaches on these very vectors, as the ideal. Takes up to seconds."""


class ScoresConfig(ProbeConfig):
    """Where the scores of right answers and of their rivals lie: broad (Hebbian), or narrow, just above the rivals."""

    implementation: ClassVar[str] = "probes.scores:Scores"
    reads_batch: ClassVar[bool] = False

    kind: Literal["scores"]


class SpectrumConfig(ProbeConfig):
    """The singular values of each learned matrix against a Gaussian matrix and a Hebbian one."""

    implementation: ClassVar[str] = "probes.spectrum:Spectrum"
    reads_batch: ClassVar[bool] = False

    kind: Literal["spectrum"]


class UtilisationConfig(ProbeConfig):
    """How many pairs each learned matrix recalls, as a fraction of what a matrix of its size and rank can hold."""

    implementation: ClassVar[str] = "probes.utilisation:Utilisation"
    reads_batch: ClassVar[bool] = False

    kind: Literal["utilisation"]


class AlignmentConfig(ProbeConfig):
    """Each learned matrix beside the ideal one, as scores of its keys and values."""

    implementation: ClassVar[str] = "probes.alignment:Alignment"
    reads_batch: ClassVar[bool] = False

    kind: Literal["alignment"]
    worst: PositiveInt = 10
    """How many of the pairs, or rows of a distribution, that are most wrong to name per memory."""


class TransplantConfig(ProbeConfig):
    """What the model does when learned matrices are replaced by the ideal memories, one at a time and all together."""

    implementation: ClassVar[str] = "probes.transplant:Transplant"

    kind: Literal["transplant"]
    when: Literal["always", "end"] = "end"
    strength: PositiveFloat = 1.0
    """The norm of an ideal matrix, as a multiple of the norm of the learned one it replaces."""


class NoiseConfig(ProbeConfig):
    """Whether the model predicts the noise or the output, what its feed-forward part says, and where layer 2 looks."""

    implementation: ClassVar[str] = "probes.noise:Noise"
    needs_roles: ClassVar[tuple[str, ...]] = ("all", "in_context")

    kind: Literal["noise"]

    def check_fits(self, task: TaskConfig) -> None:
        """Refuse a task without noise."""
        super().check_fits(task)
        if getattr(task, "noise", None) is None:
            raise UserError('probe "noise" needs a task with noise, such as task.noise.probability = 0.5')


class TruncationConfig(ProbeConfig):
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


MANY_FACTS = 2048
"""Beyond so many facts the probes of factual recall are done at the end only, if nothing else is said."""


class _FactProbeConfig(ProbeConfig):
    """What the probes of factual recall share: they ask for every fact among fresh noise."""

    needs_roles: ClassVar[tuple[str, ...]] = ("fact", "relation", "within_set")

    when: Literal["auto", "always", "end"] = "auto"  # type: ignore[assignment]  # one choice more
    """At every evaluation of a training (always), only after its last step (end), or at every evaluation if there are
    at most 2,048 facts, and else only after the last step (auto)."""
    repeats: PositiveInt = 8
    """In how many sequences to ask for each fact."""


class FactsConfig(_FactProbeConfig):
    """Which facts are known, each asked for as often as any other."""

    implementation: ClassVar[str] = "probes.facts:Facts"

    kind: Literal["facts"]
    when: Literal["always", "end"] = "always"
    """At every evaluation of a training, or only after its last step."""
    failures: PositiveInt = 10
    """How many wrong facts to name."""


class OwnershipConfig(_FactProbeConfig):
    """Which head attends to which subject and relation, and whether by the key vector of the construction."""

    implementation: ClassVar[str] = "probes.ownership:Ownership"

    kind: Literal["ownership"]


class ValueMemoryConfig(_FactProbeConfig):
    """Which answers the values of subjects and relations say by themselves."""

    implementation: ClassVar[str] = "probes.value_memory:ValueMemory"

    kind: Literal["value_memory"]
    failures: PositiveInt = 10
    """How many wrong facts to name."""


class AdditivityConfig(_FactProbeConfig):
    """How much of the logits is a sum of what subject and relation say, and what that sum knows."""

    implementation: ClassVar[str] = "probes.additivity:Additivity"

    kind: Literal["additivity"]
    failures: PositiveInt = 10
    """How many facts that the sum misses to name."""


class FactStorageConfig(_FactProbeConfig):
    """Whether facts are stored in attention or in the feed-forward part."""

    implementation: ClassVar[str] = "probes.fact_storage:FactStorage"

    kind: Literal["fact_storage"]


class PairMemoryConfig(_FactProbeConfig):
    """The feed-forward part as a memory of pairs: against least squares, and with the relation exchanged."""

    implementation: ClassVar[str] = "probes.pair_memory:PairMemory"

    kind: Literal["pair_memory"]
    failures: PositiveInt = 10
    """How many facts that least squares misses to name."""


class ValueAlignmentConfig(_FactProbeConfig):
    """The values of subjects and relations beside those of the construction."""

    implementation: ClassVar[str] = "probes.value_alignment:ValueAlignment"

    kind: Literal["value_alignment"]


class FactRatiosConfig(_FactProbeConfig):
    """Facts and bits per parameter, and which theorem says that the model is large enough."""

    implementation: ClassVar[str] = "probes.fact_ratios:FactRatios"
    reads_batch: ClassVar[bool] = False

    kind: Literal["fact_ratios"]
    when: Literal["always", "end"] = "end"
    """At every evaluation of a training, or only after its last step."""
