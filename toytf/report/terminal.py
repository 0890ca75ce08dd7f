"""The terminal: a progress line while a run goes on, a table when it has ended."""

from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from toytf.report.table import columns, summary_table


class ProgressLine:
    """One line per seed: steps done, loss, accuracy and recalls as of the last evaluation."""

    def __init__(self, steps: int, role: str) -> None:
        self._steps, self._role = steps, role
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[metrics]}"),
            console=Console(stderr=True),
        )
        self._current = self._progress.add_task("", total=max(steps, 1), metrics="", visible=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, seed: int) -> None:
        """Open the line of a seed."""
        self._current = self._progress.add_task(f"seed {seed}", total=max(self._steps, 1), metrics="")

    def skip(self, seed: int) -> None:
        """Show a seed that was trained before."""
        self.begin(seed)
        self._progress.update(self._current, completed=max(self._steps, 1), metrics="already trained")

    def stepped(self, step: int) -> None:
        """Move the bar; text is redrawn by rich's own clock."""
        self._progress.update(self._current, completed=step if self._steps else 1)

    def measured(self, row: Mapping[str, float]) -> None:
        """Show the loss, the accuracy of the trained role, and the recalls without their variants."""
        recalls = [name for name in row if name.startswith("recall/")]
        plain = [name for name in recalls if not any(name.startswith((f"{other}_", f"{other}/")) for other in recalls)]
        names = [name for name in ("train/loss", f"eval/{self._role}_accuracy", *plain) if name in row]
        shown = {name.partition("/")[2].removesuffix("_accuracy"): row[name] for name in names}
        self._progress.update(
            self._current, metrics="  ".join(f"{label} {value:.2f}" for label, value in shown.items())
        )


class JobLine:
    """One line for a run that is a list of jobs: which one goes on, how many are done."""

    def __init__(self, n_jobs: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("", total=n_jobs)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, name: str) -> None:
        """Name the job that goes on."""
        self._progress.update(self._task, description=name)

    def done(self) -> None:
        """Count the job as done."""
        self._progress.advance(self._task)


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
        table.add_row(f"[bold]{title}[/bold]")
        for row in rows:
            name, *values = row.cells()
            table.add_row(f"  {name}", *values)
    wide_console().print(table)
