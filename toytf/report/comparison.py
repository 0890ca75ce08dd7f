"""Several runs beside each other: one table with runs as columns, curves over each other, and where configs differ."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toytf.config.sections import flattened
from toytf.errors import UserError, nearest, shortened
from toytf.measurement import KINDS, reference_name, spread_name
from toytf.report.headlines import short_table
from toytf.report.table import TableRow
from toytf.runs import Run

if TYPE_CHECKING:
    import pandas as pd

NOTHING = "–"
CURVE_LEVELS = ("ideal", "chance")
ENDS = 2
"""What is measured only before and after training makes no curve."""


class Comparison:
    """Runs beside each other; `table`, `differences` and `figures()` are what the page of several runs shows."""

    def __init__(self, runs: Sequence[Run]) -> None:
        if not runs:
            raise UserError("there are no runs to compare")
        self.runs = list(runs)
        self.names = _distinct([run.name for run in runs], KINDS)

    @cached_property
    def rows(self) -> list[tuple[str, str, dict[str, str]]]:
        """Phrase, metric, and cells by column: the main metrics of every run, and what all can be read against."""
        tables = [short_table(run.summary, run.columns) for run in self.runs]
        phrases = {row.cells()[0]: (phrase, row) for table in tables for phrase, row in table.rows}
        found = []
        for metric, (phrase, like) in phrases.items():
            cells = dict.fromkeys(self.names, NOTHING)
            for name, run in zip(self.names, self.runs, strict=True):
                if metric in run.summary:
                    spread = run.summary.get(spread_name(metric))
                    cells[name] = TableRow(like.quantity, run.summary[metric], spread, ()).cells()[1]
            for kind in KINDS:
                levels = [run.summary.get(reference_name(kind, metric)) for run in self.runs]
                said = [TableRow(like.quantity, level, None, ()).cells()[1] for level in levels if level is not None]
                cells[kind] = " / ".join(dict.fromkeys(said)) or NOTHING
            found.append((phrase, metric, cells))
        return found

    @property
    def columns(self) -> list[str]:
        """The runs, and the kinds of reference that some row has."""
        return [*self.names, *(kind for kind in KINDS if any(cells[kind] != NOTHING for _, _, cells in self.rows))]

    @property
    def table(self) -> "pd.DataFrame":
        """The main metrics: a row a metric, a column a run, values as numbers; `…/std` for spreads over seeds."""
        import pandas as pd

        found: dict[str, dict[str, float | None]] = {}
        for name, run in zip(self.names, self.runs, strict=True):
            summary = run.summary
            found[name] = {metric: summary.get(metric) for _, metric, _ in self.rows}
            spreads = {metric: summary.get(spread_name(metric)) for _, metric, _ in self.rows}
            if any(spread is not None for spread in spreads.values()):
                found[f"{name}/std"] = spreads
        return pd.DataFrame(found, index=[metric for _, metric, _ in self.rows])

    @cached_property
    def differences(self) -> dict[str, list[str]]:
        """The dotted keys in which configs differ, and the value of each run; none of a config that cannot be read.

        `toytf`: the version and commit that the runs were started with, if these differ.
        """
        configs = [_config(run) for run in self.runs]
        found = {key: [shortened(str(config.get(key, NOTHING))) for config in configs] for key in _differing(configs)}
        starts = [next(iter(run.provenance.starts), None) for run in self.runs]
        code = [NOTHING if one is None else " ".join(filter(None, [one.toytf, one.commit])) for one in starts]
        return {**found, **({"toytf": code} if len({*code}) > 1 else {})}

    def figures(self) -> dict[str, Any]:
        """A figure for each main metric that several runs have at several steps, by metric."""
        from toytf.curves import overlaid

        histories = {name: run.history for name, run in zip(self.names, self.runs, strict=True)}
        found = {}
        for phrase, metric, _ in self.rows:
            curves = {
                name: history
                for name, history in histories.items()
                if metric in history and history[metric].count() > ENDS * history["seed"].nunique()
            }
            # What it can be read against where that is the same for all runs; a limit far away would hide them.
            known = {
                kind: {run.summary.get(reference_name(kind, metric)) for run in self.runs} for kind in CURVE_LEVELS
            }
            levels = {kind: level for kind, (level, *others) in known.items() if level is not None and not others}
            if len(curves) > 1:
                about = next(run.columns[metric] for run in self.runs if metric in run.columns)
                says = about.group.meaning(about.label) or phrase
                found[metric] = overlaid(curves, metric, says, levels)
        return found

    def figure(self, metric: str | None = None) -> Any:
        """The curves of one metric, by default the first of the table that has any."""
        found = self.figures()
        if not found:
            raise UserError("these runs share no curves")
        if metric is None:
            return next(iter(found.values()))
        if metric not in found:
            raise UserError(f'these runs share no curves of "{shortened(metric)}": {nearest(metric, found)}')
        return found[metric]

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(column)}</th>" for column in ["", *self.columns, "metric"])
        body = "".join(
            f"<tr><td>{escape(phrase)}</td>{''.join(f'<td>{escape(cells[column])}</td>' for column in self.columns)}"
            f"<td><code>{escape(metric)}</code></td></tr>"
            for phrase, metric, cells in self.rows
        )
        changed = "".join(
            f"<li><code>{escape(key)}</code>: {escape(' / '.join(values))}</li>"
            for key, values in self.differences.items()
        )
        return f"<table><tr>{head}</tr>{body}</table>" + (
            f"<p>Configs differ in</p><ul>{changed}</ul>" if changed else ""
        )


def compare(runs: Iterable[Run | Path | str]) -> Comparison:
    """Runs, or their directories, beside each other: a table, where their configs differ, and curves."""
    return Comparison([run if isinstance(run, Run) else Run.open(run) for run in runs])


def open_runs(pattern: Path | str) -> "pd.DataFrame":
    """Every value of all runs whose directories fit a pattern such as `runs/*`, as one tidy table.

    Its columns are those of `Run.table`, with `run` in front, and after it the config keys in which the runs differ
    (`config.width` if there is a factor `width`).
    """
    import pandas as pd

    root = Path(Path(pattern).anchor)
    configs_found = root.glob(str((Path(pattern) / "config.yaml").relative_to(root)))
    found = [Run.open(path.parent) for path in sorted(configs_found)]
    if not found:
        raise UserError(f"{pattern}: no run directories fit this")
    names = _distinct([run.name for run in found])
    configs = [_config(run) for run in found]
    differ = [key for key in _differing(configs) if _is_plain([config.get(key) for config in configs])]
    tables = [run.table for run in found]
    taken = {column for table in tables for column in table}
    for name, table, config in zip(names, tables, configs, strict=True):
        own = {f"config.{key}" if key in taken else key: config.get(key) for key in differ}
        for place, (column, value) in enumerate({"run": name, **own}.items()):
            table.insert(place, column, [value] * len(table))
    return pd.concat(tables, ignore_index=True)


def _differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The dotted keys in which those configs differ that can be read."""
    known = [config for config in configs if config]
    keys = dict.fromkeys(key for config in known for key in config)
    return [key for key in keys if len({str(config.get(key, NOTHING)) for config in known}) > 1]


def _is_plain(values: Sequence[Any]) -> bool:
    """Are there any, and can all stand in a cell?"""
    return all(isinstance(value, str | int | float | None) for value in values) and {*values} != {None}


def _config(run: Run) -> dict[str, Any]:
    try:
        return flattened(run.config)
    except UserError:  # such as of a package that is not installed here
        return {}


def _distinct(names: Sequence[str], taken: Collection[str] = ()) -> list[str]:
    """Names as they are; those that two runs have, or that are taken, with a number."""
    found: list[str] = []
    for name in names:
        said, number = name, 0
        while said in taken or said in found or names.count(said) > (number == 0):
            number += 1
            said = f"{name} ({number})"
        found.append(said)
    return found
