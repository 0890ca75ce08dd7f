"""The driver: one loop under every training of a model, and where anything may come between its steps."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from toytf.errors import Interrupted
from toytf.optimizers import Moments
from toytf.process import keep_freed_memory
from toytf.runs.checkpoints import Progress
from toytf.stopping import stop_asked
from toytf.training.config import TrainConfig
from toytf.training.freezing import freeze, trainable_ever
from toytf.training.learner import Learner, SeedLearner, StackedLearner, build_optimizer
from toytf.updates import updates

Standing = tuple[dict[str, Moments], Progress]
"""Where a training stands: what the optimiser remembers of each parameter, and how far it is."""

Callback = Callable[[int], object]
"""Is given the number of steps taken so far."""


class Trainer:
    """A training between two steps: what learns, its optimiser, how far it is, and the sum of its losses."""

    def __init__(self, learner: Learner, config: TrainConfig) -> None:
        keep_freed_memory()
        self.learner, self.config = learner, config
        ever = trainable_ever(learner.model_config, learner.parameters, config.steps) or set(learner.parameters)
        self.optimizer = build_optimizer(learner, [p for name, p in learner.parameters.items() if name in ever])
        device = next(iter(learner.parameters.values())).device
        self.step, self.loss_sum, self.loss_count = 0, torch.zeros(len(learner.members), device=device), 0
        freeze(learner.model_config, learner.parameters, self.step)

    def go_on_from(self, found: Sequence[Standing]) -> None:
        """Stand where the members stood, all after the same steps; the checkpoints have put their weights back."""
        self.learner.remember(self.optimizer, [moments for moments, _ in found])
        at = [progress for _, progress in found]
        self.step, self.loss_count = at[0].step, at[0].loss_count
        self.loss_sum = torch.cat([progress.loss_sum for progress in at])
        freeze(self.learner.model_config, self.learner.parameters, self.step)

    def standing(self, member: int, rows: int) -> Standing:
        """Where a member stands, with so many rows written: what `go_on_from` needs of it."""
        progress = Progress(self.step, rows, self.loss_sum[member : member + 1], self.loss_count)
        return self.learner.moments(self.optimizer, member), progress

    def of(self, members: Sequence[int]) -> "Trainer":
        """A training of some members of this stack, which goes on from where they stand."""
        trainer = Trainer(StackedLearner([self.learner.members[i] for i in members]), self.config)
        trainer.go_on_from([self.standing(i, 0) for i in members])
        return trainer

    def take_losses(self) -> list[float | None]:
        """The mean loss of every member since the last call; None before any step."""
        means = [total / self.loss_count if self.loss_count else None for total in self.loss_sum.tolist()]
        self.loss_sum, self.loss_count = torch.zeros_like(self.loss_sum), 0
        return means

    def diverged(self) -> list[str | None]:
        """What of every member is not finite, the first of its weights or else its loss; None: all is."""
        finite = self.loss_sum.isfinite().tolist()
        return [
            not_finite(member) or (None if own else "train/loss")
            for member, own in zip(self.learner.members, finite, strict=True)
        ]

    def backward(self, step: int) -> Tensor:
        """The gradients of a step, for what trains by then."""
        if step in self.learner.model_config.unfreeze:
            freeze(self.learner.model_config, self.learner.parameters, self.step)
        return self.learner.backward(step)


def not_finite(learner: SeedLearner) -> str | None:
    """The first parameter that is not finite."""
    finite = torch.stack([parameter.detach().isfinite().all() for parameter in learner.parameters.values()]).tolist()
    return None if all(finite) else [*learner.parameters][finite.index(False)]


def _stopped(step: int) -> None:
    raise Interrupted("stopped")


def drive(
    trainer: Trainer,
    until: int | None = None,
    *,
    before_gradient: Sequence[Callback] = (),
    after_gradient: Sequence[Callback] = (),
    after_step: Sequence[Callback] = (),
    looks: Sequence[tuple[Callable[[int], bool], Callback]] = (),
    stop_when: Callable[[int], bool] = lambda step: False,
    interrupted: Callback = _stopped,
) -> None:
    """Take the steps that are left, or those up to `until`.

    Only looks may wait for the device: each comes after those steps of which its condition is true, in this order.
    stop_when: is this the last step? It is asked after the looks. interrupted: is called if a Ctrl-C was there by then.
    """

    def backward(step: int) -> Tensor:
        for call in before_gradient:
            call(step)
        losses = trainer.backward(step)
        for call in after_gradient:
            call(step)
        return losses

    until = trainer.config.steps if until is None else until
    for step, losses in updates(trainer.optimizer, backward, until, trainer.step):
        trainer.step = step
        trainer.loss_sum += losses
        trainer.loss_count += 1
        for call in after_step:
            call(step)
        for due, look in looks:
            if due(step):
                look(step)
        if stop_asked():
            interrupted(step)
        if stop_when(step):
            return


def every(n: int, last: int) -> Callable[[int], bool]:
    """Is this a multiple of n, or the last step?"""
    return lambda step: step % n == 0 or step == last
