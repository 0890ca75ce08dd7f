"""W_KQ, W_OV and the feed-forward part of a model: joint or factored, read, and written as memories."""

import math

import numpy as np
import pytest
import torch

from tests.models.toys import D, T, numbers, small, some_tokens
from toytf.errors import UserError
from toytf.models import Slot, ToyTransformer
from toytf.randomness import generator

# Joint and factored


def with_weights(model: ToyTransformer, weights: dict[str, torch.Tensor]) -> ToyTransformer:
    model.load_state_dict(model.state_dict() | weights)
    return model


@pytest.mark.parametrize("n_heads", [1, 2])
def test_a_joint_W_KQ_gives_the_scores_of_its_factors(n_heads: int):
    attention = {"n_heads": n_heads, "d_head": 5, "scale": 2.0}
    factored = small(attention=attention)
    weights = {name: value for name, value in factored.state_dict().items() if not name.endswith("W_Q")}
    for layer in range(2):
        attn = factored.attention(layer)
        weights[f"blocks.{layer}.attn.W_K"] = (attn.W_Q @ attn.W_K.mT).mT
    joint = with_weights(small(attention={**attention, "kq": "joint"}), weights)
    torch.testing.assert_close(joint(some_tokens()), factored(some_tokens()), rtol=0, atol=1e-10)


@pytest.mark.parametrize("n_heads", [1, 2])
def test_a_joint_W_OV_gives_the_output_of_its_factors(n_heads: int):
    attention = {"n_heads": n_heads, "d_head": 5}
    factored = small(attention=attention)
    weights = {name: value for name, value in factored.state_dict().items() if not name.endswith("W_V")}
    for layer in range(2):
        attn = factored.attention(layer)
        weights[f"blocks.{layer}.attn.W_O"] = attn.W_V @ attn.W_O
    joint = with_weights(small(attention={**attention, "ov": "joint"}), weights)
    torch.testing.assert_close(joint(some_tokens()), factored(some_tokens()), rtol=0, atol=1e-10)


LAYOUTS = [("joint", "joint"), ("joint", "factored"), ("factored", "joint"), ("factored", "factored")]


@pytest.mark.parametrize(("kq", "ov"), LAYOUTS)
def test_W_KQ_and_W_OV_are_what_the_forward_uses(kq: str, ov: str):
    """Scores are xᵀ W_KQ y / scale on every causal pair; attn_out is Σ_h a^h x W_OV^h."""
    model = small(attention={"n_heads": 2, "kq": kq, "ov": ov})
    names = [f"blocks.1.{leaf}" for leaf in ("hook_resid_pre", "attn.hook_attn_scores", "attn.hook_pattern")]
    _, seen = model.observe(some_tokens(), *names, "blocks.1.hook_attn_out")
    x, scores, pattern = (seen[name] for name in names)
    expected = torch.einsum("bti,hij,bsj->bhts", x, model.W_KQ(1), x) / model.attention(1).scale
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    torch.testing.assert_close(scores[:, :, causal], expected[:, :, causal], rtol=0, atol=1e-10)
    assert (scores[:, :, ~causal] == -math.inf).all()
    added = torch.einsum("bhts,bsi,hij->btj", pattern, x, model.W_OV(1))
    torch.testing.assert_close(seen["blocks.1.hook_attn_out"], added, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("kq", "scale"), [("joint", math.sqrt(D)), ("factored", math.sqrt(D / 2))])
def test_scores_are_divided_by_the_root_of_the_head_dimension(kq: str, scale: float):
    assert small(attention={"n_heads": 2, "kq": kq}).attention(0).scale == pytest.approx(scale)


# Reading and writing


def test_read_asks_one_head_or_their_sum():
    model = small(attention={"n_heads": 2}, feed_forward={"kind": "relu"})
    x = torch.randn(4, D, generator=generator(0, "x"), dtype=torch.float64)
    for part, W in {"KQ": model.W_KQ(1), "OV": model.W_OV(1)}.items():
        torch.testing.assert_close(model.read(Slot(part, 1), x), x @ W[0] + x @ W[1])
        torch.testing.assert_close(model.read(Slot(part, 1), x, head=1), x @ W[1])
    w = numbers(model)
    expected = np.maximum(x.numpy() @ w["blocks.0.mlp.W_in"], 0) @ w["blocks.0.mlp.W_out"]
    np.testing.assert_allclose(model.read(Slot("FF", 0), x).detach(), expected, atol=1e-12)


@pytest.mark.parametrize(("kq", "ov"), LAYOUTS)
def test_a_written_memory_is_what_the_model_then_uses(kq: str, ov: str):
    """After write(KQ, W) the scores of the forward are x W y (after scaling); after write(OV, W) it adds a x W."""
    model = small(attention={"kq": kq, "ov": ov}, feed_forward={"kind": "linear"})
    W = {part: torch.randn(D, D, generator=generator(0, part), dtype=torch.float64) / D for part in ("KQ", "OV", "FF")}
    for part, matrix in W.items():
        model.write(Slot(part, 0), matrix)
    names = ("attn.hook_attn_scores", "attn.hook_pattern", "hook_resid_pre", "hook_attn_out", "hook_mlp_out")
    _, seen = model.observe(some_tokens(), *(f"blocks.0.{name}" for name in names), "blocks.0.hook_resid_mid")
    scores, pattern, x, attn_out, mlp_out = (seen[f"blocks.0.{name}"] for name in names)
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    expected = torch.einsum("bti,ij,bsj->bts", x, W["KQ"], x)
    torch.testing.assert_close(scores[:, 0, causal], expected[:, causal])
    torch.testing.assert_close(attn_out, pattern[:, 0] @ x @ W["OV"])
    torch.testing.assert_close(mlp_out, seen["blocks.0.hook_resid_mid"] @ W["FF"])


def test_a_memory_needs_one_head_of_full_dimension():
    with pytest.raises(UserError, match="n_heads = 1"):
        small(attention={"n_heads": 2}).write(Slot("KQ", 0), torch.eye(D, dtype=torch.float64))
    with pytest.raises(UserError, match="full dimension"):
        small(attention={"d_head": 5}).write(Slot("OV", 0), torch.eye(D, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["none", "relu"])
def test_only_a_linear_feed_forward_holds_a_written_memory(kind: str):
    with pytest.raises(UserError, match="no linear feed-forward"):
        small(feed_forward={"kind": kind}).write(Slot("FF", 0), torch.eye(D, dtype=torch.float64))
