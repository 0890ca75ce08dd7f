"""The cross-entropy of a training step and its gradient: one exponential for both, where autograd takes two."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


@torch.no_grad()
def weighed_cross_entropy(
    logits: Float[Tensor, "b t output"], targets: Int[Tensor, "b t"], weights: Float[Tensor, "b t"]
) -> tuple[Float[Tensor, "b t"], Float[Tensor, "b t output"]]:
    """w (−ln p(target)) at every position, and the gradient of their sum by the logits, w (p − 1_target).

    ln Σ_y e^{logit_y} is the largest logit minus the logarithm of its probability, which is never small.
    """
    p, right, w = logits.softmax(-1), targets[..., None], weights[..., None]
    losses = logits.amax(-1) - p.amax(-1).log_() - logits.gather(-1, right)[..., 0]
    return losses * weights, p.mul_(w).scatter_add_(-1, right, -w)
