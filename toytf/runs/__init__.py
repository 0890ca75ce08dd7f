"""Run directories: what a run writes, and how it is read again."""

from toytf._lazy import lazy

__getattr__, __all__ = lazy(__name__, __file__)
