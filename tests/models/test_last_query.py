"""Logits at the last positions only, attention without a softmax, and hidden units with a bias."""

from typing import Any

import numpy as np
import pytest
import torch

from toytf.models import Slot, ToyTransformer
from toytf.models.config import ModelConfig
from toytf.models.tables import fast_forward, tables_pay
from toytf.randomness import generator

B, N, T, D, H = 3, 7, 9, 12, 2

SHAPES: dict[str, dict[str, Any]] = {
    "two layers": {},
    "one layer": {"n_layers": 1},
    "joint": {"attention": {"kq": "joint", "ov": "joint"}},
    "no residual": {"n_layers": 1, "attention": {"residual": False}},
    "LayerNorm": {"norm": "layer", "attention": {"n_heads": H}, "feed_forward": {"kind": "relu"}},
    "relu with a bias": {"feed_forward": {"kind": "relu", "bias": True}},
    "relu beside attention": {"feed_forward": {"kind": "relu", "reads": "block_input"}},
    "relu in the first layer": {"feed_forward": {"kind": "relu", "layers": [0]}},
    "linear attention": {"attention": {"kind": "linear", "n_heads": H}},
}


def build(fields: dict[str, Any], seed: int = 0) -> ToyTransformer:
    """In double precision; biases and LayerNorms off their initial values, so that leaving one out shows."""
    config = ModelConfig.model_validate({"d_model": D, **fields})
    model = ToyTransformer(config, n_tokens=N, n_positions=T, n_outputs=N, generator=generator(seed, "model")).double()
    for name, parameter in model.named_parameters():
        if name.endswith((".w", ".b", ".b_in")):
            parameter.data += torch.randn(parameter.shape, generator=generator(seed, name), dtype=torch.float64)
    return model


def some_tokens(seed: int = 0) -> torch.Tensor:
    return torch.randint(N, (B, T), generator=generator(seed, "tokens"))


# The last positions


@pytest.mark.parametrize("last", [1, 4, T, T + 3])
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_last_logits_are_those_of_the_whole_forward(shape: str, last: int):
    model, tokens = build(SHAPES[shape]), some_tokens()
    found, expected = model(tokens, last=last), model(tokens)[:, -last:]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    parameters = list(model.parameters())
    for g, expected_g in zip(*(_gradients(logits, parameters) for logits in (found, expected)), strict=True):
        torch.testing.assert_close(g, expected_g, rtol=0, atol=1e-10)


