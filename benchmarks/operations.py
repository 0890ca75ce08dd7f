"""How much arithmetic the matrix products of some work take."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def product_operations(work: Callable[[], object]) -> int:
    """Multiplications and additions of the matrix products in one call, those of gradients included.

    A product of n × k and k × m counts 2 n k m, whether its result is new, added to a tensor, in place or in `out=`.
    Products by a vector are left out: they take as long as it takes to read the matrix.
    """
    counter = _Counter()
    with counter:
        work()
    return counter.operations


class _Counter(TorchDispatchMode):
    """Sees every operation below autograd, so also those of gradients that are written by hand."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = _OPERATIONS.get(func._schema.name.removeprefix("aten::").rstrip("_"))  # in place: mm_ as mm
        if found is not None:
            self.operations += found(*args)
        return func(*args, **(kwargs or {}))


def _product(a: Tensor, b: Tensor) -> int:
    return 2 * a.numel() * b.shape[-1]


def _added(_: Tensor, a: Tensor, b: Tensor) -> int:
    return _product(a, b)


def _attention(q: Tensor, k: Tensor, v: Tensor, *_: object) -> int:
    """Scores Q Kᵀ, and A V."""
    return 2 * q[..., 0].numel() * k.shape[-2] * (q.shape[-1] + v.shape[-1])


def _attention_backward(_: Tensor, q: Tensor, k: Tensor, v: Tensor, *__: object) -> int:
    """The scores again; the gradients of A and V; those of Q and K."""
    return 2 * q[..., 0].numel() * k.shape[-2] * (3 * q.shape[-1] + 2 * v.shape[-1])


_OPERATIONS: dict[str, Callable[..., int]] = {
    "mm": _product,
    "bmm": _product,
    "addmm": _added,
    "addbmm": _added,
    "baddbmm": _added,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
