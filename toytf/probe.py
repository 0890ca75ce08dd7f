"""What a probe is: a measurement of a model on a task that can be read against an ideal and a chance value."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toytf.models.transformer import ToyTransformer
from toytf.task import Batch, Reference, Task


@dataclass(frozen=True)
class ProbeResult:
    """Metrics by name, what each can be read against, and which associations failed, by name.

    draw, if given, makes the probe's own figure, from values it already holds: the model may have changed since.
    """

    metrics: Mapping[str, float]
    references: Mapping[str, Reference] = field(default_factory=dict)
    failures: Mapping[str, list[str]] = field(default_factory=dict)
    draw: Callable[[], Any] | None = None

    def figure(self) -> Any:
        """The probe's own plotly figure, or every metric as a bar beside what it can be read against."""
        if self.draw is not None:
            return self.draw()
        from toytf.figures import metric_bars

        return metric_bars(self.metrics, self.references)


class Probe(ABC):
    """`probe(model, task, batch)` measures; it changes nothing."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def check(self, model: ToyTransformer, task: Task) -> None:  # noqa: B027
        """Refuse a model that the probe cannot be used on, before anything is trained."""

    @abstractmethod
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure the model on a held-out batch of the task."""
