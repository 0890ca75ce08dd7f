"""What the measures of a memory find in matrices whose margins, scores and spectra are known."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from toytf.memory import Association, hebbian
from toytf.memory.association import Readable
from toytf.memory.measures import (
    Measured,
    measure_margins,
    measure_scores,
    measure_spectrum,
    measure_utilisation,
    score_unit,
    singular_values,
)
from toytf.randomness import generator
from toytf.theory import hebbian_scores


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "normal", *shape), dtype=torch.float64)


def on_sphere(seed: int, n: int, d: int) -> Tensor:
    """n vectors of norm √d."""
    return math.sqrt(d) * torch.nn.functional.normalize(normal(seed, n, d), dim=1)


def pairs(n: int, d: int, seed: int = 0) -> Association:
    """n pairs z → z of independent vectors on the sphere."""
    return Association(on_sphere(2 * seed, n, d), on_sphere(2 * seed + 1, n, d), torch.arange(n))


def everything(association: Association, memory: Readable) -> list[Measured]:
    found = [measure(association, memory) for measure in (measure_margins, measure_scores, measure_utilisation)]
    if isinstance(memory, Tensor):
        found.append(measure_spectrum(memory, len(association.keys)))
    return found


def averages(measure: Callable[[Association, Tensor], Measured], n: int, d: int, draws: int = 20) -> dict[str, float]:
    """The measures of Hebb's matrix, in the mean over draws of n pairs."""
    associations = [pairs(n, d, seed) for seed in range(draws)]
    found = [measure(association, hebbian(association)).metrics for association in associations]
    return {name: float(np.mean([metrics[name] for metrics in found])) for name in found[0]}


# Margins and scores


BY_HAND = Association(torch.eye(3), torch.eye(2), torch.tensor([0, 1, 0]))
W = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 1.0]])
"""Key 0 answers value 0 by 2, key 1 answers value 1 by 3, key 2 ties."""
UNIT = math.sqrt(15) * math.sqrt(1 / 3) * math.sqrt(1 / 2)
"""‖W‖_F times the root mean square coordinate of keys and of values."""


def test_the_measures_of_a_small_memory_are_those_worked_by_hand():
    assert score_unit(BY_HAND, W) == pytest.approx(UNIT)
    margins = measure_margins(BY_HAND, W).metrics
    assert margins == pytest.approx({"min": 0, "median": 2 / UNIT, "mean": 5 / 3 / UNIT, "negative": 1 / 3}, abs=1e-7)
    scores = measure_scores(BY_HAND, W).metrics
    assert scores["correct_mean"] == pytest.approx(2 / UNIT)  # 2, 3, 1
    assert scores["correct_spread"] == pytest.approx(math.sqrt(2 / 3) / UNIT)
    assert scores["rival_max"] == pytest.approx(1 / UNIT)  # 0, 0, 1
    assert scores["rival_spread"] == pytest.approx(math.sqrt(2 / 9) / UNIT)


def test_a_generic_score_has_variance_one():
    # 300 · 300 scores of one random matrix; those of one key share |W e|: relative error about 1 / √(2 · 40) / √40.
    association = Association(normal(0, 300, 40), 3 * normal(1, 300, 40), torch.arange(300))
    found = measure_scores(association, 7 * normal(2, 40, 40)).metrics
    assert found["rival_spread"] == pytest.approx(1, abs=0.05)
    assert found["correct_spread"] == pytest.approx(1, abs=0.15)


def test_hebb_has_high_and_broad_scores_at_the_load_where_it_fails():
    # d = 64, p = 555: a single draw has the mean within √2/d, the spreads within .04 and .03; 20 draws are averaged.
    found, law = averages(measure_scores, 555, 64), hebbian_scores(555, 64, 64)
    assert found["correct_mean"] == pytest.approx(64 / math.sqrt(555), rel=0.03)
    assert found["correct_mean"] == pytest.approx(law.mean, rel=0.03)
    assert found["correct_spread"] == pytest.approx(1, abs=0.05)
    assert found["rival_spread"] ** 2 == pytest.approx(1 + 2 * 64 / 555, rel=0.03)


