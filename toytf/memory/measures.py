"""What a memory looks like from inside: its margins, scores, singular values, and how full it is.

Each measure comes with what the theory of random vectors predicts for the best weights at capacity (Giorlandino,
Goldt, Maillard 2026, arXiv 2605.10795; derived in `toytf.theory`). A measure without a meaning is left out: the margin
of a memory with one value, the spectrum of the zero matrix, a prediction in units of ‖W‖_F for a map without a W.
"""

import functools
import math
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from toytf import theory
from toytf.measurement import Group, Headline, Measurement
from toytf.memory.association import Association, Readable, exact, right_and_rivals
from toytf.memory.limits import competing, different_keys, matrix_limits

MARGIN = Group(
    "margin", "Margins", "By how much the right value outscores its best rival; above 0 the pair is recalled.",
    unit="standard deviations of a score", section="memories",
    headline=(
        Headline("*_min", "smallest margin over the best rival, {rule}"),
        Headline("*_min", "smallest margin over the best rival, {memory}", 2),
    ),
    meanings=(
        ("*_min", "Smallest margin of a right value over its best rival; above 0 all pairs are recalled, and the "
         "larger the safer."),
        ("*_median", "Median margin of the right values over their best rivals; above 0 at least half of the pairs are "
         "recalled."),
        ("*_mean", "Mean margin of the right values over their best rivals; the larger, the safer the recall."),
        ("*_negative", "Fraction of the pairs whose right value does not beat its best rival; 0 if all are recalled."),
    ),
)  # fmt: skip
SCORES = Group(
    "scores", "Scores", "The best weights lift the score of each right value just above those of its own rivals.",
    unit="standard deviations of a score", curve=False,
    headline=(
        Headline("*_correct_mean", "mean of the right scores, {rule}", 1),
        Headline("*_correct_spread", "spread of the right scores, {rule}", 1),
    ),
    meanings=(
        ("*_correct_mean", "Mean score of the right values; a pair is recalled if its right value scores above all its "
         "rivals."),
        ("*_correct_spread", "Standard deviation of the scores of the right values; small for the best weights, which "
         "lift all alike."),
        ("*_rival_spread", "Standard deviation of the scores of the rivals; just under 1 for the best weights."),
        ("*_rival_max", "Largest score of any rival; a right value above it is safe."),
    ),
)  # fmt: skip
SPECTRUM = Group(
    "spectrum", "Singular values of √d W / |W|", "Those above the largest of a Gaussian matrix belong to "
    "directions that W stores more strongly than others.", curve=False,
    headline=(),
    meanings=(
        ("*_fourth_moment", "Mean s⁴ of the singular values s, with mean s² = 1; 2 for a square Gaussian matrix, more "
         "if few directions dominate."),
        ("*_largest", "Largest singular value, with mean s² = 1; above the value of theory some direction is stored "
         "more strongly than others."),
        ("*_effective_rank", "How many directions count, (Σ s²)² / Σ s⁴; half of the dimension for a square Gaussian "
         "matrix, less if few dominate."),
        ("*_distance_hebbian", "Mean distance of the singular values from those of a Hebbian matrix; near 0 if the "
         "matrix looks like one."),
        ("*_distance", "Mean distance of the singular values from those of a Gaussian matrix, which the best weights "
         "resemble; near 0 if they are alike."),
    ),
)  # fmt: skip
LOST = Group(
    "lost", "Which pairs are lost", "How often a lost pair is rarer than a recalled one, or has a key that is closer "
    "to another key: 0.5 if that plays no part, 1 if it decides.", curve=False, headline=(),
    meanings=(
        ("*_rarer", "How often a lost pair is rarer than a recalled one; 0.5 if frequency plays no part, 1 if it "
         "decides."),
        ("*_crowded", "How often a lost pair has a key that is closer to another key than that of a recalled one; 0.5 "
         "if that plays no part, 1 if it decides."),
    ),
)  # fmt: skip
UTILISATION = Group(
    "utilisation", "Pairs stored / capacity of a matrix of this size", "Pairs recalled over the capacity of a part of "
    "this size; at 1 it is full.", variants=("measure",), curve=False,
    headline=(
        Headline("*", "pairs stored / capacity, {rule}", 2),
    ),
    meanings=(
        ("*/stored", "Pairs that the matrix recalls; the best weights recall all up to the capacity."),
        ("*/load", "Pairs that this part should hold over its capacity; up to about 1 the best weights can store them "
         "all, in small dimensions a little less."),
        ("*/capacity_own_values", "Capacity of a part of this size if every pair had a value of its own: pairs of "
         "random vectors that can all be recalled."),
        ("*/capacity", "Capacity of a part of this size if as many values compete as here: pairs of random vectors "
         "that can all be recalled."),
    ),
)  # fmt: skip


