"""The one forward, against the equations written out a second time, and what each option changes in it."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.models.toys import D, T, numbers, small, some_tokens
from toytf.config.plugins import load_config
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.randomness import generator

CONFIGS = Path(__file__).parents[2] / "configs"
Array = NDArray[np.float64]


def preset(path: str, **overrides: object) -> ToyTransformer:
    """The model of a shipped config at this size, in double precision."""
    config: Any = load_config(CONFIGS / path, {f"model.{key.replace('__', '.')}": v for key, v in overrides.items()})
    return small(**config.model.model_dump())


# The equations, written out one position at a time


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def simplified_forward(w: dict[str, Array], z: list[int], n_layers: int = 2) -> Array:
    """x_t = e_{z_t} + p_t;  x_t ← x_t + W_O W_V Σ_{s≤t} a_ts x_s,  a_t = softmax_s(x_tᵀ W_KQ x_s / √d);  W_U x_t.

    Column vectors and matrices that act from the left, as in Bietti et al. 2023, §4.
    """
    x = [w["embed.W_E"][token] + w["pos_embed.W_pos"][t] for t, token in enumerate(z)]
    for layer in range(n_layers):
        W_KQ = w[f"blocks.{layer}.attn.W_K"][0].T
        W_V, W_O = w[f"blocks.{layer}.attn.W_V"][0].T, w[f"blocks.{layer}.attn.W_O"][0].T
        out = []
        for t in range(len(z)):
            a = softmax(np.array([x[t] @ W_KQ @ x[s] for s in range(t + 1)]) / math.sqrt(len(x[t])))
            out.append(x[t] + W_O @ W_V @ sum(a[s] * x[s] for s in range(t + 1)))
        x = out
    return np.stack([w["unembed.W_U"].T @ y for y in x])


def layer_norm(x: Array, w: Array, b: Array) -> Array:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * w + b


def full_forward(w: dict[str, Array], z: list[int], *, n_layers: int, n_heads: int, parallel: bool = False) -> Array:
    """Pre-LayerNorm, multi-head attention with scale √d_head, then relu(LN(x) W_in) W_out, final LayerNorm, W_U."""

    def norm(name: str, x: Array) -> Array:
        return layer_norm(x, w[f"{name}.w"], w[f"{name}.b"])

    x = [w["embed.W_E"][token] + w["pos_embed.W_pos"][t] for t, token in enumerate(z)]
    for layer in range(n_layers):
        block = f"blocks.{layer}"
        normed = [norm(f"{block}.ln1", v) for v in x]
        mid = []
        for t in range(len(z)):
            added = np.zeros_like(x[t])
            for h in range(n_heads):
                W_Q, W_K, W_V, W_O = (w[f"{block}.attn.{name}"][h] for name in ("W_Q", "W_K", "W_V", "W_O"))
                scores = np.array([(normed[t] @ W_Q) @ (normed[s] @ W_K) for s in range(t + 1)])
                a = softmax(scores / math.sqrt(W_Q.shape[1]))
                added = added + sum(a[s] * (normed[s] @ W_V) for s in range(t + 1)) @ W_O
            mid.append(x[t] + added)
        W_in, W_out = w[f"{block}.mlp.W_in"], w[f"{block}.mlp.W_out"]
        read = [norm(f"{block}.ln2", v) for v in (x if parallel else mid)]
        x = [m + np.maximum(v @ W_in, 0) @ W_out for m, v in zip(mid, read, strict=True)]
    return np.stack([norm("ln_final", v) @ w["unembed.W_U"] for v in x])


def assert_same_logits(model: ToyTransformer, tokens: torch.Tensor, forward: Callable[[list[int]], Array]) -> None:
    expected = np.stack([forward(sequence) for sequence in tokens.tolist()])
    np.testing.assert_allclose(model(tokens).detach().numpy(), expected, rtol=0, atol=1e-10)


def test_the_simplified_preset_is_the_equation_of_the_paper():
    model = preset("quickstart.yaml", d_model=D)
    assert_same_logits(model, some_tokens(), lambda z: simplified_forward(numbers(model), z))


def shake_norms(model: ToyTransformer) -> None:
    """Give the LayerNorms gains and offsets other than 1 and 0, so that leaving one out shows."""
    for name, parameter in model.named_parameters():
        if name.endswith((".w", ".b")):
            parameter.data += 0.3 * torch.randn(D, generator=generator(1, name), dtype=torch.float64)


@pytest.mark.parametrize("n_heads", [1, 3])
@pytest.mark.parametrize("n_layers", [1, 2])
def test_the_full_preset_is_the_usual_pre_norm_transformer(n_heads: int, n_layers: int):
    model = preset("bigram/two_layers.yaml", d_model=D, n_layers=n_layers, attention__n_heads=n_heads)
    shake_norms(model)
    assert_same_logits(
        model, some_tokens(), lambda z: full_forward(numbers(model), z, n_layers=n_layers, n_heads=n_heads)
    )


def test_feed_forward_can_read_the_input_of_the_block():
    model = preset("bigram/two_layers.yaml", d_model=D, attention__n_heads=2, feed_forward__reads="block_input")
    shake_norms(model)
    assert_same_logits(
        model, some_tokens(), lambda z: full_forward(numbers(model), z, n_layers=2, n_heads=2, parallel=True)
    )


# Options


def test_without_positions_the_past_is_a_bag():
    model, tokens = small(position="none"), some_tokens()
    shuffled = tokens.clone()
    shuffled[:, : T - 1] = tokens[:, : T - 1].flip(1)
    one_layer = small(position="none", n_layers=1)
    assert one_layer.pos_embed is None
    torch.testing.assert_close(one_layer(shuffled)[:, -1], one_layer(tokens)[:, -1], rtol=0, atol=1e-12)
    assert not any(name.startswith("pos_embed") for name, _ in model.named_parameters())


def test_sinusoidal_positions_are_sines_and_cosines():
    p = numbers(small(position="sinusoidal"))["pos_embed.W_pos"]
    for t in range(T):
        for i in range(D // 2):
            angle = t * 10_000 ** (-2 * i / D)
            assert p[t, 2 * i : 2 * i + 2] == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)


def test_without_residual_only_what_attention_adds_remains():
    model = small(n_layers=1, attention={"residual": False, "ov": "joint"})
    model.attention(0).W_O.data.zero_()
    assert (model(some_tokens()) == 0).all()
    kept = small(n_layers=1, attention={"ov": "joint"})
    kept.attention(0).W_O.data.zero_()
    x = kept.embed.W_E[some_tokens()] + kept.pos_embed.W_pos
    torch.testing.assert_close(kept(some_tokens()), x @ kept.unembed.W_U)


def test_without_residual_only_what_feed_forward_adds_remains():
    model = small(n_layers=1, feed_forward={"kind": "linear", "residual": False})
    _, seen = model.observe(some_tokens(), "blocks.0.hook_resid_post", "blocks.0.hook_mlp_out")
    assert torch.equal(seen["blocks.0.hook_resid_post"], seen["blocks.0.hook_mlp_out"])


@pytest.mark.parametrize("kind", ["linear", "relu"])
def test_feed_forward_adds_its_formula(kind: str):
    model = small(n_layers=1, feed_forward={"kind": kind, "width": 20})
    _, seen = model.observe(some_tokens(), "blocks.0.hook_resid_mid", "blocks.0.hook_resid_post")
    x, w = seen["blocks.0.hook_resid_mid"].detach().numpy(), numbers(model)
    W_in = w["blocks.0.mlp.W_in"]
    added = x @ W_in if kind == "linear" else np.maximum(x @ W_in, 0) @ w["blocks.0.mlp.W_out"]
    assert W_in.shape == ((D, D) if kind == "linear" else (D, 20))
    np.testing.assert_allclose(seen["blocks.0.hook_resid_post"].detach(), x + added, atol=1e-12)


def test_only_the_chosen_layers_have_feed_forward():
    model = small(feed_forward={"kind": "relu", "layers": [1]})
    assert model.feed_forward(0) is None
    assert model.feed_forward(1) is not None
    assert model.feed_forward(1).W_in.shape == (D, 4 * D)


def test_the_output_vocabulary_may_differ():
    model = small(n_outputs=11)
    assert model.unembed.W_U.shape == (D, 11)
    assert model(some_tokens()).shape == (3, T, 11)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"attention": {"n_heads": 5}}, "is not divisible"),
        ({"feed_forward": {"kind": "relu", "layers": [2]}}, "names layer 2"),
        ({"feed_forward": {"kind": "linear", "bias": True}}, "only with kind: relu, got linear"),
        ({"feed_forward": {"bias": True}}, "only with kind: relu, got none"),
        ({"beta": {"W_KQ1": 10}}, "only with init: ideal"),
        ({"ideal_memories": ["W_KQ1"]}, "ideal_memories has an effect only with init: ideal"),
        ({"init": "ideal", "ideal_memories": []}, "ideal_memories"),
        ({"init": "ideal", "ideal_memories": ["W_KQ1", "W_KQ1"]}, "ideal_memories"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        ModelConfig.model_validate({"d_model": D, **wrong})
