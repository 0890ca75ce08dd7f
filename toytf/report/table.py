"""The end-of-run table: measured, ideal, chance."""

from collections.abc import Mapping
from dataclasses import dataclass

GROUPS = {
    "eval": "Accuracy and loss by role",
    "recall": "Recall of the ideal memories",
    "kl": "Divergence from the law to be stored (nats)",
    "attention": "Attention",
    "onset": "Step of onset (first evaluation above chance + 0.1)",
    "floor": "What trivial heuristics reach",
    "data": "The held-out sequences",
}


BACKGROUND = ("ideal", "chance", "train", "norm", "grad_norm")
"""Groups that are shown beside others or only logged."""


@dataclass(frozen=True)
class TableRow:
    """One metric beside what it can be read against; None where there is no such value."""

    name: str
    measured: float
    spread: float | None
    ideal: float | None
    chance: float | None

    def cells(self) -> tuple[str, str, str, str]:
        """Name, measured ± spread, ideal, chance."""
        shown = whole if self.name.startswith("onset/") else number
        measured = shown(self.measured) + (f" ± {shown(self.spread)}" if self.spread is not None else "")
        return self.name.partition("/")[2], measured, number(self.ideal), number(self.chance)

    @property
    def is_variant(self) -> bool:
        """Is this another form of a metric that has a row of its own?"""
        return is_variant(self.name)


def is_variant(name: str) -> bool:
    """Is this `<group>/<metric>/<variant>`? The short views leave variants of a metric to the full table."""
    return not name.startswith("floor/") and name.removeprefix("onset/").count("/") > 1


def number(value: float | None) -> str:
    """Three decimals, or a dash."""
    if value is None:
        return "–"
    return f"{value:.3f}"


def whole(value: float) -> str:
    """A number of steps."""
    return f"{value:.0f}"


def summary_table(summary: Mapping[str, float]) -> dict[str, list[TableRow]]:
    """The rows of a summary, by group title; metrics of a group this table does not know come last, under its name."""
    groups: dict[str, list[TableRow]] = {title: [] for title in GROUPS.values()}
    for name, value in summary.items():
        group = name.partition("/")[0]
        if name.endswith("/std") or group in BACKGROUND:
            continue
        row = TableRow(
            name, value, summary.get(f"{name}/std"), summary.get(f"ideal/{name}"), summary.get(f"chance/{name}")
        )
        groups.setdefault(GROUPS.get(group, group), []).append(row)
    return {title: rows for title, rows in groups.items() if rows}
