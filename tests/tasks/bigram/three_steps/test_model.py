"""The two models of the three-step theorem, their sequences and their gradients."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tasks.bigram.three_steps.config import ThreeStepsConfig
from tasks.bigram.three_steps.experiment import STEPS, draw
from tasks.bigram.three_steps.model import InductionWeights, Vectors, forward, negative_gradient, sample_sequences
from toytf import theory
from toytf.config.plugins import load_config
from toytf.randomness import generator

TINY: dict[str, Any] = {"n_tokens": 6, "seq_len": 6, "samples": [256], "evaluation_samples": 64}


def configured(**config: Any) -> ThreeStepsConfig:
    loaded: ThreeStepsConfig = load_config({"experiment": "three_steps", "device": "cpu", "threads": 1, **config})
    return loaded


# --- the sequences


N, T, DRAWN = 7, 9, 40_000


@pytest.fixture(scope="module")
def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    return sample_sequences(DRAWN, N, T, generator(0, "distribution"))


def test_the_trigger_occurs_exactly_twice_and_last(drawn: tuple[torch.Tensor, torch.Tensor]) -> None:
    tokens, _ = drawn
    is_trigger = tokens == tokens[:, -1:]
    assert bool((is_trigger.sum(1) == 2).all())
    assert not bool(is_trigger[:, -2].any())  # its output comes between


def test_the_answer_follows_the_trigger_and_is_another_token(drawn: tuple[torch.Tensor, torch.Tensor]) -> None:
    tokens, answers = drawn
    s = (tokens == tokens[:, -1:]).int().argmax(1, keepdim=True)
    assert torch.equal(tokens.gather(1, s + 1)[:, 0], answers)
    assert bool((answers != tokens[:, -1]).all())


def test_trigger_position_and_other_tokens_are_uniform(drawn: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Frequencies within 5 standard errors of 1/N, 1/(T−2) and 1/(N−1)."""
    tokens, _ = drawn
    q, s = tokens[:, -1], (tokens == tokens[:, -1:]).int().argmax(1)
    others = ((tokens - q[:, None]) % N)[tokens != q[:, None]] - 1  # distance from the trigger: 1 … N−1
    for values, n in ((q, N), (s, T - 2), (others, N - 1)):
        frequency = values.bincount(minlength=n) / len(values)
        assert frequency.shape == (n,)
        assert float((frequency - 1 / n).abs().max()) < 5 * (1 / n / len(values)) ** 0.5


# --- the models, spelled out for one sequence


def softmax(scores: list[float]) -> np.ndarray:
    e = np.exp(np.array(scores) - max(scores))
    return e / e.sum()


def by_hand(W: InductionWeights, v: Vectors, z: list[int]) -> np.ndarray:
    """The logits of one sequence, position by position, as the formulas stand."""
    e, e_tilde, u, p = (rows.double().numpy() for rows in (v.e, v.e_tilde, v.u, v.p))
    W_OV2, W_KQ2, W_KQ1 = (W.W_OV2.double().numpy(), W.W_KQ2.double().numpy(), W.W_KQ1.double().numpy())
    x = [e[token] + (p[t] if v.remap is not None else 0) for t, token in enumerate(z)]
    h, values = [], []
    for t in range(len(z)):
        if v.remap is None:
            a = softmax([p[t] @ W_KQ1 @ p[r] for r in range(t + 1)])
            h.append(sum(a[r] * e_tilde[z[r]] for r in range(t + 1)))
            values.append(e[z[t]])
        else:
            a = softmax([x[t] @ W_KQ1 @ x[r] for r in range(t + 1)])
            h.append(x[t] + v.remap.double().numpy() @ sum(a[r] * x[r] for r in range(t + 1)))
            values.append(h[t])
    query = e[z[-1]] if v.remap is None else h[-1]
    b = softmax([query @ W_KQ2 @ h[t] for t in range(len(z))])
    out = W_OV2 @ sum(b[t] * values[t] for t in range(len(z)))
    logits: np.ndarray = u @ (out if v.remap is None else h[-1] + out)
    return logits


@pytest.mark.parametrize("model", ["clean", "residual"])
@pytest.mark.parametrize("embedding", [{}, {"embedding": "normal_over_d", "dimension": 5}], ids=["axes", "normal"])
def test_the_forward_is_the_formula(model: str, embedding: dict[str, Any]) -> None:
    config = configured(model=model, n_tokens=4, seq_len=5, **embedding)
    vectors = draw(config, 0)
    zero = InductionWeights.zero(vectors)
    random = generator(0, "weights")
    weights = InductionWeights(*(torch.randn(getattr(zero, name).shape, generator=random) for name in STEPS))
    tokens, _ = sample_sequences(3, 4, 5, random)
    logits, attention = forward(weights, vectors, tokens)
    torch.testing.assert_close(attention.sum(1), torch.ones(3))
    for sequence, found in zip(tokens.tolist(), logits, strict=True):
        np.testing.assert_allclose(found.numpy(), by_hand(weights, vectors, sequence), rtol=1e-4, atol=1e-4)


