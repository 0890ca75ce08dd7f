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
