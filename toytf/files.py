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
    finally:
        temporary.unlink(missing_ok=True)
