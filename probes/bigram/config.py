"""What the probes of bigram induction can be asked."""

from typing import ClassVar, Literal

from toytf.config.plugins import ProbeConfig, TaskConfig
from toytf.errors import UserError


class AttentionProbeConfig(ProbeConfig):
    """Whether layer 1 attends to the previous token, and layer 2 to what followed the trigger earlier."""

    implementation: ClassVar[str] = "probes.bigram.attention:AttentionProbe"
    needs_roles: ClassVar[tuple[str, ...]] = ("all", "trigger", "first_seen", "in_context")

    kind: Literal["attention"]


class NoiseProbeConfig(ProbeConfig):
    """Whether the model, its feed-forward part and the attention of layer 2 follow the noise or the output."""

    implementation: ClassVar[str] = "probes.bigram.noise:Noise"
    needs_roles: ClassVar[tuple[str, ...]] = ("all", "in_context")

    kind: Literal["noise"]

    def check_fits(self, task: TaskConfig) -> None:
        """Refuse a task without noise."""
        super().check_fits(task)
        if getattr(task, "noise", None) is None:
            raise UserError('probe "noise" needs a task with noise, such as task.noise.probability = 0.5')
