"""Run directories: what a run writes, and how it is read again."""

from typing import TYPE_CHECKING

from toytf._lazy import lazy

if TYPE_CHECKING:
    from toytf.runs.run import Run
    from toytf.runs.trained import TrainedRun

__all__ = ["Run", "TrainedRun"]

__getattr__ = lazy(__name__, {"Run": "toytf.runs.run", "TrainedRun": "toytf.runs.trained"})
