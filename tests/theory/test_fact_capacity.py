"""How large a model must be for its facts: counts, the conditions of the theorems, and the limit of sums."""

import math

import pytest

from toytf.theory import (
    FACTS_PER_PARAMETER,
    additive_dimension,
    attention_and_mlp_suffice,
    attention_suffices,
    bits_to_store,
    recall_parameters,
)

SIZE = {"d_model": 32, "n_heads": 8, "d_head": 8}


def test_parameters_are_four_matrices_per_head_and_two_per_mlp() -> None:
    assert recall_parameters(8, 8, 32, 64) == 4 * 8 * 8 * 32 + 2 * 64 * 32 == 12288
    assert recall_parameters(8, 8, 32) == 8192


def test_the_guide_line_is_seven_parameters_or_half_a_bit() -> None:
    """Facts of 8 answers have 3 bits each: .45 bits per parameter."""
    assert pytest.approx(6.7, abs=0.1) == 1 / FACTS_PER_PARAMETER
    assert bits_to_store(15, 8) / 100 == pytest.approx(3 * FACTS_PER_PARAMETER)


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        ({}, True),
        ({"n_heads": 3}, False),  # 24 < 32
        ({"n_heads": 4}, True),  # 32 = 16 + 16
        ({"width": 8}, True),  # 8 · 32 = 256 facts
        ({"width": 7}, False),
        ({"width": 0}, False),
        ({"width": 8, "most_frequent": 9}, False),  # an answer of 9 facts takes 9 units
        ({"d_model": 4}, True),  # the theorem asks for no dimension beyond m d ≥ S R
    ],
)
def test_attention_and_mlp_need_heads_for_tokens_and_units_for_facts(changed: dict[str, int], holds: bool) -> None:
    assert attention_and_mlp_suffice(16, 16, **{**SIZE, "width": 64, **changed}) is holds


@pytest.mark.parametrize(
    ("changed", "holds"), [({}, True), ({"d_model": 24}, True), ({"d_model": 23}, False), ({"n_heads": 3}, False)]
)
def test_attention_alone_needs_dimensions_for_relations_and_answers(changed: dict[str, int], holds: bool) -> None:
    assert attention_suffices(16, 16, 8, **{**SIZE, **changed}) is holds
    assert not attention_suffices(16, 16, 8, **{**SIZE, **changed}, disjoint=False)


def test_one_fact_is_a_legal_table() -> None:
    assert attention_suffices(1, 1, 1, d_model=2, n_heads=2, d_head=1)
    assert attention_and_mlp_suffice(1, 1, d_model=1, n_heads=2, d_head=1, width=1)
    assert additive_dimension(1, 1, 1) == pytest.approx(8 * math.log(2))
    assert recall_parameters(1, 1, 1, 0) == 4


def test_no_attention_alone_at_the_sizes_of_the_grid_over_heads_and_widths() -> None:
    """S = R = 32, D = 8 at d = 32: R + D = 40 directions are not there, however many heads."""
    assert not attention_suffices(32, 32, 8, d_model=32, n_heads=32, d_head=8)


def test_sums_of_random_vectors_need_some_thirty_times_the_dimension() -> None:
    """d = 512 has .999 and 768 all of 16 · 16 facts (measured); the bound for certainty lies just above."""
    d = additive_dimension(16, 16, 8)
    assert d == pytest.approx(4 * 24 * math.log(256 * 24))
    assert 768 < d < 1.2 * 768


@pytest.mark.parametrize(
    "call",
    [
        lambda: recall_parameters(0, 8, 32),
        lambda: recall_parameters(8, 8, 32, -1),
        lambda: additive_dimension(16, 0, 8),
        lambda: attention_suffices(16, 16, 0, **SIZE),
    ],
)
def test_sizes_that_no_model_has_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match="expected a finite number of at least"):
        call()  # type: ignore[operator]
