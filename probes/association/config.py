"""What the probes of the task `association` can be asked."""

from typing import ClassVar, Literal

from pydantic import PositiveInt

from toytf.config.plugins import ProbeConfig, TaskConfig
from toytf.errors import UserError
from toytf.measurement import Section


class PopulationProbeConfig(ProbeConfig):
    """The exact error and loss over all inputs, and how margins depend on frequency."""

    implementation: ClassVar[str] = "probes.association.population:PopulationProbe"
    section: ClassVar[Section] = "memories"

    kind: Literal["population"]
    failures: PositiveInt = 10
    """How many inputs that are answered wrong to name, the most frequent first."""

    def check_fits(self, task: TaskConfig) -> None:
        """Refuse another task."""
        if task.kind != "association":
            raise UserError(f'probe "{self.kind}" needs the task association, got {task.kind}')
