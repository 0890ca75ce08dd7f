"""What a probe is: a measurement of a model on a task that can be read against an ideal and a chance value.

Most look at one model. A `CourseProbe` looks at a whole training: at the model of every checkpoint, and the losses.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Any

from toytf.measurement import KINDS, Measurement, Quantity, Reference, as_row, flat
from toytf.models.transformer import ToyTransformer
from toytf.sharing import shared, sharing
from toytf.task import EVAL, Batch, Task

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Course", "CourseProbe", "Probe", "ProbeResult", "losses_of", "shared", "sharing"]

NAMED = 5
"""Failures of a metric that a notebook names."""


@dataclass(frozen=True)
class ProbeResult:
    """What a probe has measured, and which associations failed, by the flat name of a metric.

    draw, if given, makes the probe's own figure, from values it already holds: the model may have changed since.
    details are further figures, by name; the config of the probe lists their names (`ProbeConfig.details`).
    """

    measurements: Sequence[Measurement] = ()
    failures: Mapping[str, list[str]] = field(default_factory=dict)
    draw: Callable[[], Any] | None = None
    details: Mapping[str, Callable[[], Any]] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """Values by flat name."""
        return as_row(self.measurements, references=False)

    @property
    def references(self) -> dict[str, Reference]:
        """What each can be read against, by flat name."""
        return {measured.flat: measured.reference for measured in self.measurements}

    @property
    def table(self) -> "pd.DataFrame":
        """A row a metric: its value, and what it can be read against."""
        import pandas as pd

        levels = {kind: [getattr(one.reference, kind) for one in self.measurements] for kind in KINDS}
        columns = {"measured": [one.value for one in self.measurements], **levels}
        table = pd.DataFrame(columns, index=[one.flat for one in self.measurements], dtype=float)
        return table.dropna(axis=1, how="all")

    def _repr_html_(self) -> str:
        worst = [f"<li>{escape(pair)}</li>" for pairs in self.failures.values() for pair in pairs[:NAMED]]
        return self.table.to_html(float_format="{:.3f}".format, na_rep="–") + (
            f"<p>Worst:</p><ul>{''.join(worst)}</ul>" if worst else ""
        )

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

    def at_every_evaluation(self, task: Task) -> bool:
        """Is it due at every evaluation of a training on this task, or only after the last step?"""
        due: bool = self.config.when == "always"
        return due

    @abstractmethod
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure the model on a held-out batch of the task."""

    def glance(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """What is measured at the evaluations before the last: by default all; a slow probe measures less."""
        return self(model, task, batch)


@dataclass(frozen=True, eq=False)
class Course:
    """The training of one seed, from its first checkpoint to its last or to a step that was chosen."""

    models: Callable[[], Iterable[tuple[int, ToyTransformer]]]
    """Goes through the checkpoints in the order of steps, with the model of each, one after the other."""
    losses: Mapping[int, float] = field(default_factory=dict)
    """The loss that is trained on, by step, as evaluated on held-out sequences."""
    plain: bool = False
    """Was every step one along the gradient, without momentum or weight decay?"""

    def then(self, step: int, model: ToyTransformer, losses: Mapping[int, float]) -> "Course":
        """The same with one more step, at which the model is as it is now."""
        return replace(self, models=lambda: chain(self.models(), [(step, model)]), losses={**self.losses, **losses})


def losses_of(role: str, rows: Iterable[Mapping[str, float | int]]) -> dict[int, float]:
    """The loss of a role in rows of metrics.jsonl, by step."""
    name = flat(Quantity(EVAL, at={"role": role, "quantity": "loss"}))
    return {int(row["step"]): row[name] for row in rows if name in row}


class CourseProbe(Probe):
    """A probe of a whole training. It is due once, after the last step."""

    def at_every_evaluation(self, task: Task) -> bool:
        """Never: the training is not over."""
        return False

    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """What can be said of one model: a training without a step."""
        return self.over(Course(lambda: [(0, model)]), task)

    @abstractmethod
    def over(self, course: Course, task: Task) -> ProbeResult:
        """Measure a training on the task."""