def _gradients(logits: torch.Tensor, parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    found = torch.autograd.grad(logits.square().sum(), parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


@pytest.mark.parametrize("last", [1, 4])
def test_only_the_queries_of_the_last_layer_are_cut(last: int):
    shapes: dict[str, tuple[int, ...]] = {}

    def record(name: str, value: torch.Tensor) -> torch.Tensor:
        shapes[name] = tuple(value.shape)
        return value

    model = build({"attention": {"n_heads": H}, "feed_forward": {"kind": "relu"}})
    model(some_tokens(), record, last)
    assert shapes["blocks.0.attn.hook_pattern"] == (B, H, T, T)
    assert shapes["blocks.1.attn.hook_pattern"] == (B, H, last, T)
    assert shapes["blocks.1.attn.hook_k"] == shapes["blocks.1.attn.hook_v"] == (B, T, H, D // H)
    assert shapes["blocks.1.attn.hook_q"] == (B, last, H, D // H)
    assert shapes["blocks.0.hook_resid_post"] == shapes["blocks.1.hook_resid_pre"] == (B, T, D)
    for name in ("hook_attn_out", "hook_resid_mid", "hook_mlp_out", "hook_resid_post"):
        assert shapes[f"blocks.1.{name}"] == (B, last, D)


def test_a_hook_at_the_last_position_acts_as_in_the_whole_forward():
    model, tokens = build(SHAPES["one layer"]), some_tokens()

    def silence(name: str, value: torch.Tensor) -> torch.Tensor:
        return 0 * value if name.endswith("hook_attn_out") else value

    torch.testing.assert_close(model(tokens, silence, 1), model(tokens, silence)[:, -1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("last", [None, 1, 4])
@pytest.mark.parametrize("fields", [{"d_model": 24}, {"d_model": 6}], ids=["tables", "plain"])
def test_the_fast_forward_can_be_asked_for_the_last_positions(fields: dict[str, Any], last: int | None):
    model, tokens = build(fields), some_tokens()
    assert tables_pay(model) == (fields["d_model"] == 24)
    expected = model(tokens)[:, -(last or T) :]
    torch.testing.assert_close(fast_forward(model, tokens, last), expected, rtol=0, atol=1e-11)


# Linear attention


@pytest.mark.parametrize("kq", ["joint", "factored"])
def test_linear_attention_weighs_earlier_values_by_their_scores(kq: str):
    """a_t = Σ_h Σ_{s≤t} (x_tᵀ W_KQ x_s / scale) x_s W_OV."""
    model = build({"n_layers": 1, "attention": {"kind": "linear", "kq": kq, "n_heads": H, "scale": 2.0}})
    _, seen = model.observe(some_tokens(), "blocks.0.hook_resid_pre", "blocks.0.hook_attn_out")
    x = seen["blocks.0.hook_resid_pre"].detach().numpy()
    W_KQ, W_OV = model.W_KQ(0).detach().numpy(), model.W_OV(0).detach().numpy()
    scores = np.einsum("bti,hij,bsj->bhts", x, W_KQ, x) / 2
    added = np.einsum("bhts,bsi,hij->btj", np.tril(scores), x, W_OV)
    np.testing.assert_allclose(seen["blocks.0.hook_attn_out"].detach(), added, atol=1e-10)


def test_twice_the_scores_are_twice_the_output_without_a_softmax():
    model = build({"n_layers": 1, "attention": {"kind": "linear"}})
    _, before = model.observe(some_tokens(), "blocks.0.hook_attn_out")
    model.attention(0).W_K.data *= 2
    _, after = model.observe(some_tokens(), "blocks.0.hook_attn_out")
    torch.testing.assert_close(after["blocks.0.hook_attn_out"], 2 * before["blocks.0.hook_attn_out"])


# The bias of hidden units


def test_the_bias_is_added_before_the_relu():
    """relu(x W_in + b_in) W_out, asked as a memory."""
    model = build({"feed_forward": {"kind": "relu", "bias": True, "width": 5}})
    w = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    assert w["blocks.1.mlp.b_in"].shape == (5,)
    x = torch.randn(4, D, generator=generator(0, "x"), dtype=torch.float64)
    hidden = np.maximum(x.numpy() @ w["blocks.1.mlp.W_in"] + w["blocks.1.mlp.b_in"], 0)
    np.testing.assert_allclose(model.read(Slot("FF", 1), x).detach(), hidden @ w["blocks.1.mlp.W_out"], atol=1e-12)


def test_a_bias_starts_at_zero_and_leaves_the_other_draws_alone():
    models = [
        ToyTransformer(
            ModelConfig.model_validate({"d_model": D, "feed_forward": {"kind": "relu", "bias": bias}}),
            n_tokens=N,
            n_positions=T,
            n_outputs=N,
            generator=generator(0, "model"),
        )
        for bias in (True, False)
    ]
    assert not models[0].feed_forward(0).b_in.any()
    assert torch.equal(models[0](some_tokens()), models[1](some_tokens()))


# The initial distribution of the attention matrices


def test_normal_over_out_divides_by_the_length_of_what_each_matrix_gives():
    """Var W = 1/d_head for W_Q, W_K and W_V, and 1/d_model for W_O (Nichani et al. 2024)."""
    d, d_head = 64, 8
    config = {"d_model": d, "attention": {"init": "normal_over_out", "n_heads": 8, "d_head": d_head}}
    sizes = {"n_tokens": N, "n_positions": T, "n_outputs": N}
    attn = ToyTransformer(ModelConfig.model_validate(config), **sizes, generator=generator(0, "model")).attention(0)
    for W, variance in ((attn.W_Q, 1 / d_head), (attn.W_K, 1 / d_head), (attn.W_V, 1 / d_head), (attn.W_O, 1 / d)):
        # Standard error of the variance of n normal numbers: √(2/n) of it.
        assert float(W.detach().var()) == pytest.approx(variance, rel=5 * (2 / W.numel()) ** 0.5)
