"""Linear attention on facts: the same function as a ToyTransformer, gradients as autograd has them, its sequences."""

import numpy as np
import pytest
import torch

from tasks.factual.dynamics.model import (
    FactBatch,
    LinearAttentionWeights,
    fact_counts,
    negative_gradients,
    predict,
    sample_facts,
)
from tasks.factual.table import FactTable, random_table, structured_table
from toytf.models.config import ModelConfig
from toytf.models.transformer import ToyTransformer
from toytf.randomness import generator

S, R, D, NOISE, T = 6, 3, 4, 5, 9
V, A = S + R + NOISE + 1, R * D


@pytest.fixture
def table() -> FactTable:
    return random_table(S, R, D, seed=0)


@pytest.fixture
def weights() -> LinearAttentionWeights:
    random = generator(0, "weights")
    w, W = (torch.randn(shape, generator=random, dtype=torch.float64) for shape in ((V,), (V, A)))
    return LinearAttentionWeights(w, W)


def drawn(table: FactTable, n: int, seed: int = 0) -> FactBatch:
    return sample_facts(torch.as_tensor(table.answers), n, NOISE, T, generator(seed, "sequences"))


def test_a_sequence_has_a_subject_a_relation_an_end_and_noise(table: FactTable) -> None:
    facts = drawn(table, 500)
    subjects, relations, noise, end = facts.counts.split([S, R, NOISE, 1], dim=1)
    assert bool((subjects.sum(1) == 1).all()) and bool((relations.sum(1) == 1).all()) and bool((end == 1).all())
    assert bool((noise.sum(1) == T - 3).all())
    expected = torch.as_tensor(table.answers)[subjects.argmax(1), relations.argmax(1)]
    assert bool((facts.answers == expected).all())


def test_the_mean_of_many_sequences_is_that_of_fact_counts(table: FactTable) -> None:
    """5 standard errors; a count of noise has variance (T−3) (1/5)(4/5) = 0.96, others at most 1/4."""
    n = 40_000
    difference = drawn(table, n).counts.double().mean(0) - fact_counts(table, NOISE, T).counts.mean(0)
    assert float(difference.abs().max()) < 5 * np.sqrt(0.96 / n)


def test_every_fact_comes_once_in_the_order_of_the_pairs(table: FactTable) -> None:
    facts = fact_counts(table, NOISE, T)
    s, r = table.pairs.T
    assert facts.counts[:, :S].argmax(1).tolist() == s.tolist()
    assert facts.counts[:, S : S + R].argmax(1).tolist() == r.tolist()
    assert facts.answers.tolist() == table.answers[s, r].tolist()
    assert bool((facts.counts.sum(1) == T).all())


def test_gradients_are_those_of_autograd(table: FactTable, weights: LinearAttentionWeights) -> None:
    batch = drawn(table, 50)
    for facts in (FactBatch(batch.counts.double(), batch.answers), fact_counts(table, NOISE, T)):
        w, W = weights.w.clone().requires_grad_(), weights.W.clone().requires_grad_()
        loss = torch.nn.functional.nll_loss(predict(LinearAttentionWeights(w, W), facts.counts), facts.answers)
        expected = torch.autograd.grad(loss, (w, W))
        found = negative_gradients(weights, facts)
        torch.testing.assert_close(found.w, -expected[0])
        torch.testing.assert_close(found.W, -expected[1])


def test_it_is_a_toy_transformer_with_linear_attention(weights: LinearAttentionWeights) -> None:
    """One layer without residual, one-hot vectors, W_KQ[end, z] = w(z), W_OV[z, a] = W(z, a); order is free."""
    attention = {"kind": "linear", "kq": "joint", "ov": "joint", "scale": 1.0, "residual": False}
    config = ModelConfig.model_validate(
        {
            "d_model": V,
            "n_layers": 1,
            "embedding": "one_hot",
            "unembedding": "one_hot",
            "position": "none",
            "attention": attention,
        }
    )
    model = ToyTransformer(config, n_tokens=V, n_positions=T, n_outputs=A, generator=generator(0, "model")).double()
    W_KQ, W_OV = (torch.zeros(V, V, dtype=torch.float64) for _ in range(2))
    W_KQ[-1], W_OV[:, :A] = weights.w, weights.W
    with torch.no_grad():
        model.attention(0).W_K.copy_(W_KQ.T)
        model.attention(0).W_O.copy_(W_OV)
    tokens = torch.randint(V - 1, (20, T), generator=generator(0, "tokens"))
    tokens[:, -1] = V - 1
    counts = torch.nn.functional.one_hot(tokens, V).sum(1).double()
    torch.testing.assert_close(model(tokens)[:, -1].log_softmax(1), predict(weights, counts))


def test_a_small_step_conserves_w2_less_W2_to_first_order(table: FactTable, weights: LinearAttentionWeights) -> None:
    facts = fact_counts(table, NOISE, T)
    change = {
        lr: float((weights.stepped(lr, negative_gradients(weights, facts)).invariant - weights.invariant).abs().max())
        for lr in (1e-3, 1e-4)
    }
    assert change[1e-3] < 1e-4
    assert change[1e-4] == pytest.approx(change[1e-3] / 100, rel=1e-3)  # quadratic in lr


def test_what_a_balanced_table_says_nothing_about_stays_as_it_was() -> None:
    facts = fact_counts(structured_table(8, 2, 4), NOISE, T)
    n_tokens = facts.counts.shape[1]
    weights = LinearAttentionWeights(*(facts.counts.new_full(shape, 0.1) for shape in ((n_tokens,), (n_tokens, 8))))
    for _ in range(50):
        weights = weights.stepped(1.0, negative_gradients(weights, facts))
    assert float((weights.w[10:] - 0.1).abs().max()) < 1e-12  # noise and the end token
    assert float(weights.w[:10].min()) > 0.2


def test_a_sequence_without_noise_is_the_fact_alone() -> None:
    table = random_table(3, 2, 2, seed=1)
    facts = sample_facts(torch.as_tensor(table.answers), 10, 0, 3, generator(0, "short"))
    assert facts.counts.shape == (10, 3 + 2 + 1)
    assert bool((facts.counts.sum(1) == 3).all())
