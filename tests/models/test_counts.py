"""The forward by token counts is the plain forward at the last position: values, gradients, scores far apart."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.models.counts import count_forward, counts_pay, stacked_count_forward
from toytf.models.stack import Stack
from toytf.models.tables import fast_forward
from toytf.randomness import generator

B, N, N_OUT, T, D = 5, 7, 6, 9, 12
JOINT = {"kq": "joint", "ov": "joint"}

VARIANTS: dict[str, dict[str, Any]] = {
    "factored": {},
    "three heads": {"attention": {"n_heads": 3}},
    "narrow heads": {"attention": {"n_heads": 5, "d_head": 2}},
    "joint": {"attention": JOINT},
    "two joint heads": {"attention": {"n_heads": 2, **JOINT}},
    "joint W_KQ": {"attention": {"n_heads": 2, "kq": "joint"}},
    "joint W_OV": {"attention": {"n_heads": 2, "ov": "joint"}},
    "other scale": {"attention": {"scale": 2.0}},
    "no residual": {"attention": {"n_heads": 2, "residual": False}},
    "relu": {"feed_forward": {"kind": "relu"}},
    "relu with a bias": {"attention": {"residual": False}, "feed_forward": {"kind": "relu", "bias": True}},
    "relu without residual": {"feed_forward": {"kind": "relu", "residual": False}},
    "relu beside attention": {"feed_forward": {"kind": "relu", "reads": "block_input"}},
    "linear feed-forward": {"feed_forward": {"kind": "linear"}},
    "linear attention": {"attention": {"kind": "linear", "n_heads": 2, "residual": False}},
    "linear joint attention": {"attention": {"kind": "linear", "scale": 2.0, **JOINT}},
}


def build(
    fields: dict[str, Any], dtype: torch.dtype = torch.float64, n_tokens: int = N, seed: int = 0
) -> ToyTransformer:
    config = ModelConfig.model_validate({"d_model": D, "n_layers": 1, "position": "none", **fields})
    sizes = {"n_tokens": n_tokens, "n_positions": T, "n_outputs": N_OUT}
    model = ToyTransformer(config, **sizes, generator=generator(seed, "model")).to(dtype)
    for name, parameter in model.named_parameters():
        if name.endswith("b_in"):
            parameter.data.normal_(generator=generator(0, name))
    return model


def some_tokens(end: int | None = None) -> torch.Tensor:
    """Random sequences, longer than the vocabulary, so that some token occurs twice; all with the same end if given."""
    tokens = torch.randint(N, (B, T), generator=generator(0, "tokens"))
    if end is not None:
        tokens[:, -1] = end
    return tokens


def gradients(model: ToyTransformer, logits: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of Σ c_by logits_by with random c, for every parameter that it depends on."""
    c = torch.randn(logits.shape, generator=generator(0, "c"), dtype=torch.float64).to(logits.dtype)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    found = torch.autograd.grad((c * logits).sum(), list(trained.values()), allow_unused=True)
    return {name: g for name, g in zip(trained, found, strict=True) if g is not None}


def assert_same_function(model: ToyTransformer, tokens: torch.Tensor, tolerance: float) -> None:
    """Largest differences of logits and of each gradient, relative to the largest entry."""
    by_counts, plain = count_forward(model, tokens), model(tokens)[:, -1:]
    assert (by_counts - plain).abs().max() <= tolerance * plain.abs().max()
    found, expected = gradients(model, by_counts), gradients(model, plain)
    assert set(found) == set(expected)
    for name, g in expected.items():
        assert (found[name] - g).abs().max() <= tolerance * g.abs().max(), name


@pytest.mark.parametrize("end", [None, N - 1], ids=["any end", "same end"])
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_values_and_gradients_are_those_of_the_plain_forward(variant: str, end: int | None):
    # In double precision: what is left is rounding, and a wrong equation would show.
    assert_same_function(build(VARIANTS[variant]), some_tokens(end), 1e-11)


@pytest.mark.parametrize("variant", ["factored", "relu with a bias", "linear attention"])
def test_single_precision_is_enough(variant: str):
    assert_same_function(build(VARIANTS[variant], torch.float32), some_tokens(), 1e-5)


