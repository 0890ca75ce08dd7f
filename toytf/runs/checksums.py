"""checksums.json of a run: what its files were when toytf wrote them, so that a damaged one is named and not used.

A file that is not listed is taken as it is.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toytf.errors import UserError, reason
from toytf.files import write_atomic

NAME = "checksums.json"


def sha256(content: bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


class Checksums:
    """The checksums of a run directory, by file name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __getitem__(self, name: str) -> Any:
        """What is known of a file; None if nothing is."""
        return self._read().get(name)

    def __setitem__(self, name: str, known: Any) -> None:
        """Note what a file is, or is about to be."""
        self.update({name: known})

    def update(self, known: Mapping[str, Any]) -> None:
        """Note what several files are, or are about to be."""
        before = self._read()
        if before != (now := {**before, **known}):
            write_atomic(self.directory / NAME, f"{json.dumps(now, indent=2)}\n".encode())

    @property
    def exist(self) -> bool:
        """Are there any?"""
        return (self.directory / NAME).exists()

    def check(self, name: str, mend: str) -> None:
        """Refuse a file that is not what it was; `mend` says what to do."""
        known, path = self[name], self.directory / name
        if known is not None and known != sha256(read_bytes(path)):
            raise UserError(f"{path} has changed since toytf wrote it: {mend}")

    def _read(self) -> dict[str, Any]:
        if not self.exist:
            return {}
        try:
            known = json.loads(read_bytes(self.directory / NAME))
        except (ValueError, RecursionError):
            known = None
        if not isinstance(known, dict):
            raise self.damaged()
        return known

    def damaged(self) -> UserError:
        """What to say if this file itself cannot be trusted."""
        return UserError(
            f"{self.directory / NAME} is damaged: remove it, and the files of this run are read without a check"
        )


def read_bytes(path: Path) -> bytes:
    """The content of a file; one that cannot be read is named."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from None
