"""Character statistics of a text: how often each character follows each other one."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.bigram.config import SHAKESPEARE
from toytf.errors import UserError


@dataclass(frozen=True)
class BigramTable:
    """Counts of adjacent characters; characters are ordered from the most frequent to the least.

    characters: n names; counts[i, j] = how often j follows i (n × n).
    """

    characters: tuple[str, ...]
    counts: NDArray[np.int64]

    @property
    def unigram(self) -> NDArray[np.float64]:
        """π_u(i) = Σ_j counts[i, j] / Σ_ij counts[i, j]."""
        frequency: NDArray[np.float64] = self.counts.sum(1) / self.counts.sum()
        return frequency

    @property
    def bigram(self) -> NDArray[np.float64]:
        """π_b(j|i) = counts[i, j] / Σ_j counts[i, j], unsmoothed; π_u for a character that nothing follows."""
        totals = self.counts.sum(1, keepdims=True)
        return np.where(totals > 0, self.counts / np.maximum(totals, 1), self.unigram)

    def first(self, n_tokens: int) -> "BigramTable":
        """The table of the n_tokens most frequent characters: pairs among them, ordered by how often they start one."""
        counts = self.counts[:n_tokens, :n_tokens]
        order = np.argsort(-counts.sum(1), kind="stable")
        return BigramTable(tuple(self.characters[i] for i in order), counts[np.ix_(order, order)])


def count_bigrams(text: str, n_tokens: int) -> BigramTable:
    """Count adjacent pairs among the n_tokens most frequent characters.

    Carriage returns and all other characters are deleted first, so a pair may bridge a deletion.
    """
    codes = np.frombuffer(text.replace("\r", "").encode("utf-32-le"), dtype=np.uint32)
    found, frequency = np.unique(codes, return_counts=True)
    kept = found[np.argsort(-frequency, kind="stable")][:n_tokens]
    ids = np.full(int(found.max(initial=0)) + 1, -1, dtype=np.int64)
    ids[kept] = np.arange(len(kept))
    sequence = ids[codes]
    sequence = sequence[sequence >= 0]
    counts = np.zeros((len(kept), len(kept)), dtype=np.int64)
    np.add.at(counts, (sequence[:-1], sequence[1:]), 1)
    return BigramTable(tuple(chr(code) for code in kept), counts)


@cache
def load_table(corpus: str, n_tokens: int) -> BigramTable:
    """The table that ships (`shakespeare`), or that of a user's UTF-8 text file."""
    if corpus == SHAKESPEARE:
        stored = json.loads(Path(__file__).with_name("data").joinpath("shakespeare65.json").read_text())
        return BigramTable(tuple(stored["characters"]), np.array(stored["counts"])).first(n_tokens)
    path = Path(corpus)
    try:
        table = count_bigrams(path.read_text(encoding="utf-8"), n_tokens)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f'task.corpus = "{corpus}": cannot be read as UTF-8 text: {error}') from None
    if table.counts.sum() == 0:
        raise UserError(f'task.corpus = "{corpus}": the file holds no two adjacent characters')
    return table
