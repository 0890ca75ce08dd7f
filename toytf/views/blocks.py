"""Tables with more rows or columns than can be drawn: neighbours are taken together."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Shaped


def block_size(n: int, most: int) -> int:
    """How many neighbours to take together, so that of n at most so many blocks remain."""
    return max(1, -(-n // most))


def block_names(names: Sequence[str], size: int) -> tuple[str, ...]:
    """What blocks of neighbours are called: `s1 … s8`."""
    blocks = (names[start : start + size] for start in range(0, len(names), size))
    return tuple(block[0] if len(block) == 1 else f"{block[0]} … {block[-1]}" for block in blocks)


def block_sums(values: Shaped[np.ndarray, "n m"], rows: int, columns: int) -> Shaped[np.ndarray, "a b"]:
    """Sums over blocks of so many rows and columns; the last ones may be smaller."""
    n, m = values.shape
    by_row = np.add.reduceat(values, np.arange(0, n, rows), axis=0, dtype=np.result_type(values, np.int64))
    sums: Shaped[np.ndarray, "a b"] = np.add.reduceat(by_row, np.arange(0, m, columns), axis=1)
    return sums
