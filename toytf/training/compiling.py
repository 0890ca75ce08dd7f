"""The forward of a training, compiled."""

import os
import shlex
import shutil
import sys
from typing import cast

import torch

from toytf.errors import UserError
from toytf.evaluation import Forward

COMPILER = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
"""What torch takes if the variable CXX names no other."""


def compiled_forward(forward: Forward, device: torch.device) -> Forward:
    """The same function by `torch.compile`, as one graph for each shape; on CUDA, launched as a CUDA graph."""
    check_compiler(device)
    mode = "reduce-overhead" if device.type == "cuda" else None
    return cast(Forward, torch.compile(forward, fullgraph=True, dynamic=False, mode=mode))


def check_compiler(device: torch.device) -> None:
    """Refuse to compile for a CPU without a C++ compiler; for a GPU torch brings one."""
    chosen = (shlex.split(os.environ.get("CXX", "")) or [COMPILER])[0]
    if device.type == "cpu" and shutil.which(chosen) is None:
        raise UserError(
            f"train.compile = true needs a C++ compiler, and {chosen} is not installed; on a CPU it does not make "
            "training faster: leave train.compile out"
        )
