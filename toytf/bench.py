"""Benchmarks: each measures two or more ways of doing the same thing, side by side in one run, and gives ratios."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import typer

from toytf.config.plugins import plugins
from toytf.errors import UserError, nearest, reason

Result = dict[str, float]


def run_benchmarks(names: list[str], file: Path | None) -> None:
    """Run the named benchmarks (or all) and print `name: key value …`; with a file, write {name: {ratio, …}} too."""
    known: dict[str, Callable[[], Result]] = plugins("benchmarks")
    for name in names:
        if name not in known:
            raise UserError(f'benchmark "{name}" does not exist: {nearest(name, known)}')
    if file is not None and not file.resolve().parent.is_dir():
        raise UserError(f"{file}: its folder does not exist")
    results = {}
    for name in names or known:
        results[name] = known[name]()
        typer.echo(f"{name}: " + "  ".join(f"{key} {value:.4g}" for key, value in results[name].items()))
    if file is not None:
        try:
            file.write_text(json.dumps(results, indent=2) + "\n")
        except OSError as error:
            raise UserError(f"{file}: cannot be written: {reason(error)}") from None


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    """The shortest of several timings: the one least disturbed by other work on the machine."""
    timings = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        timings.append(time.perf_counter() - started)
    return min(timings)
