"""Benchmarks: each measures two or more ways of doing the same thing, side by side in one run, and gives ratios."""

import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path

import typer

from toytf.config.plugins import plugins
from toytf.errors import UserError, nearest, reason

Result = dict[str, float]


def run_benchmarks(names: list[str], file: Path | None) -> None:
    """Run the named benchmarks (or all) and print `name: key value …`.

    With a file, write {name: {ratio, …}} too, and beside it the machine that this was measured on, in words.
    """
    known: dict[str, Callable[[], Result]] = plugins("benchmarks")
    for name in names:
        if name not in known:
            raise UserError(f'benchmark "{name}" does not exist: {nearest(name, known)}')
    if file is not None and not file.resolve().parent.is_dir():
        raise UserError(f"{file}: its folder does not exist")
    results: dict[str, Result] = {}
    for name in names or known:
        results[name] = known[name]()
        typer.echo(f"{name}: " + "  ".join(f"{key} {value:.4g}" for key, value in results[name].items()))
        if file is not None:  # after each, so that a later one that fails costs no minutes
            try:
                file.write_text(json.dumps({**results, "machine": machine()}, indent=2) + "\n", encoding="utf-8")
            except OSError as error:
                raise UserError(f"{file}: cannot be written: {reason(error)}") from None


def in_turns(ways: Mapping[str, Callable[[], object]], rounds: int, calls: int = 1) -> dict[str, float]:
    """Seconds of a call of each way, in its best round.

    Each way is called once to warm up. In a round each has its turn, of so many calls in a row, so that a busy moment
    of the machine meets all of them; the best round is the one least disturbed.
    """
    for work in ways.values():
        work()
    return least_in_turns({name: partial(_seconds, work, calls) for name, work in ways.items()}, rounds)


def least_in_turns(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The least number that each way gives, for ways that take the time themselves."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            found[name].append(measure())
    return {name: min(numbers) for name, numbers in found.items()}


def _seconds(work: Callable[[], object], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - started) / calls


def machine() -> dict[str, str]:
    """What numbers depend on, and nothing that tells whose machine it is."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()  # only Linux has it
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": version("torch"),
    }
