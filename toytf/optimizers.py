"""AdamW, SGD and Muon, which take the steps of torch.optim: the first two to the bit (AdamW as its fused kernel).

Those of torch.optim load the compiler of torch at their first step. That takes more than a second, as long as many a
training of a toy; a model can still be compiled, since a step here is a few operations on lists of tensors.

Parameters of stacked models have an axis of members in front, and each member may have a learning rate and a weight
decay of its own.
"""

import math
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


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""The quintic a X + b X Xᵀ X + c X Xᵀ X Xᵀ X that moves every singular value of a matrix to about 1 (Jordan 2024)."""


def orthogonalised(G: Tensor, steps: int = 5, eps: float = 1e-7) -> Tensor:
    """U Vᵀ of every matrix G = U S Vᵀ [… d_out d_in], nearly: singular values become 0.7 to 1.2, those of 0 stay.

    By Newton–Schulz steps, as torch.optim.Muon has them, but in the precision of G, and of many matrices at once.
    """
    a, b, c = NEWTON_SCHULZ
    tall = G.shape[-2] > G.shape[-1]
    X: Tensor = G.mT if tall else G
    X = X / torch.linalg.matrix_norm(X, keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = X @ X.mT
        X = a * X + (b * gram + c * gram @ gram) @ X
    found: Tensor = X.mT if tall else X
    return found


class Muon(Optimizer):
    """Momentum whose steps are orthogonalised (Jordan 2024), with decoupled weight decay: for weight matrices.

    m ← μ m + (1 − μ) g,   n = μ m + (1 − μ) g, or n = m without Nesterov,
    W ← (1 − lr · decay) W − lr · √max(1, d_out / d_in) · orthogonalised(n)

    A parameter is W [… d_in d_out], which acts as x W, and the last two axes are a matrix: every member of a stack and
    every head of an attention weight is orthogonalised on its own. So the factor is the one that torch.optim.Muon has
    by default, whose matrices are Wᵀ. Newton–Schulz steps are taken in the precision of W, and not in bfloat16.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: Rate,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: Rate = 0.0,
        newton_schulz_steps: int = 5,
    ) -> None:
        super().__init__(parameters, lr, weight_decay)
        self.momentum, self.nesterov, self.newton_schulz_steps = momentum, nesterov, newton_schulz_steps

    def _move(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            known = self.state[parameter]
            if not known:
                known["momentum_buffer"] = torch.zeros_like(parameter)
            m = known["momentum_buffer"].lerp_(gradient, 1 - self.momentum)
            update = orthogonalised(gradient.lerp(m, self.momentum) if self.nesterov else m, self.newton_schulz_steps)
            d_in, d_out = parameter.shape[-2:]
            for members, lr, weight_decay in self._shares:
                W, step = _of(members, [parameter, update])
                W.mul_(1 - lr * weight_decay).add_(step, alpha=-lr * math.sqrt(max(1, d_out / d_in)))


class Several(Optimizer):
    """Optimisers that have different parameters, as one: such as Muon for the matrices and AdamW for the rest."""

    def __init__(self, *parts: Optimizer) -> None:
        super().__init__([parameter for part in parts for parameter in part.parameters], 0.0, 0.0)
        self.parts = parts
        for part in parts:
            part.state = self.state

    def _move(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Let each move those of its own that have a gradient."""
        for part in self.parts:
            part.step()


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
