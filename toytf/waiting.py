"""How CPU threads wait for each other: asleep, after a moment.

The threads of an operation wait at its end until the last one is done. By default they spin for milliseconds; if
another process has taken the core that the last one needs, they only keep it from being done, and steps take ten times
as long. OpenMP reads these settings when torch is loaded, so they are made when toytf is imported.
"""

import os

SETTINGS = {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "0"}
"""Of the two OpenMP libraries that torch comes with: turns of a loop (some microseconds), and milliseconds."""

OWN = ("OMP_WAIT_POLICY", *SETTINGS)
"""Settings by which a person says how threads should wait."""


def sleep_while_waiting() -> None:
    """Let threads that wait fall asleep, unless somebody has said how they should wait."""
    if not any(name in os.environ for name in OWN):
        os.environ.update(SETTINGS)
