"""The training loop: steps, evaluations, checkpoints, and every way a training can end."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from toytf.errors import Interrupted, RunFailed, UserError
from toytf.measurement import Group, Measurement, as_row
from toytf.runs.checkpoints import CheckpointStore, Progress
from toytf.runs.rows import MetricsFile, Row
from toytf.stopping import stop_asked, undisturbed
from toytf.timing import spent_on
from toytf.training.config import TrainConfig
from toytf.training.freezing import freeze, trainable_ever
from toytf.training.learner import Evaluation, Learner, build_optimizer
from toytf.updates import updates

TRAIN = Group(
    "train", "Training", place="log",
    meanings=(("loss", "Loss that is trained on, averaged over the steps since the last evaluation; it should fall."),),
)  # fmt: skip


@dataclass(frozen=True)
class Watch:
    """What looks on while a training runs: told of every step, evaluation and row, and of what probes found at last."""

    stepped: Callable[[int], None] = lambda step: None
    measured: Callable[[Row, Sequence[Measurement]], None] = lambda row, found: None
    evaluating: Callable[[], None] = lambda: None
    ended: Callable[[Evaluation], None] = lambda evaluation: None


class Trainer:
    """A training that goes on step by step. Freezing, the optimiser and the sum of the losses are its business."""

    def __init__(self, learner: Learner, config: TrainConfig) -> None:
        self.learner, self.config = learner, config
        ever = trainable_ever(learner.model_config, learner.parameters, config.steps) or set(learner.parameters)
        self.optimizer = build_optimizer(config, [p for name, p in learner.parameters.items() if name in ever])
        device = next(iter(learner.parameters.values())).device
        self.go_on_from(Progress(0, 0, torch.zeros(learner.n_seeds, device=device), 0))

    def go_on_from(self, progress: Progress) -> None:
        """Stand where a training stood that had come so far; weights and optimiser are put back by the checkpoint."""
        self.step, self.loss_sum, self.loss_count = progress.step, progress.loss_sum, progress.loss_count
        self._freeze()

    def steps(self) -> Iterator[int]:
        """Take the updates that are left, one by one; after each, how many there are."""
        for step, losses in updates(self.optimizer, self._backward, self.config.steps, self.step):
            self.step = step
            self.loss_sum += losses
            self.loss_count += 1
            yield step

    def take_losses(self) -> list[float | None]:
        """The mean loss of every seed since the last call; None before any step."""
        means = [total / self.loss_count if self.loss_count else None for total in self.loss_sum.tolist()]
        self.loss_sum, self.loss_count = torch.zeros_like(self.loss_sum), 0
        return means

    def _backward(self, step: int) -> Tensor:
        if step in self.learner.model_config.unfreeze:
            self._freeze()
        return self.learner.backward(step)

    def _freeze(self) -> None:
        freeze(self.learner.model_config, self.learner.parameters, self.step)


def train(learner: Learner, config: TrainConfig, store: CheckpointStore, metrics: MetricsFile, watch: Watch) -> None:
    """Train from the last checkpoint (or from the start) to the end.

    The state after a step depends only on config and seed, so a run that was stopped anywhere and resumed leaves the
    same metrics and weights as one that was not.
    """
    trainer = Trainer(learner, config)
    latest = store.latest(config.steps)
    if latest is not None:
        at = store.restore(latest, learner.parameters, trainer.optimizer)
        check_rows(metrics, store, at.step, at.rows)
        store.drop_halves(at.step)
        trainer.go_on_from(at)
    metrics.forget(store.seed, after=-1 if latest is None else latest)
    watch.stepped(trainer.step)

    @spent_on("checkpoints")
    def save() -> None:
        _check_finite(learner, store, trainer.step)
        rows = len(metrics.of(store.seed))
        progress = Progress(trainer.step, rows, trainer.loss_sum, trainer.loss_count)
        store.save(learner.parameters, trainer.optimizer, progress)

    @spent_on("evaluation")
    def evaluate() -> None:
        watch.evaluating()
        with undisturbed():  # its row belongs to the checkpoint that a Ctrl-C asks for
            evaluations = learner.evaluate(trainer.step)
        for found, loss in zip(evaluations, trainer.take_losses(), strict=True):
            measured = [*found.measurements, *([] if loss is None else [TRAIN.measurement(loss, "loss")])]
            row = as_row(measured, references=found.references)
            wrong = next((name for name, value in row.items() if not math.isfinite(value)), None)
            if wrong is not None:
                raise _diverged(store, trainer.step, wrong)
            if trainer.step == config.steps:
                watch.ended(found)
            watch.measured(metrics.record(found.seed, trainer.step, measured, references=found.references), measured)

    if latest is None:
        evaluate()
        save()
    for step in trainer.steps():
        watch.stepped(step)
        ended, stopping = step == config.steps, stop_asked()
        if step % config.evaluation.every == 0 or ended:
            evaluate()
        if config.checkpoints.due(step) or ended or stopping:
            save()
        if stopping and not ended:
            raise Interrupted(f"stopped at step {step} of {config.steps}; a checkpoint is saved")


def check_rows(metrics: MetricsFile, store: CheckpointStore, step: int, expected: int) -> None:
    """Refuse a file that has lost rows of a seed which a checkpoint knows of."""
    found = sum(row["step"] <= step for row in metrics.of(store.seed))
    if found != expected:
        raise UserError(
            f"{metrics.path} has {found} rows of seed {store.seed} up to step {step}, but its checkpoint counts "
            f"{expected}: restore the file, or remove {store.directory}/seed{store.seed}-*; with --resume this seed is "
            "then trained from the start"
        )


def _check_finite(learner: Learner, store: CheckpointStore, step: int) -> None:
    finite = torch.stack([parameter.detach().isfinite().all() for parameter in learner.parameters.values()]).tolist()
    if not all(finite):
        raise _diverged(store, step, [*learner.parameters][finite.index(False)])


def _diverged(store: CheckpointStore, step: int, what: str) -> RunFailed:
    latest = store.latest()
    if latest is None:
        return RunFailed(f"{what} is not finite before the first step: check the initial model, or the probe")
    return RunFailed(
        f"training diverged by step {step}: {what} is not finite; the last good checkpoint is at step {latest}; "
        "try a smaller train.optimizer.lr, with another --out"
    )
