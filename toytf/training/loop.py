"""A training that leaves rows and checkpoints, from its last checkpoint on, and every way it can end."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from toytf.errors import Interrupted, RunFailed, ToytfError, UserError
from toytf.measurement import Group, Measurement, as_row
from toytf.probe import Course, losses_of
from toytf.runs.checkpoints import CheckpointStore
from toytf.runs.rows import MetricsFile, Row
from toytf.stopping import undisturbed
from toytf.timing import spent_on
from toytf.training.driver import Standing, Trainer, drive, every, not_finite
from toytf.training.learner import Evaluation, SeedLearner, StackedLearner

TRAIN = Group(
    "train", "Training", place="log",
    meanings=(("loss", "Loss that is trained on, averaged over the steps since the last evaluation; it should fall."),),
)  # fmt: skip


@dataclass(frozen=True)
class Watch:
    """What looks on while trainings run: told of every step, of evaluations, and of what each member measured."""

    stepped: Callable[[int], None] = lambda step: None
    evaluating: Callable[[], None] = lambda: None
    measured: Callable[[Sequence[Sequence[Measurement]]], None] = lambda found: None


@dataclass(frozen=True, eq=False)
class Trainee:
    """A training: what learns, and where its rows and checkpoints go."""

    learner: SeedLearner
    store: CheckpointStore
    metrics: MetricsFile
    recorded: Callable[[Row], None] = lambda row: None
    """Is given every row."""
    ended: Callable[[Evaluation], None] = lambda evaluation: None
    """Is given the last evaluation."""

    def evaluate(self, step: int) -> Evaluation:
        """What is measured after a step; after the last one, also what there is to say of the whole training."""
        config, found = self.learner.config, self.learner.evaluate(step)
        if step < config.steps:
            return found
        rows = self.metrics.of(self.store.seed)
        steps = [before for before in self.store.steps() if before < step and config.checkpoints.due(before)]
        past = Course(
            lambda: self.store.models(self.learner.model, steps), losses_of(config.loss, rows), config.is_plain_descent
        )
        return self.learner.look_back(found, past)


def train(trainees: Sequence[Trainee], watch: Watch, *, stacked: bool = False) -> list[ToytfError | None]:
    """Train from the last checkpoints (or from the start) to the end; say of each why it failed, if it did.

    All have their last checkpoint at the same step. stacked: as one tensor program. Else there is just one trainee.

    The state after a step depends only on config and seed, so a run that was stopped anywhere and resumed leaves the
    same metrics and weights as one that was not.
    """
    together = _Together(trainees, watch, stacked=stacked)
    together.run()
    return [together.failures.get(trainee) for trainee in trainees]


class _Together:
    """Trainees that take their steps together; one that fails leaves the others alone."""

    def __init__(self, trainees: Sequence[Trainee], watch: Watch, *, stacked: bool) -> None:
        self.trainees, self.watch = [*trainees], watch
        self.config = trainees[0].learner.config
        self.failures: dict[Trainee, ToytfError] = {}
        members = [trainee.learner for trainee in trainees]
        self.trainer = Trainer(StackedLearner(members) if stacked else members[0], self.config)

    def run(self) -> None:
        latest = self._resume()
        self.watch.stepped(self.trainer.step)
        if latest is None:
            self._evaluate(0)
            self._save(0)
        while self.trainees and self.trainer.step < self.config.steps:
            self._go_on()

    def _go_on(self) -> None:
        """To the end, or until some have failed: the others then have a trainer of their own."""
        config, n = self.config, len(self.trainees)
        drive(
            self.trainer,
            after_step=[self.watch.stepped],
            looks=[
                (every(config.evaluation.every, config.steps), self._evaluate),
                (lambda step: config.checkpoints.due(step) or step == config.steps, self._save),
            ],
            stop_when=lambda step: len(self.trainees) < n,
            interrupted=self._interrupted,
        )

    def _interrupted(self, step: int) -> None:
        """Save where all stand; one that has ended, or failed, is not stopped."""
        if step < self.config.steps and self.trainees:
            if self.trainees[0].store.latest() != step:
                self._save(step)
            raise Interrupted(f"stopped at step {step} of {self.config.steps}; a checkpoint is saved")

    def _resume(self) -> int | None:
        """Go on from the last checkpoint, and forget what came later; None: there is none."""
        latest = self.trainees[0].store.latest(self.config.steps)
        if latest is not None:
            found: dict[Trainee, Standing] = {}
            for trainee in self.trainees:
                try:
                    found[trainee] = trainee.store.restore(latest, trainee.learner.parameters)
                    check_rows(trainee.metrics, trainee.store, latest, found[trainee][1].rows)
                except UserError as error:
                    self.failures[trainee] = error
            if self.failures:
                self.trainees = [trainee for trainee in self.trainees if trainee not in self.failures]
                if not self.trainees:
                    return latest
                learner = StackedLearner([trainee.learner for trainee in self.trainees])
                self.trainer = Trainer(learner, self.config)
            self.trainer.go_on_from([found[trainee] for trainee in self.trainees])
        for trainee in self.trainees:
            trainee.store.drop_later(-1 if latest is None else latest)
            trainee.metrics.forget(trainee.store.seed, after=-1 if latest is None else latest)
        return latest

    @spent_on("checkpoints")
    def _save(self, step: int) -> None:
        with self._failing() as failing:
            found = zip(self.trainees, self.trainer.diverged(), strict=False)  # of none, if all have failed
            for i, (trainee, wrong) in enumerate(found):
                if wrong is not None:
                    failing(trainee, _diverged(trainee.store, step, wrong))
                    continue
                rows = len(trainee.metrics.of(trainee.store.seed))
                trainee.store.save(trainee.learner.parameters, *self.trainer.standing(i, rows))
                trainee.metrics.note()

    @spent_on("evaluation")
    def _evaluate(self, step: int) -> None:
        self.watch.evaluating()
        self.trainer.learner.look()
        measured_by_all, losses = [], self.trainer.take_losses()
        with self._failing() as failing:
            for trainee, loss in zip(self.trainees, losses, strict=True):
                with undisturbed():  # its row belongs to the checkpoint that a Ctrl-C asks for
                    found = trainee.evaluate(step)
                measured = [*found.measurements, *([] if loss is None else [TRAIN.measurement(loss, "loss")])]
                row = as_row(measured, references=found.references)
                wrong = next((name for name, value in row.items() if not math.isfinite(value)), None)
                if wrong is not None:
                    failing(trainee, _not_a_number(trainee, found, step, wrong))
                    continue
                if step == self.config.steps:
                    trainee.ended(found)
                trainee.recorded(trainee.metrics.record(found.seed, step, measured, references=found.references))
                measured_by_all.append(measured)
        if measured_by_all:
            self.watch.measured(measured_by_all)

    @contextmanager
    def _failing(self) -> Iterator[Callable[[Trainee, ToytfError], None]]:
        """Collect those that fail; in the end the others go on without them, from where they stand."""
        yield self.failures.__setitem__
        left = [i for i, trainee in enumerate(self.trainees) if trainee not in self.failures]
        if len(left) < len(self.trainees):
            self.trainees = [self.trainees[i] for i in left]
            if left:
                self.trainer = self.trainer.of(left)


def check_rows(metrics: MetricsFile, store: CheckpointStore, step: int, expected: int) -> None:
    """Refuse a file that has lost rows of a seed which a checkpoint knows of."""
    found = sum(row["step"] <= step for row in metrics.of(store.seed))
    if found != expected:
        raise UserError(
            f"{metrics.path} has {found} rows of seed {store.seed} up to step {step}, but its checkpoint counts "
            f"{expected}: restore the file, or remove {store.directory}/seed{store.seed}-*; with --resume this seed is "
            "then trained from the start"
        )


def _not_a_number(trainee: Trainee, found: Evaluation, step: int, name: str) -> RunFailed:
    """Why a metric is not finite: because of the probe that gave it if all weights are, and else of the training."""
    for (kind, on), result in found.results.items():
        own = as_row(one.evaluated_on(on) if on else one for one in result.measurements)
        if name in own and not_finite(trainee.learner) is None:
            return RunFailed(
                f'probe "{kind}" gave {name} = {own[name]} at step {step}, though weights and losses are finite: where '
                "there is nothing to measure, a probe gives None"
            )
    return _diverged(trainee.store, step, name)


def _diverged(store: CheckpointStore, step: int, what: str) -> RunFailed:
    latest = store.latest()
    if latest is None:
        return RunFailed(f"{what} is not finite before the first step: check the initial model, or the probe")
    return RunFailed(
        f"training diverged by step {step}: {what} is not finite; the last good checkpoint is at step {latest}; "
        "try a smaller train.optimizer.lr, with another --out"
    )
