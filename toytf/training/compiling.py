"""The forward of a training, compiled."""

import os
import shutil
from typing import cast

import torch

from toytf.errors import UserError
from toytf.evaluation import Forward

COMPILERS = ("g++", "clang++", "c++", "cl")


def compiled_forward(forward: Forward, device: torch.device) -> Forward:
    """The same function by `torch.compile`, as one graph for each shape; on CUDA, launched as a CUDA graph."""
    check_compiler(device)
    mode = "reduce-overhead" if device.type == "cuda" else None
    return cast(Forward, torch.compile(forward, fullgraph=True, dynamic=False, mode=mode))


def check_compiler(device: torch.device) -> None:
    """Refuse to compile for a CPU without a C++ compiler; for a GPU torch brings one."""
    chosen = os.environ.get("CXX")
    if device.type == "cpu" and not any(map(shutil.which, (chosen,) if chosen else COMPILERS)):
        raise UserError(
            "train.compile = true needs a C++ compiler on a CPU, but there is none: install g++, or leave it out"
        )
