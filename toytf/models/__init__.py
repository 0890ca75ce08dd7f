"""The toy transformer and its views."""

from toytf._lazy import lazy

__getattr__, __all__ = lazy(__name__, __file__)
