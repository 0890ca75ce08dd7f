"""The table of a sweep: the last value of every metric, of every run and seed, beside the factors of its point.

Rows are in the order of the plan, whatever ended first: all engines give the same bytes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toytf.config.yaml_text import inline_yaml
from toytf.files import write_atomic
from toytf.measurement import KINDS, Quantity, reference_name
from toytf.runs import Run
from toytf.runs.checksums import Checksums
from toytf.runs.summary import described
from toytf.sweeps.plan import Member

if TYPE_CHECKING:
    import pandas as pd

MEASURED = ("run", "seed", "metric", "group", "name", "variant", "value", *KINDS)
"""The columns besides the factors."""

CSV = "table.csv"

Row = tuple[Any, ...]
"""One value of each of these columns."""


def as_table(rows: Iterable[Row]) -> "pd.DataFrame":
    """Rows of runs as a table without factors."""
    import pandas as pd

    return pd.DataFrame(rows, columns=list(MEASURED)).astype(
        {"seed": "int64", "variant": bool, **dict.fromkeys(("value", *KINDS), float)}
    )


def rows_of(run: Run, member: Member) -> Iterator[Row]:
    """The rows of one finished run.

    The summary of one seed has its last values, which is much faster to read than all rows of the run.
    """
    Checksums(run.directory).check(
        run.summary_file.name, f"remove it, then write it again: {run.resume_command}"
    )  # fmt: skip
    columns = run.columns
    if member.seed is not None:
        yield from _rows(member.id, member.seed, run.summary, columns)
        return
    for seed, values in run.seeds.iterrows():
        last = {str(name): float(value) for name, value in values.dropna().items()}
        yield from _rows(member.id, int(str(seed)), last, columns)


def _rows(run: str, seed: int, last: Mapping[str, float], columns: Mapping[str, Quantity]) -> Iterator[Row]:
    for metric, about in described(last, columns).items():
        levels = (last.get(reference_name(kind, metric)) for kind in KINDS)
        yield run, seed, metric, about.group.name, about.name, about.is_variant, last[metric], *levels


def with_factors(measured: "pd.DataFrame", members: Iterable[Member], factors: Sequence[str]) -> "pd.DataFrame":
    """The table: run, factors, seed, metric and so on."""
    table = measured.copy()
    by_run = {member.id: member.at for member in members}
    for place, key in enumerate(factors, 1):
        cells = dict(zip(by_run, _cells([at.get(key) for at in by_run.values()]), strict=True))
        table.insert(place, column_of(key), table["run"].map(cells))
    return table


def column_of(key: str) -> str:
    """The column of a factor; a key that is called like another column has `config.` before it."""
    return f"config.{key}" if key in MEASURED else key


def _cells(values: Sequence[Any]) -> list[Any]:
    """Values that one column of a file can hold: numbers, texts, true and false as they are, anything else in YAML."""
    kinds = {type(value) for value in values}
    if kinds <= {int, float} or kinds in ({str}, {bool}):
        return list(values)
    return [value if isinstance(value, str) else inline_yaml(value) for value in values]


def write_table(table: "pd.DataFrame", directory: Path) -> None:
    """Write table.csv, whole or not at all."""
    write_atomic(directory / CSV, table.to_csv(index=False, lineterminator="\n").encode())
