from toytf.runs.run import Run
from toytf.runs.trained import TrainedRun

__all__ = ["Run", "TrainedRun"]
