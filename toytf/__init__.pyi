from toytf.config.plugins import load_config
from toytf.experiments.launch import run
from toytf.memory import Association
from toytf.models.lens import HookedToyTransformer
from toytf.models.transformer import ToyTransformer
from toytf.report.comparison import Comparison, compare, open_runs
from toytf.runs import Run, TrainedRun
from toytf.sweeps.opened import Sweep, open_sweep
from toytf.sweeps.sweep import sweep

__version__: str

__all__ = [
    "Association", "Comparison", "HookedToyTransformer", "Run", "Sweep", "ToyTransformer", "TrainedRun", "compare",
    "load_config", "open_runs", "open_sweep", "run", "sweep",
]  # fmt: skip
