"""Files that are whole or not there."""

import errno
import os
import re
import secrets
from pathlib import Path

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file in one move, after its content is on the disk."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")  # no other writer has it, on any machine
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            sync(file.fileno())
        temporary.replace(path)
        if os.name == "posix":  # the new name should be on the disk before anything that is written later
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                sync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        error.filename = str(path)  # that of the temporary file says nothing to a reader
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporary(*folders: Path) -> None:
    """Remove what a writer that was killed has left in folders whose lock the caller holds."""
    for folder in folders:
        for path in folder.glob(".*.tmp"):
            if _TEMPORARY.fullmatch(path.name):
                path.unlink(missing_ok=True)


def sync(file: int) -> None:
    """Have a file or folder on the disk, as far as its file system can be asked for that."""
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF):
            raise
