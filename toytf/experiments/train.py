"""The experiment `train`: every seed from config to summary, table and page."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from toytf.errors import Interrupted
from toytf.experiments.config import TrainExperimentConfig
from toytf.report.page import write_report
from toytf.report.terminal import ProgressLine
from toytf.runs import Run
from toytf.summary import summarise
from toytf.training.build import build_model, build_probe, build_task, pick_device
from toytf.training.checkpoints import CheckpointStore
from toytf.training.freezing import trainable_ever
from toytf.training.learner import Row, SeedLearner
from toytf.training.loop import MetricsFile, Watch, train
from toytf.training.tracking import WandbMirror

if TYPE_CHECKING:
    from types import FrameType


def run_training(config: TrainExperimentConfig, run: Run) -> None:
    """Train what is not trained yet of every seed, then write summary and page."""
    torch.set_num_threads(config.threads)
    task = build_task(config.task, pick_device(config.device))
    probes = [build_probe(probe) for probe in config.probes]
    model = build_model(config.model, task, config.seeds[0])  # mistakes that only building shows come before any output
    trainable_ever(config.model, dict(model.named_parameters()), config.train.steps)
    metrics = MetricsFile(run.metrics_file)
    seconds = {}
    with ProgressLine(config.train.steps, config.train.loss) as line, _stop_on_interrupt() as stop:
        for seed in config.seeds:
            store = CheckpointStore(run.checkpoints, seed)
            if store.latest() == config.train.steps:
                line.skip(seed)
                continue
            if store.latest() is None:
                metrics.truncate(_end_of_previous_seed(config, run, seed))
            learner = SeedLearner(build_model(config.model, task, seed), task, probes, config.train, seed)
            mirror = WandbMirror(config.logging, run.directory, seed, config.model_dump(mode="json"))
            line.begin(seed)

            def measured(row: Row, mirror: WandbMirror = mirror) -> None:
                line.measured(row)
                mirror.log(row)

            started = time.perf_counter()
            try:
                train(learner, config.train, store, metrics, Watch(line.stepped, measured, stop.is_set))
            except Interrupted as stopped:
                again = f"toytf run {run.config_file} --out {run.directory} --resume"
                raise Interrupted(f"{stopped}; to go on: {again}") from None
            finally:
                seconds[f"seed{seed}/train_seconds"] = time.perf_counter() - started
                mirror.close()
    run.write_json("timing.json", seconds)
    run.write_json("summary.json", summarise(run.history))
    write_report(run)


def _end_of_previous_seed(config: TrainExperimentConfig, run: Run, seed: int) -> int:
    """Where the rows of a seed that has no checkpoint yet begin in metrics.jsonl."""
    before = config.seeds[: config.seeds.index(seed)]
    return CheckpointStore(run.checkpoints, before[-1]).metrics_bytes(config.train.steps) if before else 0


@contextlib.contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a request to stop after the current step; the second one is immediate."""
    stop = threading.Event()

    def request(number: int, frame: "FrameType | None") -> None:
        stop.set()
        signal.signal(signal.SIGINT, previous)

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = signal.signal(signal.SIGINT, request)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
