"""What the measures of a memory find in matrices whose margins, scores and spectra are known."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from toytf.measurement import Measurement
from toytf.memory import Association, hebbian
from toytf.memory.association import Readable
from toytf.memory.measures import (
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


def values_of(found: list[Measurement]) -> dict[str, float]:
    """The values by measure; a ratio that is no measure among others, by its group."""
    return {_measure(measured): measured.value for measured in found}


def theory_of(found: list[Measurement]) -> dict[str, float]:
    """The predictions by measure."""
    return {_measure(measured): theory for measured in found if (theory := measured.reference.theory) is not None}


def _measure(measured: Measurement) -> str:
    return str(measured.quantity.at.get("measure", measured.quantity.group.name))


def everything(association: Association, memory: Readable) -> list[list[Measurement]]:
    found = [measure(association, memory) for measure in (measure_margins, measure_scores, measure_utilisation)]
    if isinstance(memory, Tensor):
        found.append(measure_spectrum(memory, len(association.keys)))
    return found


def averages(
    measure: Callable[[Association, Tensor], list[Measurement]], n: int, d: int, draws: int = 20
) -> dict[str, float]:
    """The measures of the Hebbian matrix, on average over draws of n pairs."""
    associations = [pairs(n, d, seed) for seed in range(draws)]
    found = [values_of(measure(association, hebbian(association))) for association in associations]
    return {name: float(np.mean([metrics[name] for metrics in found])) for name in found[0]}


# Margins and scores


BY_HAND = Association(torch.eye(3), torch.eye(2), torch.tensor([0, 1, 0]))
W = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 1.0]])
"""Key 0 answers value 0 by 2, key 1 answers value 1 by 3, key 2 ties."""
UNIT = math.sqrt(15) * math.sqrt(1 / 3) * math.sqrt(1 / 2)
"""‖W‖_F times the root mean square coordinate of keys and of values."""


def test_the_measures_of_a_small_memory_are_those_worked_by_hand():
    assert score_unit(BY_HAND, W) == pytest.approx(UNIT)
    margins = values_of(measure_margins(BY_HAND, W))
    assert margins == pytest.approx({"min": 0, "median": 2 / UNIT, "mean": 5 / 3 / UNIT, "negative": 1 / 3}, abs=1e-7)
    scores = values_of(measure_scores(BY_HAND, W))
    assert scores["correct_mean"] == pytest.approx(2 / UNIT)  # 2, 3, 1
    assert scores["correct_spread"] == pytest.approx(math.sqrt(2 / 3) / UNIT)
    assert scores["rival_max"] == pytest.approx(1 / UNIT)  # 0, 0, 1
    assert scores["rival_spread"] == pytest.approx(math.sqrt(2 / 9) / UNIT)


def test_a_generic_score_has_variance_one():
    # 300 · 300 scores of one random matrix; those of one key share |W e|: relative error about 1 / √(2 · 40) / √40.
    association = Association(normal(0, 300, 40), 3 * normal(1, 300, 40), torch.arange(300))
    found = values_of(measure_scores(association, 7 * normal(2, 40, 40)))
    assert found["rival_spread"] == pytest.approx(1, abs=0.05)
    assert found["correct_spread"] == pytest.approx(1, abs=0.15)


def test_hebbian_scores_are_high_and_broad_where_it_fails():
    # d = 64, p = 555: a single draw has the mean within √2/d, the spreads within .04 and .03; 20 draws are averaged.
    found, predicted = averages(measure_scores, 555, 64), hebbian_scores(555, 64, 64)
    assert found["correct_mean"] == pytest.approx(64 / math.sqrt(555), rel=0.03)
    assert found["correct_mean"] == pytest.approx(predicted.mean, rel=0.03)
    assert found["correct_spread"] == pytest.approx(1, abs=0.05)
    assert found["rival_spread"] ** 2 == pytest.approx(1 + 2 * 64 / 555, rel=0.03)


def test_the_theory_of_scores_is_the_level_just_above_the_cut_rivals():
    theory = theory_of(measure_scores(pairs(512, 8), normal(0, 8, 8)))
    assert theory["correct_mean"] == pytest.approx(2.25, abs=0.02)
    assert theory["correct_spread"] == pytest.approx(0.22, abs=0.02)
    assert 0.9 < theory["rival_spread"] < 1  # a normal distribution cut at 2.25


@pytest.mark.parametrize(("n", "expected"), [(280, 0.44), (200, 1.19), (120, 2.50)])
def test_the_theory_of_the_smallest_margin_is_the_largest_possible_one(n: int, expected: float):
    association = pairs(n, 48)
    measured = measure_margins(association, hebbian(association))
    assert theory_of(measured) == {"min": pytest.approx(expected, abs=0.03)}
    assert values_of(measured)["min"] < expected


def test_a_few_orthogonal_pairs_reach_the_largest_margin():
    """W = Σ_z (u_z − ū) e_zᵀ has n equal margins d / √(n − 1), and no matrix of its norm has a larger smallest one."""
    n, d = 5, 64
    e, u = (math.sqrt(d) * torch.linalg.qr(normal(seed, d, n))[0].T for seed in (0, 1))
    association = Association(e, u, torch.arange(n))
    measured = measure_margins(association, (u - u.mean(0)).T @ e)
    assert values_of(measured)["min"] == pytest.approx(d / math.sqrt(n - 1))
    assert theory_of(measured)["min"] == pytest.approx(
        values_of(measured)["min"], rel=0.05
    )  # theory: random, so orthogonal up to n/d


def test_a_map_is_measured_in_units_of_its_rivals():
    association = pairs(40, 16)
    matrix = normal(5, 16, 16)

    def ask(x: Tensor) -> Tensor:
        return x @ matrix.T

    by_map, by_matrix = measure_margins(association, ask), measure_margins(association, matrix)
    ratio = score_unit(association, ask) / score_unit(association, matrix)
    assert ratio == pytest.approx(values_of(measure_scores(association, matrix))["rival_spread"])
    assert values_of(by_map)["median"] * ratio == pytest.approx(values_of(by_matrix)["median"])
    assert values_of(by_map)["negative"] == values_of(by_matrix)["negative"]
    assert theory_of(by_map) == {}
    assert set(values_of(measure_scores(association, ask))) == {"correct_mean", "correct_spread", "rival_max"}


def test_values_that_may_not_compete_are_no_rivals():
    n = 8
    association = pairs(n, 16)
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    masked = Association(association.keys, association.values, association.targets, candidates=causal)
    memory = normal(3, 16, 16)
    scores, unit = association.scores(memory), score_unit(association, memory)
    rivals = scores[causal & ~torch.eye(n, dtype=torch.bool)] / unit
    found = values_of(measure_scores(masked, memory))
    assert found["rival_max"] == pytest.approx(float(rivals.max()))
    assert found["rival_spread"] == pytest.approx(float(rivals.std(correction=0)))
    margins = [float(scores[z, z] - scores[z, :z].max()) / unit for z in range(1, n)]  # key 0 has no rival
    measured = values_of(measure_margins(masked, memory))
    assert measured["mean"] == pytest.approx(np.mean(margins))
    assert measured["negative"] == pytest.approx(sum(margin <= 0 for margin in margins) / n)


# Spectra


@pytest.mark.parametrize(("d", "p"), [(64, 555), (32, 172)])
def test_the_fourth_moment_of_the_hebbian_matrix_is_two_plus_d_over_p(d: int, p: int):
    found = averages(lambda association, W: measure_spectrum(W, p), p, d)
    assert found["fourth_moment"] == pytest.approx(2 + d / p, rel=0.05)
    assert found["distance_hebbian"] < found["distance"]


def test_a_gaussian_matrix_has_the_quarter_circle():
    found = measure_spectrum(normal(0, 128, 128), 128)
    assert values_of(found)["distance"] < 0.02  # singular values move by O(1/d)
    assert values_of(found)["distance"] < values_of(found)["distance_hebbian"]
    assert theory_of(found) == pytest.approx({"fourth_moment": 2, "largest": 2, "effective_rank": 64}, rel=1e-4)
    for name, expected in theory_of(found).items():
        assert values_of(found)[name] == pytest.approx(expected, rel=0.05)


def test_a_gaussian_matrix_of_any_shape_has_its_own_spectrum():
    """⟨s⁴⟩ = 1 + λ and the edge 1 + √λ for aspect λ (Marchenko and Pastur 1967)."""
    for shape in ((64, 256), (256, 64)):
        found = measure_spectrum(normal(0, *shape), 100)
        assert theory_of(found)["fourth_moment"] == pytest.approx(1.25, rel=1e-3)
        assert theory_of(found)["largest"] == pytest.approx(1.5)
        assert values_of(found)["distance"] < 0.02
        assert values_of(found)["fourth_moment"] == pytest.approx(1.25, rel=0.05)
        assert "distance_hebbian" not in values_of(found)


@pytest.mark.parametrize(("rank", "energy", "cut"), [(32, 0.623, 1.269), (64, 0.894, 0.808)])
def test_a_gaussian_matrix_of_lower_rank_has_the_cut_spectrum(rank: int, energy: float, cut: float):
    U, s, Vh = torch.linalg.svd(normal(1, 128, 128))
    truncated = U[:, :rank] * s[:rank] @ Vh[:rank]
    found, values = measure_spectrum(truncated, 100), singular_values(truncated)
    assert np.count_nonzero(values) == rank
    assert values[rank - 1] == pytest.approx(cut / math.sqrt(energy), rel=0.03)
    assert theory_of(found)["largest"] == pytest.approx(2 / math.sqrt(energy), rel=1e-3)
    assert values_of(found)["distance"] < 0.02
    for name, expected in theory_of(found).items():
        assert values_of(found)[name] == pytest.approx(expected, rel=0.05)


def test_a_rank_that_is_only_rounding_does_not_count():
    product = (normal(0, 64, 8) @ normal(1, 8, 64)).float()
    assert np.count_nonzero(singular_values(product)) == 8
    assert np.count_nonzero(singular_values(normal(0, 64, 64).float())) == 64


def test_singular_values_have_mean_square_one():
    assert np.mean(singular_values(7 * normal(0, 24, 40)) ** 2) == pytest.approx(1)


# Utilisation


def test_the_hebbian_rule_at_a_small_load_uses_the_fraction_it_stores():
    # δ(64) = 4.21 ± .02, and 64 values differ in 63 dimensions. 64 pairs are stored (half of the draws fail at 103).
    association = pairs(64, 64)
    found = values_of(measure_utilisation(association, hebbian(association), 64))
    assert found["stored"] == 64
    assert found["capacity"] == pytest.approx(64 * 63 / 4.21, rel=0.01)
    assert found["utilisation"] == pytest.approx(64 / found["capacity"])


def test_a_narrow_memory_holds_the_energy_of_its_rank():
    association, memory = pairs(65, 64), normal(0, 64, 64)
    full, narrow = (values_of(measure_utilisation(association, memory, rank))["capacity"] for rank in (None, 16))
    assert narrow / full == pytest.approx(0.623, abs=0.001)


def test_keys_that_share_a_value_compete_with_the_other_values_only():
    association = Association(on_sphere(0, 200, 32), on_sphere(1, 16, 32), torch.arange(200) % 16)
    found = measure_utilisation(association, normal(0, 32, 32))
    assert values_of(found)["capacity"] == pytest.approx(32 * 15 / 2.52, rel=0.01)
    assert theory_of(found) == {"stored": pytest.approx(values_of(found)["capacity"]), "utilisation": 1}


def test_beyond_capacity_theory_stores_no_more():
    found = measure_utilisation(pairs(100, 8), normal(0, 8, 8))
    assert theory_of(found) == {"stored": pytest.approx(values_of(found)["capacity"]), "utilisation": 1}


# What must not matter


@settings(max_examples=20)
@given(seed=st.integers(0, 100), c=st.floats(1e-6, 1e6), a=st.floats(1e-3, 1e3), b=st.floats(1e-3, 1e3))
def test_no_measure_depends_on_the_scale_of_weights_keys_or_values(seed: int, c: float, a: float, b: float):
    association, memory = pairs(12, 6, seed), normal(seed, 6, 6)
    scaled = Association(a * association.keys, b * association.values, association.targets)
    for before, after in zip(everything(association, memory), everything(scaled, c * memory), strict=True):
        assert values_of(after) == pytest.approx(values_of(before), rel=1e-6, abs=1e-9)
        assert theory_of(after) == theory_of(before)


@settings(max_examples=20)
@given(seed=st.integers(0, 100))
def test_no_measure_depends_on_the_basis_or_the_order_of_pairs(seed: int):
    association, memory = pairs(12, 6, seed), normal(seed, 6, 6)
    R, Q = (torch.linalg.qr(normal(seed + k, 6, 6))[0] for k in (1, 2))
    order = torch.randperm(12, generator=generator(seed, "order"))
    turned = Association(association.keys[order] @ R.T, association.values @ Q.T, association.targets[order])
    for before, after in zip(everything(association, memory), everything(turned, Q @ memory @ R.T), strict=True):
        assert values_of(after) == pytest.approx(values_of(before), rel=1e-6, abs=1e-9)


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
        assert all(math.isfinite(value) for value in (*values_of(measured).values(), *theory_of(measured).values()))


def test_a_silent_memory_has_no_scores_but_fails_everywhere():
    association, silence = pairs(6, 4), torch.zeros(4, 4, dtype=torch.float64)
    assert values_of(measure_margins(association, silence)) == {"negative": 1.0}
    assert measure_scores(association, silence) == measure_spectrum(silence, 6) == []
    assert values_of(measure_utilisation(association, silence))["utilisation"] == 0
    assert measure_scores(association, torch.zeros_like) == []


def test_weights_that_are_not_finite_have_no_spectrum():
    assert measure_spectrum(torch.full((4, 4), torch.nan), 3) == []
