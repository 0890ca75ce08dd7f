"""Hooks, parameters and caches under the names of TransformerLens, and what a hook changes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformer_lens import ActivationCache

from tests.models.toys import SHAPES, B, D, H, N, T, build, some_tokens
from toytf.errors import UserError
from toytf.models import HookedToyTransformer, ToyTransformer
from toytf.models.lens import hook_shapes
from toytf.randomness import generator

pytestmark = pytest.mark.usefixtures("no_gradients")
STREAM, HEADS = (B, T, D), (B, T, H, D // H)


def attention_hooks(layer: int, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> dict[str, Any]:
    square = (B, q[2], T, T)
    block = {"hook_resid_pre": STREAM, "hook_attn_out": STREAM, "hook_resid_post": STREAM}
    attn = {"hook_q": q, "hook_k": k, "hook_v": v, "hook_z": v, "hook_attn_scores": square, "hook_pattern": square}
    return {f"blocks.{layer}.{name}": shape for name, shape in block.items()} | {
        f"blocks.{layer}.attn.{name}": shape for name, shape in attn.items()
    }


EMBEDDINGS = {"hook_embed": STREAM, "hook_pos_embed": STREAM}
ONE_HEAD = (B, T, 1, D)
NORM = {"hook_scale": (B, T, 1), "hook_normalized": STREAM}
ATTENTION_ONLY_HOOKS = EMBEDDINGS | {
    name: shape for layer in range(2) for name, shape in attention_hooks(layer, ONE_HEAD, ONE_HEAD, ONE_HEAD).items()
}
FULL_HOOKS = (
    EMBEDDINGS
    | {name: shape for layer in range(2) for name, shape in attention_hooks(layer, HEADS, HEADS, HEADS).items()}
    | {f"blocks.{layer}.{name}": STREAM for layer in range(2) for name in ("hook_resid_mid", "hook_mlp_out")}
    | {f"blocks.{layer}.mlp.{name}": (B, T, 4 * D) for layer in range(2) for name in ("hook_pre", "hook_post")}
    | {f"blocks.{layer}.{norm}.{name}": s for layer in range(2) for norm in ("ln1", "ln2") for name, s in NORM.items()}
    | {f"ln_final.{name}": shape for name, shape in NORM.items()}
)


@pytest.mark.parametrize(("shape", "expected"), [("simplified", ATTENTION_ONLY_HOOKS), ("full", FULL_HOOKS)])
def test_hook_names_and_shapes_are_those_of_transformer_lens(shape: str, expected: dict[str, tuple[int, ...]]):
    lens = HookedToyTransformer(build(SHAPES[shape]))
    assert set(lens.hook_dict) == set(expected)
    _, cache = lens.run_with_cache(some_tokens())
    assert {name: tuple(value.shape) for name, value in cache.items()} == expected
    one = hook_shapes(build(SHAPES[shape]), T)
    assert one == {name: (1, *size[1:]) for name, size in expected.items()}


def test_parameters_have_the_names_and_shapes_of_transformer_lens():
    shapes = {
        name: tuple(value.shape) for name, value in HookedToyTransformer(build(SHAPES["full"])).state_dict().items()
    }
    assert shapes["embed.W_E"] == (N, D)
    assert shapes["pos_embed.W_pos"] == (T, D)
    assert shapes["unembed.W_U"] == (D, N)
    for layer in range(2):
        for name in ("W_Q", "W_K", "W_V"):
            assert shapes[f"blocks.{layer}.attn.{name}"] == (H, D, D // H)
        assert shapes[f"blocks.{layer}.attn.W_O"] == (H, D // H, D)
        assert shapes[f"blocks.{layer}.mlp.W_in"] == (D, 4 * D)
        assert shapes[f"blocks.{layer}.mlp.W_out"] == (4 * D, D)
    assert not any(name.endswith("mask") for name in shapes)


# Caches


def test_run_with_cache_returns_an_activation_cache(lens: HookedToyTransformer, model: ToyTransformer):
    logits, cache = lens.run_with_cache(some_tokens())
    assert isinstance(cache, ActivationCache)
    assert torch.equal(logits, model(some_tokens()))
    pattern = cache["pattern", 0]
    assert torch.equal(pattern, cache["blocks.0.attn.hook_pattern"])
    torch.testing.assert_close(pattern.sum(-1), torch.ones(pattern.shape[:-1]))
    assert (pattern.triu(1) == 0).all()
    assert torch.equal(cache["resid_post", -1], cache["blocks.1.hook_resid_post"])
    assert cache.stack_activation("pattern").shape == (2, *pattern.shape)


def test_names_filter_keeps_only_what_it_names(lens: HookedToyTransformer):
    _, cache = lens.run_with_cache(some_tokens(), names_filter=lambda name: name.endswith("hook_pattern"))
    assert set(cache.keys()) == {"blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern"}
    _, plain = lens.run_with_cache(some_tokens(), return_cache_object=False, names_filter="hook_embed")
    assert type(plain) is dict
    assert set(plain) == {"hook_embed"}


@pytest.mark.parametrize(
    "ask",
    [
        lambda lens, name: lens.run_with_cache(some_tokens(), names_filter=name),
        lambda lens, name: lens.run_with_cache(some_tokens(), names_filter=["hook_embed", name]),
        lambda lens, name: lens.add_caching_hooks(name),
        lambda lens, name: lens.add_hook(name, print),
        lambda lens, name: lens.add_perma_hook(name, print),
        lambda lens, name: lens.run_with_hooks(some_tokens(), fwd_hooks=[(name, print)]),
        lambda lens, name: lens.hooks(bwd_hooks=[(name, print)]),
    ],
)
@pytest.mark.parametrize(
    ("name", "meant"), [("blocks.0.attn.hook_patern", "blocks.0.attn.hook_pattern"), ("embed", "hook_embed")]
)
def test_a_name_that_no_activation_has_is_refused_with_the_nearest(ask: Callable[..., Any], name: str, meant: str):
    with pytest.raises(UserError, match=f'^{name}: no activation has this name: did you mean "{meant}"'):
        ask(HookedToyTransformer(build({})), name)


def test_the_batch_axis_of_one_sequence_can_be_dropped(lens: HookedToyTransformer):
    _, cache = lens.run_with_cache(some_tokens()[:1], remove_batch_dim=True)
    assert cache["resid_pre", 0].shape == (T, D)


# Edits


def test_editing_the_pattern_changes_the_logits_as_the_equations_say():
    """With every query of the last layer on its own position, layer 2 adds h_t W_OV to the stream."""
    model = build(SHAPES["simplified"])
    lens, tokens = HookedToyTransformer(model), some_tokens()
    eye = torch.eye(T).expand(B, 1, T, T)
    edited = lens.run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_pattern", lambda value, hook: eye)])
    _, seen = model.observe(tokens, "blocks.1.hook_resid_pre")
    h = seen["blocks.1.hook_resid_pre"]
    torch.testing.assert_close(edited, (h + h @ model.W_OV(1)[0]) @ model.unembed.W_U, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(edited, model(tokens))
    assert torch.equal(lens(tokens), model(tokens))


@pytest.mark.parametrize("name", sorted(FULL_HOOKS))
def test_every_hook_lies_on_the_way_to_the_logits(name: str):
    lens, tokens = HookedToyTransformer(build(SHAPES["full"])), some_tokens()
    noise = torch.rand(FULL_HOOKS[name], generator=generator(0, name))
    edited = lens.run_with_hooks(tokens, fwd_hooks=[(name, lambda value, hook: value + noise)])
    assert not torch.allclose(edited, lens(tokens))
