"""Spikes of a loss: steps above the best before them, and whether what was lost was made good."""

from hypothesis import given
from hypothesis import strategies as st

from toytf.spikes import Spike, increases, spikes

FIGURE = [
    0.693, 1.163, 0.498, 0.753, 0.644, 1.349, 0.290, 0.334, 0.559, 0.357, 0.620, 0.225, 0.276, 0.203, 0.216, 0.147,
    0.130, 0.103, 0.094,
]  # fmt: skip
"""Two correlated tokens with a large step (Cabannes, Simsek, Bietti 2024), by a separate simulation."""

LOSSES = st.lists(st.floats(0.01, 100), min_size=1, max_size=40)


def test_the_spike_figure_has_four_events_and_each_was_made_good() -> None:
    assert spikes(FIGURE) == [Spike(1, 1, True), Spike(3, 5, True), Spike(7, 10, True), Spike(12, 12, True)]
    assert increases(FIGURE) == 8


def test_a_loss_that_falls_has_none() -> None:
    assert spikes([3, 2, 1, 0.5]) == []
    assert increases([3, 2, 1, 0.5]) == 0


def test_a_small_rise_is_an_increase_and_no_spike() -> None:
    assert spikes([1, 1.1]) == []  # not above 1.1 times the best
    assert spikes([1, 1.11]) == [Spike(1, 1, False)]
    assert spikes([1, 1.11], delta=0.2) == []
    assert increases([1, 1.05, 1.04, 1.06]) == 2


def test_a_spike_is_measured_by_the_best_so_far_and_not_by_the_step_before() -> None:
    assert spikes([1, 5, 4, 3, 0.5]) == [Spike(1, 3, True)]
    assert spikes([1, 5, 1.05, 5, 0.9]) == [Spike(1, 1, True), Spike(3, 3, True)]


def test_what_ends_as_low_as_before_is_not_made_good() -> None:
    assert spikes([1, 5, 1]) == [Spike(1, 1, False)]
    assert spikes([1, 5, 0.99]) == [Spike(1, 1, True)]


def test_nothing_and_a_single_loss_have_no_spikes() -> None:
    assert (spikes([2.0]), increases([2.0])) == ([], 0)


@given(LOSSES, st.floats(0.01, 1))
def test_events_are_the_steps_above_the_best_in_runs(losses: list[float], delta: float) -> None:
    high = {t for t in range(1, len(losses)) if losses[t] > (1 + delta) * min(losses[:t])}
    found = spikes(losses, delta)
    assert {t for one in found for t in range(one.first, one.last + 1)} == high
    assert all(one.last + 1 not in high for one in found)
    assert all(one.benign == (min(losses[one.last :]) < min(losses[: one.first])) for one in found)


@given(LOSSES, st.integers(-8, 8))
def test_the_unit_of_a_loss_does_not_matter(losses: list[float], power: int) -> None:
    scaled = [loss * 2.0**power for loss in losses]  # a power of two, so that nothing is rounded
    assert spikes(scaled) == spikes(losses)
    assert increases(scaled) == increases(losses)
