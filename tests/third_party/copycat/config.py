"""What the task, the probe and the study can be asked; needs no torch."""

from typing import ClassVar, Literal

from pydantic import Field

from toytf.config.plugins import ProbeConfig, TaskConfig
from toytf.experiments.seeded import SeededConfig


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


class CoincidenceConfig(SeededConfig):
    """How often a token is the one before by chance, by the number of tokens."""

    implementation: ClassVar[str] = "copycat.coincidence:Coincidence"

    experiment: Literal["coincidence"]
    n_tokens: tuple[int, ...] = (2, 4, 8)
    samples: int = Field(default=4096, ge=1)
