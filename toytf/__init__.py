"""toytf: train toy transformers on synthetic tasks, and compare what they store with ideal associative memories."""

from toytf._lazy import lazy
from toytf.waiting import sleep_while_waiting

sleep_while_waiting()

__version__ = "0.1.0"

__getattr__, __all__ = lazy(__name__, __file__)
