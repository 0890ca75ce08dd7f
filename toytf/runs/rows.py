"""metrics.jsonl: one row a line, as JSON, of seed, step and metrics; columns.json: what each of its metrics is about.

checksums.json says what the file was before the last row and is with it. So a row that a crash tore is told from a row
that somebody changed: the first is forgotten, the second is named.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from toytf.errors import UserError, shortened
from toytf.files import sync, write_atomic
from toytf.measurement import Measurement, Quantity, as_row, from_json, to_json
from toytf.runs import lock
from toytf.runs.checksums import Checksums, read_bytes, sha256

T = TypeVar("T")

Row = dict[str, float | int]
"""Seed, step and metrics of one evaluation."""

METRICS, COLUMNS = "metrics.jsonl", "columns.json"
NONE_YET = ""
"""In place of the checksum of a file that is about to be written for the first time."""

RETRIES = 20
"""How often a reader looks again at a file that somebody writes."""


def read_rows(path: Path) -> list[Row]:
    """The rows of a run, also while it goes on; a line torn by a crash is left out."""
    return _patiently(
        path.parent, lambda: [_parse(path, i, line) for i, line in enumerate(_verified(path).splitlines(), 1)]
    )


def read_columns(directory: Path) -> dict[str, Quantity]:
    """What the metrics of a run are about, by flat name."""
    return _patiently(directory, lambda: _columns(directory))


def _patiently(directory: Path, read: Callable[[], T]) -> T:
    """Read what may be written meanwhile, or whose run may end, between a look at the file and at its checksum."""
    left = RETRIES
    while True:
        try:
            return read()
        except UserError:
            left = left - 1 if (directory / lock.NAME).exists() else min(left - 1, 1)
            if left <= 0:
                raise
            time.sleep(0.01)


def _columns(directory: Path) -> dict[str, Quantity]:
    path, known = directory / COLUMNS, Checksums(directory)[COLUMNS]
    mend = "restore it from a copy, or start a new run with another --out"
    if not path.exists():
        if (known is None or NONE_YET in known) and not _verified(directory / METRICS):
            return {}  # nothing is measured yet
        raise UserError(f"{path} is missing: {mend} (runs made before toytf 0.1.0 are not read)")
    content = read_bytes(path)
    try:
        if known is not None and sha256(content) not in known:
            raise ValueError
        return from_json(json.loads(content))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise UserError(f"{path} has changed since toytf wrote it: {mend}") from None


class MetricsFile:
    """The rows of a run as its one writer has them; each is on the disk when it is appended."""

    def __init__(self, path: Path) -> None:
        self.path, self._checksums = path, Checksums(path.parent)
        content = _verified(path)
        self._lines = content.splitlines(keepends=True)
        self.rows = [_parse(path, i, line) for i, line in enumerate(self._lines, 1)]
        self._of = _by_seed(self.rows)
        self.columns = _columns(path.parent)
        self._rewrite()

    def record(self, seed: int, step: int, measurements: Iterable[Measurement], *, references: bool = True) -> Row:
        """Write measurements as a row, and what is new among them into columns.json before."""
        measurements = list(measurements)
        row: Row = {"seed": seed, "step": step, **as_row(measurements, references=references)}
        self.describe(measurements)
        self.append(row)
        return row

    def describe(self, measurements: Iterable[Measurement]) -> None:
        """Write what is new among the quantities into columns.json; a group is replaced by how it is declared now."""
        quantities = {measured.flat: measured.quantity for measured in measurements}
        for name, quantity in quantities.items():
            known = self.columns.get(name, quantity)
            if (known.group.name, known.name, known.at) != (quantity.group.name, quantity.name, quantity.at):
                raise UserError(f"{name} is the name of two quantities: give one of them a different name or factor")
        new = {name: quantity for name, quantity in quantities.items() if self.columns.get(name) != quantity}
        if new:
            now = {self.columns[name].group: quantity.group for name, quantity in new.items() if name in self.columns}
            self._write_columns(
                {name: replace(known, group=now.get(known.group, known.group)) for name, known in self.columns.items()}
                | new
            )

    def append(self, row: Row) -> None:
        """Write a row through to the file; if somebody changed or removed that meanwhile, all rows."""
        if not self.path.exists() or self.path.stat().st_size != self._size:
            self._rewrite()
        line = f"{json.dumps(row)}\n".encode()
        before, size = self._known(), self._size
        self._hash.update(line)
        self._size += len(line)
        self._checksums[self.path.name] = [before, self._known()]
        with self.path.open("r+b") as file:
            file.seek(size)
            file.write(line)
            file.flush()
            sync(file.fileno())
        self._lines.append(line)
        self.rows.append(row)
        self._of.setdefault(int(row["seed"]), []).append(row)

    def of(self, seed: int) -> list[Row]:
        """The rows of a seed."""
        return self._of.get(seed, [])

    def forget(self, seed: int, after: int) -> None:
        """Drop the rows of a seed after a step: they will be written again."""
        if any(row["step"] > after for row in self.of(seed)):
            self._arrange([i for i, row in enumerate(self.rows) if row["seed"] != seed or row["step"] <= after])

    def sort(self, seeds: Sequence[int]) -> None:
        """Put the rows of the seeds in this order, as a run that was never stopped has them."""
        place = {seed: i for i, seed in enumerate(seeds)}
        self._arrange(sorted(range(len(self.rows)), key=lambda i: place[int(self.rows[i]["seed"])]))

    def arrange(self, rows: Sequence[int], columns: Iterable[str]) -> None:
        """Put rows in the order of these numbers, and columns of these names first."""
        self._arrange([*rows])
        names = dict.fromkeys([*columns, *self.columns])
        if [*names] != [*self.columns]:
            self._write_columns({name: self.columns[name] for name in names})

    def close(self) -> None:
        """Say that no further row comes: from now on a torn one is damage."""
        self._rewrite()

    def check_seeds(self, seeds: Sequence[int]) -> None:
        """Refuse rows of a seed that the run does not have."""
        strange = {int(row["seed"]) for row in self.rows} - set(seeds)
        if strange:
            raise UserError(
                f"{self.path} has rows of seed {min(strange)}, which config.yaml does not list: restore the files of "
                "this run, or start a new one with another --out"
            )

    def _write_columns(self, columns: dict[str, Quantity]) -> None:
        self.columns, path = columns, self.path.parent / COLUMNS
        content = (json.dumps(to_json(columns), indent=1, ensure_ascii=False) + "\n").encode()
        before = sha256(path.read_bytes()) if path.exists() else NONE_YET
        self._checksums[COLUMNS] = [before, sha256(content)]
        write_atomic(path, content)
        self._checksums[COLUMNS] = [sha256(content)]

    def _arrange(self, order: list[int]) -> None:
        if order != list(range(len(self.rows))):
            self._lines, self.rows = [self._lines[i] for i in order], [self.rows[i] for i in order]
            self._of = _by_seed(self.rows)
            self._rewrite()

    def _known(self) -> list[int | str]:
        return [self._size, self._hash.hexdigest()]

    def _rewrite(self) -> None:
        """Make the file what this object has."""
        content = b"".join(self._lines)
        self._size, self._hash = len(content), hashlib.sha256(content)
        on_disk = self.path.read_bytes() if self.path.is_file() else None
        if on_disk == content and self._checksums[self.path.name] == [self._known(), self._known()]:
            return
        before = b"" if on_disk is None else on_disk
        self._checksums[self.path.name] = [[len(before), sha256(before)], self._known()]
        write_atomic(self.path, content)
        self._checksums[self.path.name] = [self._known(), self._known()]


def _verified(path: Path) -> bytes:
    """The whole lines of the file, which must be what toytf wrote: with the last row, or as it was before that."""
    known = Checksums(path.parent)[path.name]
    content = read_bytes(path) if path.exists() else b""
    if known is None:
        return _whole_lines(content)
    try:
        before, after = ((int(size), str(digest)) for size, digest in known)
    except (TypeError, ValueError):
        raise Checksums(path.parent).damaged() from None
    if (len(content), sha256(content)) == after:
        return _whole_lines(content)
    size = before[0]
    torn = size <= len(content) < max(after[0], size + 1)  # no more than a part of the last row
    if torn and sha256(content[:size]) == before[1]:
        return _whole_lines(content[:size])
    raise UserError(
        f"{path} has changed since toytf wrote it: rows were changed, added or lost; restore the file, or start a new "
        "run with another --out"
    )


def _by_seed(rows: list[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(int(row["seed"]), []).append(row)
    return found


def _whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _parse(path: Path, number: int, line: bytes) -> Row:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    whole = isinstance(row, dict) and all(isinstance(row.get(key), int) for key in ("seed", "step"))
    if not whole or not all(isinstance(value, int | float) for value in row.values()):
        raise UserError(
            f"{path}, line {number}: not a row of metrics: {shortened(line.decode(errors='replace'), 60)}; restore "
            "the file, or start a new run with another --out"
        )
    return row  # type: ignore[no-any-return]
