"""A hook that edits in place does what one does that edits a copy, for every activation of every model that ships."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.toys import D, build, some_tokens
from toytf.config.plugins import load_config
from toytf.config.shipped import config_files
from toytf.experiments.train.config import TrainExperimentConfig
from toytf.models import HookedToyTransformer, ToyTransformer
from toytf.models.lens import hook_shapes
from toytf.randomness import generator


def shipped_models() -> dict[str, dict[str, Any]]:
    """The model of every training that ships, those that differ only in sizes once, by the name of the first config."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, path in config_files().items():
        config = load_config(path)
        if isinstance(config, TrainExperimentConfig):
            sizes = {"d_model", "init", "ideal_memories", "beta", "freeze", "unfreeze"}
            model = config.model.model_dump(mode="json", exclude=sizes)
            found.setdefault(json.dumps(model), (name, model))
    return dict(found.values())


MODELS = shipped_models() | {
    "linear": {"attention": {"kind": "linear", "kq": "joint", "ov": "joint", "n_heads": 2}, "norm": "layer"},
    "parallel": {"attention": {"residual": False}, "feed_forward": {"kind": "linear", "reads": "block_input"}},
}
"""The last two have what no training that ships has."""


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> ToyTransformer:
    """With all weights different from 0 and from each other, so that every activation has an effect."""
    model = build({**MODELS[request.param], "d_model": D})
    draw = generator(0, "weights")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.rand(parameter.shape, generator=draw) / D)
    return model


def in_place(value: Tensor) -> Tensor:
    return value.mul_(0.5).add_(1)  # what is masked, −∞, stays so


def in_place_and_silent(value: Tensor) -> None:
    in_place(value)


def on_a_copy(value: Tensor) -> Tensor:
    return in_place(value.clone())


Edit = Callable[[Tensor], Tensor | None]


def through_the_model(lens: HookedToyTransformer, tokens: Tensor, name: str, edit: Edit) -> dict[str, Tensor]:
    """The logits, and every activation as the forward went on with it."""
    seen: dict[str, Tensor] = {}

    def hook(at: str, value: Tensor) -> Tensor | None:
        edited = edit(value) if at == name else value
        seen[at] = value if edited is None else edited
        return edited

    return {"logits": lens._model(tokens, hook), **seen}


def through_the_lens(lens: HookedToyTransformer, tokens: Tensor, name: str, edit: Edit) -> dict[str, Tensor]:
    """The same by TransformerLens' own hooks."""
    seen: dict[str, Tensor] = {}
    hooks = [(name, lambda value, hook: edit(value)), (bool, lambda value, hook: seen.update({hook.name: value}))]
    return {"logits": lens.run_with_hooks(tokens, fwd_hooks=hooks), **seen}


@pytest.mark.parametrize(
    ("forward", "n", "edit"),
    [(through_the_model, 1, in_place), (through_the_model, 3, in_place_and_silent), (through_the_lens, 1, in_place)],
    ids=["one sequence", "a batch", "lens"],
)
def test_an_edit_in_place_is_an_edit_of_a_copy(
    lens: HookedToyTransformer, forward: Callable[..., Any], n: int, edit: Edit
):
    """To the bit, in the logits and in all other activations, and the next forward knows nothing of it."""
    tokens, weights = some_tokens()[:n], [parameter.clone() for parameter in lens.parameters()]
    with torch.no_grad():
        plain = lens._model(tokens)
        for name in lens.hook_dict:
            expected, found = forward(lens, tokens, name, on_a_copy), forward(lens, tokens, name, edit)
            assert found.keys() == expected.keys()
            assert [at for at in expected if not torch.equal(found[at], expected[at])] == [], name
        assert torch.equal(lens._model(tokens), plain)
    assert all(map(torch.equal, lens.parameters(), weights))


@pytest.mark.parametrize("model", ["bigram/ideal", "bigram/one_layer", "linear"], indirect=True)
def test_gradients_pass_through_an_edit_in_place(lens: HookedToyTransformer):
    """Those of the weights, and those of the edited activation, which TransformerLens caches."""

    def gradients(name: str, edit: Edit) -> list[Tensor | None]:
        lens.zero_grad()
        with lens.hooks([(name, lambda value, hook: edit(value))]):
            _, cache = lens.run_with_cache(some_tokens(), names_filter=name, return_type="loss", incl_bwd=True)
        return [*cache.values(), *(parameter.grad for parameter in lens.parameters())]

    for name in lens.hook_dict:
        for found, expected in zip(gradients(name, in_place_and_silent), gradients(name, on_a_copy), strict=True):
            assert found is expected is None or torch.equal(found, expected), name


@torch.no_grad()
def test_what_was_observed_is_a_copy(model: ToyTransformer):
    tokens, names = some_tokens()[:1], [*hook_shapes(model)]
    (_, seen), (_, expected) = model.observe(tokens, *names), model.observe(tokens, *names)
    for name in names:
        in_place(seen.pop(name))
        assert [at for at in seen if not torch.equal(seen[at], expected[at])] == [], name
    _, again = model.observe(tokens, *names)
    assert [at for at in names if not torch.equal(again[at], expected[at])] == []
