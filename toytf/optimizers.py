"""AdamW and SGD, the same to the bit as those of torch.optim (AdamW as its fused kernel).

Those of torch.optim load the compiler of torch at their first step. That takes more than a second, as long as many a
training of a toy; a model can still be compiled, since a step here is a few operations on lists of tensors.

Parameters of stacked models have an axis of members in front, and each member may have a learning rate and a weight
decay of its own.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby

import torch
from torch import Tensor

Moments = dict[str, Tensor]
"""What a rule remembers of a parameter."""

Rate = float | Sequence[float]
"""One for all, or one for each member."""


class Optimizer(ABC):
    """Parameters, and what a rule remembers of each."""

    def __init__(self, parameters: Iterable[Tensor], lr: Rate, weight_decay: Rate) -> None:
        self.parameters = [*parameters]
        self.state: defaultdict[Tensor, Moments] = defaultdict(dict)
        self._shares = [*_shares(lr, weight_decay)]
        """Members in a row that share a learning rate and a weight decay; None: all members, or the one there is."""

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient; the others are left alone, weight decay included."""
        moved = [(parameter, parameter.grad) for parameter in self.parameters if parameter.grad is not None]
        if moved:
            self._move([parameter for parameter, _ in moved], [gradient for _, gradient in moved])

    @abstractmethod
    def _move(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Change parameters and state in place."""


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019); without decay it is Adam.

    m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²,
    W ← (1 − lr · decay) W − lr · m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + ε)
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: Rate,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: Rate = 0.0,
    ) -> None:
        super().__init__(parameters, lr, weight_decay)
        if not all(parameter.is_contiguous() for parameter in self.parameters):
            raise ValueError("AdamW goes through the memory of its parameters in order: they must be contiguous")
        self.betas, self.eps = betas, eps

    def _move(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        for parameter in parameters:
            known = self.state[parameter]
            if not known:
                known["step"] = torch.zeros((), device=parameter.device)
                known["exp_avg"], known["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        steps, m, v = (
            [self.state[parameter][name] for parameter in parameters] for name in ("step", "exp_avg", "exp_avg_sq")
        )
        torch._foreach_add_(steps, 1)
        gradients = [gradient.contiguous() for gradient in gradients]  # the kernel goes through the memory in order
        for members, lr, weight_decay in self._shares:
            W, g, m_here, v_here = (_of(members, tensors) for tensors in (parameters, gradients, m, v))
            torch._fused_adamw_(
                W, g, m_here, v_here, [], steps,
                lr=lr, beta1=self.betas[0], beta2=self.betas[1], weight_decay=weight_decay, eps=self.eps,
                amsgrad=False, maximize=False, grad_scale=None, found_inf=None,
            )  # fmt: skip


class SGD(Optimizer):
    """Gradient descent with momentum and weight decay.

    g ← g + decay · W,   m ← momentum · m + g,   W ← W − lr · m
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: Rate, *, momentum: float = 0.0, weight_decay: Rate = 0.0
    ) -> None:
        super().__init__(parameters, lr, weight_decay)
        self.momentum = momentum

    def _move(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        if any(weight_decay for _, _, weight_decay in self._shares):
            gradients = [gradient.clone() for gradient in gradients]
            for members, _, weight_decay in self._shares:
                torch._foreach_add_(_of(members, gradients), _of(members, parameters), alpha=weight_decay)
        if self.momentum:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                known = self.state[parameter]
                if known:
                    known["momentum_buffer"].mul_(self.momentum).add_(gradient)
                else:
                    known["momentum_buffer"] = gradient.clone()
            gradients = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        for members, lr, _ in self._shares:
            torch._foreach_add_(_of(members, parameters), _of(members, gradients), alpha=-lr)


def _shares(lr: Rate, weight_decay: Rate) -> Iterable[tuple[slice | None, float, float]]:
    """Members in a row with the same learning rate and weight decay, and these; None if there is only one kind."""
    n = next((len(rate) for rate in (lr, weight_decay) if not isinstance(rate, float | int)), 1)
    lrs, decays = ([rate] * n if isinstance(rate, float | int) else rate for rate in (lr, weight_decay))
    start = 0
    for (rate, decay), same in groupby(zip(lrs, decays, strict=True)):
        stop = start + len([*same])
        yield None if stop - start == n else slice(start, stop), rate, decay
        start = stop


def _of(members: slice | None, tensors: list[Tensor]) -> list[Tensor]:
    return tensors if members is None else [tensor[members] for tensor in tensors]
