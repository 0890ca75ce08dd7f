"""Experiments that are a list of jobs, each done for all seeds at once: rows, resuming, wandb, summary and page."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd

from toytf.errors import Interrupted, UserError
from toytf.experiments.config import SeededConfig
from toytf.experiments.process import stop_on_interrupt
from toytf.report.page import write_report
from toytf.report.terminal import JobLine
from toytf.rows import MetricsFile, Row
from toytf.runs import Run
from toytf.summary import by_seed
from toytf.training.tracking import WandbMirror

Rows = Iterator[tuple[int, dict[str, float]]]
"""Seeds and their metrics, as they get done: each is written at once, and a crash loses none that came before.

A row has step 0, or the step that it names itself, if a job gives a curve.
"""

Job = Callable[[Sequence[int], Callable[[], bool]], Rows]
"""Does its work for some seeds; may ask whether to stop, and then raises Interrupted."""


def run_jobs(
    config: SeededConfig,
    run: Run,
    jobs: Mapping[str, Job],
    conclude: Callable[[pd.DataFrame], pd.DataFrame] | None = None,
) -> None:
    """Do every job that is not done yet, by the metric that it is named after, then write summary and page.

    A job that gives a curve has this metric in its last row only; of a job that is done anew, rows that are there
    already are not written twice.
    conclude: from one row per seed to further metrics of each, such as a fit over all jobs.
    """
    metrics = MetricsFile(run.metrics_file)
    metrics.check_seeds(config.seeds)
    written = {_identity(row) for row in metrics.rows}
    with JobLine(len(jobs)) as line, stop_on_interrupt() as stop:
        for name, job in jobs.items():
            left = _seeds_without(name, config.seeds, run)
            line.begin(name)
            started = time.perf_counter()
            try:
                if left and stop.is_set():
                    raise Interrupted("stopped")
                for seed, measured in job(left, stop.is_set) if left else ():
                    row = {"seed": seed, "step": 0, **measured}
                    if _identity(row) not in written:
                        metrics.append(row)
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
    metrics.close()
    history = run.history
    for seed, row in _rows(by_seed(history)):
        curve = history[history["seed"] == seed].groupby("step").last()
        with WandbMirror(config.logging, run.directory, seed, config.model_dump(mode="json")) as mirror:
            for step, values in _rows(curve.iloc[:-1]):
                mirror.log({**values, "seed": seed, "step": step})
            mirror.log({**row, "seed": seed, "step": int(curve.index[-1])})
    write_report(run)
    run.finish()


def _identity(row: Row) -> tuple[float, float, frozenset[str]]:
    """What a row is about: seed, step and the names of its metrics."""
    return row["seed"], row["step"], frozenset(row)


def _rows(table: pd.DataFrame) -> Rows:
    for number, values in table.iterrows():
        yield int(str(number)), {str(name): float(value) for name, value in values.dropna().items()}


def _seeds_without(metric: str, seeds: Sequence[int], run: Run) -> list[int]:
    history = run.history
    done = set() if metric not in history else set(history.loc[history[metric].notna(), "seed"])
    return [seed for seed in seeds if seed not in done]
