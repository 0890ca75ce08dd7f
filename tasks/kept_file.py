"""A table that a user gives as a CSV file, and that a run keeps in a file of its own.

The config has its rows. They can be too many for config.yaml, which names the file beside it that has them:

    facts: {file: facts.json, sha256: 3f2a…}
"""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from toytf.config.compose import locate
from toytf.errors import UserError, nearest, reason, shortened
from toytf.runs.checksums import sha256

Row = TypeVar("Row", bound=tuple[Any, ...])


@dataclass(frozen=True)
class KeptFile:
    """How a table gets into a config and out of it again."""

    name: str
    """The file that a run keeps it in."""
    what: str
    """What its rows are: `facts`."""
    columns: tuple[str, ...]
    read_csv: Callable[[Path], Sequence[Any]]
    """The rows of a user's file; raises UserError."""
    or_else: str = ""
    """What may be given in place of a path: `mod, bijective, or `."""

    def read(self, given: object) -> object:
        """The rows of a CSV file, or of the file that a run keeps them in; rows themselves stay as they are."""
        try:
            if isinstance(given, Mapping):
                return self._read_kept(given)
            return self.read_csv(self._place(given)) if isinstance(given, str) else given
        except UserError as error:
            raise ValueError(str(error)) from None

    def content(self, rows: Sequence[Sequence[Any]]) -> bytes:
        """The file that a run keeps: a JSON list, one row a line."""
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        return f"[\n{lines}\n]\n".encode()

    def reference(self, rows: Sequence[Sequence[Any]]) -> dict[str, str]:
        """How config.yaml names it."""
        return {"file": self.name, "sha256": sha256(self.content(rows))}

    def _place(self, name: str) -> Path:
        try:
            path = locate(Path(name).expanduser(), Path())
            there = path.is_file()
        except (OSError, RuntimeError, ValueError) as error:  # a name that is too long, a user who does not exist
            raise UserError(f"cannot be read: {reason(error)}") from None
        if not there:
            columns = ", ".join(self.columns)
            raise UserError(f"no such file: give {self.or_else}the path of a CSV file with the columns {columns}")
        return path

    def _read_kept(self, given: Mapping[Any, Any]) -> object:
        """What `reference` names; it must be what it was."""
        if set(given) != {"file", "sha256"} or Path(str(given["file"])).name != self.name:
            raise UserError(
                f"expected {self.or_else}the path of a CSV file, a list of {self.what}, or {{file: {self.name}, "
                f"sha256: …}} as the config of a run has it, got {shortened(str(dict(given)))}"
            )
        path = Path(given["file"])
        try:
            content = path.read_bytes()
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path} cannot be read: {reason(error)}; this file has the {self.what} of the run"
            ) from None
        if sha256(content) != given["sha256"]:
            raise UserError(f"{path} has changed since the run began: restore the file, or start a new run")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise UserError(f"{path} is not a list of {self.what}: restore the file, or start a new run") from None


@dataclass(frozen=True)
class CsvTable:
    """The rows of a CSV file below its first line."""

    rows: list[tuple[str, ...]]
    """Cells of the columns that are asked for, then of the optional ones that are there."""
    lines: list[int]
    """Where in the file each row ends."""


def read_table(path: Path, columns: Sequence[str], what: str, *, optional: Sequence[str] = ()) -> CsvTable:
    """The table of a CSV file in UTF-8 with these columns in any order, all cells filled; what: its rows are called."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        hint = " (is a quotation mark left open?)" if "end of data" in str(error) else ""
        raise UserError(f"{path}, line {reader.line_num}: not valid CSV: {reason(error)}{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as a CSV file in UTF-8: {reason(error)}") from None
    expected = ",".join(columns) + "".join(f" or {','.join([*columns, name])}" for name in optional)
    if not rows:
        raise UserError(f"{path}: the file is empty; it should begin with the line {expected}")
    (_, header), *rows = rows
    for name in (*columns, *optional):
        times = header.count(name)
        if times > 1 or (times == 0 and name in columns):
            fault = "repeats" if times else "does not have"
            raise UserError(f'{path}: the first line {fault} the column "{name}"; it should be {expected}')
    for name in header:
        if name not in (*columns, *optional):
            raise UserError(f'{path}: unknown column "{shortened(name)}": {nearest(name, (*columns, *optional))}')
    if not rows:
        raise UserError(f"{path}: there are no {what} below the first line")
    for number, row in rows:
        if len(row) != len(header) or not all(row):
            raise UserError(f"{path}, line {number}: expected {len(header)} names, got {shortened(str(row))}")
    order = [header.index(name) for name in (*columns, *optional) if name in header]
    return CsvTable([tuple(row[i] for i in order) for _, row in rows], [line for line, _ in rows])


def one_answer_each(rows: tuple[Row, ...], asked: int, *, lines: Sequence[int] = ()) -> tuple[Row, ...]:
    """The same rows; refuses two answers, in the column after the first `asked` ones, for what these ask.

    lines: where in a file each row is.
    """
    first: dict[tuple[Any, ...], int] = {}
    for i, row in enumerate(rows):
        before = first.setdefault(row[:asked], i)
        if rows[before][asked] != row[asked]:
            given = (f'"{shortened(rows[j][asked])}"' + (f" in line {lines[j]}" if lines else "") for j in (before, i))
            question = shortened(", ".join(row[:asked]))
            raise ValueError(f'"{question}" has two answers, {" and ".join(given)}: keep one of them')
    return rows