_ENTRIES = 2**24
"""Overlaps of keys that are worked on at once."""


def score_unit(association: Association, memory: Readable) -> float:
    """The size of a generic score, which scores and margins are reported in; 0 for a memory that says nothing.

    ‖W‖_F · rms(e) · rms(u), rms over all coordinates of the keys, and of the values, for a matrix: with independent
    vectors a score then has variance 1.  For any other map: the standard deviation of the scores of the rivals.
    """
    if isinstance(memory, Tensor):
        rms = [float(exact(vectors).square().mean().sqrt()) for vectors in (association.keys, association.values)]
        return math.prod([float(exact(memory).norm()), *rms])
    rivals = split_scores(association, memory)[1]
    if not len(rivals):
        return 0.0
    spread, rounding = float(rivals.std(correction=0)), torch.finfo(association.keys.dtype).eps
    return spread if spread > 10 * rounding * float(rivals.abs().max()) else 0.0


def split_scores(association: Association, memory: Readable) -> tuple[Float[Tensor, "n"], Float[Tensor, "rivals"]]:
    """The scores of the right values, and those of all rivals that may compete; as they are, in float64."""
    right, rivals = right_and_rivals(exact(association.scores(memory)), association.targets.cpu())
    return right, rivals[rivals > -torch.inf]


def measure_margins(association: Association, memory: Readable) -> list[Measurement]:
    """`min`, `median` and `mean` margin in units of `score_unit`, and `negative`, the fraction not above 0.

    Theory, for the `min` of a matrix: the largest κ that any matrix of full rank reaches on that many pairs of random
    vectors.
    """
    unit, margins = score_unit(association, memory), exact(association.margins(memory))
    metrics, predicted = {"negative": float((~(margins > 0)).double().mean())}, {}
    rivalled = margins[margins.isfinite()]
    if 0 < unit < math.inf and len(rivalled):
        shortest, middle, mean = rivalled.min(), rivalled.quantile(0.5), rivalled.mean()
        metrics |= {"min": float(shortest) / unit, "median": float(middle) / unit, "mean": float(mean) / unit}
        n_values = competing(association)
        if isinstance(memory, Tensor) and n_values > 1 and _is_plain(association):
            predicted["min"] = theory.maximal_margin(len(margins), *_dimensions(association), n_values=n_values)
    return _measurements(MARGIN, metrics, predicted)


def measure_scores(association: Association, memory: Readable) -> list[Measurement]:
    """Mean and spread of the right scores, spread and maximum of the rivals', in units of `score_unit`.

    Theory, for a matrix: the weights of largest margin κ lift the right scores to t* + κ, narrow and just above rivals
    that are cut at t*; at capacity κ = 0. The spread of the rivals of another map is its unit, and left out.
    """
    unit = score_unit(association, memory)
    right, rivals = split_scores(association, memory)
    right = right[right.isfinite()]
    if not (0 < unit < math.inf and len(right)):
        return []
    metrics = {"correct_mean": float(right.mean()) / unit}
    if len(right) > 1:
        metrics["correct_spread"] = float(right.std(correction=0)) / unit
    if len(rivals):
        metrics["rival_max"] = float(rivals.max()) / unit
    if not isinstance(memory, Tensor):
        return _measurements(SCORES, metrics, {})
    if len(rivals) > 1:
        metrics["rival_spread"] = float(rivals.std(correction=0)) / unit
    n_values = competing(association)
    if n_values < 2 or not _is_plain(association):
        return _measurements(SCORES, metrics, {})
    d_in, d_out = _dimensions(association)
    stretch = math.sqrt(d_out / min(d_out, n_values - 1))  # fewer values are longer in the space of their differences
    best = theory.optimum_scores(
        n_values, theory.maximal_margin(len(association.keys), d_in, d_out, n_values=n_values) / stretch
    )
    predicted = {"correct_mean": best.mean, "correct_spread": best.spread, "rival_spread": best.rival_spread}
    return _measurements(SCORES, metrics, {name: stretch * value for name, value in predicted.items()})