def test_the_theory_of_scores_is_the_level_just_above_the_cut_rivals():
    theory = measure_scores(pairs(512, 8), normal(0, 8, 8)).theory
    assert theory["correct_mean"] == pytest.approx(2.25, abs=0.02)
    assert theory["correct_spread"] == pytest.approx(0.22, abs=0.02)
    assert 0.9 < theory["rival_spread"] < 1  # a normal law cut at 2.25


@pytest.mark.parametrize(("n", "expected"), [(280, 0.44), (200, 1.19), (120, 2.50)])
def test_the_theory_of_the_smallest_margin_is_the_largest_possible_one(n: int, expected: float):
    association = pairs(n, 48)
    measured = measure_margins(association, hebbian(association))
    assert measured.theory == {"min": pytest.approx(expected, abs=0.03)}
    assert measured.metrics["min"] < expected


def test_a_few_orthogonal_pairs_reach_the_largest_margin():
    """W = Σ_z (u_z − ū) e_zᵀ has n equal margins d / √(n − 1), and no matrix of its norm has a larger smallest one."""
    n, d = 5, 64
    e, u = (math.sqrt(d) * torch.linalg.qr(normal(seed, d, n))[0].T for seed in (0, 1))
    association = Association(e, u, torch.arange(n))
    measured = measure_margins(association, (u - u.mean(0)).T @ e)
    assert measured.metrics["min"] == pytest.approx(d / math.sqrt(n - 1))
    assert measured.theory["min"] == pytest.approx(
        measured.metrics["min"], rel=0.05
    )  # theory: random, so orthogonal up to n/d


def test_a_map_is_measured_in_units_of_its_rivals():
    association = pairs(40, 16)
    matrix = normal(5, 16, 16)

    def ask(x: Tensor) -> Tensor:
        return x @ matrix.T

    by_map, by_matrix = measure_margins(association, ask), measure_margins(association, matrix)
    ratio = score_unit(association, ask) / score_unit(association, matrix)
    assert ratio == pytest.approx(measure_scores(association, matrix).metrics["rival_spread"])
    assert by_map.metrics["median"] * ratio == pytest.approx(by_matrix.metrics["median"])
    assert by_map.metrics["negative"] == by_matrix.metrics["negative"]
    assert by_map.theory == {}
    assert set(measure_scores(association, ask).metrics) == {"correct_mean", "correct_spread", "rival_max"}


def test_values_that_may_not_compete_are_no_rivals():
    n = 8
    association = pairs(n, 16)
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    masked = Association(association.keys, association.values, association.targets, candidates=causal)
    memory = normal(3, 16, 16)
    scores, unit = association.scores(memory), score_unit(association, memory)
    rivals = scores[causal & ~torch.eye(n, dtype=torch.bool)] / unit
    found = measure_scores(masked, memory).metrics
    assert found["rival_max"] == pytest.approx(float(rivals.max()))
    assert found["rival_spread"] == pytest.approx(float(rivals.std(correction=0)))
    margins = [float(scores[z, z] - scores[z, :z].max()) / unit for z in range(1, n)]  # key 0 has no rival
    measured = measure_margins(masked, memory).metrics
    assert measured["mean"] == pytest.approx(np.mean(margins))
    assert measured["negative"] == pytest.approx(sum(margin <= 0 for margin in margins) / n)


# Spectra


@pytest.mark.parametrize(("d", "p"), [(64, 555), (32, 172)])
def test_the_fourth_moment_of_hebb_is_two_plus_d_over_p(d: int, p: int):
    found = averages(lambda association, W: measure_spectrum(W, p), p, d)
    assert found["fourth_moment"] == pytest.approx(2 + d / p, rel=0.05)
    assert found["distance_hebbian"] < found["distance"]


