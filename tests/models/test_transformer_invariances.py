"""What must hold whatever the weights and the shape, and what tools ask of every forward."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call, stack_module_state

from tests.models import toys
from tests.models.toys import D, N, T, small, some_tokens
from toytf.randomness import generator

SHAPES: dict[str, dict[str, Any]] = {
    "simplified": toys.SHAPES["simplified"],
    "full": toys.SHAPES["full"],
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


@pytest.mark.heavy
def test_the_forward_is_captured_as_one_graph():
    # In its own process: the shape checks of the tests cannot be captured, and users run without them.
    subprocess.run([sys.executable, "-c", COMPILED.format(shapes=SHAPES)], check=True, timeout=120)
