from toytf.models.lens import HookedToyTransformer
from toytf.models.transformer import Slot, ToyTransformer

__all__ = ["HookedToyTransformer", "Slot", "ToyTransformer"]
