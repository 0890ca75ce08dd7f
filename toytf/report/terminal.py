"""The terminal: a progress line while a run goes on, a table when it has ended."""

import sys
import time
from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from toytf.errors import one_line
from toytf.report.table import columns, summary_table

EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal to draw a bar on."""


class _Progress:
    """Bars on a terminal; elsewhere, such as in a log file, a line now and then."""

    def __init__(self, *columns: ProgressColumn) -> None:
        console = Console(stderr=True)
        self._drawn = console.is_terminal
        bars = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn(), *columns)
        self._bars = Progress(*bars, console=console, disable=not self._drawn)
        self._said = time.monotonic()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def _say(self, text: str, *, now: bool = False) -> None:
        """A line for those who see no bars, if the last was long ago or if it must be said now."""
        if not self._drawn and (now or time.monotonic() - self._said >= EVERY):
            self._said = time.monotonic()
            sys.stderr.write(f"{one_line(text)}\n")
            sys.stderr.flush()


class ProgressLine(_Progress):
    """One line per seed: steps done, loss, accuracy and recalls as of the last evaluation."""

    def __init__(self, steps: int, role: str) -> None:
        super().__init__(TimeRemainingColumn(compact=True), TextColumn("{task.fields[metrics]}", markup=False))
        self._steps, self._role = steps, role
        self._seed, self._step, self._metrics = 0, 0, ""
        self._current = self._bars.add_task("", total=max(steps, 1), metrics="", visible=False)

    def begin(self, seed: int) -> None:
        """Open the line of a seed."""
        self._seed, self._step, self._metrics = seed, 0, ""
        self._current = self._bars.add_task(f"seed {seed}", total=max(self._steps, 1), metrics="")

    def skip(self, seed: int) -> None:
        """Show a seed that was trained before."""
        self.begin(seed)
        self._bars.update(self._current, completed=max(self._steps, 1), metrics="already trained")
        self._say(f"seed {seed}: already trained", now=True)

    def stepped(self, step: int) -> None:
        """Move the bar; text is redrawn by rich's own clock."""
        self._step = step
        self._bars.update(self._current, completed=step if self._steps else 1)
        self._say(f"{self._where}  {self._metrics}")

    def evaluating(self) -> None:
        """Say what the run is busy with while no step is taken."""
        self._bars.update(self._current, metrics=f"{self._metrics}  evaluating …")
        self._say(f"{self._where}: evaluating …")

    def measured(self, row: Mapping[str, float]) -> None:
        """Show the loss, the accuracy of the trained role, and the recalls without their variants."""
        recalls = [name for name in row if name.startswith("recall/")]
        plain = [name for name in recalls if not any(name.startswith((f"{other}_", f"{other}/")) for other in recalls)]
        names = [name for name in ("train/loss", f"eval/{self._role}_accuracy", *plain) if name in row]
        shown = {name.partition("/")[2].removesuffix("_accuracy"): row[name] for name in names}
        self._metrics = "  ".join(f"{label} {value:.2f}" for label, value in shown.items())
        self._bars.update(self._current, metrics=self._metrics)
        self._say(f"{self._where}  {self._metrics}", now=row["step"] == self._steps)

    @property
    def _where(self) -> str:
        return f"seed {self._seed}: step {self._step} of {self._steps}"


class JobLine(_Progress):
    """One line for a run that is a list of jobs: which one goes on, how many are done."""

    def __init__(self, n_jobs: int) -> None:
        super().__init__()
        self._n_jobs, self._done = n_jobs, 0
        self._task = self._bars.add_task("", total=n_jobs)

    def begin(self, name: str) -> None:
        """Name the job that goes on."""
        self._bars.update(self._task, description=name)
        self._say(f"{self._done} of {self._n_jobs} done, now {name}")

    def done(self) -> None:
        """Count the job as done."""
        self._done += 1
        self._bars.advance(self._task)
        self._say(f"{self._done} of {self._n_jobs} done", now=self._done == self._n_jobs)


def wide_console() -> Console:
    """Standard output; a file or a pipe gets lines of 160 characters, so that nothing is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def print_table(summary: Mapping[str, float]) -> None:
    """Measured and what it can be read against, group by group; variants of a metric are left to the page."""
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for column in ("", "measured", *columns(summary)):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for title, rows in summary_table(summary, variants=False).items():
        table.add_row(f"[bold]{escape(one_line(title))}[/bold]")
        for row in rows:
            name, *values = row.cells()
            table.add_row(f"  {escape(one_line(name))}", *values)
    wide_console().print(table)
