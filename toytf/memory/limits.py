"""How many pairs a matrix can hold, and what the usual rules make of the same vectors at the same rank."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.constructions import bi_whitened, hebbian
from toytf.memory.problem import StorageProblem
from toytf.memory.rank import decide_rank
from toytf.memory.solver import Status, decide, maximise_margin
from toytf.memory.trained import train_linear, train_low_rank
from toytf.randomness import generator
from toytf.theory import capacity

ITERATIONS = 300
"""Steps towards the largest margin, at most: enough to store what can be stored, unless it is within some percent of
the limit."""

FEW = 60
"""Steps towards any matrix that stores: it takes some 20 at nine tenths of the limit."""

SHARES = (1.05, 1.0, 0.95, 0.9, 0.8, 0.6, 0.4)
"""Fractions of the limit at which it is tried to store some of the pairs, if not all can be stored."""

WORK = 1e10
"""Multiplications that these steps may take; a large memory gets fewer steps."""


class Limits(NamedTuple):
    """The number of pairs up to which some matrix recalls all of them, for random vectors."""

    at_values: float
    """As many values compete as there are now, however many pairs share them."""
    own_values: float
    """Every pair has a value of its own."""


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
    association: Association, rank: int | None = None, *, margin: bool = True
) -> dict[str, Float[Tensor, "d_out d_in"]]:
    """The matrices that rules make of the same vectors, of a rank at most.

    hebbian:        Σ_z u_{f(z)} e_zᵀ
    least_squares:  scores as near as possible to one-hot (`bi_whitened`)
    max_margin:     the largest smallest margin
    chosen:         only where max_margin does not recall all pairs: about as many as fit are stored, the others not

    The first two are cut to their largest singular values if the rank says so; for the others factors are searched.
    Not `margin`: any matrix that recalls all pairs will do as max_margin, which takes a tenth of the time.
    """
    (m, d_out), iterations = association.values.shape, _iterations(association)
    if rank is not None and rank >= min(association.keys.shape[1], d_out, different_keys(association), m):
        rank = None
    found = {"hebbian": hebbian(association), "least_squares": bi_whitened(association)}
    if rank is None:
        found["max_margin"] = _largest_margin(association, iterations, margin=margin)
    else:
        found = {name: _cut(W, rank) for name, W in found.items()}
        found["max_margin"] = decide_rank(association, rank, iterations=iterations).W
    if not bool(association.recalled(found["max_margin"]).all()):
        found["chosen"] = _chosen(association, rank, iterations)
    return found


def _largest_margin(association: Association, iterations: int, *, margin: bool) -> Float[Tensor, "d_out d_in"]:
    """The matrix of largest margin, or one that stores all if the first does not; not `margin`: any that stores."""
    problem = StorageProblem.of(association)
    if not margin:
        return decide(problem, iterations=min(iterations, FEW))[0].W
    best = maximise_margin(problem, iterations=iterations, insist=False)[0]
    if best.margin_lower > 0 or iterations < ITERATIONS:
        return best.W
    first = decide(problem, iterations=FEW)[0]
    return first.W if first.status is Status.FEASIBLE else best.W


def _chosen(association: Association, rank: int | None, iterations: int) -> Float[Tensor, "d_out d_in"]:
    """A matrix that stores some of the pairs: the first share of the limit that can be stored, easiest pairs first.

    Which are easy is seen from a training on all pairs (Adam on the cross-entropy), always with the same start. If none
    of the shares can be stored, or for a large memory, what that training found.
    """
    with torch.enable_grad():
        random, steps = generator(0, "limits"), {"steps": iterations}
        trained = (
            train_linear(association, random, **steps)
            if rank is None
            else train_low_rank(association, rank, random, **steps)
        )
    limits = matrix_limits(association, rank)
    easiest = association.margins(trained.memory).argsort(descending=True)
    fits = 0.0 if limits is None or iterations < ITERATIONS else limits.at_values
    for share in SHARES if fits else ():
        some = _pairs(association, easiest[: int(share * fits)])
        stored = decide_rank(some, rank) if rank is not None else decide(StorageProblem.of(some), iterations=FEW)[0]
        if stored.status is Status.FEASIBLE:
            return stored.W
    assert isinstance(trained.memory, Tensor)
    return trained.memory


def _pairs(association: Association, some: Int[Tensor, "k"]) -> Association:
    candidates = None if association.candidates is None else association.candidates[some]
    return Association(
        association.keys[some], association.values, association.targets[some], candidates=candidates
    )  # fmt: skip


def competing(association: Association) -> int:
    """How many values compete for a key: all m, or the mean number of candidates."""
    if association.candidates is None:
        return len(association.values)
    return round(float(association.candidates.sum(1).float().mean()))


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
