"""The toy transformer and its views."""

from typing import TYPE_CHECKING

from toytf._lazy import lazy

if TYPE_CHECKING:
    from toytf.models.lens import HookedToyTransformer
    from toytf.models.transformer import Slot, ToyTransformer

__all__ = ["HookedToyTransformer", "Slot", "ToyTransformer"]

__getattr__ = lazy(
    __name__,
    {
        "HookedToyTransformer": "toytf.models.lens",
        "Slot": "toytf.models.transformer",
        "ToyTransformer": "toytf.models.transformer",
    },
)
