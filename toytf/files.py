"""Files that are whole or not there."""

import os
from pathlib import Path


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file in one move, after its content is on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        error.filename = str(path)  # that of the temporary file says nothing to a reader
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Have the new name of a file on the disk before anything that is written later."""
    if os.name == "posix":
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
