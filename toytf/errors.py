"""What can end a command early: each class carries its exit code, and its text is one sentence a person can act on."""

import difflib
import traceback
import unicodedata
from collections.abc import Iterable


class ToytfError(Exception):
    """A foreseen end of a command; printed as one line, never with a traceback."""

    exit_code = 1


class UserError(ToytfError):
    """The input is wrong: what was given, what is accepted, and the nearest valid name."""

    exit_code = 2


class RunFailed(ToytfError):
    """The run started and could not finish, such as by diverging."""


class SystemRefused(RunFailed):
    """The system would not go on: a file, the disk, memory. It says nothing about what was measured."""


class Interrupted(ToytfError):
    """The user asked to stop; everything up to the step it stopped at is saved."""

    exit_code = 130


LISTED = 40
"""How many accepted names an error lists."""


def nearest(name: object, accepted: Iterable[str]) -> str:
    """Say which accepted name is meant, or list them: the tail of an error about an unknown name."""
    names = sorted(accepted)
    close = difflib.get_close_matches(str(name)[:LONG], names, n=1, cutoff=0.6)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    listed = (", ".join(map(shortened, names[:LISTED])) or "none") + more
    return f'did you mean "{shortened(close[0])}"? (accepted: {listed})' if close else f"accepted: {listed}"


LONG = 120
"""Characters of a value that a message shows."""

_HARMLESS = "\u200c\u200d"
"""Joiners, which Persian and emoji need."""


def shortened(text: str, length: int = LONG) -> str:
    """A text as one line that a terminal can show, cut if it is long."""
    line = one_line(text)
    return line if len(line) <= length else f"{line[:length]}…"


def one_line(text: str) -> str:
    """A text as one line that a terminal can show."""
    return printable(" ".join(text.split()))


def printable(text: object) -> str:
    """A text or path without what a terminal would obey or cannot write: such characters are shown as escapes."""
    return "".join(map(_shown, str(text)))


def _shown(letter: str) -> str:
    hidden = unicodedata.category(letter) in ("Cc", "Cf", "Cs") and letter not in _HARMLESS
    return letter.encode("unicode_escape", "surrogatepass").decode() if hidden else letter


def reason(error: BaseException) -> str:
    """Why something failed, in one line: the system's own word for it, or the first line of the message."""
    said = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
    return shortened(str(said) or type(error).__name__)


def plugin_of(error: BaseException) -> str:
    """The plug-in outside of toytf whose code an error comes from: `plug-in "mine" (package.module:Name)`, or nothing.

    It is the innermost one among the callers, by the config that it has as `self.config`, or that its drawing is given.
    """
    found = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        own = getattr(frame.f_locals.get("self"), "__dict__", {}).get("config")
        for config in (frame.f_locals.get("config"), own):
            place = str(getattr(type(config), "implementation", "toytf."))
            if not place.startswith(("toytf.", "tasks.", "probes.")):
                found = f'plug-in "{getattr(config, "kind", None) or getattr(config, "experiment", "")}" ({place})'
    return found