def score_samples(association: Association, memory: Readable) -> dict[str, Float[np.ndarray, "k"]]:
    """All scores in units of `score_unit`, as `right` and `rivals`; {} for a memory that says nothing."""
    unit = score_unit(association, memory)
    if not 0 < unit < math.inf:
        return {}
    right, rivals = split_scores(association, memory)
    return {"rivals": (rivals / unit).numpy(), "right": (right / unit).numpy()}


def score_levels(association: Association) -> dict[str, float]:
    """Where theory expects the right scores of the best and the Hebbian weights, and the largest of normal rivals."""
    n, m = len(association.keys), len(association.values)
    if m < 2 or not _is_plain(association):
        return {}
    return {
        "t*: best weights at capacity": theory.optimum_scores(m).mean,
        "√(2 log m): largest of m normal scores": theory.extreme_level(m),
        "√(d_in d_out / n): mean of the Hebbian rule": theory.hebbian_scores(n, *_dimensions(association)).mean,
    }


def singular_values(W: Float[Tensor, "d_out d_in"]) -> Float[np.ndarray, "k"]:
    """The singular values of √k W / ‖W‖_F, k = min(d_out, d_in), the largest first: their mean square is 1.

    Those below the rounding error of W's own precision are 0, so that the others count the rank. None at all for a
    matrix that is 0 or not finite.
    """
    W_exact = exact(W)
    norm = float(W_exact.norm())
    if not (math.isfinite(norm) and norm > 0):
        return np.zeros(0)
    s: Float[np.ndarray, "k"] = torch.linalg.svdvals(W_exact / norm).numpy() * math.sqrt(min(W.shape))
    return np.where(s > max(W.shape) * torch.finfo(W.dtype).eps * s[0], s, 0.0)


def measure_spectrum(W: Float[Tensor, "d_out d_in"], n: int) -> list[Measurement]:
    """The singular values s of √k W / ‖W‖_F, k = min(d_out, d_in), against those of a Gaussian matrix of the same rank.

    `fourth_moment` = mean s⁴ over all k;  `largest`;  `effective_rank` = (Σ s²)² / Σ s⁴;
    `distance` = mean |s_i − q_i| to the quantiles q of a Gaussian matrix (the quarter circle, if square and of full
    rank);  `distance_hebbian`, the same for the Hebbian matrix of n pairs, for a square W.

    Theory: 2, 2 and k/2 for the quarter circle; a spectrum cut to a lower rank has larger moments.
    """
    s = singular_values(W)
    if not len(s):
        return []
    d_out, d_in = W.shape
    k, rank = len(s), int((s > 0).sum())
    quantiles = np.zeros(k)
    quantiles[:rank] = _gaussian_quantiles(rank, d_in, d_out)
    metrics = {
        "fourth_moment": float((s**4).mean()),
        "largest": float(s[0]),
        "effective_rank": float((s**2).sum() ** 2 / (s**4).sum()),
        "distance": float(np.abs(s - quantiles).mean()),
    }
    if d_in == d_out and n > 0:
        metrics["distance_hebbian"] = float(np.abs(s - _hebbian_quantiles(k, n)).mean())
    fourth_moment, edge = _gaussian_moment_and_edge(rank, d_in, d_out)
    predicted = {"fourth_moment": fourth_moment, "largest": edge, "effective_rank": k / fourth_moment}
    return _measurements(SPECTRUM, metrics, predicted)


def compared_spectra(W: Float[Tensor, "d_out d_in"], n: int) -> dict[str, Float[np.ndarray, "k"]]:
    """The singular values of W as `measured`, beside those of a Gaussian and a Hebbian matrix; {} if W is 0."""
    s = singular_values(W)
    if not len(s):
        return {}
    d_out, d_in = W.shape
    spectra = {"measured": s, "Gaussian matrix": theory.gaussian_singular_values(int((s > 0).sum()), d_in, d_out)}
    return spectra | ({"Hebbian matrix": theory.hebbian_singular_values(d_in, n)} if d_in == d_out and n > 0 else {})


