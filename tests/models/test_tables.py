"""The forward by tables is the plain forward: values, gradients, and what tools ask of it."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.func import functional_call, stack_module_state

from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.models.tables import fast_forward, tables_pay
from toytf.randomness import generator

N, N_OUT, T, D = 7, 6, 9, 24
JOINT = {"kq": "joint", "ov": "joint"}

# Each option by itself is in test_every_field.py; these are several at once, and what other tests take.
BY_TABLES: dict[str, dict[str, Any]] = {
    "simplified": {"attention": {"kq": "joint"}},
    "two factored heads": {"attention": {"n_heads": 2}},
    "three joint heads": {"attention": {"n_heads": 3, **JOINT}},
    "linear feed-forward": {"feed_forward": {"kind": "linear"}},
    "linear in the last layer": {"feed_forward": {"kind": "linear", "layers": [1]}},
    "relu feed-forward": {"feed_forward": {"kind": "relu"}},
    "relu in the last layer": {"feed_forward": {"kind": "relu", "layers": [1]}},
    "no residual, relu beside attention": {
        "attention": {"residual": False},
        "feed_forward": {"kind": "relu", "reads": "block_input"},
    },
    "no positions, two heads": {"position": "none", "attention": {"n_heads": 2, **JOINT}},
    "one layer, two heads, linear": {"n_layers": 1, "attention": {"n_heads": 2}, "feed_forward": {"kind": "linear"}},
    "one layer, relu": {"n_layers": 1, "feed_forward": {"kind": "relu"}},
    "three layers, linear in the middle": {"n_layers": 3, "feed_forward": {"kind": "linear", "layers": [1]}},
}
PLAIN: dict[str, dict[str, Any]] = {
    "linear attention": {"attention": {"kind": "linear"}},
    "LayerNorm": {"norm": "layer", "feed_forward": {"kind": "relu"}},
    "many heads": {"attention": {"n_heads": 4, **JOINT}},
    "narrow heads": {"attention": {"d_head": 5}},
    "small dimension": {"d_model": 6},
}


def build(fields: dict[str, Any], seed: int = 0, dtype: torch.dtype = torch.float64) -> ToyTransformer:
    config = ModelConfig.model_validate({"d_model": D, **fields})
    draw = generator(seed, "model")
    return ToyTransformer(config, n_tokens=N, n_positions=T, n_outputs=N_OUT, generator=draw).to(dtype)


def some_tokens(seed: int = 0, length: int = T) -> torch.Tensor:
    return torch.randint(N, (3, length), generator=generator(seed, "tokens"))


def gradients(model: ToyTransformer, logits: torch.Tensor) -> dict[str, torch.Tensor | None]:
    """Of Σ c_bty logits_bty with random c, for every parameter."""
    c = torch.randn(logits.shape, generator=generator(0, "c"), dtype=torch.float64).to(logits.dtype)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    found = torch.autograd.grad((c * logits).sum(), list(trained.values()), allow_unused=True)
    return dict(zip(trained, found, strict=True))


def assert_same_function(model: ToyTransformer, tokens: torch.Tensor, tolerance: float) -> None:
    """Largest differences of logits and of each gradient, relative to the largest entry."""
    fast, plain = fast_forward(model, tokens), model(tokens)
    assert (fast - plain).abs().max() <= tolerance * plain.abs().max()
    by_tables, expected = gradients(model, fast), gradients(model, plain)
    for name, g in expected.items():
        if g is None:
            assert by_tables[name] is None
        else:
            assert (by_tables[name] - g).abs().max() <= tolerance * g.abs().max(), name


@pytest.mark.parametrize("length", [T, 4, 1])
@pytest.mark.parametrize("shape", sorted(BY_TABLES))
def test_values_and_gradients_are_those_of_the_plain_forward(shape: str, length: int):
    # In double precision: what is left is rounding, and a wrong equation would show.
    model = build(BY_TABLES[shape])
    assert tables_pay(model)
    assert_same_function(model, some_tokens(length=length), 1e-11)


@pytest.mark.parametrize("shape", ["simplified", "two factored heads", "linear feed-forward"])
def test_single_precision_is_enough(shape: str):
    assert_same_function(build(BY_TABLES[shape], dtype=torch.float32), some_tokens(), 1e-5)


@pytest.mark.parametrize("shape", sorted(PLAIN))
def test_the_plain_forward_is_taken_where_tables_do_not_pay(shape: str):
    model = build(PLAIN[shape])
    assert not tables_pay(model)
    assert torch.equal(fast_forward(model, some_tokens()), model(some_tokens()))


def test_only_what_is_trained_gets_a_gradient():
    model = build(BY_TABLES["simplified"])
    trained = {"blocks.0.attn.W_K", "blocks.1.attn.W_K", "blocks.1.attn.W_O"}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    assert set(gradients(model, fast_forward(model, some_tokens()))) == trained
    assert_same_function(model, some_tokens(), 1e-11)


def test_large_scores_give_no_gradient_that_is_not_a_number():
    model = build(BY_TABLES["simplified"], dtype=torch.float32)
    for layer in range(2):
        model.attention(layer).W_K.data *= 1e4  # one-hot attention: exact zeros beside the masked keys
    assert all(g.isfinite().all() for g in gradients(model, fast_forward(model, some_tokens())).values())


@pytest.mark.parametrize("shape", sorted(BY_TABLES))
def test_the_forward_by_tables_runs_on_the_meta_device(shape: str):
    model = build(BY_TABLES[shape]).to("meta")
    assert fast_forward(model, torch.zeros(5, T, dtype=torch.long, device="meta")).shape == (5, T, N_OUT)


class Functional(torch.nn.Module):
    """`fast_forward` as a module, so that `functional_call` can put stacked parameters in."""

    def __init__(self, model: ToyTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return fast_forward(self.model, tokens)


@pytest.mark.parametrize("shape", ["simplified", "three joint heads", "relu feed-forward"])
def test_stacked_seeds_equal_separate_models(shape: str):
    models = [Functional(build(BY_TABLES[shape], seed, torch.float32)) for seed in range(3)]
    parameters, buffers = stack_module_state(models)
    tokens = torch.stack([some_tokens(seed) for seed in range(3)])

    def loss(parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor], tokens: torch.Tensor) -> Any:
        return functional_call(models[0], (parameters, buffers), (tokens,)).square().mean()

    stacked = torch.vmap(torch.func.grad(loss))(parameters, buffers, tokens)
    for seed, model in enumerate(models):
        model(tokens[seed]).square().mean().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(stacked[name][seed], parameter.grad, rtol=1e-4, atol=1e-5)


COMPILED = """
import torch
from toytf.models.config import ModelConfig
from toytf.models.tables import fast_forward
from toytf.models.transformer import ToyTransformer
from toytf.randomness import generator

for shape in {shapes!r}:
    config = ModelConfig.model_validate({{"d_model": 24, **shape}})
    model = ToyTransformer(config, n_tokens=7, n_positions=9, n_outputs=7, generator=generator(0, "model"))
    tokens = torch.randint(7, (3, 9), generator=generator(0, "tokens"))
    tokens[:, -1] = 6
    captured = torch.compile(fast_forward, fullgraph=True, backend="eager")
    for last in (None, 1):
        torch.testing.assert_close(
            captured(model, tokens, last), fast_forward(model, tokens, last), rtol=0, atol=1e-5
        )
"""


@pytest.mark.heavy
def test_the_forward_by_tables_is_captured_as_one_graph():
    # In its own process: the shape checks of the tests cannot be captured, and users run without them.
    shapes = [BY_TABLES[name] for name in ("simplified", "three joint heads", "relu feed-forward")]
    shapes.append({"n_layers": 1, "position": "none"})  # at its last position by token counts
    subprocess.run([sys.executable, "-c", COMPILED.format(shapes=shapes)], check=True, timeout=120)
