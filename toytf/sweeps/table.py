"""The table of a sweep: the last value of every metric, of every run and seed, beside the factors of its point.

Rows are in the order of the plan, whatever ended first: all engines give the same bytes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toytf.config.yaml_text import inline_yaml
from toytf.measurement import KINDS, reference_name
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


def rows_of(run: Run, member: Member) -> Iterator[Row]:
    """The rows of one finished run.

    The summary of one seed has its last values, which is much faster to read than all rows of the run.
    """
    Checksums(run.directory).check(
        run.summary_file.name, f"remove it, then write it again: {run.resume_command}"
    )  # fmt: skip
    columns = run.columns
    seeds: dict[Any, Mapping[str, float]] = {member.seed: run.summary}
    if member.seed is None:
        rows = run.seeds.iterrows()
        seeds = {seed: {str(name): float(value) for name, value in row.dropna().items()} for seed, row in rows}
    for seed, last in seeds.items():
        for metric, about in described(last, columns).items():
            levels = (last.get(reference_name(kind, metric)) for kind in KINDS)
            yield member.id, int(seed), metric, about.group.name, about.name, about.is_variant, last[metric], *levels


def with_factors(measured: "pd.DataFrame", members: Iterable[Member], factors: Sequence[str]) -> "pd.DataFrame":
    """The table: run, factors, seed, metric and so on.

    A column holds numbers, or texts, or true and false as they are; anything else in YAML.
    """
    table = measured.copy()
    by_run = {member.id: member.at for member in members}
    for place, key in enumerate(factors, 1):
        values = {run: at.get(key) for run, at in by_run.items()}
        kinds = {type(value) for value in values.values()}
        if not (kinds <= {int, float} or kinds in ({str}, {bool})):
            values = {run: value if isinstance(value, str) else inline_yaml(value) for run, value in values.items()}
        table.insert(place, column_of(key), table["run"].map(values))
    return table


def column_of(key: str) -> str:
    """The column of a factor; a key that is called like another column has `config.` before it."""
    return f"config.{key}" if key in MEASURED else key
