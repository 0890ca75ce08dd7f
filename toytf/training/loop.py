"""The training loop: steps, evaluations, checkpoints, and every way a training can end."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from toytf.errors import Interrupted, RunFailed, UserError
from toytf.rows import MetricsFile, Row
from toytf.training.checkpoints import CheckpointStore, Progress
from toytf.training.config import TrainConfig
from toytf.training.freezing import trainable_at, trainable_ever
from toytf.training.learner import Learner, build_optimizer


@dataclass(frozen=True)
class Watch:
    """What looks on while a training runs: told of every step, evaluation and row, asked whether to stop."""

    stepped: Callable[[int], None]
    measured: Sequence[Callable[[Row], None]]
    stopping: Callable[[], bool]
    evaluating: Callable[[], None] = lambda: None


def training_step(learner: Learner, optimizer: torch.optim.Optimizer, step: int, loss_sum: Tensor) -> None:
    """One update; adds the loss of every seed to `loss_sum` on the device. Nothing here waits for the device."""
    optimizer.zero_grad(set_to_none=True)
    losses = learner.loss(learner.sample(step))
    losses.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    loss_sum += losses.detach()


def train(learner: Learner, config: TrainConfig, store: CheckpointStore, metrics: MetricsFile, watch: Watch) -> None:
    """Train from the last checkpoint (or from the start) to the end.

    The state after a step depends only on config and seed, so a run that was stopped anywhere and resumed leaves the
    same metrics and weights as one that was not.
    """
    names = tuple(learner.parameters)
    ever = trainable_ever(learner.model_config, names, config.steps)
    optimizer = build_optimizer(config, [p for name, p in learner.parameters.items() if name in (ever or names)])

    latest = store.latest(config.steps)
    if latest is None:
        device = next(iter(learner.parameters.values())).device
        at = Progress(0, 0, torch.zeros(learner.n_seeds, device=device), 0)
    else:
        at = store.restore(latest, learner.parameters, optimizer)
        check_rows(metrics, store, at.step, at.rows)
        store.drop_halves(at.step)
    metrics.forget(store.seed, after=-1 if latest is None else latest)
    watch.stepped(at.step)

    def save() -> None:
        _check_finite(learner, store, at.step)
        store.save(learner.parameters, optimizer, replace(at, rows=len(metrics.of(store.seed))))

    def evaluate() -> None:
        nonlocal at
        watch.evaluating()
        for row, loss_sum in zip(learner.evaluate(at.step), at.loss_sum.tolist(), strict=True):
            full = {**row, "train/loss": loss_sum / at.loss_count} if at.loss_count else row
            if not all(math.isfinite(value) for value in full.values()):
                raise _diverged(store, at.step)
            metrics.append(full)
            for tell in watch.measured:
                tell(full)
        at = replace(at, loss_sum=torch.zeros_like(at.loss_sum), loss_count=0)

    if latest is None:
        _set_trainable(learner, names, 0)
        evaluate()
        save()
    while at.step < config.steps:
        if at.step in (0, latest, *learner.model_config.unfreeze):
            _set_trainable(learner, names, at.step)
        training_step(learner, optimizer, at.step, at.loss_sum)
        at = replace(at, step=at.step + 1, loss_count=at.loss_count + 1)
        watch.stepped(at.step)
        ended, stopping = at.step == config.steps, watch.stopping()
        if at.step % config.evaluation.every == 0 or ended:
            evaluate()
        if config.checkpoints.due(at.step) or ended or stopping:
            save()
        if stopping and not ended:
            raise Interrupted(f"stopped at step {at.step} of {config.steps}, saved")


def check_rows(metrics: MetricsFile, store: CheckpointStore, step: int, expected: int) -> None:
    """Refuse a file that has lost rows of a seed which a checkpoint knows of."""
    found = sum(row["step"] <= step for row in metrics.of(store.seed))
    if found != expected:
        raise UserError(
            f"{metrics.path} has {found} rows of seed {store.seed} up to step {step}, and its checkpoint knows of "
            f"{expected}: put the file back, or remove {store.directory}/seed{store.seed}-*, and with --resume this "
            "seed is trained anew"
        )


def _set_trainable(learner: Learner, names: tuple[str, ...], step: int) -> None:
    trainable = trainable_at(learner.model_config, names, step)
    for name, parameter in learner.parameters.items():
        parameter.requires_grad_(name in trainable)


def _check_finite(learner: Learner, store: CheckpointStore, step: int) -> None:
    finite = torch.stack([parameter.detach().isfinite().all() for parameter in learner.parameters.values()])
    if not bool(finite.all()):
        raise _diverged(store, step)


def _diverged(store: CheckpointStore, step: int) -> RunFailed:
    latest = store.latest()
    if latest is None:
        return RunFailed("the model as it is built gives values that are not finite")
    return RunFailed(
        f"training diverged by step {step}: a value is not finite; the last good checkpoint is at step {latest}; "
        "to try a smaller train.optimizer.lr, choose another --out"
    )
