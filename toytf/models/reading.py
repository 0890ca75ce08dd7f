"""Where a decision may look at the values of a tensor."""

import torch
from torch import Tensor


def free_to_read(x: Tensor) -> bool:
    """Does it cost nothing to read a value? On a CPU, unless a compiler or `torch.func` traces what is done.

    On other devices it is a wait, and where operations are traced there is no value yet.
    """
    return x.device.type == "cpu" and not (torch.compiler.is_compiling() or is_mapped())


def is_mapped() -> bool:
    """Are operations traced by `torch.func`, as those of stacked models are?"""
    return torch._C._are_functorch_transforms_active()
