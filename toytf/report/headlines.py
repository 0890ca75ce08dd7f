"""The short table at the end of a run: the few metrics that tell what came out, each with what it is in a phrase.

Whoever measures declares them (`Group.headline`). A group that declares nothing shows its metrics under its title,
after those that are declared.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from string import Formatter
from typing import Any

from toytf.measurement import Group, Headline, Quantity, Scalar, flat
from toytf.report.table import TableRow, TableSection, columns, summary_table

ROWS = 12
"""As many rows as a reader takes in at a glance."""

UNDECLARED_RANK = 1


@dataclass(frozen=True)
class ShortTable:
    """At most twelve rows: a phrase, and the metric beside what it can be read against."""

    columns: tuple[str, ...]
    """The kinds of reference that some row has."""
    rows: tuple[tuple[str, TableRow], ...]
    others: int
    """How many metrics it leaves out."""

    def cells(self) -> Iterator[tuple[str, ...]]:
        """Row by row: phrase, measured ± spread, references, and the name of the metric."""
        for phrase, row in self.rows:
            name, *values = row.cells()
            yield phrase, *values, name


@dataclass(frozen=True)
class _Candidate:
    rank: int
    section: int
    phrase: str
    row: TableRow


def short_table(summary: Mapping[str, float], known: Mapping[str, Quantity], *, most: int = ROWS) -> ShortTable:
    """The headlines of a summary: those of rank 0, then those of further ranks as far as they fit.

    known: what the metrics are about. Of the same metric at several sizes, the largest have the rank that is declared,
    the next smaller ones a rank after that, and so on. From the second rank on a group gives all rows of a rank or
    none: half of them would look like a choice.
    """
    sections = summary_table(summary, known)
    found = [one for place, section in enumerate(sections) for one in _candidates(place, section)]
    chosen: list[_Candidate] = []
    ranks = sorted({one.rank for one in found})
    for rank in ranks:
        for place in range(len(sections)):
            more = [one for one in found if (one.rank, one.section) == (rank, place)]
            if rank == ranks[0] or len(chosen) + len(more) <= most:
                chosen += more
    shown = [one for one in found if one in chosen[:most]]
    kinds = columns(summary)
    used = [i for i in range(len(kinds)) if any(one.row.references[i] is not None for one in shown)]
    rows = [
        (one.phrase, replace(one.row, references=tuple(one.row.references[i] for i in used))) for one in shown
    ]  # fmt: skip
    others = sum(len(section.rows) for section in sections) - len(rows)
    return ShortTable(tuple(kinds[i] for i in used), tuple(rows), others)


def _candidates(place: int, section: TableSection) -> Iterator[_Candidate]:
    """The rows of a group that belong in a short table, in the order in which it declares them."""
    declared = section.group.headline is not None
    for headline, matching in _by_headline(section).items():
        series: dict[object, list[TableRow]] = {}
        for row in matching:
            series.setdefault(_without_sizes(row.quantity), []).append(row)
        for row in matching:
            own = _without_sizes(row.quantity)
            smaller = len(series[own]) - 1 - series[own].index(row)
            later = 0 if declared else [*series].index(own)
            phrase = _titled(row.quantity)
            if declared:
                with suppress(KeyError, ValueError):  # it has no factor of that name, or not of that format
                    phrase = _Words().vformat(headline.phrase, (), row.quantity.at)
            on = f" (on {section.on})" if section.on else ""
            yield _Candidate(headline.rank + smaller + later, place, phrase + on, row)


def headline_of(quantity: Quantity) -> Headline | None:
    """The first headline of its group that names a metric, and whose phrase speaks of factors that it has.

    None: it has no place in a short table.
    """
    for headline in _headlines(quantity.group):
        if _names(headline, quantity) and headline.factors() <= {*quantity.at}:
            return headline
    return None


def _headlines(group: Group) -> Sequence[Headline]:
    return group.headline if group.headline is not None else [Headline("*", "", UNDECLARED_RANK)]


def _by_headline(section: TableSection) -> dict[Headline, list[TableRow]]:
    """The rows of each headline.

    One that fits no row speaks of a factor that there is not: it has the rows that it names, unless they are another's.
    """
    found: dict[Headline, list[TableRow]] = {headline: [] for headline in _headlines(section.group)}
    for row in section.rows:
        headline = headline_of(row.quantity)
        if headline in found:  # a metric that nobody described has a group of the same name, but with other headlines
            found[headline].append(row)
    taken = {flat(row.quantity) for rows in found.values() for row in rows}
    for headline, rows in found.items():
        if not rows:
            rows += [row for row in section.rows if flat(row.quantity) not in taken and _names(headline, row.quantity)]
            taken |= {flat(row.quantity) for row in rows}
    return found


def _names(headline: Headline, quantity: Quantity) -> bool:
    """Is it its label, or one that its pattern shows?"""
    hidden = (quantity.is_variant and not quantity.group.short) or quantity.group.place == "full"
    return quantity.label == headline.label or (fnmatchcase(quantity.label, headline.label) and not hidden)


class _Words(Formatter):
    """Factors in words: 0.5, 64, optimum."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """A number as short as it can be, unless a format is given."""
        return f"{value:{format_spec}}" if format_spec else _word(value)


def _word(value: Scalar) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _without_sizes(quantity: Quantity) -> object:
    """What two metrics share that differ only in numbers, such as the dimension."""
    return quantity.name, *((factor, value) for factor, value in quantity.at.items() if isinstance(value, str | bool))


def _titled(quantity: Quantity) -> str:
    """The title of a group, what a metric is called and what it was taken at: `Agreement (copies, d = 64)`."""
    said = {factor: value for factor, value in quantity.at.items() if factor not in ("on", *quantity.plain)}
    words = [
        factor if value is True else value if isinstance(value, str) else f"{factor} = {_word(value)}"
        for factor, value in said.items()
        if value is not False
    ]
    where = ", ".join(filter(None, [quantity.name, *words]))
    return f"{quantity.group.title} ({where})" if where else quantity.group.title