def test_a_gaussian_matrix_has_the_quarter_circle():
    found = measure_spectrum(normal(0, 128, 128), 128)
    assert found.metrics["distance"] < 0.02  # singular values move by O(1/d)
    assert found.metrics["distance"] < found.metrics["distance_hebbian"]
    assert found.theory == pytest.approx({"fourth_moment": 2, "largest": 2, "effective_rank": 64}, rel=1e-4)
    for name, expected in found.theory.items():
        assert found.metrics[name] == pytest.approx(expected, rel=0.05)


def test_a_gaussian_matrix_of_any_shape_has_its_own_law():
    """⟨s⁴⟩ = 1 + λ and the edge 1 + √λ for aspect λ (Marchenko and Pastur 1967)."""
    for shape in ((64, 256), (256, 64)):
        found = measure_spectrum(normal(0, *shape), 100)
        assert found.theory["fourth_moment"] == pytest.approx(1.25, rel=1e-3)
        assert found.theory["largest"] == pytest.approx(1.5)
        assert found.metrics["distance"] < 0.02
        assert found.metrics["fourth_moment"] == pytest.approx(1.25, rel=0.05)
        assert "distance_hebbian" not in found.metrics


@pytest.mark.parametrize(("rank", "energy", "cut"), [(32, 0.623, 1.269), (64, 0.894, 0.808)])
def test_a_gaussian_matrix_of_lower_rank_has_the_cut_law(rank: int, energy: float, cut: float):
    U, s, Vh = torch.linalg.svd(normal(1, 128, 128))
    truncated = U[:, :rank] * s[:rank] @ Vh[:rank]
    found, values = measure_spectrum(truncated, 100), singular_values(truncated)
    assert np.count_nonzero(values) == rank
    assert values[rank - 1] == pytest.approx(cut / math.sqrt(energy), rel=0.03)
    assert found.theory["largest"] == pytest.approx(2 / math.sqrt(energy), rel=1e-3)
    assert found.metrics["distance"] < 0.02
    for name, expected in found.theory.items():
        assert found.metrics[name] == pytest.approx(expected, rel=0.05)


def test_a_rank_that_is_only_rounding_does_not_count():
    product = (normal(0, 64, 8) @ normal(1, 8, 64)).float()
    assert np.count_nonzero(singular_values(product)) == 8
    assert np.count_nonzero(singular_values(normal(0, 64, 64).float())) == 64


def test_singular_values_have_mean_square_one():
    assert np.mean(singular_values(7 * normal(0, 24, 40)) ** 2) == pytest.approx(1)


# Utilisation


def test_hebb_at_a_small_load_uses_the_fraction_it_stores():
    # δ(64) = 4.21 ± .02, and 64 values differ in 63 dimensions. Hebb stores 64 pairs (half of the draws fail at 103).
    association = pairs(64, 64)
    found = measure_utilisation(association, hebbian(association), 64).metrics
    assert found["stored"] == 64
    assert found["capacity"] == pytest.approx(64 * 63 / 4.21, rel=0.01)
    assert found["utilisation"] == pytest.approx(64 / found["capacity"])


def test_a_narrow_memory_holds_the_energy_of_its_rank():
    association, memory = pairs(65, 64), normal(0, 64, 64)
    full, narrow = (measure_utilisation(association, memory, rank).metrics["capacity"] for rank in (None, 16))
    assert narrow / full == pytest.approx(0.623, abs=0.001)


def test_keys_that_share_a_value_compete_with_the_other_values_only():
    association = Association(on_sphere(0, 200, 32), on_sphere(1, 16, 32), torch.arange(200) % 16)
    found = measure_utilisation(association, normal(0, 32, 32))
    assert found.metrics["capacity"] == pytest.approx(32 * 15 / 2.52, rel=0.01)
    assert found.theory == {"stored": pytest.approx(found.metrics["capacity"]), "utilisation": 1}