def measure_utilisation(association: Association, memory: Readable, rank: int | None = None) -> list[Measurement]:
    """How full the memory is: pairs `stored` (recalled), the `capacity` of such a memory, and their ratio.

    utilisation = #{z recalled} / p_c,   p_c δ(m) = d_in min(d_out, m − 1) ω²(r)

    m values compete, however many keys share one; r is the width the matrix passes through, such as d_head (None: no
    limit). Theory: the best weights store every pair up to capacity.
    """
    stored = float(association.recalled(memory).sum())
    limits = matrix_limits(association, rank)
    if limits is None:
        return [UTILISATION.measurement(stored, measure="stored")]
    p_c = limits.at_values
    best = min(float(len(association.keys)), p_c)
    return [
        UTILISATION.measurement(stored, measure="stored", theory=best),
        UTILISATION.measurement(p_c, measure="capacity"),
        UTILISATION.measurement(stored / p_c, theory=best / p_c),
    ]


def measure_lost(association: Association, memory: Readable) -> list[Measurement]:
    """Which pairs are not recalled: P(x_lost > x_recalled) + ½ P(=), for two properties x of a pair.

    `rarer`: x = −weight, how seldom the key occurs;  `crowded`: x = max |cos(e_z, e_z')| over the other keys z' with
    another answer. Nothing if all or no pairs are recalled.
    """
    recalled = association.recalled(memory).cpu()
    if bool(recalled.all()) or not bool(recalled.any()):
        return []
    e, f = torch.nn.functional.normalize(association.keys.detach().cpu().float(), dim=1), association.targets.cpu()
    rows = max(1, _ENTRIES // max(len(e), 1))
    nearest = [
        (e[start : start + rows] @ e.T).abs().masked_fill(f[start : start + rows, None] == f, 0).amax(1)
        for start in range(0, len(e), rows)
    ]
    properties = {"crowded": torch.cat(nearest)}
    if association.weights is not None and bool((association.weights != association.weights[0]).any()):
        properties["rarer"] = -exact(association.weights)
    metrics = {}
    for name, x in properties.items():
        ordered = x[recalled].sort().values
        below, up_to = (torch.searchsorted(ordered, x[~recalled], right=right).double() for right in (False, True))
        metrics[name] = float((below + up_to).mean()) / (2 * len(ordered))
    return _measurements(LOST, metrics, {})


def _measurements(group: Group, metrics: Mapping[str, float], predicted: Mapping[str, float]) -> list[Measurement]:
    """One for each measure, beside its prediction if it has one."""
    return [
        group.measurement(value, measure=measure, theory=predicted.get(measure)) for measure, value in metrics.items()
    ]


def _dimensions(association: Association) -> tuple[int, int]:
    """d_in and d_out."""
    return association.keys.shape[1], association.values.shape[1]


def _is_plain(association: Association) -> bool:
    """Does every key have a vector of its own, and do all values compete for it? Theory of margins is about that."""
    return association.candidates is None and different_keys(association) == len(association.keys)


_gaussian_quantiles = functools.cache(theory.gaussian_singular_values)
_hebbian_quantiles = functools.cache(theory.hebbian_singular_values)


@functools.cache
def _gaussian_moment_and_edge(rank: int, d_in: int, d_out: int) -> tuple[float, float]:
    """⟨s⁴⟩ over all min(d_in, d_out) and the largest s of a Gaussian matrix cut to a rank: 2 and 2 for square and full.

    ⟨s⁴⟩ is a sum over quantiles of the same density at a larger size, where it is an integral to five digits.
    """
    k, larger = min(d_in, d_out), math.ceil(4096 / min(d_in, d_out))
    quantiles = theory.gaussian_singular_values(larger * rank, larger * d_in, larger * d_out)
    edge = (1 + math.sqrt(k / max(d_in, d_out))) / math.sqrt(theory.top_energy(rank, d_in, d_out))
    return float((quantiles**4).sum() / (larger * k)), edge
