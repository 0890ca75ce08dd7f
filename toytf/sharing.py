"""What the probes of one evaluation compute once: tables and forwards that several of them need."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from torch import nn

P = ParamSpec("P")
T = TypeVar("T")

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
        key = _key(function, args, kwargs)
        if key not in found:
            found[key] = function(*args, **kwargs)
        value: T = found[key]
        return value

    return once


def at_hand(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What a `shared` function has returned for these arguments in this evaluation; None if nobody has called it."""
    found = _found.get() or {}
    return found.get(_key(function.__wrapped__, args, kwargs))  # type: ignore[attr-defined]


def _key(function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    return (function, *map(_as_it_is, args), *((name, _as_it_is(kwargs[name])) for name in sorted(kwargs)))


def _as_it_is(argument: object) -> object:
    """What an argument is recognised by: a model by itself and the versions of its weights."""
    if isinstance(argument, nn.Module):
        return argument, tuple((id(weight), weight._version) for weight in argument.parameters())
    return argument
