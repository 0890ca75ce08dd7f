"""Associative memories alone: what a matrix should store, how well it does, and the rules that build one."""

from toytf.memory.association import Association
from toytf.memory.constructions import hebbian

__all__ = ["Association", "hebbian"]
