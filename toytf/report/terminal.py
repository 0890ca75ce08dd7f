"""The terminal: a progress line while a run goes on, a table when it has ended."""

import textwrap
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import IO, TYPE_CHECKING, Self, cast

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from toytf.errors import one_line, printable
from toytf.measurement import Measurement, Quantity
from toytf.report.headlines import short_table
from toytf.report.story import Story
from toytf.report.table import columns, summary_table
from toytf.timing import told
from toytf.words import Stderr, counted, say

if TYPE_CHECKING:
    from toytf.runs import Run

PROSE = 100
"""Characters of a line of prose, at most."""

EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal to draw a bar on."""

_within: ContextVar[bool] = ContextVar("within", default=False)
"""Does a progress go on that this one is a part of?"""


class _Progress(ABC):
    """Bars on a terminal; elsewhere, such as in a log file, a line now and then. One within another says nothing."""

    def __init__(self, *columns: ProgressColumn) -> None:
        console = Console(file=cast("IO[str]", Stderr()))
        bars = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn(), *columns)
        self._bars = Progress(*bars, console=console, disable=not console.is_terminal)
        self._ended = threading.Event()
        self._speaker = None if console.is_terminal else threading.Thread(target=self._speak, daemon=True)
        self._token: Token[bool] | None = None

    def __enter__(self) -> Self:
        if _within.get():
            self._bars.disable, self._speaker = True, None
        self._token = _within.set(True)
        self._bars.start()
        if self._speaker is not None:
            self._speaker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._bars.stop()
        if self._token is not None:
            _within.reset(self._token)

    def _speak(self) -> None:
        while not self._ended.wait(EVERY):
            self._say(self._status())

    def _say(self, text: str) -> None:
        """A line for those who see no bars."""
        if self._speaker is not None:
            say(one_line(text))

    @abstractmethod
    def _status(self) -> str:
        """What goes on."""


class ProgressLine(_Progress):
    """One line per seed, or for seeds that train together: steps done, mean metrics as of the last evaluation."""

    def __init__(self, steps: int, role: str) -> None:
        super().__init__(TimeRemainingColumn(compact=True), TextColumn("{task.fields[metrics]}", markup=False))
        self._steps, self._role = steps, role
        self._seeds, self._step, self._metrics, self._evaluates = "", 0, "", False
        self._current = self._bars.add_task("", total=max(steps, 1), metrics="", visible=False)

    def begin(self, seeds: Sequence[int]) -> None:
        """Open the line of a seed, or of several that train together."""
        self._seeds, self._step, self._metrics = shown_seeds(seeds), 0, ""
        self._current = self._bars.add_task(self._seeds, total=max(self._steps, 1), metrics="")

    def skip(self, seed: int) -> None:
        """Show a seed that was trained before."""
        self.begin([seed])
        self._bars.update(self._current, completed=max(self._steps, 1), metrics="already trained")
        self._say(f"seed {seed}: already trained")

    def stepped(self, step: int) -> None:
        """Move the bar; text is redrawn by rich's own clock."""
        self._step = step
        self._bars.update(self._current, completed=step if self._steps else 1)

    def evaluating(self) -> None:
        """Say what the run is busy with while no step is taken."""
        self._evaluates = True
        self._bars.update(self._current, metrics=f"{self._metrics}  evaluating …")

    def measured(self, found: Sequence[Sequence[Measurement]]) -> None:
        """Show means over the seeds of what was found in each."""
        shown = [self._shown(of_seed) for of_seed in found]
        everywhere = [label for label in shown[0] if all(label in values for values in shown)]
        means = {label: sum(values[label] for values in shown) / len(shown) for label in everywhere}
        self._metrics, self._evaluates = "  ".join(f"{label} {value:.2f}" for label, value in means.items()), False
        self._bars.update(self._current, metrics=self._metrics)
        if self._step == self._steps:
            self._say(self._status())

    def _shown(self, found: Sequence[Measurement]) -> dict[str, float]:
        """The loss, the accuracy of the trained role, and what has an onset, without variants and other views."""
        on_task = [one for one in found if not one.quantity.on and one.value is not None]
        loss = {one.quantity.label: one.value for one in on_task if one.quantity.group.name == "train"}
        wanted = {"role": self._role, "quantity": "accuracy"}
        accuracy = {str(one.quantity.at["role"]): one.value for one in on_task if one.quantity.at == wanted}
        onsets = [one for one in on_task if one.quantity.group.timed == "onset"]
        fewest = min((len(one.quantity.at) for one in onsets), default=0)  # other views of a memory have more factors
        recalls = {one.quantity.label: one.value for one in onsets if len(one.quantity.at) == fewest}
        return {label: value for label, value in {**loss, **accuracy, **recalls}.items() if value is not None}

    def _status(self) -> str:
        now = "  evaluating …" if self._evaluates else ""
        return f"{self._seeds}: step {self._step} of {self._steps}  {self._metrics}{now}"


