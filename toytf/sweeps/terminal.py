"""The terminal: the plan of a sweep before it runs, and its points when it has ended."""

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Column

from toytf.errors import RunFailed, one_line, printable, shortened
from toytf.measurement import reference_name
from toytf.report.terminal import print_rows
from toytf.sweeps.findings import cells, direction, findings
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
    """At most twelve points: the best first, if it is known what is better, else as they come.

    Beside a metric is what differs among points; what is the same everywhere, the findings tell.
    """
    levels = {metric: [(kind, reference_name(kind, metric)) for kind in SHOWN] for metric in sweep.shown}
    shown = {
        metric: [kind for kind, name in kinds if name in points and points[name].nunique() > 1]
        for metric, kinds in levels.items()
    }
    first = next(iter(shown), None)
    better = direction(sweep, points, first) if first else None
    ordered = points.sort_values(first, ascending=better == "low", kind="stable") if first and better else points
    columns = [Column(escape(one_line(key)), overflow="fold") for key in sweep.factors or ("config",)]
    for metric, kinds in shown.items():
        columns.append(Column(escape(one_line(metric)), justify="right", overflow="fold"))
        columns += [Column(kind, justify="right") for kind in kinds]
    rows = [
        [shortened(str(value), 40) for value in sweep.at[point].values() or ["as it is"]]
        + cells(sweep, points, shown, point)
        for point in ordered.index[:ROWS]
    ]
    print_rows(columns, rows)
    if len(points) > ROWS:
        print(f"… and {len(points) - ROWS:,} more in table.csv")  # noqa: T201
