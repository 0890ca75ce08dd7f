"""What can end a command early: each class carries its exit code, and its text is one sentence a person can act on."""

import difflib
from collections.abc import Iterable


class ToytfError(Exception):
    """A foreseen end of a command; printed as one line, never with a traceback."""

    exit_code = 1


class UserError(ToytfError):
    """The input is wrong: what was given, what is accepted, and the nearest valid name."""

    exit_code = 2


class RunFailed(ToytfError):
    """The run started and could not finish, such as by diverging."""


class Interrupted(ToytfError):
    """The user asked to stop; everything up to the step it stopped at is saved."""

    exit_code = 130


LISTED = 40
"""How many accepted names an error lists."""


def nearest(name: object, accepted: Iterable[str]) -> str:
    """Say which accepted name is meant, or list them: the tail of an error about an unknown name."""
    names = sorted(accepted)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    listed = (", ".join(names[:LISTED]) or "none") + more
    return f'did you mean "{close[0]}"? (accepted: {listed})' if close else f"accepted: {listed}"