def test_beyond_capacity_theory_stores_no_more():
    found = measure_utilisation(pairs(100, 8), normal(0, 8, 8))
    assert found.theory == {"stored": pytest.approx(found.metrics["capacity"]), "utilisation": 1}


# What must not matter


@settings(max_examples=20)
@given(seed=st.integers(0, 100), c=st.floats(1e-6, 1e6), a=st.floats(1e-3, 1e3), b=st.floats(1e-3, 1e3))
def test_no_measure_depends_on_the_scale_of_weights_keys_or_values(seed: int, c: float, a: float, b: float):
    association, memory = pairs(12, 6, seed), normal(seed, 6, 6)
    scaled = Association(a * association.keys, b * association.values, association.targets)
    for before, after in zip(everything(association, memory), everything(scaled, c * memory), strict=True):
        assert after.metrics == pytest.approx(before.metrics, rel=1e-6, abs=1e-9)
        assert after.theory == before.theory


@settings(max_examples=20)
@given(seed=st.integers(0, 100))
def test_no_measure_depends_on_the_basis_or_the_order_of_pairs(seed: int):
    association, memory = pairs(12, 6, seed), normal(seed, 6, 6)
    R, Q = (torch.linalg.qr(normal(seed + k, 6, 6))[0] for k in (1, 2))
    order = torch.randperm(12, generator=generator(seed, "order"))
    turned = Association(association.keys[order] @ R.T, association.values @ Q.T, association.targets[order])
    for before, after in zip(everything(association, memory), everything(turned, Q @ memory @ R.T), strict=True):
        assert after.metrics == pytest.approx(before.metrics, rel=1e-6, abs=1e-9)


# What has no meaning is left out

ONE_KEY = Association(normal(0, 1, 4), normal(1, 5, 4), torch.tensor([2]))
ONE_VALUE = Association(normal(0, 5, 4), normal(1, 1, 4), torch.zeros(5, dtype=torch.int64))
ALONE = Association(normal(0, 1, 4), normal(1, 1, 4), torch.tensor([0]))
TWINS = Association(normal(0, 1, 4).repeat(5, 1), normal(1, 1, 4).repeat(5, 1), torch.arange(5))
NO_DIMENSION = Association(normal(0, 5, 1), normal(1, 5, 1), torch.arange(5))
MASKED = Association(normal(0, 5, 4), normal(1, 5, 4), torch.arange(5), candidates=torch.eye(5, dtype=torch.bool))


@pytest.mark.parametrize("association", [ONE_KEY, ONE_VALUE, ALONE, TWINS, NO_DIMENSION, MASKED])
@pytest.mark.parametrize("kind", ["random", "zero", "identity", "rank_one", "map", "constant_map"])
def test_every_measure_of_a_degenerate_memory_is_finite(association: Association, kind: str):
    d = association.keys.shape[1]
    memories: dict[str, Readable] = {
        "random": normal(2, d, d),
        "zero": torch.zeros(d, d, dtype=torch.float64),
        "identity": torch.eye(d, dtype=torch.float64),
        "rank_one": torch.ones(d, d, dtype=torch.float64),
        "map": torch.relu,
        "constant_map": torch.ones_like,
    }
    for measured in everything(association, memories[kind]):
        assert all(math.isfinite(value) for value in (*measured.metrics.values(), *measured.theory.values()))
        assert set(measured.theory) <= set(measured.metrics)


def test_a_silent_memory_has_no_scores_but_fails_everywhere():
    association, silence = pairs(6, 4), torch.zeros(4, 4, dtype=torch.float64)
    assert measure_margins(association, silence) == Measured({"negative": 1.0})
    assert measure_scores(association, silence) == measure_spectrum(silence, 6) == Measured()
    assert measure_utilisation(association, silence).metrics["utilisation"] == 0
    assert measure_scores(association, torch.zeros_like) == Measured()


def test_weights_that_are_not_finite_have_no_spectrum():
    assert measure_spectrum(torch.full((4, 4), torch.nan), 3) == Measured()
