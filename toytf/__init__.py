"""toytf: train toy transformers on synthetic tasks, and compare what they store with ideal associative memories."""

from typing import TYPE_CHECKING

from toytf._lazy import lazy
from toytf.waiting import sleep_while_waiting

if TYPE_CHECKING:
    from toytf.config.plugins import load_config
    from toytf.experiments.launch import run
    from toytf.memory import Association
    from toytf.models.lens import HookedToyTransformer
    from toytf.models.transformer import ToyTransformer
    from toytf.report.comparison import Comparison, compare, open_runs
    from toytf.runs import Run, TrainedRun
    from toytf.sweeps.opened import Sweep, open_sweep
    from toytf.sweeps.sweep import sweep

sleep_while_waiting()

__version__ = "0.1.0"

__all__ = [
    "Association", "Comparison", "HookedToyTransformer", "Run", "Sweep", "ToyTransformer", "TrainedRun", "compare",
    "load_config", "open_runs", "open_sweep", "run", "sweep",
]  # fmt: skip

__getattr__ = lazy(
    __name__,
    {
        "Association": "toytf.memory",
        "Comparison": "toytf.report.comparison",
        "HookedToyTransformer": "toytf.models.lens",
        "Run": "toytf.runs",
        "Sweep": "toytf.sweeps.opened",
        "ToyTransformer": "toytf.models.transformer",
        "TrainedRun": "toytf.runs",
        "compare": "toytf.report.comparison",
        "load_config": "toytf.config.plugins",
        "open_runs": "toytf.report.comparison",
        "open_sweep": "toytf.sweeps.opened",
        "run": "toytf.experiments.launch",
        "sweep": "toytf.sweeps.sweep",
    },
)
