"""The toy as TransformerLens sees it: the same parameters, the same forward, and its tools on top."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from transformer_lens import ActivationCache, FactoredMatrix, patching
from transformer_lens.head_detector import detect_head
from transformer_lens.tools.analysis import direct_logit_attribution

import toytf
from toytf.build import build_model, build_task
from toytf.config.plugins import load_config
from toytf.errors import UserError
from toytf.models import HookedToyTransformer, ToyTransformer
from toytf.models.config import ModelConfig
from toytf.models.lens import hook_shapes
from toytf.randomness import generator

CONFIGS = Path(__file__).parents[2] / "configs"
B, N, T, D, H = 2, 7, 9, 12, 3

SHAPES: dict[str, dict[str, Any]] = {
    "simplified": {"attention": {"kq": "joint"}},
    "joint": {"attention": {"kq": "joint", "ov": "joint", "scale": 1}},
    "full": {"norm": "layer", "attention": {"n_heads": H}, "feed_forward": {"kind": "relu"}},
    "bias": {"feed_forward": {"kind": "relu", "bias": True}},
}


def build(shape: dict[str, Any], n_outputs: int = N) -> ToyTransformer:
    config = ModelConfig.model_validate({"d_model": D, **shape})
    return ToyTransformer(config, n_tokens=N, n_positions=T, n_outputs=n_outputs, generator=generator(0, "model"))


def some_tokens() -> torch.Tensor:
    return torch.randint(N, (B, T), generator=generator(0, "tokens"))


def moved(shape: dict[str, Any], n_outputs: int = N) -> ToyTransformer:
    """In double precision; biases and LayerNorms off their initial values, so that leaving one out shows."""
    model, random = build(shape, n_outputs).double(), generator(0, "moved")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".w", ".b", ".b_in")):
                parameter.copy_(torch.randn(parameter.shape, generator=random))
    return model


@pytest.fixture(params=sorted(SHAPES))
def model(request: pytest.FixtureRequest) -> ToyTransformer:
    return build(SHAPES[request.param])


@pytest.fixture
def lens(model: ToyTransformer) -> HookedToyTransformer:
    return HookedToyTransformer(model)


@pytest.fixture(scope="module")
def induction() -> ToyTransformer:
    """The ideal construction for random triggers, so that W_KQ2 holds every token; n_ctx = 66."""
    config: Any = load_config(CONFIGS / "bigram/ideal.yaml", {"task.triggers": "random", "task.seq_len": 66})
    return build_model(config.model, build_task(config.task, torch.device("cpu")), seed=0)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


# One set of parameters, one forward


def test_the_view_holds_the_same_parameters(model: ToyTransformer, lens: HookedToyTransformer):
    mine, theirs = dict(model.named_parameters()), dict(lens.named_parameters())
    assert set(mine) == set(theirs)
    assert all(theirs[name] is parameter for name, parameter in mine.items())
    assert set(model.state_dict()) == set(lens.state_dict())


def test_the_view_gives_the_same_logits(model: ToyTransformer, lens: HookedToyTransformer):
    assert torch.equal(lens(some_tokens()), model(some_tokens()))
    assert lens(some_tokens(), return_type=None) is None


def test_one_sequence_and_lists_of_ids_are_tokens_too(lens: HookedToyTransformer):
    tokens = some_tokens()
    assert torch.equal(lens(tokens[0]), lens(tokens[:1]))
    assert torch.equal(lens(tokens.tolist()), lens(tokens))
    _, cache = lens.run_with_cache(tokens[0], remove_batch_dim=True)
    assert cache["resid_pre", 0].shape == (T, D)


@pytest.mark.parametrize("text", ["e", ["e", "t"]])
def test_text_is_refused_for_want_of_a_tokenizer(text: Any):
    with pytest.raises(UserError, match="no tokenizer: give token ids"):
        HookedToyTransformer(build({}))(text)


def test_a_change_of_the_model_shows_in_the_view(model: ToyTransformer, lens: HookedToyTransformer):
    with torch.no_grad():
        model.unembed.W_U.mul_(2)
    assert torch.equal(lens(some_tokens()), model(some_tokens()))


def test_the_model_it_was_made_from_is_unchanged(model: ToyTransformer):
    modules, logits = [name for name, _ in model.named_modules()], model(some_tokens())
    lens = HookedToyTransformer(model)
    lens.add_hook("blocks.0.attn.hook_pattern", lambda value, hook: 0 * value)
    assert not torch.equal(lens(some_tokens()), logits)
    assert torch.equal(model(some_tokens()), logits)
    assert [name for name, _ in model.named_modules()] == modules
    assert not any(module._forward_hooks for module in model.modules())
    lens.reset_hooks()
    assert torch.equal(lens(some_tokens()), logits)


# What a forward returns


def test_the_loss_is_the_cross_entropy_of_the_next_token(lens: HookedToyTransformer):
    tokens = some_tokens()
    logits = lens(tokens)
    of_each = cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    torch.testing.assert_close(lens(tokens, return_type="loss"), of_each.mean())
    torch.testing.assert_close(lens(tokens, return_type="loss", loss_per_token=True), of_each)
    both = lens(tokens, return_type="both")
    assert torch.equal(both.logits, logits)
    assert torch.equal(both.loss, lens(tokens, return_type="loss"))
    _, loss = lens(tokens, "both", True)
    torch.testing.assert_close(loss, of_each)


def test_hooks_act_on_the_loss_and_its_gradient_can_be_cached(lens: HookedToyTransformer):
    tokens = some_tokens()
    flat = [("blocks.1.hook_resid_post", lambda value, hook: 0 * value)]
    loss = lens.run_with_hooks(tokens, return_type="loss", fwd_hooks=flat)
    assert float(loss) == pytest.approx(torch.tensor(N).log().item())  # equal logits
    with torch.enable_grad():
        loss, cache = lens.run_with_cache(tokens, return_type="loss", incl_bwd=True)
    assert torch.equal(loss, lens(tokens, return_type="loss"))
    assert cache["blocks.0.hook_resid_pre_grad"].norm() > 0


@pytest.mark.parametrize("return_type", ["loss", "both"])
def test_outputs_that_are_no_tokens_have_no_next_token_loss(return_type: str):
    lens = HookedToyTransformer(build({}, n_outputs=N + 4))
    for ask in (lens, lens.run_with_cache, lens.run_with_hooks):
        with pytest.raises(UserError, match=f"the {N + 4} outputs .* are not its {N} tokens; take the logits and"):
            ask(some_tokens(), return_type=return_type)
    assert lens(some_tokens()).shape == (B, T, N + 4)


@pytest.mark.parametrize(
    ("config", "changes", "has_loss"),
    [
        ("bigram/ideal.yaml", {}, True),
        ("bigram/noisy.yaml", {"task.noise.token": "extra"}, True),  # the further token is an output, too
        ("factual/quick.yaml", {}, False),  # tokens are subjects, relations and noise, outputs are answers
    ],
)
def test_the_tasks_that_ship_have_a_loss_where_they_predict_tokens(
    config: str, changes: dict[str, Any], has_loss: bool
):
    loaded: Any = load_config(CONFIGS / config, changes)
    task = build_task(loaded.task, torch.device("cpu"))
    lens = HookedToyTransformer(build_model(loaded.model, task, seed=0))
    batch = task.sample(4, generator(0, "batch"))
    if has_loss:
        everywhere = cross_entropy(lens(batch.tokens)[:, :-1].flatten(0, 1), batch.targets[:, :-1].flatten())
        torch.testing.assert_close(lens(batch.tokens, return_type="loss"), everywhere)
    else:
        with pytest.raises(UserError, match="no next-token loss"):
            lens(batch.tokens, return_type="loss")


def test_as_many_outputs_as_tokens_are_still_no_tokens(tmp_path: Path):
    """Two subjects, two relations, one noise token and the end; three answers for each relation."""
    changes = {
        "task": {"kind": "factual", "n_subjects": 2, "n_relations": 2, "n_answers": 3, "n_noise": 1, "seq_len": 4},
        "train.steps": 0,
        "probes": [],
        "logging.wandb": "off",
    }
    run = toytf.run(CONFIGS / "factual/quick.yaml", changes, out=tmp_path / "run")
    lens = run.lens()
    assert lens.cfg.d_vocab == lens.cfg.d_vocab_out == 6
    with pytest.raises(UserError, match="no next-token loss"):
        lens(run.batch(2).tokens, return_type="loss")


def test_a_single_token_has_no_next():
    with pytest.raises(UserError, match="at least 2 tokens, got 1"):
        HookedToyTransformer(build({}))(some_tokens()[:, :1], return_type="loss")


@pytest.mark.parametrize("return_type", ["los", "predictions", ""])
def test_an_unknown_return_type_is_refused_with_those_there_are(return_type: str):
    with pytest.raises(UserError, match=r"return_type = .*: .*None, both, logits, loss"):
        HookedToyTransformer(build({}))(some_tokens(), return_type=return_type)


@pytest.mark.parametrize("name", ["start_at_layer", "prepend_bos", "attention_mask", "past_kv_cache"])
def test_an_argument_that_toys_lack_is_refused_by_name(name: str):
    lens = HookedToyTransformer(build({}))
    for ask in (lens, lens.run_with_cache, lens.run_with_hooks):
        with pytest.raises(UserError, match=f"^{name}: .*return_type, loss_per_token and stop_at_layer"):
            ask(some_tokens(), **{name: None})


@pytest.mark.parametrize(
    ("stop", "last"),
    [(0, None), (1, "blocks.0.hook_resid_post"), (-1, "blocks.0.hook_resid_post"), (2, "blocks.1.hook_resid_post")],
)
def test_a_forward_can_stop_before_a_layer(lens: HookedToyTransformer, stop: int, last: str | None):
    _, whole = lens.run_with_cache(some_tokens())
    stream, cache = lens.run_with_cache(some_tokens(), stop_at_layer=stop)
    assert torch.equal(stream, whole["resid_pre", 0] if last is None else whole[last])
    layers = [f"blocks.{layer}." for layer in range(stop % 2 if stop < 0 else stop)]
    assert set(cache.keys()) == {name for name in whole if name.startswith(("hook_", *layers))}


@pytest.mark.parametrize("stop", [-3, 3])
def test_a_forward_cannot_stop_where_there_is_no_layer(stop: int):
    with pytest.raises(UserError, match=f"stop_at_layer = {stop}: this model has 2 layers: accepted: -2 to 2"):
        HookedToyTransformer(build({}))(some_tokens(), stop_at_layer=stop)


def test_a_stream_has_no_loss():
    with pytest.raises(UserError, match="stop_at_layer gives the stream"):
        HookedToyTransformer(build({}))(some_tokens(), return_type="loss", stop_at_layer=1)


# Names and shapes

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
ATTENTION_ONLY = EMBEDDINGS | {
    name: shape for layer in range(2) for name, shape in attention_hooks(layer, ONE_HEAD, ONE_HEAD, ONE_HEAD).items()
}
FULL = (
    EMBEDDINGS
    | {name: shape for layer in range(2) for name, shape in attention_hooks(layer, HEADS, HEADS, HEADS).items()}
    | {f"blocks.{layer}.{name}": STREAM for layer in range(2) for name in ("hook_resid_mid", "hook_mlp_out")}
    | {f"blocks.{layer}.mlp.{name}": (B, T, 4 * D) for layer in range(2) for name in ("hook_pre", "hook_post")}
    | {f"blocks.{layer}.{norm}.{name}": s for layer in range(2) for norm in ("ln1", "ln2") for name, s in NORM.items()}
    | {f"ln_final.{name}": shape for name, shape in NORM.items()}
)


@pytest.mark.parametrize(("shape", "expected"), [("simplified", ATTENTION_ONLY), ("full", FULL)])
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


def test_a_separate_output_vocabulary_is_declared():
    lens = HookedToyTransformer(build({}, n_outputs=11))
    assert (lens.cfg.d_vocab, lens.cfg.d_vocab_out) == (N, 11)


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


def test_the_batch_axis_of_one_sequence_can_be_dropped(lens: HookedToyTransformer):
    _, cache = lens.run_with_cache(some_tokens()[:1], remove_batch_dim=True)
    assert cache["resid_pre", 0].shape == (T, D)


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


# Parts of the stream, and of the logits


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


# Interventions


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


@pytest.mark.parametrize("name", sorted(FULL))
def test_every_hook_lies_on_the_way_to_the_logits(name: str):
    lens, tokens = HookedToyTransformer(build(SHAPES["full"])), some_tokens()
    noise = torch.rand(FULL[name], generator=generator(0, name))
    edited = lens.run_with_hooks(tokens, fwd_hooks=[(name, lambda value, hook: value + noise)])
    assert not torch.allclose(edited, lens(tokens))


def test_circuits_are_factored_matrices(model: ToyTransformer, lens: HookedToyTransformer):
    assert isinstance(lens.QK, FactoredMatrix)
    for layer in range(2):
        torch.testing.assert_close(lens.QK.AB[layer], model.W_KQ(layer))
        torch.testing.assert_close(lens.OV.AB[layer], model.W_OV(layer))
    scores = (lens.W_E @ lens.QK[1, 0] @ lens.W_E.T).AB
    torch.testing.assert_close(scores, model.embed.W_E @ model.W_KQ(1)[0] @ model.embed.W_E.T, rtol=1e-4, atol=1e-4)
    assert torch.equal(lens.W_pos, model.pos_embed.W_pos)
    assert torch.equal(lens.W_U, model.unembed.W_U)


def test_a_model_without_positions_has_no_W_pos():
    lens = HookedToyTransformer(build({"position": "none"}))
    assert "hook_pos_embed" not in lens.hook_dict
    with pytest.raises(UserError, match="no positions"):
        _ = lens.W_pos


def test_patching_the_only_changed_position_restores_everything():
    lens = HookedToyTransformer(build(SHAPES["full"]))
    clean = some_tokens()[:1]
    corrupted = clean.clone()
    corrupted[0, 4] = (clean[0, 4] + 1) % N
    clean_logits, cache = lens.run_with_cache(clean)
    at_start = lens(corrupted)

    def restored(logits: torch.Tensor) -> torch.Tensor:
        change = clean_logits[0, -1, 0] - at_start[0, -1, 0]
        return (logits[0, -1, 0] - at_start[0, -1, 0]) / change

    patched = patching.get_act_patch_resid_pre(lens, corrupted, cache, restored)
    # Layer 1 sees the changed token in one position only; layer 2 sees its effect there and later, never before.
    expected = torch.zeros(T)
    expected[4] = 1
    torch.testing.assert_close(patched[0], expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(patched[1, :4], torch.zeros(4), rtol=0, atol=1e-3)


def test_patching_the_only_head_at_every_position_restores_everything():
    # The stream of the last position comes from its own token, which is not changed, and from the one head.
    lens = HookedToyTransformer(build({"n_layers": 1, "attention": {"kq": "joint"}}))
    clean = some_tokens()[:1]
    corrupted = clean.clone()
    corrupted[0, 4] = (clean[0, 4] + 1) % N
    clean_logits, cache = lens.run_with_cache(clean)
    distance = (lens(corrupted) - clean_logits)[0, -1].norm()
    assert distance > 0

    def left(logits: torch.Tensor) -> torch.Tensor:
        return (logits - clean_logits)[0, -1].norm() / distance

    patched = patching.get_act_patch_attn_head_out_all_pos(lens, corrupted, cache, left)
    assert float(patched[0, 0]) == pytest.approx(0, abs=1e-5)


def test_the_ideal_construction_carries_the_output_through_the_second_head(induction: ToyTransformer):
    """… q o … q → o. With o changed to o', the second head alone brings o back; the first carries q as before."""
    lens = HookedToyTransformer(induction)
    clean = torch.randperm(65, generator=generator(0, "clean"))[None, :40]
    clean[0, -1] = q = clean[0, 10]
    o, other = int(clean[0, 11]), int(clean[0, 20])
    corrupted = clean.clone()
    corrupted[0, 11] = other
    corrupted[0, 20] = o
    clean_logits, cache = lens.run_with_cache(clean)
    corrupted_logits = lens(corrupted)
    assert clean_logits[0, -1].argmax() == o
    assert corrupted_logits[0, -1].argmax() == other
    assert q != o

    def advantage(logits: torch.Tensor) -> torch.Tensor:
        return logits[0, -1, o] - logits[0, -1, other]

    def restored(logits: torch.Tensor) -> torch.Tensor:
        start = advantage(corrupted_logits)
        return (advantage(logits) - start) / (advantage(clean_logits) - start)

    heads = patching.get_act_patch_attn_head_out_all_pos(lens, corrupted, cache, restored)
    # What the second head carries is all but the crosstalk of order 1/√d = .04 that the first leaves in the stream.
    assert float(heads[1, 0]) == pytest.approx(1, abs=0.2)
    assert abs(float(heads[0, 0])) < 0.2
    stream = patching.get_act_patch_resid_pre(lens, corrupted, cache, restored)
    assert stream[1].argmax() == 11
    assert float(stream[1, 11]) > 0.7


def test_head_detection_finds_the_induction_circuit(induction: ToyTransformer):
    lens = HookedToyTransformer(induction)
    half = torch.randperm(65, generator=generator(0, "half"))[:32]
    sequence = torch.cat([half, half])  # 64 < n_ctx = 66: detection needs room
    previous = detect_head(lens, sequence, "previous_token_head")[:, 0]
    matching = detect_head(lens, sequence, "induction_head")[:, 0]
    # Attention on the previous position is .98 at d = 512; the first of 64 rows has none.
    assert float(previous[0]) > 0.85
    assert float(previous[1]) < 0.2
    # Only the second half has something to match: at most one half.
    assert float(matching[1]) > 0.4
    assert float(matching[0]) < 0.1


def test_moving_the_view_moves_the_model_it_runs():
    model = build(SHAPES["full"])
    lens = HookedToyTransformer(model).to(torch.float64)
    assert lens.cfg.dtype == model.embed.W_E.dtype == torch.float64
    assert lens(torch.zeros(1, 3, dtype=torch.long)).dtype == torch.float64
