"""The cross-entropy with one exponential for value and gradient, where torch takes two."""

from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from toytf.models.reading import free_to_read


def cross_entropy(logits: Float[Tensor, "b t output"], targets: Int[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    """−ln p(target) = ln Σ_y e^{logit_y} − logit_target."""
    if not free_to_read(logits):  # compilers and `torch.func` know that of torch
        flat = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return flat.view_as(targets)
    return cast(Tensor, _CrossEntropy.apply(logits, targets[..., None]))  # type: ignore[no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    """ln Σ e^logit is the largest logit minus the logarithm of its probability, which is never small."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        p = logits.softmax(-1)
        ctx.save_for_backward(p, targets)
        return logits.amax(-1) - p.amax(-1).log_() - logits.gather(-1, targets)[..., 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        p, targets = ctx.saved_tensors
        grad = grad[..., None]
        return (p * grad).scatter_add_(-1, targets, -grad), None
