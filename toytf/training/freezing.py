"""Which parameters train at which step."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from torch import nn

from toytf.errors import UserError, nearest
from toytf.models.config import ModelConfig


def freeze(config: ModelConfig, parameters: Mapping[str, nn.Parameter], step: int) -> None:
    """Let those parameters have gradients that the update after `step` steps changes, and no others."""
    trainable = trainable_at(config, parameters, step)
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in trainable)


def trainable_at(config: ModelConfig, names: Iterable[str], step: int) -> set[str]:
    """The parameters that the update after `step` steps changes: all but the frozen, plus the unfrozen so far."""
    names = tuple(names)
    at_start = _matching("model.freeze", config.freeze, names)
    frozen = set(at_start)
    for start, patterns in config.unfreeze.items():
        released = _matching(f"model.unfreeze.{start}", patterns, names)
        if released - at_start:
            raise UserError(f"model.unfreeze.{start}: {min(released - at_start)} is not frozen by model.freeze")
        if step >= start:
            frozen -= released
    return set(names) - frozen


def trainable_ever(config: ModelConfig, names: Iterable[str], steps: int) -> set[str]:
    """The parameters that change at some time of a training of so many steps; there must be one if there are steps."""
    names = tuple(names)
    starts = {0, *(step for step in config.unfreeze if step < steps)}
    found = set[str]().union(*(trainable_at(config, names, step) for step in starts))
    if steps and not found:
        raise UserError("model.freeze leaves nothing to train: leave a parameter out of it, or set train.steps = 0")
    if steps and not trainable_at(config, names, 0):
        raise UserError(
            f"model.freeze leaves nothing to train before step {min(starts - {0})}: leave a parameter out of it"
        )
    return found


def _matching(field: str, patterns: Iterable[str], names: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            raise UserError(
                f'{field}: "{pattern}" does not match any parameter of this model: {nearest(pattern, names)}'
            )
        found |= matched
    return found
