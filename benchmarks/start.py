"""Starting: commands in new processes, against the import of torch."""

import subprocess
import sys
import tempfile
from itertools import count

from toytf.bench import in_turns

TOYTF = "from toytf.cli import main; main()"
SHORT = ("train.steps=1", "train.evaluation.sequences=1", "probes=[]", "logging.wandb=off")


def measure() -> dict[str, float]:
    """Seconds from the start of a process to its end, over those of `python -c 'import torch'`.

    ratio: run_ratio, a quickstart of one training step without probes, its page included; help_ratio: `toytf --help`.
    torch_seconds, run_seconds, help_seconds: the three themselves.
    """
    with tempfile.TemporaryDirectory() as folder:
        numbers = count()
        ways = {
            "torch": lambda: _call(folder, "import torch"),
            "help": lambda: _call(folder, TOYTF, "--help"),
            "run": lambda: _call(folder, TOYTF, "run", "quickstart", *SHORT, "--out", f"run{next(numbers)}"),
        }
        seconds = in_turns(ways, rounds=4)
    run_ratio = seconds["run"] / seconds["torch"]
    return {
        "ratio": run_ratio,
        "run_ratio": run_ratio,
        "help_ratio": seconds["help"] / seconds["torch"],
        **{f"{name}_seconds": seconds[name] for name in ways},
    }


def _call(folder: str, program: str, *arguments: str) -> None:
    command = [sys.executable, "-c", program, *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, stdin=subprocess.DEVNULL)
