"""The experiment `train`: every seed from config to summary and page."""

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from toytf.build import build_evaluate_on, build_model, build_probe, build_task, pick_device
from toytf.errors import Interrupted
from toytf.experiments.experiment import Experiment
from toytf.experiments.train.config import TrainExperimentConfig
from toytf.experiments.train.figures import probe_figures, training_figures
from toytf.experiments.train.story import lasting_onsets, training_findings
from toytf.measurement import Measurement
from toytf.process import cpu_threads
from toytf.report.page import write_report_at_the_end
from toytf.report.terminal import ProgressLine
from toytf.runs import Run
from toytf.runs.checkpoints import CheckpointStore
from toytf.runs.rows import MetricsFile, Row
from toytf.runs.tracking import WandbMirror
from toytf.stopping import stop_asked, stop_on_interrupt
from toytf.timing import spent_on, taken
from toytf.training.freezing import trainable_ever
from toytf.training.learner import Evaluation, SeedLearner
from toytf.training.loop import Watch, check_rows, train


class Training(Experiment):
    """Train what is not trained yet of every seed, then write summary and page."""

    config: TrainExperimentConfig

    def run(self, run: Run) -> None:
        """Train, and write what was found."""
        try:
            with cpu_threads(self.config.n_threads):
                self._train_seeds(run)
            run.add_seconds(taken())  # the page tells them
            write_report_at_the_end(run)
        except BaseException:
            with contextlib.suppress(OSError):  # that would hide why the run ends
                run.add_seconds(taken())
            raise
        run.add_seconds(taken())
        run.finish()

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

    def _train_seeds(self, run: Run) -> None:
        config = self.config
        task = build_task(config.task, pick_device(config.device))
        task.check_goal()
        evaluate_on = build_evaluate_on(config.evaluation_tasks, task)
        probes = [build_probe(probe) for probe in config.probes]
        first = build_model(config.model, task, config.seeds[0])  # mistakes that only building shows come first
        known = run.columns if run.metrics_file.exists() else {}
        for probe in probes:
            probe.check(first, task)
            probe.check_resumed(known)
        trainable_ever(config.model, dict(first.named_parameters()), config.train.steps)
        metrics = MetricsFile(run.metrics_file)
        metrics.check_seeds(config.seeds)
        with ProgressLine(config.train.steps, config.train.loss) as line, stop_on_interrupt():
            for seed in config.seeds:
                store = CheckpointStore(run.checkpoints, seed)
                if store.latest(config.train.steps) == config.train.steps:
                    check_rows(metrics, store, config.train.steps, store.rows(config.train.steps))
                    line.skip(seed)
                    continue
                if stop_asked():
                    raise Interrupted(f"stopped before seed {seed}; to continue: {run.resume_command}")
                model = first if seed == config.seeds[0] else build_model(config.model, task, seed)
                learner = SeedLearner(model, task, probes, config.train, seed, evaluate_on=evaluate_on)
                self._train_seed(run, learner, store, metrics, line)
        metrics.sort(config.seeds)
        metrics.close()

    def _train_seed(
        self, run: Run, learner: SeedLearner, store: CheckpointStore, metrics: MetricsFile, line: ProgressLine
    ) -> None:
        config, seed = self.config, learner.seed
        line.begin(seed)
        try:
            with (
                spent_on("steps"),
                WandbMirror(config.logging, run.directory, seed, config.model_dump(mode="json")) as mirror,
            ):

                def measured(row: Row, found: Sequence[Measurement]) -> None:
                    line.measured(found)
                    mirror.log(row)

                watch = Watch(line.stepped, measured, line.evaluating, lambda at: self._keep(run, at))
                train(learner, config.train, store, metrics, watch)
        except Interrupted as stopped:
            raise Interrupted(f"{stopped}; to continue: {run.resume_command}") from None

    def _keep(self, run: Run, evaluation: Evaluation) -> None:
        """Keep the figures of probes, for the first seed: the page shows what the last evaluation measured."""
        if evaluation.seed == self.config.seeds[0]:
            configs = {probe.kind: probe for probe in self.config.probes}
            for (kind, on), result in evaluation.results.items():
                for name, figure in probe_figures(result, configs[kind], on).items():
                    run.keep_figure(name, figure)