def test_zero_weights_give_uniform_attention_and_equal_answers() -> None:
    for model in ("clean", "residual"):
        config = configured(model=model, **TINY)
        vectors = draw(config, 0)
        logits, attention = forward(
            InductionWeights.zero(vectors), vectors, sample_sequences(8, 6, 6, generator(0, "x"))[0]
        )
        assert not logits.any()
        torch.testing.assert_close(attention, torch.full((8, 6), 1 / 6))


def test_the_vectors_of_a_stream_do_not_overlap() -> None:
    v = draw(configured(model="residual", n_tokens=5, seq_len=6), 0)
    assert v.remap is not None
    remapped_positions = v.p @ v.remap.T
    axes = torch.cat([v.e, v.p, v.e_tilde, remapped_positions, v.u])
    assert torch.equal(axes @ axes.T, torch.eye(len(axes)))
    assert torch.equal(v.e @ v.remap.T, v.e_tilde)


def test_vectors_that_are_drawn_have_the_distribution_asked_for() -> None:
    v = draw(configured(n_tokens=64, embedding="normal_over_d", dimension=400), 0)
    for rows in (v.e, v.e_tilde, v.u, v.p):
        assert rows.shape[1] == 400
        assert float((rows**2).sum(1).mean()) == pytest.approx(1, abs=5 * (2 / 400 / len(rows)) ** 0.5)
    assert not torch.equal(v.e, draw(configured(n_tokens=64, embedding="normal_over_d", dimension=400), 1).e)


# --- the gradients


def test_step_1_is_the_lemma_of_noisy_inputs() -> None:
    """−∂L/∂W_OV2 = mean (1{y=k} − 1/N) · mean_t 1{z_t=j}, to rounding in float32."""
    config = configured(**TINY)
    vectors = draw(config, 0)
    tokens, answers = sample_sequences(500, 6, 6, generator(0, "x"))
    G = negative_gradient("W_OV2", InductionWeights.zero(vectors), vectors, iter([(tokens, answers)]))
    onehot = torch.nn.functional.one_hot
    expected = (onehot(answers, 6) - 1 / 6).T @ onehot(tokens, 6).float().mean(1) / 500
    torch.testing.assert_close(G, expected, atol=1e-7, rtol=0)


def test_chunks_are_means_over_all_sequences() -> None:
    vectors = draw(configured(**TINY), 0)
    tokens, answers = sample_sequences(90, 6, 6, generator(0, "x"))
    weights = replace(InductionWeights.zero(vectors), W_OV2=torch.eye(6))
    whole = negative_gradient("W_KQ2", weights, vectors, iter([(tokens, answers)]))
    parts = iter([(tokens[:20], answers[:20]), (tokens[20:], answers[20:])])
    torch.testing.assert_close(negative_gradient("W_KQ2", weights, vectors, parts), whole)


@pytest.mark.parametrize("beta_2", [0.01, 1.0, 4.0])
def test_step_3_of_many_tokens_is_as_predicted_beyond_small_gains(beta_2: float) -> None:
    """N = 4000: random tokens almost never meet. 40,000 sequences: entries scatter by about 1 % of the largest."""
    N, T, beta_1 = 4000, 8, 0.5
    tokens, _ = sample_sequences(40_000, N, T, generator(0, "many"))
    # Only the T tokens of a sequence matter, so that they are renamed 0 … 7, and N enters by the softmax alone.
    names = torch.arange(T).expand_as(tokens).clone()
    first = (tokens == tokens[:, -1:]).int().argmax(1)
    names[:, -1] = first
    vectors = Vectors(torch.eye(T), torch.eye(T), torch.eye(T), torch.eye(T))
    weights = InductionWeights(beta_1 * torch.eye(T), beta_2 * torch.eye(T), torch.zeros(T, T))
    W = weights.W_KQ1.clone().requires_grad_()
    logits, _ = forward(replace(weights, W_KQ1=W), vectors, names)
    everyone = torch.cat([logits, torch.zeros(len(logits), 1) + np.log(N - T)], dim=1)
    torch.nn.functional.cross_entropy(everyone, first + 1).backward()
    expected = theory.position_signal(T, beta_1, beta_2, linear=False)
    assert W.grad is not None
    np.testing.assert_allclose(-W.grad.numpy(), expected, atol=0.03 * abs(expected).max())