def shown_seeds(seeds: Sequence[int]) -> str:
    """`seed 3`, `seeds 0 to 7`, or `8 trainings` of seeds that are not in a row."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    in_a_row = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"seeds {seeds[0]} to {seeds[-1]}" if in_a_row else f"{len(seeds)} trainings"


class CaseLine(_Progress):
    """One line for a study: which case goes on, how many are done."""

    def __init__(self, n_cases: int) -> None:
        super().__init__()
        self._n_cases, self._done, self._name = n_cases, 0, ""
        self._task = self._bars.add_task("", total=n_cases)

    def begin(self, name: str) -> None:
        """Name the case that goes on."""
        self._name = name
        self._bars.update(self._task, description=name)

    def done(self) -> None:
        """Count the case as done."""
        self._done += 1
        self._bars.advance(self._task)
        if self._done == self._n_cases:
            self._say(f"{self._done} of {self._n_cases} done")

    def _status(self) -> str:
        return f"{self._done} of {self._n_cases} done, now {self._name}"


class SweepLine(_Progress):
    """One line for a sweep: how many runs are done, how many failed, and how long the others will take."""

    def __init__(self, n_runs: int, n_done: int, n_failed: int) -> None:
        super().__init__(TimeRemainingColumn(compact=True), TextColumn("{task.fields[failed]}", markup=False))
        self._n_runs, self._done, self._failed = n_runs, n_done + n_failed, n_failed
        self._before, self._began = self._done, time.monotonic()
        self._task = self._bars.add_task("runs", total=n_runs, completed=self._done, failed=self._failures())

    def ended(self, n: int, n_failed: int) -> None:
        """Count runs that came to their end, some of which failed."""
        self._done += n
        self._failed += n_failed
        self._bars.update(self._task, completed=self._done, failed=self._failures())
        if self._done == self._n_runs:
            self._say(self._status())

    def _failures(self) -> str:
        return f"{self._failed} failed" if self._failed else ""

    def _status(self) -> str:
        """`12 of 64 runs done, 1 failed, about 3 min left`."""
        now, left = self._done - self._before, self._n_runs - self._done
        seconds = (time.monotonic() - self._began) / now * left if now else None
        about = ""
        if seconds:
            duration = f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
            about = f"about {f'{seconds:.0f} s' if seconds < 90 else duration} left"
        done = f"{self._done} of {counted(self._n_runs, 'run')} done"
        return ", ".join(filter(None, [done, self._failures(), about]))


def wide_console() -> Console:
    """Standard output; a file or a pipe gets lines of 160 characters, so that nothing is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def print_end(run: "Run", story: Story, *, verbose: bool) -> None:
    """What came out of a run: its story and the short table, or every metric; then where the page is, and what next."""
    console, summary, known = wide_console(), run.summary, run.columns
    for sentence in story.sentences:
        together = one_line(sentence).replace(" %", "\xa0%")  # no line begins with a percent sign
        print(textwrap.fill(together, min(console.width, PROSE)).replace("\xa0", " "))  # noqa: T201
    print()  # noqa: T201
    if verbose:
        print_table(summary, known, variants=True)
    else:
        short = short_table(summary, known)
        measured = [Column(name, justify="right", no_wrap=True) for name in ("measured", *short.columns)]
        print_rows([Column(), *measured, Column("metric", overflow="fold")], short.cells())
        if short.others:
            print(f"{counted(short.others, 'more metric')}: on the page, or with --verbose")  # noqa: T201
    spent = told(run.timing or {})
    print(f"time: {spent}" if spent else "")  # noqa: T201
    for line in (f"page: {run.report_file}", f"next: {story.next_step}", run.directory):
        print(printable(line))  # noqa: T201


def print_rows(columns: Sequence[Column], rows: Iterable[Iterable[str]]) -> None:
    """A table without borders."""
    table = Table(
        *columns, show_edge=False, pad_edge=False, header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for cells in rows:
        table.add_row(*(escape(one_line(cell)) for cell in cells))
    console = wide_console()
    with console.capture() as drawn:
        console.print(table, highlight=False)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))  # noqa: T201


def print_table(summary: Mapping[str, float], known: Mapping[str, Quantity], *, variants: bool = False) -> None:
    """Measured and what it can be read against, group by group.

    known: what the metrics are about. variants: also those of a metric, such as its single heads.
    """
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for column in ("", "measured", *columns(summary)):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for section in summary_table(summary, known, variants=variants):
        table.add_row(f"[bold]{escape(one_line(section.heading))}[/bold]")
        for row in section.rows:
            name, *values = row.cells()
            table.add_row(f"  {escape(one_line(name))}", *values)
    wide_console().print(table)
