"""What the probes can be asked."""

from typing import ClassVar, Literal

from pydantic import PositiveInt

from toytf.plugins import ProbeConfig


class MemoryRecallConfig(ProbeConfig):
    """How much of each memory that solves the task the learned matrices recall."""

    implementation: ClassVar[str] = "probes.memory_recall:MemoryRecall"

    kind: Literal["memory_recall"]
    failures: PositiveInt = 10
    """How many failing pairs to name per memory."""


class AttentionConfig(ProbeConfig):
    """Whether layer 1 attends to the previous token and layer 2 to what followed the trigger before."""

    implementation: ClassVar[str] = "probes.attention:Attention"
    needs_roles: ClassVar[tuple[str, ...]] = ("all", "trigger", "first_seen", "in_context")

    kind: Literal["attention"]


class MarginsConfig(ProbeConfig):
    """By how much each memory prefers the right answer, in units of a generic score."""

    implementation: ClassVar[str] = "probes.margins:Margins"

    kind: Literal["margins"]
    worst: PositiveInt = 10
    """How many of the pairs with the smallest margins to name per memory."""
    best: bool = False
    """Find the largest margin that any matrix reaches on these very vectors, as the ideal. Takes up to seconds."""


class ScoresConfig(ProbeConfig):
    """Where the scores of the right answers and of their rivals lie: broad as Hebb's, or narrow at the cut t*."""

    implementation: ClassVar[str] = "probes.scores:Scores"

    kind: Literal["scores"]


class SpectrumConfig(ProbeConfig):
    """The singular values of each learned matrix against a Gaussian matrix and a Hebbian one."""

    implementation: ClassVar[str] = "probes.spectrum:Spectrum"

    kind: Literal["spectrum"]


class UtilisationConfig(ProbeConfig):
    """How many pairs each learned matrix recalls, as a fraction of what a matrix of its size and rank can hold."""

    implementation: ClassVar[str] = "probes.utilisation:Utilisation"

    kind: Literal["utilisation"]
