"""What theory predicts for associative memories, as numbers: capacities, scores, spectra, information bounds.

Its modules say `import scipy` and no more, because scipy loads its parts when they are first used: a training that only
counts parameters does not wait for them.
"""

from toytf._lazy import lazy

__getattr__, __all__ = lazy(__name__, __file__)
