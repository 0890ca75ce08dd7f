"""The one forward, against the equations written out a second time, and what tools ask of it."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.func import functional_call, stack_module_state

from toytf.config.plugins import load_config
from toytf.errors import UserError
from toytf.models import Slot, ToyTransformer
from toytf.models.config import ModelConfig
from toytf.randomness import generator

CONFIGS = Path(__file__).parents[2] / "configs"
N, T, D = 7, 9, 12
Array = NDArray[np.float64]


def preset(path: str, **overrides: object) -> ModelConfig:
    config: Any = load_config(CONFIGS / path, {f"model.{key.replace('__', '.')}": v for key, v in overrides.items()})
    return config.model


def build(config: ModelConfig, *, n_outputs: int = N, n_positions: int = T, seed: int = 0) -> ToyTransformer:
    """A model in double precision, so that only a wrong equation can differ by more than 1e-10."""
    draw = generator(seed, "model")
    model = ToyTransformer(config, n_tokens=N, n_positions=n_positions, n_outputs=n_outputs, generator=draw)
    return model.double()


def small(seed: int = 0, n_outputs: int = N, **fields: object) -> ToyTransformer:
    return build(ModelConfig.model_validate({"d_model": D, **fields}), seed=seed, n_outputs=n_outputs)


def some_tokens(seed: int = 0, batch: int = 3, length: int = T) -> torch.Tensor:
    return torch.randint(N, (batch, length), generator=generator(seed, "tokens"))


def numbers(model: ToyTransformer) -> dict[str, Array]:
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


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
    model = build(preset("quickstart.yaml", d_model=D))
    assert_same_logits(model, some_tokens(), lambda z: simplified_forward(numbers(model), z))


def shake_norms(model: ToyTransformer) -> None:
    """Give the LayerNorms gains and offsets other than 1 and 0, so that leaving one out shows."""
    for name, parameter in model.named_parameters():
        if name.endswith((".w", ".b")):
            parameter.data += 0.3 * torch.randn(D, generator=generator(1, name), dtype=torch.float64)


@pytest.mark.parametrize("n_heads", [1, 3])
@pytest.mark.parametrize("n_layers", [1, 2])
def test_the_full_preset_is_the_usual_pre_norm_transformer(n_heads: int, n_layers: int):
    config = preset("bigram/two_layers.yaml", d_model=D, n_layers=n_layers, attention__n_heads=n_heads)
    model = build(config)
    shake_norms(model)
    assert_same_logits(
        model, some_tokens(), lambda z: full_forward(numbers(model), z, n_layers=n_layers, n_heads=n_heads)
    )


def test_feed_forward_can_read_the_input_of_the_block():
    config = preset("bigram/two_layers.yaml", d_model=D, attention__n_heads=2, feed_forward__reads="block_input")
    model = build(config)
    shake_norms(model)
    assert_same_logits(
        model, some_tokens(), lambda z: full_forward(numbers(model), z, n_layers=2, n_heads=2, parallel=True)
    )


# Joint and factored matrices


def with_weights(config: ModelConfig, weights: dict[str, torch.Tensor]) -> ToyTransformer:
    model = build(config)
    model.load_state_dict(model.state_dict() | weights)
    return model


@pytest.mark.parametrize("n_heads", [1, 2])
def test_a_joint_W_KQ_gives_the_scores_of_its_factors(n_heads: int):
    attention = {"n_heads": n_heads, "d_head": 5, "scale": 2.0}
    factored = small(attention=attention)
    joint_config = ModelConfig.model_validate({"d_model": D, "attention": {**attention, "kq": "joint"}})
    weights = {name: value for name, value in factored.state_dict().items() if not name.endswith("W_Q")}
    for layer in range(2):
        attn = factored.attention(layer)
        weights[f"blocks.{layer}.attn.W_K"] = (attn.W_Q @ attn.W_K.mT).mT
    joint = with_weights(joint_config, weights)
    torch.testing.assert_close(joint(some_tokens()), factored(some_tokens()), rtol=0, atol=1e-10)


@pytest.mark.parametrize("n_heads", [1, 2])
def test_a_joint_W_OV_gives_the_output_of_its_factors(n_heads: int):
    attention = {"n_heads": n_heads, "d_head": 5}
    factored = small(attention=attention)
    joint_config = ModelConfig.model_validate({"d_model": D, "attention": {**attention, "ov": "joint"}})
    weights = {name: value for name, value in factored.state_dict().items() if not name.endswith("W_V")}
    for layer in range(2):
        attn = factored.attention(layer)
        weights[f"blocks.{layer}.attn.W_O"] = attn.W_V @ attn.W_O
    joint = with_weights(joint_config, weights)
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


# What must hold whatever the weights

SHAPES = {
    "simplified": {"attention": {"kq": "joint"}},
    "full": {"norm": "layer", "attention": {"n_heads": 3}, "feed_forward": {"kind": "relu"}},
    "linear attention": {"attention": {"kind": "linear"}, "feed_forward": {"kind": "relu", "bias": True}},
}
PROPERTY = settings(max_examples=15, deadline=None, derandomize=True)


@PROPERTY
@given(seed=st.integers(0, 2**31), shape=st.sampled_from(sorted(SHAPES)), cut=st.integers(1, T - 1))
def test_later_tokens_do_not_change_earlier_logits(seed: int, shape: str, cut: int):
    model, tokens = small(seed, **SHAPES[shape]), some_tokens(seed)
    changed = tokens.clone()
    changed[:, cut:] = (changed[:, cut:] + 1) % N
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(after[:, :cut], before[:, :cut], rtol=0, atol=1e-12)
    assert not torch.allclose(after[:, cut:], before[:, cut:])


@PROPERTY
@given(seed=st.integers(0, 2**31), shape=st.sampled_from(sorted(SHAPES)), length=st.integers(1, T))
def test_a_prefix_gives_the_prefix_of_the_logits(seed: int, shape: str, length: int):
    model, tokens = small(seed, **SHAPES[shape]), some_tokens(seed)
    torch.testing.assert_close(model(tokens[:, :length]), model(tokens)[:, :length], rtol=0, atol=1e-12)


@PROPERTY
@given(seed=st.integers(0, 2**31), shape=st.sampled_from(sorted(SHAPES)))
def test_the_numbering_of_tokens_does_not_matter(seed: int, shape: str):
    model, tokens = small(seed, **SHAPES[shape]), some_tokens(seed)
    logits = model(tokens)
    order = torch.randperm(N, generator=generator(seed, "order"))
    model.embed.W_E.data = model.embed.W_E.data[order]  # token order[i] is now called i
    torch.testing.assert_close(model(order.argsort()[tokens]), logits, rtol=0, atol=1e-12)


@PROPERTY
@given(seed=st.integers(0, 2**31))
def test_a_rotation_of_the_stream_does_not_matter(seed: int):
    """Without LayerNorm every axis of the stream is as good as another: x → x R, W_in-facing Rᵀ W, W_out-facing W R."""
    model, tokens = small(seed, feed_forward={"kind": "relu"}, attention={"n_heads": 3}), some_tokens(seed)
    logits = model(tokens)
    R = torch.linalg.qr(torch.randn(D, D, generator=generator(seed, "R"), dtype=torch.float64))[0]
    for name, parameter in model.named_parameters():
        if name.endswith(("W_E", "W_pos", "W_O", "W_out")):
            parameter.data = parameter.data @ R
        else:
            parameter.data = R.T @ parameter.data
    torch.testing.assert_close(model(tokens), logits, rtol=0, atol=1e-10)


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


# Randomness


def test_the_same_seed_gives_the_same_bits():
    first, second, other = small(0), small(0), small(1)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert torch.equal(first(some_tokens()), second(some_tokens()))
    assert not torch.equal(first(some_tokens()), other(some_tokens()))


def test_building_a_model_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    small(0)
    assert torch.equal(torch.get_rng_state(), before)


# What tools ask of it


def test_observe_returns_the_plain_logits_and_only_what_was_named():
    model, tokens = small(), some_tokens()
    logits, seen = model.observe(tokens, "blocks.0.attn.hook_pattern", "hook_embed")
    assert torch.equal(logits, model(tokens))
    assert set(seen) == {"blocks.0.attn.hook_pattern", "hook_embed"}
    assert torch.equal(seen["hook_embed"], model.embed.W_E[tokens])
    torch.testing.assert_close(seen["blocks.0.attn.hook_pattern"].sum(-1), torch.ones(3, 1, T, dtype=torch.float64))


def test_a_hook_may_replace_an_activation():
    model, tokens = small(), some_tokens()
    silenced = model(tokens, lambda name, value: 0 * value if name.endswith("hook_attn_out") else value)
    x = model.embed.W_E[tokens] + model.pos_embed.W_pos
    torch.testing.assert_close(silenced, x @ model.unembed.W_U)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_forward_runs_on_the_meta_device(shape: str):
    model = small(**SHAPES[shape]).to("meta")
    assert model(torch.zeros(5, T, dtype=torch.long, device="meta")).shape == (5, T, N)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_stacked_seeds_equal_separate_models(shape: str):
    models = [small(seed, **SHAPES[shape]).float() for seed in range(3)]
    parameters, buffers = stack_module_state(models)
    tokens = torch.stack([some_tokens(seed) for seed in range(3)])

    def forward(parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor], tokens: torch.Tensor) -> Any:
        return functional_call(models[0], (parameters, buffers), (tokens,))

    stacked = torch.vmap(forward)(parameters, buffers, tokens)
    separate = torch.stack([model(z) for model, z in zip(models, tokens, strict=True)])
    torch.testing.assert_close(stacked, separate, rtol=1e-5, atol=1e-5)


# What is refused, and what is captured


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"attention": {"n_heads": 5}}, "is not divisible"),
        ({"feed_forward": {"kind": "relu", "layers": [2]}}, "names layer 2"),
        ({"feed_forward": {"kind": "linear", "bias": True}}, "only with kind: relu, got linear"),
        ({"feed_forward": {"bias": True}}, "only with kind: relu, got none"),
        ({"beta": {"W_KQ1": 10}}, "only with init: ideal"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        ModelConfig.model_validate({"d_model": D, **wrong})


COMPILED = """
import torch
from toytf.models.config import ModelConfig
from toytf.models.transformer import ToyTransformer
from toytf.randomness import generator

for shape in {shapes!r}.values():
    config = ModelConfig.model_validate({{"d_model": 12, **shape}})
    model = ToyTransformer(config, n_tokens=7, n_positions=9, n_outputs=7, generator=generator(0, "model"))
    tokens = torch.randint(7, (3, 9), generator=generator(0, "tokens"))
    captured = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(captured(tokens), model(tokens), rtol=0, atol=1e-6)
"""


def test_the_forward_is_captured_as_one_graph():
    # In its own process: the shape checks of the tests cannot be captured, and users run without them.
    subprocess.run([sys.executable, "-c", COMPILED.format(shapes=SHAPES)], check=True, timeout=120)
