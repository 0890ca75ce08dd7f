"""The end-of-run table: measured, and beside it what it can be read against."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from toytf.measurement import KINDS, Group, Quantity, flat, is_reference, reference_name, spread_name
from toytf.runs.summary import described

PLACES = ("first", "full", "last")
SMALLEST = 5e-4
"""What three decimals would show as nothing."""


@dataclass(frozen=True)
class TableRow:
    """One metric beside what it can be read against; None where there is no such value."""

    quantity: Quantity
    measured: float
    spread: float | None
    references: tuple[float | None, ...]
    """One for each of `columns`."""

    @property
    def meaning(self) -> str:
        """What the metric means, in a sentence, if whoever measures it said so."""
        return self.quantity.group.meaning(self.quantity.label)

    def cells(self) -> tuple[str, ...]:
        """Name as in summary.json, measured ± spread, references."""
        shown = {"whole": whole, "power": power, "number": number}[self.quantity.group.format]
        measured = shown(self.measured)
        if self.spread is not None:
            tiny = shown is number and abs(self.spread) < SMALLEST <= abs(self.measured)  # as many decimals as the mean
            measured += " ± 0.000" if tiny else f" ± {shown(self.spread)}"
        references = ("–" if value is None else shown(value) for value in self.references)
        return flat(self.quantity), measured, *references


@dataclass(frozen=True)
class TableSection:
    """The rows of a group, on the task or on an entry of `evaluate_on`."""

    group: Group
    on: str
    rows: tuple[TableRow, ...]

    @property
    def heading(self) -> str:
        """The title of the group, and what it was evaluated on."""
        return self.group.heading + (f" ({self.on})" if self.on else "")


def number(value: float | None) -> str:
    """Three decimals, fewer for a large number, a power of ten for a tiny one; a dash for none."""
    if value is None:
        return "–"
    if 0 < abs(value) < SMALLEST:
        return power(value)
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"


def whole(value: float) -> str:
    """A number of steps or samples."""
    return f"{value:.0f}"


def power(value: float) -> str:
    """A number as a multiple of a power of ten."""
    return f"{value:.1e}"


def columns(summary: Mapping[str, float]) -> tuple[str, ...]:
    """The kinds of reference that a summary has."""
    groups = {name.partition("/")[0] for name in summary if is_reference(name)}
    return tuple(kind for kind in KINDS if kind in groups)


def summary_table(
    summary: Mapping[str, float], known: Mapping[str, Quantity], *, variants: bool = True
) -> list[TableSection]:
    """The metrics of a summary by group, in the order in which they were measured; those of `evaluate_on` come last.

    known: what the metrics are about. Without variants: only the metrics that a short table shows.
    """
    sections: dict[tuple[str, str], list[TableRow]] = {}
    kinds = columns(summary)
    for name, quantity in described(summary, known).items():
        group = quantity.group
        left_out = (quantity.is_variant and not group.short) or group.place == "full"
        if group.place == "log" or (left_out and not variants):
            continue
        references = tuple(summary.get(reference_name(kind, name)) for kind in kinds)
        spread = summary.get(f"{name}/error" if group.pooled else spread_name(name))
        row = TableRow(quantity, summary[name], spread, references)
        sections.setdefault((quantity.on, group.name), []).append(row)
    found = [
        TableSection(rows[0].quantity.group, on, tuple(sorted(rows, key=_natural)))
        for (on, _), rows in sections.items()
    ]
    return sorted(found, key=lambda section: (section.on, PLACES.index(section.group.place)))


def _natural(row: TableRow) -> list[tuple[str, float]]:
    """Sort by the parts of a label, d8 before d16 and 0.125 before 0.5: numbers compare as numbers."""
    quantity, group = row.quantity, row.quantity.group
    said = [factor for factor in quantity.at if factor not in ("on", *quantity.plain)]
    parts = _digits(quantity.name)
    for factor in sorted(said, key=lambda factor: factor in group.variants):
        value, joint = quantity.at[factor], "/" if factor in group.variants else "_"
        if isinstance(value, bool):
            parts += [(joint + factor, 0.0)] if value else []
        else:
            parts += _digits(joint + value) if isinstance(value, str) else [(joint + factor, float(value))]
    return parts


def _digits(word: str) -> list[tuple[str, float]]:
    """What comes before each number in a word, and the number; -1 where there is none."""
    return [(text, float(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", word) if text or digits]
