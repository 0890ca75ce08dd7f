"""metrics.jsonl: one row a line, as JSON, of seed, step and metrics; columns.json: what each of its metrics is about.

Every row is on the disk when it is appended. checksums.json says what the file was when it was noted last: at a
checkpoint, after a case of a study, at the end. It must still begin with that. Of what came later a line that a crash
tore is forgotten; any other that is no row is named. After the end no row may follow.
"""

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
        self._lines = _verified(path).splitlines(keepends=True)
        self.rows = [_parse(path, i, line) for i, line in enumerate(self._lines, 1)]
        self._of = _by_seed(self.rows)
        self.columns = _columns(path.parent)
        self._columns_file = path.parent / COLUMNS
        self._columns_known = sha256(self._columns_file.read_bytes()) if self._columns_file.exists() else NONE_YET
        self._rewrite()
        self.note()

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
        with self.path.open("r+b") as file:
            file.seek(self._size)
            file.write(line)
            file.flush()
            sync(file.fileno())
        self._size += len(line)
        self._lines.append(line)
        self.rows.append(row)
        self._of.setdefault(int(row["seed"]), []).append(row)

    def note(self, *, closed: bool = False) -> None:
        """Have all rows and columns that there are in checksums.json; closed: no further row comes."""
        content = b"".join(self._lines)
        before = b"".join(self._lines[:-1])  # the last row may still be torn
        known: dict[str, Any] = {self.path.name: [_known(content)] if closed else [_known(before), _known(content)]}
        if self._columns_known != NONE_YET:
            known[COLUMNS] = [self._columns_known]
        self._checksums.update(known)

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

    def check_seeds(self, seeds: Sequence[int]) -> None:
        """Refuse rows of a seed that the run does not have."""
        strange = {int(row["seed"]) for row in self.rows} - set(seeds)
        if strange:
            raise UserError(
                f"{self.path} has rows of seed {min(strange)}, which config.yaml does not list: restore the files of "
                "this run, or start a new one with another --out"
            )

    def _write_columns(self, columns: dict[str, Quantity]) -> None:
        content = (json.dumps(to_json(columns), indent=1, ensure_ascii=False) + "\n").encode()
        before, self.columns, self._columns_known = self._columns_known, columns, sha256(content)
        self._checksums.update({COLUMNS: [before, self._columns_known]})  # both: a crash may come before the next line
        write_atomic(self._columns_file, content)

    def _arrange(self, order: list[int]) -> None:
        if order != list(range(len(self.rows))):
            self._lines, self.rows = [self._lines[i] for i in order], [self.rows[i] for i in order]
            self._of = _by_seed(self.rows)
            self._rewrite()

    def _rewrite(self) -> None:
        """Make the file what this object has."""
        content, on_disk = b"".join(self._lines), self.path.read_bytes() if self.path.is_file() else None
        self._size = len(content)
        if on_disk != content:
            self._checksums.update({self.path.name: [_known(on_disk or b""), _known(content)]})
            write_atomic(self.path, content)


def _known(content: bytes) -> list[int | str]:
    return [len(content), sha256(content)]


def _verified(path: Path) -> bytes:
    """The whole lines of the file, which must begin with what was noted, or with what that was before its last row."""
    known = Checksums(path.parent)[path.name]
    content = read_bytes(path) if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if known is None:
        return whole
    try:
        *before, after = ((int(size), str(digest)) for size, digest in known)
    except (TypeError, ValueError):
        raise Checksums(path.parent).damaged() from None
    if sha256(content[: after[0]]) == after[1] and (before or len(content) == after[0]):
        return whole
    if before and before[0] == (len(whole), sha256(whole)):
        return whole
    raise UserError(
        f"{path} has changed since toytf wrote it: rows were changed, added or lost; restore the file, or start a new "
        "run with another --out"
    )


def _by_seed(rows: list[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(int(row["seed"]), []).append(row)
    return found


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
