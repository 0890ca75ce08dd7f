"""One writer per directory: a lock that its owner holds while it lives, however it ends."""

import contextlib
import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from toytf.errors import UserError, shortened
from toytf.words import say

if sys.platform == "win32":
    import msvcrt

    def _take(file: int) -> None:
        os.lseek(file, 1 << 30, os.SEEK_SET)  # far behind the text, which others may read
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _take(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


NAME = ".lock"
_OWNER = "process "


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory; refuse if another process (or thread) has it.

    The system gives the lock of a dead owner free: a file that a crash leaves behind holds nobody up.
    """
    path = directory / NAME
    file = _open(path)
    try:
        os.truncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, f"{_OWNER}{os.getpid()} on {socket.gethostname()} since {time.ctime()}".encode())
        yield
    finally:
        if _is_at(file, path):
            path.unlink()
        os.close(file)


def _is_at(file: int, path: Path) -> bool:
    """Is this open file the one at a path? The directory may have been moved or removed meanwhile."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except OSError:
        return False


def _open(path: Path) -> int:
    """Open and lock; anew if the owner removed the file in between."""
    while True:
        if path.is_symlink():
            raise _foreign(path)
        file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        owner = os.read(file, 200).decode(errors="replace")
        try:
            _take(file)
            if owner and not owner.startswith(_OWNER):
                os.close(file)
                raise _foreign(path)
            if _is_at(file, path):
                return file
        except (BlockingIOError, PermissionError):
            os.close(file)
            owner = shortened(owner) or "another process"
            raise UserError(
                f"{path.parent} is in use: {owner} is writing there; wait until it ends, or choose another --out"
            ) from None
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
                say(f"toytf: {path.parent} cannot be locked here: do not run two commands on it at once")
                return file
            os.close(file)
            raise
        os.close(file)


def _foreign(path: Path) -> UserError:
    return UserError(f"{path} is not a lock of toytf: remove it, or choose another --out")
