"""Gradient descent as particles: the same motion as that of W, at the numbers of the two-token figure."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toytf import theory
from toytf.memory import Association, Particles, gradient_step
from toytf.randomness import generator
from toytf.spikes import increases, spikes

PROPERTY = settings(max_examples=25)

FIGURE = [
    0.693, 1.163, 0.498, 0.753, 0.644, 1.349, 0.290, 0.334, 0.559, 0.357, 0.620, 0.225, 0.276, 0.203, 0.216, 0.147,
    0.130, 0.103, 0.094,
]  # fmt: skip
"""The loss of two tokens, a = 0.95, p_1 = 0.75, η = 10, step by step: a separate simulation of the full matrix."""


def pair(a: float, p1: float) -> Association:
    keys = torch.tensor([[1, 0], [a, math.sqrt(1 - a**2)]], dtype=torch.float64)
    return Association(
        keys, torch.eye(2, dtype=torch.float64), torch.arange(2), torch.tensor([p1, 1 - p1], dtype=torch.float64)
    )


def random_tokens(seed: int, n: int, m: int, d: int) -> Association:
    keys, values = (
        torch.randn(rows, d, generator=generator(seed, name), dtype=torch.float64)
        for name, rows in (("keys", n), ("values", m))
    )
    return Association(keys, values, torch.arange(n) % m, torch.as_tensor(theory.zipf(n, 1.0)))


def after(particles: Particles, lr: float, steps: int) -> list[Particles]:
    """The particles at the start and after every step."""
    found, rate = [particles], torch.full((len(particles.scores),), lr, dtype=torch.float64)
    for _ in range(steps):
        found.append(found[-1].stepped(rate))
    return found


def orthonormal(n: int) -> Association:
    eye = torch.eye(n, dtype=torch.float64)
    return Association(eye, eye, torch.arange(n), torch.as_tensor(theory.zipf(n, 1)))


# The same motion as that of W


@PROPERTY
@given(st.floats(-0.95, 0.95), st.floats(0.55, 0.97), st.floats(0.1, 30))
def test_two_tokens_follow_their_recursion_and_gradient_descent_on_w(a: float, p1: float, lr: float) -> None:
    """50 steps, to 1e-10; nearer to a = 1 rounding is amplified, and at p_1 = 1/2 the symmetry is unstable."""
    association = pair(a, p1)
    particles, m, W = Particles.of([association]), np.zeros(2), torch.zeros(2, 2, dtype=torch.float64)
    for moved in after(particles, lr, 50)[1:]:
        m = theory.pair_step(m, lr, a, p1)
        W = gradient_step(association, W, lr=lr)
        assert moved.margins[0].tolist() == pytest.approx(m.tolist(), abs=1e-10)
        assert moved.scores[0].tolist() == [pytest.approx(row, abs=1e-10) for row in association.scores(W).tolist()]


@PROPERTY
@given(st.integers(0, 2**31), st.integers(1, 8), st.integers(1, 6), st.integers(1, 5))
def test_any_tokens_from_any_matrix_follow_gradient_descent_on_w(seed: int, n: int, m: int, d: int) -> None:
    association = random_tokens(seed, n, m, d)
    W = torch.randn(d, d, generator=generator(seed, "start"), dtype=torch.float64)
    particles = Particles.of([association], [W])
    for moved in after(particles, 0.3, 5):
        assert torch.allclose(moved.scores[0], association.scores(W), atol=1e-10)
        assert torch.allclose(moved.margins[0], association.margins(W), atol=1e-10)
        cross_entropy = torch.nn.functional.cross_entropy(association.scores(W), association.targets, reduction="none")
        assert torch.allclose(moved.losses[0], cross_entropy, atol=1e-10)
        wrong = 1 - float(association.recall(W, weighted=True))
        near_tie = bool((association.margins(W).abs() < 1e-9).any())
        assert near_tie or float(moved.error[0]) == pytest.approx(wrong, abs=1e-12)
        W = gradient_step(association, W, lr=0.3)


def test_a_batch_of_one_of_each_token_is_the_gradient_of_equal_frequencies() -> None:
    association = random_tokens(0, 6, 3, 4)
    equal = Association(association.keys, association.values, association.targets)
    particles, lr = Particles.of([association]), torch.tensor([0.7], dtype=torch.float64)
    moved = particles.stepped(lr, torch.full((1, 6), 1 / 6, dtype=torch.float64))
    assert torch.allclose(moved.scores[0], equal.scores(gradient_step(equal, lr=0.7)), atol=1e-12)
    assert torch.equal(moved.p, particles.p)  # the loss is still that of the population


def test_systems_move_together_as_they_do_alone() -> None:
    systems = [random_tokens(seed, 7, 3, 4) for seed in range(3)]
    lr = torch.tensor([0.1, 5.0, 0.1, 5.0, 0.1, 5.0], dtype=torch.float64)
    together = Particles.of(systems).repeated(2)
    for _ in range(20):
        together = together.stepped(lr)
    for i, (system, rate) in enumerate(zip([one for one in systems for _ in range(2)], lr.tolist(), strict=True)):
        alone = after(Particles.of([system]), rate, 20)[-1]
        assert torch.allclose(together.scores[i], alone.scores[0], atol=1e-12)


def test_a_rotation_of_all_vectors_changes_nothing() -> None:
    association = random_tokens(1, 6, 4, 5)
    Q = torch.linalg.qr(torch.randn(5, 5, generator=generator(1, "rotation"), dtype=torch.float64))[0]
    turned = Association(association.keys @ Q, association.values @ Q, association.targets, association.weights)
    ends = [after(Particles.of([one]), 2.0, 30)[-1].scores for one in (association, turned)]
    assert torch.allclose(*ends, atol=1e-9)


# The numbers of the figures


def test_the_loss_of_two_correlated_tokens_spikes_four_times_and_is_lower_for_it() -> None:
    losses = [float(one.loss) for one in after(Particles.of([pair(0.95, 0.75)]), 10.0, 34)]
    assert losses[: len(FIGURE)] == pytest.approx(FIGURE, abs=6e-4)  # three digits
    assert losses[34] == pytest.approx(0.054, abs=6e-4)
    assert increases(losses) == 8
    assert [(one.first, one.last, one.benign) for one in spikes(losses)] == [
        (1, 1, True), (3, 5, True), (7, 10, True), (12, 12, True),
    ]  # fmt: skip


def test_a_small_step_has_no_spike_and_is_slower() -> None:
    steps = after(Particles.of([pair(0.95, 0.75)]), 1.0, 999)
    losses = [float(one.loss) for one in steps]
    assert [losses[t] for t in (0, 1, 2, 34)] == pytest.approx([0.693, 0.590, 0.556, 0.372], abs=6e-4)
    assert losses[999] == pytest.approx(0.0214, abs=6e-5)
    assert (increases(losses), spikes(losses)) == (0, [])
    assert max(t for t, one in enumerate(steps) if float(one.error) > 0) == 51


def test_a_tie_is_an_error() -> None:
    errors = [float(one.error) for one in after(Particles.of([pair(0.95, 0.75)]), 10.0, 16)]
    assert errors == pytest.approx([1, 0.25, 0, 0.25, 0.75, 0.25, 0.25, 0, 0.25, 0, 0.25, 0, 0.25, 0, 0.25, 0, 0])


@pytest.mark.parametrize("lr", [1.0, 10.0])
def test_orthonormal_tokens_follow_the_exact_law(lr: float) -> None:
    m, rate = np.zeros(5), lr * theory.zipf(5, 1)
    for moved in after(Particles.of([orthonormal(5)]), lr, 200)[1:]:
        m = theory.margin_step(m, rate, 5)
        assert moved.margins[0].tolist() == pytest.approx(m.tolist(), rel=1e-12)


def test_a_margin_beyond_what_a_softmax_can_tell_from_one_still_grows() -> None:
    """At a margin of 40, 1 − π = 4 e^−40 rounds to 0 even in float64 if it is a difference."""
    W = 40 * torch.eye(5, dtype=torch.float64)
    (start, moved) = after(Particles.of([orthonormal(5)], [W]), 1e15, 1)
    law = theory.margin_step(np.full(5, 40.0), 1e15 * theory.zipf(5, 1), 5) - 40
    assert (moved.margins - start.margins)[0].tolist() == pytest.approx(law.tolist(), rel=1e-9)
    assert float(start.loss) == pytest.approx(4 * math.exp(-40), rel=1e-12)


def test_one_value_has_no_rival_and_nothing_moves() -> None:
    only = Association(torch.ones(2, 3).double(), torch.ones(1, 3).double(), torch.zeros(2, dtype=torch.long))
    (start, moved) = after(Particles.of([only]), 1.0, 1)
    assert torch.equal(start.scores, moved.scores)
    assert (float(start.loss), float(start.error)) == (0, 0)
    assert bool(torch.isposinf(start.margins).all())


def test_what_cannot_move_together_is_refused() -> None:
    a, b = random_tokens(0, 4, 2, 3), random_tokens(0, 4, 2, 5)
    narrow = Association(a.keys, a.values, a.targets, candidates=torch.ones(4, 2, dtype=torch.bool))

    def message(*associations: Association) -> str:
        with pytest.raises(ValueError) as refused:
            Particles.of(associations)
        return str(refused.value)

    assert message() == "particles need at least one Association"
    assert "keys and values of one shape" in message(a, b)
    assert "without candidates" in message(narrow)


def test_two_tokens_with_one_vector_are_never_both_right() -> None:
    for moved in after(Particles.of([pair(1.0, 0.75)]), 3.0, 100):
        assert float(moved.error) >= 0.25


def test_particles_are_in_float64_unless_told_otherwise() -> None:
    narrow = Association(torch.eye(3), torch.eye(3), torch.arange(3))
    assert Particles.of([narrow]).scores.dtype == torch.float64
    assert Particles.of([narrow], dtype=torch.float32).scores.dtype == torch.float32
