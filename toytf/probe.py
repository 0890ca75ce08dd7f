"""What a probe is: a measurement of a model on a task that can be read against an ideal and a chance value."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from torch import nn

from toytf.measurement import Measurement, Quantity, Reference, as_row
from toytf.models.transformer import ToyTransformer
from toytf.task import Batch, Task

P = ParamSpec("P")
T = TypeVar("T")


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

    def check_resumed(self, known: Mapping[str, Quantity]) -> None:  # noqa: B027
        """Refuse to continue a run whose metrics, given by flat name, an earlier version named in another way."""

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


_found: ContextVar[dict[object, Any] | None] = ContextVar("found", default=None)
"""What `shared` functions have returned in this evaluation; None outside of one."""


@contextmanager
def sharing() -> Iterator[None]:
    """One evaluation: until its end, `shared` functions remember what they return. One within another is part of it."""
    if _found.get() is not None:
        yield
        return
    outside = _found.set({})
    try:
        yield
    finally:
        _found.reset(outside)


def shared(function: Callable[P, T]) -> Callable[P, T]:
    """Let the probes of one evaluation share what a function computes: it is called once for the same arguments.

    Models, tasks and batches are the same if they are the same object, and a model only as long as nobody writes into
    its weights; other arguments, such as numbers, if they are equal. Outside of an evaluation nothing is kept. Who gets
    a shared value must not change it.
    """

    @wraps(function)
    def once(*args: P.args, **kwargs: P.kwargs) -> T:
        found = _found.get()
        if found is None:
            return function(*args, **kwargs)
        key = (function, *map(_as_it_is, args), *((name, _as_it_is(kwargs[name])) for name in sorted(kwargs)))
        if key not in found:
            found[key] = function(*args, **kwargs)
        value: T = found[key]
        return value

    return once


def _as_it_is(argument: object) -> object:
    """What an argument is recognised by: a model by itself and the versions of its weights."""
    if isinstance(argument, nn.Module):
        return argument, tuple((id(weight), weight._version) for weight in argument.parameters())
    return argument
