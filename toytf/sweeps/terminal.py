"""The terminal: the plan of a sweep before it runs, and its points when it has ended."""

from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table

from toytf.errors import RunFailed, one_line, printable, shortened
from toytf.measurement import reference_name
from toytf.report.terminal import wide_console
from toytf.sweeps.findings import cell, direction, findings, level, levels
from toytf.sweeps.opened import PAGE, Sweep, member_label
from toytf.sweeps.plan import Plan
from toytf.sweeps.points import label_of
from toytf.words import counted

if TYPE_CHECKING:
    import pandas as pd

ROWS = 12
"""As many rows as a reader takes in at a glance."""
SHOWN = ("ideal", "theory", "chance")


def print_plan(plan: Plan) -> None:
    """What a sweep would run: numbers of points, runs and stacks, and the first points."""
    points, groups = plan.points.points, plan.groups
    stacks = [len(group) for group in groups if len(group) > 1]
    stacked = f", {sum(stacks):,} of them in {counted(len(stacks), 'stack')} of at most {max(stacks)}" if stacks else ""
    print(f"{counted(len(points), 'point')}, {counted(len(plan.runs), 'run')}{stacked}")  # noqa: T201
    for point in points[:ROWS]:
        print(f"  {shortened(label_of(point)) or 'the config as it is'}")  # noqa: T201
    if len(points) > ROWS:
        print(f"  … and {len(points) - ROWS:,} more")  # noqa: T201
    print(f"would go to {printable(plan.directory)}")  # noqa: T201


def print_sweep(sweep: Sweep) -> None:
    """The findings, the points that matter, where the page is, and last the directory."""
    points = sweep.points
    for sentence in findings(sweep, points):
        print(one_line(sentence))  # noqa: T201
    if len(points):
        print()  # noqa: T201
        _print_points(sweep, points)
    print(f"\nstate: {sweep.state}; ± is the standard deviation over seeds (n − 1)")  # noqa: T201
    print(f"page: {printable(sweep.directory / PAGE)}")  # noqa: T201
    print(printable(sweep.directory))  # noqa: T201


def check_failures(sweep: Sweep) -> None:
    """Raise RunFailed if runs failed: how many, why the first did, and how to try again."""
    failures = sweep.failures
    if failures:
        first = next(member for member in sweep.members if member.id in failures)
        why = f"{member_label(first)}: {failures[first.id].message}"
        raise RunFailed(
            f"{len(failures):,} of {counted(len(sweep.members), 'run')} failed, first {why}; to try again: "
            f"{sweep.resume_command} --retry"
        )


def _print_points(sweep: Sweep, points: "pd.DataFrame") -> None:
    """At most twelve points: the best first, if it is known what is better, else as they come."""
    shown = [metric for metric in sweep.shown if metric in points]
    better = direction(sweep, points, shown[0]) if shown else None
    ordered = points.sort_values(shown[0], ascending=better == "low", kind="stable") if better else points
    beside = {metric: _differing(points, metric) for metric in shown}
    table = Table(show_edge=False, pad_edge=False, header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for key in sweep.factors or ("config",):
        table.add_column(escape(one_line(key)), overflow="fold")
    for metric in shown:
        table.add_column(escape(one_line(metric)), justify="right", overflow="fold")
        for kind in beside[metric]:
            table.add_column(kind, justify="right")
    for point in ordered.index[:ROWS]:
        cells = [shortened(str(value), 40) for value in sweep.at[point].values()] or ["as it is"]
        for metric in shown:
            cells.append(cell(sweep, points, metric, point))
            cells += [level(sweep, points, metric, kind, point) for kind in beside[metric]]
        table.add_row(*(escape(one_line(text)) for text in cells))
    console = wide_console()
    with console.capture() as drawn:
        console.print(table, highlight=False)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))  # noqa: T201
    if len(points) > ROWS:
        print(f"… and {len(points) - ROWS:,} more in table.csv")  # noqa: T201


def _differing(points: "pd.DataFrame", metric: str) -> list[str]:
    """What a metric can be read against and that is not the same everywhere, which the findings tell."""
    known = [kind for kind in levels(points, metric) if kind in SHOWN]
    return [kind for kind in known if points[reference_name(kind, metric)].nunique() > 1]
