"""Models of one shape as one: every parameter has an axis of members in front.

    W[i] is the parameter W of member i, and the member's own parameter is a view of it

So members are trained by one tensor program, and measured, saved and restored one by one as any model is. No member's
numbers depend on the others.
"""

import copy
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap

from toytf.models.counts import stacked_count_forward
from toytf.models.tables import by_counts, fast_forward
from toytf.models.transformer import ToyTransformer


class Stack:
    """Several models of one shape, whose parameters are views of stacked ones from now on."""

    def __init__(self, models: Sequence[ToyTransformer]) -> None:
        self.models = [*models]
        self.model = _with_member_axis(self.models)
        """A model whose parameters have the axis of members; of its methods, those of the fast path by counts work."""
        self.parameters = dict(self.model.named_parameters())
        for i, model in enumerate(self.models):
            for name, parameter in model.named_parameters():
                parameter.data = self.parameters[name].data[i]

    def __len__(self) -> int:
        return len(self.models)

    def forward(
        self, tokens: Int[Tensor, "member batch position"], last: int, *, fast: bool
    ) -> Float[Tensor, "member batch last output"]:
        """The logits of every member at the last positions of its own sequences, with the same gradients as alone."""
        first, apart = self.models[0], None
        if fast and by_counts(first, tokens[0], last):
            apart = stacked_count_forward(self.model, tokens)
        if apart is None:
            return self._mapped(tokens, last, fast, None)
        parts = [self._mapped(tokens, last, fast, members) if logits is None else logits for members, logits in apart]
        if len(parts) == 1:
            return parts[0]
        order = torch.cat([members for members, _ in apart if members is not None]).argsort()
        return torch.cat(parts)[order]

    def _mapped(self, tokens: Tensor, last: int, fast: bool, members: Tensor | None) -> Tensor:
        """The usual forward, mapped over the members, or over some of them."""
        forward = _Forward(self.models[0], fast)

        def of_one(parameters: dict[str, Tensor], z: Tensor) -> Tensor:
            return cast(Tensor, functional_call(forward, parameters, (z, last)))

        given: dict[str, Tensor] = {f"model.{name}": parameter for name, parameter in self.parameters.items()}
        if members is not None:
            given, tokens = {name: parameter[members] for name, parameter in given.items()}, tokens[members]
        return vmap(of_one)(given, tokens)

    def share_gradients(self) -> None:
        """Let the members see their gradients, and which of their parameters are trained."""
        for i, model in enumerate(self.models):
            for name, parameter in model.named_parameters():
                stacked = self.parameters[name]
                parameter.requires_grad_(stacked.requires_grad)
                parameter.grad = None if stacked.grad is None else stacked.grad[i]


class _Forward(nn.Module):
    """A forward as a module, whose parameters can be given with the call."""

    def __init__(self, model: ToyTransformer, fast: bool) -> None:
        super().__init__()
        self.model, self.fast = model, fast

    def forward(self, tokens: Tensor, last: int) -> Tensor:
        return fast_forward(self.model, tokens, last) if self.fast else cast(Tensor, self.model(tokens, last=last))


def _with_member_axis(models: Sequence[ToyTransformer]) -> ToyTransformer:
    stacked = copy.deepcopy(models[0])
    for path, _ in models[0].named_parameters():
        owner, _, name = path.rpartition(".")
        members = [model.get_parameter(path) for model in models]
        joint = nn.Parameter(torch.stack([member.detach() for member in members]), members[0].requires_grad)
        setattr(stacked.get_submodule(owner), name, joint)
    return stacked
