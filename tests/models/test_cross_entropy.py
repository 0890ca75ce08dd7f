"""The cross-entropy of a step and its gradient are those of torch."""

import pytest
import torch

from toytf.models.cross_entropy import weighed_cross_entropy
from toytf.randomness import generator


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1000.0])
def test_value_and_gradient_are_those_of_torch(scale: float, dtype: torch.dtype):
    # At 1000, the probability of the target underflows, in double precision too: the loss must not.
    logits = (scale * torch.randn(5, 6, 9, generator=generator(0, "logits"), dtype=torch.float64)).to(dtype)
    logits.requires_grad_()
    targets = torch.randint(9, (5, 6), generator=generator(0, "targets"))
    weights = torch.rand(5, 6, generator=generator(0, "weights"), dtype=torch.float64).to(dtype)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    expected = (losses.view(5, 6) * weights).sum()
    (right,) = torch.autograd.grad(expected, logits)
    found, gradient = weighed_cross_entropy(logits, targets, weights)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(found.sum(), expected, rtol=tolerance, atol=tolerance * max(1, scale))
    torch.testing.assert_close(gradient, right, rtol=tolerance, atol=tolerance)