def test_only_what_is_trained_gets_a_gradient():
    model = build(VARIANTS["relu with a bias"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("embed" not in name)
    trained = {f"blocks.0.{name}" for name in ("attn.W_Q", "attn.W_K", "attn.W_V", "attn.W_O")}
    trained |= {f"blocks.0.mlp.{name}" for name in ("W_in", "b_in", "W_out")}
    assert set(gradients(model, count_forward(model, some_tokens()))) == trained
    assert_same_function(model, some_tokens(), 1e-11)


RECALL = [
    {"attention": {"residual": False, "n_heads": 3}, "feed_forward": {"kind": "relu", "bias": bias}}
    for bias in (False, True)
]
"""The network of Nichani et al., with and without a bias."""


def frozen(fields: dict[str, Any], seed: int = 0) -> ToyTransformer:
    """A model whose token and output vectors are not trained."""
    model = build(fields, seed=seed)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("embed" not in name)
    return model


@pytest.mark.parametrize("end", range(3))
@pytest.mark.parametrize("fields", RECALL, ids=["no bias", "bias"])
def test_the_network_that_brings_its_own_gradients_has_the_right_ones(fields: dict[str, Any], end: int):
    model, tokens = frozen(fields), some_tokens(end)
    assert count_forward(model, tokens).grad_fn.next_functions[0][0].name() == "_NetworkBackward"  # type: ignore[union-attr]
    assert_same_function(model, tokens, 1e-11)


STACKED = [
    {"attention": {"n_heads": 3}},
    {"attention": {"n_heads": 3, "residual": False}},
    {"attention": {"d_head": 5, "scale": 2.0, "kq": "joint"}},
    *RECALL,
]


@pytest.mark.parametrize("gap", [1, 1e6], ids=["alike", "one without a product"])
@pytest.mark.parametrize("fields", STACKED)
def test_stacked_members_are_what_each_is_alone(fields: dict[str, Any], gap: float):
    """All end in the same token, which is neither the first nor the second of the batch."""
    models = [frozen(fields, seed) for seed in range(3)]
    models[1].attention(0).W_K.data *= gap
    tokens = torch.randint(N - 1, (3, B, T), generator=generator(0, "members"))
    tokens[:, :, -1] = N - 1
    stack = Stack(models)
    parts = stacked_count_forward(stack.model, tokens)
    assert parts is not None and len(parts) == (1 if gap == 1 else 2)
    for members, logits in parts:
        which = range(3) if members is None else members.tolist()
        assert (logits is None) == (gap == 1e6 and list(which) == [1])
        for i, of_member in zip(which, [] if logits is None else logits.detach(), strict=False):
            expected = models[i](tokens[i])[:, -1:].detach()
            torch.testing.assert_close(of_member, expected, rtol=0, atol=1e-11 * float(expected.abs().max()))


# Scores far apart


def far_apart(gap: float, dtype: torch.dtype) -> ToyTransformer:
    """Token z scores −z/4, and `gap` less from token 3 on: in one-hot vectors exact in any precision."""
    model = build({"embedding": "one_hot", "attention": {"kq": "joint", "scale": 1}}, dtype)
    z = torch.arange(D)
    model.attention(0).W_K.data[0] = (-z / 4 - gap * (z >= 3))[:, None]
    return model


@pytest.mark.parametrize("gap", [0.5, 50.0, 300.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("same_end", [False, True])
def test_tokens_far_below_others_are_weighed_as_among_themselves(gap: float, dtype: torch.dtype, same_end: bool):
    """Tokens 3 to 6 alone: against token 0, which is absent, they would weigh e^−1000 = 0, even in double precision."""
    model = far_apart(gap, dtype)
    tokens = torch.tensor([[5, 6, 6, 6], [5, 5, 6, 5], [6, 6, 6, 6], [0, 5, 6, 1], [4, 4, 3, 4]])
    if same_end:
        tokens[:, -1] = 6
    # ln c is added to scores of this size, which are rounded by up to 2⁻²⁴ of it in single precision.
    assert_same_function(model, tokens, (1e-5 + gap * 2**-24) if dtype == torch.float32 else 1e-11)
    assert all(g.isfinite().all() for g in gradients(model, count_forward(model, tokens)).values())


def test_one_head_of_several_with_tokens_far_apart_is_enough_for_care():
    model = build({"embedding": "one_hot", "attention": {"kq": "joint", "scale": 1, "n_heads": 2}}, torch.float32)
    model.attention(0).W_K.data[0] = 0
    model.attention(0).W_K.data[1] = far_apart(1000.0, torch.float32).attention(0).W_K.data[0]
    tokens = torch.tensor([[5, 6, 6, 6], [5, 5, 6, 6], [0, 5, 1, 6]])
    assert_same_function(model, tokens, 1e-5 + 1000 * 2**-24)


@pytest.mark.parametrize("lead", [5.0, 10.0, 15.0])
def test_gradients_of_a_head_that_always_attends_to_the_same_token_are_not_lost(lead: float):
    """Its gradients are e^−lead of the others', down to 3e-7: as small as the rounding of a sum over the batch."""
    sizes = {"n_tokens": 33, "n_positions": T, "n_outputs": N_OUT}
    config = ModelConfig.model_validate(
        {"d_model": 33, "n_layers": 1, "position": "none", "embedding": "one_hot", "attention": {"kq": "joint"}}
    )
    model = ToyTransformer(config, **sizes, generator=generator(0, "model"))
    model.attention(0).W_K.data = torch.randn(1, 33, 33, generator=generator(0, "keys")) / 4
    model.attention(0).W_K.data[0, -1] += lead * model.attention(0).scale
    tokens = torch.randint(32, (1024, T), generator=generator(0, "many"))
    tokens[:, -1] = 32
    exact = copy.deepcopy(model).double()
    found, expected = gradients(model, count_forward(model, tokens)), gradients(exact, exact(tokens, last=1))
    of_scores, right = found["blocks.0.attn.W_K"].double(), expected["blocks.0.attn.W_K"]
    assert (of_scores - right).abs().max() <= 1e-4 * right.abs().max()


def test_tokens_far_apart_in_a_large_vocabulary_are_exact():
    # Kernels go through the keys in blocks, some of which hold no token of the sequence.
    model = build({"attention": {"n_heads": 3}}, torch.float32, n_tokens=2000)
    assert_same_function(model, torch.tensor([[1990, 1999], [3, 4], [1000, 1], [1500, 1500]]), 1e-5)


# What tools ask of it


@settings(max_examples=25, deadline=None, derandomize=True)
@given(order=st.permutations(range(T - 1)), variant=st.sampled_from(sorted(VARIANTS)))
def test_the_order_of_all_but_the_last_token_does_not_matter(order: list[int], variant: str):
    model, tokens = build(VARIANTS[variant]), some_tokens()
    permuted = tokens[:, [*order, T - 1]]
    assert torch.equal(count_forward(model, permuted), count_forward(model, tokens))
    torch.testing.assert_close(model(permuted, last=1), model(tokens, last=1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_no_value_is_read_back_from_another_device(variant: str):
    """On the meta device there are no values: whatever waited for one would fail."""
    model = build(VARIANTS[variant]).to("meta")
    logits = count_forward(model, torch.zeros(5, T, dtype=torch.long, device="meta"))
    assert logits.shape == (5, 1, N_OUT)
    logits.square().sum().backward()


class Operations(TorchDispatchMode):
    """The names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("end", "gap", "by_product"),
    [(N - 1, 1.0, True), (None, 1.0, False), (N - 1, 700.0, False)],
    ids=["one query", "several queries", "scores far apart"],
)
def test_close_scores_of_one_query_take_a_product_not_a_softmax(end: int | None, gap: float, by_product: bool):
    model = far_apart(gap, torch.float32)
    with Operations() as seen:
        count_forward(model, some_tokens(end))
    assert any("scaled_dot_product" in name for name in seen.names) != by_product


# Where it is taken


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_the_fast_forward_counts_at_the_last_position(variant: str):
    model, tokens = build(VARIANTS[variant]), some_tokens()
    assert counts_pay(model, T)
    assert torch.equal(fast_forward(model, tokens, last=1), count_forward(model, tokens))
    torch.testing.assert_close(fast_forward(model, tokens), model(tokens), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "fields", [{"n_layers": 2}, {"position": "normal"}, {"norm": "layer"}], ids=["two layers", "positions", "LayerNorm"]
)
def test_counts_are_not_taken_where_order_or_norms_matter(fields: dict[str, Any]):
    model, tokens = build(fields), some_tokens()
    assert not counts_pay(model, T)
    torch.testing.assert_close(fast_forward(model, tokens, last=1), model(tokens)[:, -1:], rtol=0, atol=1e-11)


def test_a_vocabulary_much_larger_than_the_sequences_does_not_pay():
    """V (d_head + 4) ≤ T d d_head: here at most 9·12·12/16 = 81 tokens."""
    assert counts_pay(build({}, n_tokens=81), T)
    assert not counts_pay(build({}, n_tokens=82), T)
