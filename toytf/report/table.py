"""The end-of-run table: measured, and beside it what it can be read against."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

GROUPS = {
    "eval": "Accuracy and loss by role",
    "recall": "Recall, as a fraction of the pairs",
    "kl": "Divergence from the law to be stored (nats)",
    "attention": "Attention",
    "capacity": "Associations stored",
    "over_theory": "Measured / theory",
    "load": "p log p / (d_in d_out)",
    "exponent": "Capacity grows like dimension to the power of",
    "width_exponent": "Capacity grows like width to the power of",
    "facts_per_parameter": "Associations per parameter",
    "bits_per_parameter": "Bits per parameter",
    "margin": "Margins (in standard deviations of a score)",
    "scores": "Scores (in standard deviations of a score)",
    "spectrum": "Singular values of √d W / |W|",
    "utilisation": "Stored / capacity of such a matrix",
    "lemma": "Largest difference from autograd",
    "onset": "Step of onset (first evaluation above chance + 0.1)",
    "floor": "What trivial heuristics reach",
    "data": "The held-out sequences",
}


REFERENCES = ("ideal", "theory", "chance")
"""What a metric can be read against: groups shown as columns."""

BACKGROUND = (*REFERENCES, "train", "norm", "grad_norm")
"""Groups that are shown beside others or only logged."""


@dataclass(frozen=True)
class TableRow:
    """One metric beside what it can be read against; None where there is no such value."""

    name: str
    measured: float
    spread: float | None
    references: tuple[float | None, ...]
    """One for each of `columns`."""

    def cells(self) -> tuple[str, ...]:
        """Name, measured ± spread, references."""
        shown = whole if self.name.startswith("onset/") else number
        measured = shown(self.measured) + (f" ± {shown(self.spread)}" if self.spread is not None else "")
        return self.name.partition("/")[2], measured, *map(number, self.references)

    @property
    def is_variant(self) -> bool:
        """Is this another form of a metric that has a row of its own?"""
        return is_variant(self.name)


def is_variant(name: str) -> bool:
    """Is this `<group>/<metric>/<variant>`? The short views leave variants of a metric to the full table."""
    return not name.startswith("floor/") and name.removeprefix("onset/").count("/") > 1


def number(value: float | None) -> str:
    """Three decimals, fewer for a large number, a power of ten for a tiny one; a dash for none."""
    if value is None:
        return "–"
    if 0 < abs(value) < 5e-4:
        return f"{value:.1e}"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"


def whole(value: float) -> str:
    """A number of steps."""
    return f"{value:.0f}"


def columns(summary: Mapping[str, float]) -> tuple[str, ...]:
    """The kinds of reference that a summary has."""
    groups = {name.partition("/")[0] for name in summary}
    return tuple(kind for kind in REFERENCES if kind in groups)


def summary_table(summary: Mapping[str, float]) -> dict[str, list[TableRow]]:
    """The rows of a summary, by group title; metrics of a group this table does not know come last, under its name."""
    groups: dict[str, list[TableRow]] = {title: [] for title in GROUPS.values()}
    kinds = columns(summary)
    for name, value in summary.items():
        group = name.partition("/")[0]
        if name.endswith("/std") or group in BACKGROUND:
            continue
        references = tuple(summary.get(f"{kind}/{name}") for kind in kinds)
        row = TableRow(name, value, summary.get(f"{name}/std"), references)
        groups.setdefault(GROUPS.get(group, group), []).append(row)
    return {title: sorted(rows, key=_natural) for title, rows in groups.items() if rows}


def _natural(row: TableRow) -> list[str | int]:
    """Sort d8 before d16: digits compare as numbers."""
    parts = re.split(r"(\d+)", row.name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)]
