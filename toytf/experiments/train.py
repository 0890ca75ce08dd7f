"""The experiment `train`: every seed from config to summary and page."""

import time

from toytf.errors import Interrupted
from toytf.experiments.config import TrainExperimentConfig
from toytf.experiments.process import cpu_threads, stop_on_interrupt
from toytf.report.page import write_report
from toytf.report.terminal import ProgressLine
from toytf.rows import MetricsFile
from toytf.runs import Run
from toytf.training.build import build_model, build_probe, build_task, build_tests, pick_device
from toytf.training.checkpoints import CheckpointStore
from toytf.training.freezing import trainable_ever
from toytf.training.learner import SeedLearner
from toytf.training.loop import Watch, check_rows, train
from toytf.training.tracking import WandbMirror


def run_training(config: TrainExperimentConfig, run: Run) -> None:
    """Train what is not trained yet of every seed, then write summary and page."""
    with cpu_threads(config.threads):
        _train_seeds(config, run)
    write_report(run)
    run.finish()


def _train_seeds(config: TrainExperimentConfig, run: Run) -> None:
    task = build_task(config.task, pick_device(config.device))
    tests = build_tests(config.test_tasks, task)
    probes = [build_probe(probe) for probe in config.probes]
    first = build_model(config.model, task, config.seeds[0])  # mistakes that only building shows come before any output
    for probe in probes:
        probe.check(first, task)
    trainable_ever(config.model, dict(first.named_parameters()), config.train.steps)
    metrics = MetricsFile(run.metrics_file)
    metrics.check_seeds(config.seeds)
    with ProgressLine(config.train.steps, config.train.loss) as line, stop_on_interrupt() as stop:
        for seed in config.seeds:
            store = CheckpointStore(run.checkpoints, seed)
            if store.latest(config.train.steps) == config.train.steps:
                check_rows(metrics, store, config.train.steps, store.rows(config.train.steps))
                line.skip(seed)
                continue
            if stop.is_set():
                raise Interrupted(f"stopped before seed {seed}; to go on: {run.resume_command}")
            model = first if seed == config.seeds[0] else build_model(config.model, task, seed)
            learner = SeedLearner(model, task, probes, config.train, seed, tests=tests)
            line.begin(seed)
            started = time.perf_counter()
            try:
                with WandbMirror(config.logging, run.directory, seed, config.model_dump(mode="json")) as mirror:
                    watch = Watch(line.stepped, (line.measured, mirror.log), stop.is_set, line.evaluating)
                    train(learner, config.train, store, metrics, watch)
            except Interrupted as stopped:
                raise Interrupted(f"{stopped}; to go on: {run.resume_command}") from None
            finally:
                run.add_seconds(f"seed{seed}/train_seconds", time.perf_counter() - started)
    metrics.sort(config.seeds)
    metrics.close()
