"""Associative memories alone: what a matrix should store, how well it does, and the rules that build one."""

from toytf._lazy import lazy

__getattr__, __all__ = lazy(__name__, __file__)
