"""Experiments that are a list of jobs, each done for all seeds at once: rows, resuming, wandb, summary and page."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd

from toytf.errors import Interrupted, UserError
from toytf.experiments.config import SeededConfig
from toytf.experiments.process import stop_on_interrupt
from toytf.report.page import write_report
from toytf.report.terminal import JobLine
from toytf.runs import Run
from toytf.summary import by_seed, summarise
from toytf.training.loop import MetricsFile
from toytf.training.tracking import WandbMirror

Rows = Iterator[tuple[int, dict[str, float]]]
"""Seeds and their metrics, as they get done: each is written at once, and a crash loses none that came before."""

Job = Callable[[Sequence[int], Callable[[], bool]], Rows]
"""Does its work for some seeds; may ask whether to stop, and then raises Interrupted."""


def run_jobs(
    config: SeededConfig,
    run: Run,
    jobs: Mapping[str, Job],
    conclude: Callable[[pd.DataFrame], pd.DataFrame] | None = None,
) -> None:
    """Do every job that is not done yet, by the metric that it is named after, then write summary and page.

    conclude: from one row per seed to further metrics of each, such as a fit over all jobs.
    """
    metrics = MetricsFile(run.metrics_file)
    metrics.drop_torn_line()
    with JobLine(len(jobs)) as line, stop_on_interrupt() as stop:
        for name, job in jobs.items():
            left = _seeds_without(name, config.seeds, run)
            line.begin(name)
            started = time.perf_counter()
            try:
                if left and stop.is_set():
                    raise Interrupted("stopped")
                for seed, row in job(left, stop.is_set) if left else ():
                    metrics.append({"seed": seed, "step": 0, **row})
            except Interrupted:
                raise Interrupted(f"stopped before {name} was done; to go on: {run.resume_command}") from None
            except UserError as error:
                raise UserError(f"{name}: {error}") from None
            run.add_seconds(name, time.perf_counter() - started)
            line.done()
    if conclude is not None:
        known = dict(_rows(by_seed(run.history)))
        for seed, row in _rows(conclude(by_seed(run.history))):
            fresh = {name: value for name, value in row.items() if name not in known[seed]}
            if fresh:
                metrics.append({"seed": seed, "step": 0, **fresh})
    for seed, row in _rows(by_seed(run.history)):
        with WandbMirror(config.logging, run.directory, seed, config.model_dump(mode="json")) as mirror:
            mirror.log({"seed": seed, "step": 0, **row})
    write_report(run)
    run.write_json("summary.json", summarise(run.history))  # last: its presence means that the run is whole


def _rows(seeds: pd.DataFrame) -> Rows:
    for seed, values in seeds.iterrows():
        yield int(str(seed)), {str(name): float(value) for name, value in values.dropna().items()}


def _seeds_without(metric: str, seeds: Sequence[int], run: Run) -> list[int]:
    history = run.history
    done = set() if metric not in history else set(history.loc[history[metric].notna(), "seed"])
    return [seed for seed in seeds if seed not in done]
