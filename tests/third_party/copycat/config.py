"""What the task and the probe can be asked; needs no torch."""

from typing import ClassVar, Literal

from pydantic import Field

from toytf.plugins import ProbeConfig, TaskConfig


class CopyConfig(TaskConfig):
    """Uniform tokens; every position but the first asks for the token before it."""

    implementation: ClassVar[str] = "copycat.previous:CopyTask"
    roles: ClassVar[tuple[str, ...]] = ("all",)

    kind: Literal["copy"]
    n_tokens: int = Field(default=5, ge=2)
    seq_len: int = Field(default=8, ge=2)


class AgreementConfig(ProbeConfig):
    """How often the model says the previous token."""

    implementation: ClassVar[str] = "copycat.previous:Agreement"
    needs_roles: ClassVar[tuple[str, ...]] = ("all",)

    kind: Literal["agreement"]
