"""The experiment `train`: every seed from config to its last row."""

import contextlib
import math
import shlex
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from toytf.build import build_evaluate_on, build_model, build_probe
from toytf.engines import ONE_BY_ONE, EngineOptions
from toytf.errors import Interrupted, ToytfError, UserError
from toytf.experiments.experiment import Experiment
from toytf.experiments.train.config import TrainExperimentConfig
from toytf.experiments.train.figures import probe_figures, training_figures
from toytf.experiments.train.story import lasting_onsets, training_findings
from toytf.process import cpu_threads
from toytf.report.terminal import ProgressLine
from toytf.runs import Run
from toytf.runs.checkpoints import CheckpointStore
from toytf.runs.rows import MetricsFile
from toytf.runs.tracking import WandbMirror
from toytf.stopping import stop_asked, stop_on_interrupt
from toytf.task import Task
from toytf.timing import spent_on, taken
from toytf.training.freezing import trainable_ever
from toytf.training.learner import Evaluation, SeedLearner
from toytf.training.loop import Trainee, Watch, check_rows, train
from toytf.training.stacking import even_parts


class Training(Experiment):
    """Train what is not trained yet of every seed."""

    config: TrainExperimentConfig

    def run(self, run: Run, engine: EngineOptions = ONE_BY_ONE) -> None:
        """Train in this process, and write what was found."""
        for failure in run_trainings([(self, run)]):
            if failure is not None:
                raise failure

    @classmethod
    def run_together(cls, experiments: Sequence[Experiment], runs: Sequence[Run]) -> list[ToytfError | None]:
        """Several runs that can be stacked."""
        return run_trainings([(cast(Training, one), run) for one, run in zip(experiments, runs, strict=True)])

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Curves, what the probes drew of the first seed in the end, and attention maps."""
        yield from training_figures(run.trained, lasting_onsets(run.trained))

    def findings(self, run: Run) -> Iterator[str]:
        """Is the task solved, in which order did that come, and which predictions were not trained."""
        return training_findings(run.trained)

    def next_step(self, run: Run) -> str:
        """The probes again: they name what the model gets wrong."""
        if not self.config.probes:
            return super().next_step(run)
        return f"{shlex.join(['toytf', 'probe', str(run.directory)])}  (names what the model gets wrong)"

    def prepare(self, run: Run, task: Task) -> list["_Seed"]:
        """Every seed, to be trained; mistakes that only building shows come first."""
        config = self.config
        evaluate_on = build_evaluate_on(config.evaluation_tasks, task)
        probes = [build_probe(probe) for probe in config.probes]
        first = build_model(config.model, task, config.seeds[0])
        for probe in probes:
            probe.check(first, task)
        trainable_ever(config.model, dict(first.named_parameters()), config.train.steps)
        metrics = MetricsFile(run.metrics_file)
        metrics.check_seeds(config.seeds)

        def learner(seed: int) -> SeedLearner:
            model = first if seed == config.seeds[0] else build_model(config.model, task, seed)
            return SeedLearner(model, task, probes, config.train, seed, evaluate_on=evaluate_on)

        found = []
        for seed in config.seeds:
            store, steps = CheckpointStore(run.checkpoints, seed), config.train.steps
            if store.latest(steps) == steps:
                check_rows(metrics, store, steps, store.rows(steps))
            found.append(_Seed(self, run, seed, store, metrics, partial(learner, seed)))
        return found

    def keep(self, run: Run, evaluation: Evaluation) -> None:
        """Keep the figures of probes, for the first seed: the page shows what the last evaluation measured."""
        if evaluation.seed == self.config.seeds[0]:
            configs = {probe.kind: probe for probe in self.config.probes}
            figures: dict[str, Any] = {}
            for (kind, on), result in evaluation.results.items():
                figures |= probe_figures(result, configs[kind], on)
            run.keep_figures(figures)


@dataclass(frozen=True, eq=False)
class _Seed:
    """A seed of a run: what is trained, and where it goes."""

    training: Training
    run: Run
    seed: int
    store: CheckpointStore
    metrics: MetricsFile
    learner: Callable[[], SeedLearner]
    """Builds it, when its turn has come."""

    @property
    def ended(self) -> bool:
        """Was it trained before?"""
        steps = self.training.config.train.steps
        return self.store.latest(steps) == steps

    @contextlib.contextmanager
    def trainee(self) -> Iterator[Trainee]:
        """The same to be trained, with its mirror on wandb."""
        config, run = self.training.config, self.run
        with WandbMirror(config.logging, run.directory, self.seed, config.model_dump(mode="json")) as mirror:
            yield Trainee(
                self.learner(), self.store, self.metrics, mirror.log, lambda found: self.training.keep(run, found)
            )


def run_trainings(trainings: Sequence[tuple[Training, Run]]) -> list[ToytfError | None]:
    """Train runs of one shape together; why each failed, if it did."""
    runs = [run for _, run in trainings]
    failures: dict[Run, ToytfError] = {}
    try:
        with cpu_threads(trainings[0][0].config.n_threads):
            failures = _train_all(trainings)
    except BaseException:
        _share_seconds(runs, runs)
        raise
    _share_seconds(runs, failures)  # the page tells them
    return [failures.get(run) for run in runs]


def _train_all(trainings: Sequence[tuple[Training, Run]]) -> dict[Run, ToytfError]:
    """Train all seeds of all runs, in stacks as large as the config says; the failure of each run, if there is one."""
    config = trainings[0][0].config
    task = trainings[0][1].trained.task
    task.check_goal()
    for _, run in trainings:
        run.trained.task = task  # all have the same
    failures: dict[Run, ToytfError] = {}
    seeds: list[_Seed] = []
    for training, run in trainings:
        try:
            seeds += training.prepare(run, task)
        except UserError as error:
            failures[run] = error
    with ProgressLine(config.train.steps, config.train.loss) as line, stop_on_interrupt():
        for seed in seeds:
            if seed.ended:
                line.skip(seed.seed)
        for stack in _stacks([seed for seed in seeds if not seed.ended], config.n_stacked):
            if stop_asked():
                raise Interrupted(f"stopped before seed {stack[0].seed}; to continue: {stack[0].run.resume_command}")
            line.begin([seed.seed for seed in stack])
            for seed, failure in zip(stack, _train_stack(stack, line), strict=True):
                if failure is not None:
                    failures.setdefault(seed.run, failure)
            if config.n_stacked == 1 and failures:
                break  # a run whose seeds come one after the other ends with the first that fails
    for metrics, seed in {seed.metrics: seed for seed in seeds}.items():
        if seed.run not in failures:
            metrics.sort(seed.training.config.seeds)
            metrics.note(closed=True)
    return failures


def _stacks(seeds: Sequence[_Seed], most: int) -> Iterator[Sequence[_Seed]]:
    """Seeds in stacks of at most so many. All of a stack stand at one step: none has to go back for another."""
    by_step: dict[int | None, list[_Seed]] = {}
    for seed in seeds:
        by_step.setdefault(seed.store.latest(), []).append(seed)
    for same in by_step.values():
        yield from even_parts(same, math.ceil(len(same) / most))


def _train_stack(seeds: Sequence[_Seed], line: ProgressLine) -> list[ToytfError | None]:
    try:
        with contextlib.ExitStack() as opened:
            opened.enter_context(spent_on("steps"))
            trainees = [opened.enter_context(seed.trainee()) for seed in seeds]
            watch = Watch(line.stepped, line.evaluating, line.measured)
            return train(trainees, watch, stacked=seeds[0].training.config.n_stacked > 1)
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}; to continue: {seeds[0].run.resume_command}") from None


def _share_seconds(runs: Sequence[Run], ended: Container[Run]) -> None:
    """Add what was taken since this was last called to the times of the runs, in equal parts."""
    seconds = taken()
    for run in runs:
        # An error would hide why a run failed, or that it has ended.
        with contextlib.suppress(OSError) if run in ended else contextlib.nullcontext():
            run.add_seconds({part: value / len(runs) for part, value in seconds.items()})
