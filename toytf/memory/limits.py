"""How many pairs a matrix can hold, and what the usual rules make of the same vectors at the same rank."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.constructions import bi_whitened, hebbian
from toytf.memory.problem import StorageProblem
from toytf.memory.rank import decide_rank
from toytf.memory.solver import Status, decide, maximise_margin
from toytf.memory.trained import linear, low_rank, train_each
from toytf.randomness import generator
from toytf.theory import capacity

ITERATIONS = 300
"""Steps towards the largest margin, at most: enough to store what can be stored, unless it is within some percent of
the limit."""

FEW = 60
"""Steps towards any matrix that stores: it takes some 20 at nine tenths of the limit."""

WORK = 1e10
"""Multiplications that these steps may take; a large memory gets fewer steps."""


class Limits(NamedTuple):
    """The number of pairs up to which some matrix recalls all of them, for random vectors."""

    at_values: float
    """As many values compete as there are now, however many pairs share them."""
    own_values: float
    """Every pair has a value of its own."""

    def of(self, association: Association) -> float:
        """What applies if more pairs come as those of an association do: with values of their own, or sharing them."""
        return self.own_values if is_injective(association) else self.at_values


def matrix_limits(association: Association, rank: int | None = None) -> Limits | None:
    """The limits of a matrix of this shape and rank; None if a key has no rival.

    at the values present:  p δ(V) = d_in min(d_out, m − 1) ω²(r)
    self-consistent:        p δ(p) = d_in d_out ω²(r)

    V values compete for a key (their mean number), m in all. If several pairs share a key, as the facts of one subject
    do, more pairs bring no more keys, and d_in is at most the number of different keys.
    """
    n_values = competing(association)
    if n_values < 2:
        return None
    n, d_in = association.keys.shape
    n_keys = different_keys(association)
    if n_keys < n:
        d_in = min(d_in, n_keys)
    m, d_out = association.values.shape
    spanned = min(d_out, m - 1)

    def limit(width: int, n_values: int | None) -> float:
        kept = None if rank is None else min(rank, d_in, width)
        return capacity(d_in, width, rank=kept, n_values=n_values, shared=False)

    return Limits(limit(spanned, n_values), limit(d_out, None))


def best_matrices(
    association: Association, rank: int | None = None, *, quick: bool = False
) -> dict[str, Float[Tensor, "d_out d_in"]]:
    """The matrices that rules make of the same vectors, of a rank at most.

    hebbian:        Σ_z u_{f(z)} e_zᵀ
    least_squares:  scores as near as possible to one-hot (`bi_whitened`)
    max_margin:     the largest smallest margin
    easiest:        only where max_margin does not recall all pairs: those that are easiest to store (`store_easiest`)

    The first two are cut to their largest singular values if the rank says so; for the others factors are searched.
    quick: any matrix that recalls all pairs will do as max_margin, and there is none of the easiest.
    """
    (m, d_out), iterations = association.values.shape, _iterations(association)
    if rank is not None and rank >= min(association.keys.shape[1], d_out, different_keys(association), m):
        rank = None
    found = {"hebbian": hebbian(association), "least_squares": bi_whitened(association)}
    if rank is not None:
        found["max_margin"] = decide_rank(association, rank, iterations=min(iterations, FEW)).W.to(association.keys)
        found = {name: _cut(W, rank) for name, W in found.items()}
    elif quick:
        found["max_margin"] = decide(StorageProblem.of(association), iterations=min(iterations, FEW))[0].W
    else:
        problem = StorageProblem.of(association)
        best = maximise_margin(problem, iterations=iterations, polished=False)[0]
        if not best.margin_lower > 0 and iterations >= ITERATIONS:  # another one may store all
            first = decide(problem, iterations=FEW)[0]
            best = first if first.status is Status.FEASIBLE else best
        found["max_margin"] = best.W
    if not quick and not bool(association.recalled(found["max_margin"]).all()):
        trained = train_matrix(association, generator(0, "limits"), rank, steps=iterations)
        large = rank is not None or iterations < ITERATIONS
        found["easiest"] = trained if large else store_easiest(association, trained, iterations=FEW, resolution=0.05)
    return found


def train_matrix(
    association: Association, random: torch.Generator, rank: int | None = None, *, steps: int
) -> Float[Tensor, "d_out d_in"]:
    """What Adam finds on the cross-entropy of the pairs alone: any matrix, or one of a rank."""
    with torch.enable_grad():
        kind = linear() if rank is None else low_rank(rank)
        W = train_each(kind, [association], [random], steps=steps)[0].memory
    assert isinstance(W, Tensor)
    return W


def store_easiest(
    association: Association,
    first: Float[Tensor, "d_out d_in"],
    rank: int | None = None,
    *,
    iterations: int = 1000,
    resolution: float = 0.01,
) -> Float[Tensor, "d_out d_in"]:
    """Of more pairs than fit, store as many as can be, those with the largest margins in `first` before others.

    By bisection in their number, to a fraction of all pairs. What is given is the matrix that recalled most, which may
    be `first` itself. A lower bound on what is possible: which pairs to give up is a hard question.
    """
    order = association.margins(first).argsort(descending=True)
    best, most = first, int(association.recalled(first).sum())
    fit, too_many = 0, len(order) + 1
    while too_many - fit > max(1, int(resolution * len(order))):
        n = (fit + too_many) // 2
        some = association.some(order[:n])
        decision = (
            decide(StorageProblem.of(some), iterations=iterations)[0] if rank is None else decide_rank(some, rank)
        )
        fit, too_many = (n, too_many) if decision.status is Status.FEASIBLE else (fit, n)
        W = decision.W if rank is None else _cut(decision.W.to(first), rank)
        recalled = int(association.recalled(W).sum())
        best, most = (W, recalled) if recalled > most else (best, most)
    return best


def competing(association: Association) -> int:
    """How many values compete for a key: all m, or the mean number of candidates."""
    if association.candidates is None:
        return len(association.values)
    return round(float(association.candidates.sum(1).float().mean()))


def is_injective(association: Association) -> bool:
    """Has every pair a value of its own, so that more pairs would bring more values? All values compete."""
    n, m = len(association.targets), len(association.values)
    return association.candidates is None and n == m == len(torch.unique(association.targets))


def different_keys(association: Association) -> int:
    """The number of keys that are not copies of another."""
    return len(torch.unique(association.keys, dim=0))


def _iterations(association: Association) -> int:
    (n, d_in), (m, d_out) = association.keys.shape, association.values.shape
    return int(min(max(WORK / (4 * max(n, 1) * (m * d_out + d_in * d_out)), 10), ITERATIONS))


def _cut(W: Float[Tensor, "d_out d_in"], rank: int) -> Float[Tensor, "d_out d_in"]:
    """The best approximation of W by a matrix of a rank."""
    U, s, Vh = torch.linalg.svd(W, full_matrices=False)
    cut: Tensor = (U[:, :rank] * s[:rank]) @ Vh[:rank]
    return cut
