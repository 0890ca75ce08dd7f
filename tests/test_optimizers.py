"""Our AdamW and SGD take the steps of torch.optim, to the bit."""

import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from toytf.optimizers import SGD, AdamW, Optimizer

RULES: dict[str, tuple[Callable[..., Optimizer], Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "adamw": (AdamW, partial(torch.optim.AdamW, fused=True), {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}),
    "adam": (AdamW, partial(torch.optim.Adam, fused=True), {}),
    "sgd": (SGD, torch.optim.SGD, {}),
    "momentum": (SGD, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
}


def parameters(dtype: torch.dtype) -> list[Tensor]:
    draws = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draws).to(dtype).requires_grad_() for shape in ((3, 4), (5,), (2, 3, 4))]


def descend(optimizer: Any, weights: Iterable[Tensor], *, late: int) -> None:
    """Ten steps on Σ sin(W): the last parameter has a gradient only from step `late` on, the first not at step 4."""
    *early, last = weights
    for step in range(10):
        optimizer.zero_grad()
        moved = [*(early[1:] if step == 4 else early), *([last] if step >= late else [])]
        torch.stack([weight.sin().sum() for weight in moved]).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_ten_steps_are_those_of_torch(rule: str, dtype: torch.dtype) -> None:
    ours, theirs, options = RULES[rule]
    own, reference = parameters(dtype), parameters(dtype)
    mine, other = ours(own, lr=0.1, **options), theirs(reference, lr=0.1, **options)
    descend(mine, own, late=3)
    descend(other, reference, late=3)
    for weight, expected in zip(own, reference, strict=True):
        assert torch.equal(weight, expected)
        known = {name: value for name, value in other.state[expected].items() if value is not None}
        assert mine.state[weight].keys() == known.keys()  # checkpoints of earlier versions can be continued
        assert all(torch.equal(mine.state[weight][name], known[name]) for name in known)


@pytest.mark.parametrize("rule", RULES)
def test_a_gradient_may_lie_in_memory_in_any_order(rule: str) -> None:
    ours, theirs, options = RULES[rule]
    own, reference = (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in "ab")
    mine, other = ours([own], lr=0.1, **options), theirs([reference], lr=0.1, **options)
    for seed in range(3):
        gradient = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        own.grad, reference.grad = gradient.T, gradient.T.contiguous()
        mine.step()
        other.step()
    assert torch.equal(own, reference)


def test_parameters_must_lie_in_order() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        AdamW([torch.zeros(3, 4).T], 0.1)


def test_a_parameter_without_a_gradient_does_not_decay() -> None:
    weights = parameters(torch.float32)
    before = [weight.detach().clone() for weight in weights]
    AdamW(weights, 0.1, weight_decay=0.5).step()
    SGD(weights, 0.1, weight_decay=0.5).step()
    assert all(torch.equal(weight, old) for weight, old in zip(weights, before, strict=True))


def test_a_training_does_not_load_the_compiler(tiny_config: Path, tmp_path: Path) -> None:
    program = """if True:
        import sys, toytf
        toytf.run(sys.argv[1], out=sys.argv[2])
        assert "torch" in sys.modules
        sys.exit("torch._dynamo" in sys.modules)
    """
    ended = subprocess.run(
        [sys.executable, "-c", program, tiny_config, tmp_path / "run"], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
