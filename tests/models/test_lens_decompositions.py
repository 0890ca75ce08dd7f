"""Parts of the stream, and of the logits: they add up to the whole, however it is split."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformer_lens import ActivationCache

from tests.models.toys import H, N, build, some_tokens
from toytf.errors import UserError
from toytf.models import HookedToyTransformer, ToyTransformer
from toytf.randomness import generator

pytestmark = pytest.mark.usefixtures("no_gradients")


def test_the_parts_of_the_stream_add_up_to_its_end(lens: HookedToyTransformer):
    _, cache = lens.run_with_cache(some_tokens())
    parts, labels = cache.decompose_resid(return_labels=True)
    assert len(parts) == len(labels)
    torch.testing.assert_close(parts.sum(0), cache["resid_post", -1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cache.accumulated_resid()[-1], cache["resid_post", -1])
    everything = cache.get_full_resid_decomposition(expand_neurons=False)
    torch.testing.assert_close(everything.sum(0), cache["resid_post", -1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layers", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("kind", ["linear", "relu"])
def test_the_parts_add_up_when_only_some_layers_have_feed_forward(kind: str, layers: tuple[int, ...]):
    lens = HookedToyTransformer(build({"feed_forward": {"kind": kind, "layers": layers}}))
    _, cache = lens.run_with_cache(some_tokens())
    torch.testing.assert_close(cache.decompose_resid().sum(0), cache["resid_post", -1], rtol=1e-5, atol=1e-5)


def test_head_results_add_up_to_what_attention_adds(lens: HookedToyTransformer):
    _, cache = lens.run_with_cache(some_tokens())
    first = cache.stack_head_results(layer=1)
    torch.testing.assert_close(first.sum(0), cache["attn_out", 0], rtol=1e-5, atol=1e-5)
    whole = cache.stack_head_results(layer=2, incl_remainder=True)
    torch.testing.assert_close(whole.sum(0), cache["resid_post", -1], rtol=1e-5, atol=1e-5)


# Models of any shape


def moved(shape: dict[str, Any]) -> ToyTransformer:
    """In double precision; biases and LayerNorms off their initial values, so that leaving one out shows."""
    model, random = build(shape).double(), generator(0, "moved")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".w", ".b", ".b_in")):
                parameter.copy_(torch.randn(parameter.shape, generator=random))
    return model


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """A model of any depth, with or without LayerNorm, residual paths and feed-forward parts in some layers."""
    n_layers, kind = draw(st.integers(1, 3)), draw(st.sampled_from(["none", "linear", "relu", "relu"]))
    residual, some = st.sampled_from([True, True, False]), st.sets(st.integers(0, n_layers - 1)).map(sorted).map(tuple)
    joint = st.sampled_from(["joint", "factored"])
    return {
        "n_layers": n_layers,
        "norm": draw(st.sampled_from(["none", "layer"])),
        "position": draw(st.sampled_from(["none", "normal"])),
        "attention": {"n_heads": draw(st.sampled_from([1, H])), "kq": draw(joint), "ov": draw(joint)}
        | {"residual": draw(residual), "kind": draw(st.sampled_from(["softmax", "linear"]))},
        "feed_forward": {"kind": kind, "bias": kind == "relu" and draw(st.booleans()), "residual": draw(residual)}
        | {"reads": draw(st.sampled_from(["attention", "block_input"])), "layers": draw(st.just("all") | some)},
    }


def decompositions(cache: ActivationCache, **where: Any) -> dict[str, torch.Tensor]:
    """All the ways to split the stream; that by hidden units, where every layer has some."""
    parts = {
        "components": cache.decompose_resid(**where),
        "heads": cache.get_full_resid_decomposition(**where, expand_neurons=False),
    }
    if not where.get("mlp_input"):
        parts["heads and the rest"] = cache.stack_head_results(**where, incl_remainder=True)
    config = cache.model._model.config
    n_split = where.get("layer", config.n_layers)
    if config.feed_forward.kind == "relu" and all(map(config.has_feed_forward, range(n_split))):
        parts["heads and units"] = cache.get_full_resid_decomposition(**where)
        parts["units and the rest"] = cache.stack_neuron_results(**{"layer": -1} | where, incl_remainder=True)
    return parts


@settings(max_examples=60)
@given(shape=shapes())
def test_logit_attributions_of_the_parts_add_up_to_the_logit(shape: dict[str, Any]):
    """Σ_parts attribution(part, y) = logit of y − b_U of y, for every way to split the stream. Rounding: 1e-9 of 10."""
    from transformer_lens.tools.analysis import direct_logit_attribution  # a second: it imports every bridge

    lens, tokens = HookedToyTransformer(moved(shape)), some_tokens()
    logits, cache = lens.run_with_cache(tokens)
    right, wrong = (tokens + 1) % N, (tokens + 2) % N

    def of(y: torch.Tensor) -> torch.Tensor:
        return (logits - lens.b_U).gather(2, y[..., None])[..., 0]

    for parts in decompositions(cache).values():
        torch.testing.assert_close(parts.sum(0), cache["resid_post", -1], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(cache.logit_attrs(parts, right).sum(0), of(right), rtol=1e-9, atol=1e-9)
        difference = cache.logit_attrs(parts, right, incorrect_tokens=wrong).sum(0)
        torch.testing.assert_close(difference, of(right) - of(wrong), rtol=1e-9, atol=1e-9)
    for parts in decompositions(cache, apply_ln=True).values():
        torch.testing.assert_close(parts.sum(0) @ lens.W_U + lens.b_U, logits, rtol=1e-9, atol=1e-9)
    projected = cache.get_full_resid_decomposition(apply_ln=True, expand_neurons=False, project_output_onto=lens.W_U)
    torch.testing.assert_close(projected.sum(0) + lens.b_U, logits, rtol=1e-9, atol=1e-9)
    for unit in ("component", "head"):
        direct = direct_logit_attribution(lens, tokens, right[:, -1], unit=unit)
        torch.testing.assert_close(direct.attribution.sum(0), of(right)[:, -1], rtol=1e-9, atol=1e-9)


@settings(max_examples=60)
@given(shape=shapes())
def test_the_parts_add_up_to_what_each_layer_reads(shape: dict[str, Any]):
    model = moved(shape)
    _, cache = HookedToyTransformer(model).run_with_cache(some_tokens())
    config, normed = model.config, model.config.norm == "layer"
    for layer in range(1, config.n_layers + 1):
        end = layer == config.n_layers
        read = "ln_final.hook_normalized" if end else f"blocks.{layer}.ln1.hook_normalized"
        stream = cache["resid_post", layer - 1]
        for parts in decompositions(cache, layer=layer, apply_ln=True).values():
            torch.testing.assert_close(parts.sum(0), cache[read] if normed else stream, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(cache.accumulated_resid(layer)[-1], stream)
        if normed:
            torch.testing.assert_close(cache.accumulated_resid(layer, apply_ln=True)[-1], cache[read])
    for layer in filter(config.has_feed_forward, range(config.n_layers)):
        if config.feed_forward.reads == "block_input":
            with pytest.raises(UserError, match=r"feed_forward\.reads = block_input"):
                cache.decompose_resid(layer, mlp_input=True)
            continue
        read = f"blocks.{layer}.ln2.hook_normalized" if normed else f"blocks.{layer}.hook_resid_mid"
        for parts in decompositions(cache, layer=layer, mlp_input=True, apply_ln=True).values():
            torch.testing.assert_close(parts.sum(0), cache[read], rtol=1e-9, atol=1e-9)
        accumulated = cache.accumulated_resid(layer, mlp_input=True, apply_ln=True)
        torch.testing.assert_close(accumulated[-1], cache[read], rtol=1e-9, atol=1e-9)


@settings(max_examples=30)
@given(shape=shapes())
def test_the_stream_before_each_layer_is_read_as_the_last_one_is(shape: dict[str, Any]):
    """ln_final(x) W_U + b_U of the last stream is the logits; the logit lens reads every stream like that."""
    lens = HookedToyTransformer(moved(shape))
    logits, cache = lens.run_with_cache(some_tokens())
    streams = cache.accumulated_resid(apply_ln=True)
    torch.testing.assert_close(streams[-1] @ lens.W_U + lens.b_U, logits, rtol=1e-9, atol=1e-9)
    readout = cache.logit_lens(positions=None).values
    torch.testing.assert_close(readout, streams @ lens.W_U + lens.b_U, rtol=1e-9, atol=1e-9)


# What is left of earlier parts


def test_without_a_residual_path_earlier_parts_are_nothing():
    """Attention of layer 2 replaces the stream: of its input nothing is left, and what is left of head 1 is 0."""
    lens = HookedToyTransformer(moved({"attention": {"n_heads": H, "residual": False}}))
    _, cache = lens.run_with_cache(some_tokens())
    parts, labels = cache.decompose_resid(return_labels=True)
    assert labels == ["embed", "pos_embed", "0_attn_out", "1_attn_out"]
    assert [bool(part.any()) for part in parts] == [False, False, False, True]
    heads, labels = cache.stack_head_results(incl_remainder=True, return_labels=True)
    assert [label for label, head in zip(labels, heads, strict=True) if head.abs().max() > 1e-12] == [
        f"L1H{head}" for head in range(H)
    ]
    first = cache.stack_head_results(layer=1)
    torch.testing.assert_close(first.sum(0), cache["attn_out", 0])
    some = cache.apply_slice_to_batch_dim(slice(0, 1))
    torch.testing.assert_close(some.decompose_resid(), parts[:, :1])


def test_what_has_no_parts_of_a_kind_is_not_split_into_them():
    _, attention_only = HookedToyTransformer(build({})).run_with_cache(some_tokens())
    _, one_layer = HookedToyTransformer(
        build({"feed_forward": {"kind": "relu", "layers": [1]}, "norm": "layer"})
    ).run_with_cache(some_tokens())
    _, linear = HookedToyTransformer(build({"feed_forward": {"kind": "linear"}})).run_with_cache(some_tokens())
    for cache in (attention_only, one_layer):
        for split in (cache.decompose_resid, cache.accumulated_resid, cache.get_full_resid_decomposition):
            with pytest.raises(UserError, match="layer 0 has no feed-forward part"):
                split(0, mlp_input=True)
    for cache in (attention_only, one_layer, linear):
        with pytest.raises(UserError, match="not every layer before 2 has hidden units"):
            cache.stack_neuron_results(2)
    for cache in (one_layer, linear):
        with pytest.raises(UserError, match=r"get_full_resid_decomposition\(expand_neurons=False\)"):
            cache.get_full_resid_decomposition()
    attention_only.get_full_resid_decomposition()


def test_circuits_read_the_stream_before_the_gain_of_LayerNorm():
    """Without offsets: scores = x̂ QK x̂ᵀ / scale, and attention adds pattern x̂ OV, with x̂ the normalised stream."""
    model = moved({"norm": "layer", "attention": {"kq": "joint"}})
    for name, parameter in model.named_parameters():
        if name.endswith(".b"):
            parameter.zero_()
    lens = HookedToyTransformer(model)
    _, cache = lens.run_with_cache(some_tokens())
    x = cache["normalized", 1, "ln1"]
    scores = x @ lens.QK[1, 0].AB @ x.transpose(1, 2) / model.attention(1).scale
    pattern = cache["pattern", 1][:, 0]
    torch.testing.assert_close(scores.masked_fill(model.attention(1).mask, -torch.inf).softmax(-1), pattern)
    torch.testing.assert_close(pattern @ x @ lens.OV[1, 0].AB, cache["attn_out", 1])
