"""The toy as TransformerLens sees it: one set of parameters, one forward, and circuits read off the weights."""

from typing import Any

import pytest
import torch
from torch import nn
from transformer_lens import FactoredMatrix

from tests.models.toys import SHAPES, D, N, T, build, some_tokens
from toytf.errors import UserError
from toytf.models import HookedToyTransformer, ToyTransformer

pytestmark = pytest.mark.usefixtures("no_gradients")


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


def test_the_config_names_the_width_of_a_head():
    assert HookedToyTransformer(build({"attention": {"n_heads": 2, "d_head": 3}})).cfg.d_head == 3


@pytest.mark.parametrize("text", ["e", ["e", "t"]])
def test_text_is_refused_for_want_of_a_tokenizer(text: Any):
    with pytest.raises(UserError, match="no tokenizer: give token ids"):
        HookedToyTransformer(build({}))(text)


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        ([0, -1], f"token -1: this model has the tokens 0 to {N - 1}"),
        ([0, N], f"token {N}: this model has the tokens 0 to {N - 1}"),
        (torch.ones(2, 3), f"tokens of type torch.float32: ids are whole numbers, 0 to {N - 1}"),
        ([True, False], f"tokens of type torch.bool: ids are whole numbers, 0 to {N - 1}"),
        ([[1, 2], [1]], r"\[\[1, 2\], \[1\]\]: give token ids, as one sequence or as sequences of equal length"),
        ([], r"\[\]: give token ids"),
        (3, rf"tokens of shape \(\): this model takes sequences of 1 to {T} tokens, one or a batch of equal length"),
        ([0] * (T + 1), rf"tokens of shape \(1, {T + 1}\): this model takes sequences of 1 to {T} tokens"),
    ],
)
def test_what_is_no_sequence_of_tokens_is_refused_in_a_sentence(tokens: Any, sentence: str):
    lens = HookedToyTransformer(build({}))
    for ask in (lens, lens.run_with_cache, lens.run_with_hooks, lens.to_tokens):
        with pytest.raises(UserError, match=f"^{sentence}"):
            ask(tokens)


def test_bytes_are_token_ids_too(lens: HookedToyTransformer):
    assert torch.equal(lens(some_tokens().byte()), lens(some_tokens()))


@pytest.mark.parametrize("output", [-1, 11])
def test_an_output_that_there_is_not_has_no_direction(output: int):
    lens = HookedToyTransformer(build({}, n_outputs=11))
    assert torch.equal(lens.tokens_to_residual_directions(10), lens.W_U[:, 10])
    with pytest.raises(UserError, match=f"^output {output}: this model has the outputs 0 to 10$"):
        lens.tokens_to_residual_directions(output)


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


def test_moving_the_view_moves_the_model_it_runs():
    model = build(SHAPES["full"])
    lens = HookedToyTransformer(model).to(torch.float64)
    assert lens.cfg.dtype == model.embed.W_E.dtype == torch.float64
    assert lens(torch.zeros(1, 3, dtype=torch.long)).dtype == torch.float64


# Weights


def test_a_parameter_that_is_replaced_in_the_view_is_replaced_in_the_model(
    model: ToyTransformer, lens: HookedToyTransformer
):
    lens.blocks[1].attn.W_O = nn.Parameter(torch.zeros_like(model.attention(1).W_O))
    _, cache = lens.run_with_cache(some_tokens(), names_filter="blocks.1.hook_attn_out")
    assert cache["attn_out", 1].eq(0).all()
    assert torch.equal(lens(some_tokens()), model(some_tokens()))
    assert model.attention(1).W_O is lens.blocks[1].attn.W_O
    lens.load_state_dict({name: 0 * value for name, value in model.state_dict().items()}, assign=True)
    assert model(some_tokens()).eq(0).all()


@pytest.mark.parametrize(("name", "holder"), [("W_Q", "W_K"), ("W_V", "W_O")])
def test_the_identity_before_a_joint_matrix_cannot_be_replaced(name: str, holder: str):
    lens = HookedToyTransformer(build(SHAPES["joint"]))
    with pytest.raises(UserError, match=f"^{name}: this model has none, .*: change {holder}"):
        setattr(lens.blocks[0].attn, name, nn.Parameter(torch.zeros(1, D, D)))


def test_a_separate_output_vocabulary_is_declared():
    lens = HookedToyTransformer(build({}, n_outputs=11))
    assert (lens.cfg.d_vocab, lens.cfg.d_vocab_out) == (N, 11)


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
    with pytest.raises(UserError, match="no positional embeddings"):
        _ = lens.W_pos
