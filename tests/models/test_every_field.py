"""Every field of the model config changes something, and the fast forward is the plain one whatever is changed."""

from typing import Any, get_args

import pytest
import torch
from pydantic import BaseModel

from tasks.bigram.config import BigramConfig
from tasks.bigram.task import BigramTask
from toytf.build import build_model
from toytf.config.compose import read_config
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig, VectorDistribution, WeightDistribution
from toytf.models.counts import counts_pay
from toytf.models.fast_options import UNDERSTOOD
from toytf.models.tables import fast_forward, tables_pay
from toytf.randomness import generator
from toytf.training.freezing import trainable_at

B, N, T, D = 3, 7, 9, 24
Fields = dict[str, Any]

VECTORS, WEIGHTS = set(get_args(VectorDistribution)), set(get_args(WeightDistribution))
ALONE: Fields = {}
LINEAR: Fields = {"feed_forward.kind": "linear"}
RELU: Fields = {"feed_forward.kind": "relu"}
SMALL_SCORES: Fields = {"attention.scale": 1e3}  # else they reach 1e5, and rounding them shows in the gradients

CHANGES: dict[str, list[tuple[Fields, list[Any]]]] = {
    # field: what it needs beside it, and the values that it is changed to
    "d_model": [(ALONE, [14])],
    "n_layers": [(ALONE, [1, 3]), (LINEAR, [1, 3])],
    "embedding": [(ALONE, sorted(VECTORS - {"normal"}))],
    "position": [(ALONE, sorted(VECTORS - {"normal"} | {"sinusoidal", "none"}))],
    "unembedding": [(ALONE, sorted(VECTORS - {"uniform_over_d"}))],
    "norm": [(ALONE, ["layer"]), (RELU, ["layer"])],
    "attention.kind": [(ALONE, ["linear"])],
    "attention.n_heads": [(ALONE, [2, 3]), (LINEAR, [3])],
    "attention.d_head": [(ALONE, [5, 12])],
    "attention.kq": [(ALONE, ["joint"])],
    "attention.ov": [(ALONE, ["joint"])],
    "attention.scale": [(ALONE, [1.0, 2.5])],
    "attention.residual": [(ALONE, [False]), (LINEAR, [False]), (RELU, [False])],
    "attention.init": [(ALONE, sorted(WEIGHTS - {"uniform_over_d", "normal"})), (SMALL_SCORES, ["normal"])],
    "feed_forward.kind": [(ALONE, ["linear", "relu"])],
    "feed_forward.width": [(RELU, [6])],
    "feed_forward.bias": [(RELU, [True])],
    "feed_forward.layers": [(LINEAR, [(0,), ()]), (RELU, [(0,), ()])],
    "feed_forward.reads": [(LINEAR, ["block_input"]), (RELU, ["block_input"])],
    "feed_forward.residual": [(LINEAR, [False]), (RELU, [False])],
    "feed_forward.init": [(RELU, sorted(WEIGHTS - {"uniform_over_d"}))],
    "init": [(ALONE, ["ideal"])],
    "ideal_memories": [({"init": "ideal"}, [["W_KQ1"], ["W_KQ1", "W_OV2"]])],
    "beta": [({"init": "ideal"}, [{"W_KQ1": 10}])],
    "freeze": [(ALONE, [["embed.*"]])],
    "unfreeze": [({"freeze": ["embed.*"]}, [{5: ["embed.W_E"]}])],
}
CASES = [
    pytest.param(beside, {field: value}, id=" ".join(f"{name}={v}" for name, v in {**beside, field: value}.items()))
    for field, changes in CHANGES.items()
    for beside, values in changes
    for value in values
]


def config(*changes: Fields) -> ModelConfig:
    """Changes by dotted names, later ones over earlier ones."""
    merged = {name: value for change in changes for name, value in change.items()}
    return ModelConfig.model_validate(read_config({"d_model": D}, merged))


def some_tokens() -> torch.Tensor:
    return torch.randint(N, (B, T), generator=generator(0, "tokens"))


def fields(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """The default of every field, by its dotted name."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        nested = field.annotation
        is_section = isinstance(nested, type) and issubclass(nested, BaseModel)
        default = field.get_default(call_default_factory=True)
        found |= fields(nested, f"{prefix}{name}.") if is_section else {prefix + name: default}
    return found


def test_the_table_of_changes_has_every_field():
    assert set(CHANGES) == set(fields(ModelConfig))


# It changes something


@pytest.fixture(scope="module")
def task() -> BigramTask:
    return BigramTask(BigramConfig(kind="bigram", seq_len=T, n_tokens=N, n_triggers=2), torch.device("cpu"))


def fingerprint(config: ModelConfig, task: BigramTask) -> tuple[Any, ...]:
    """Shapes, logits, and what trains at the start and later."""
    model = build_model(config, task, seed=0)
    names = [name for name, _ in model.named_parameters()]
    shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    trained = [sorted(trainable_at(config, names, step)) for step in (0, 10)]
    return shapes, model(some_tokens()).tolist(), trained


@pytest.mark.parametrize(("beside", "change"), CASES)
def test_every_field_of_the_model_changes_something(beside: Fields, change: Fields, task: BigramTask):
    before, after = config(beside), config(beside, change)
    assert before != after
    assert fingerprint(before, task) != fingerprint(after, task)


# The fast forward follows, or steps aside

BY_TABLES: dict[str, Fields] = {"one head": {}, "two heads": {"attention.n_heads": 2}}
BAG: Fields = {"n_layers": 1, "position": "none"}
BY_COUNTS: dict[str, Fields] = {
    "bag, one head": BAG,
    "bag, two heads": {**BAG, "attention.n_heads": 2},
    "bag, linear attention": {**BAG, "attention.kind": "linear"},
}
STARTS = BY_TABLES | BY_COUNTS


def build(config: ModelConfig) -> ToyTransformer:
    """In double precision; biases and LayerNorms off their initial values, so that leaving one out shows."""
    draw = generator(0, "model")
    model = ToyTransformer(config, n_tokens=N, n_positions=T, n_outputs=N - 1, generator=draw).double()
    names = [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        if name.endswith((".w", ".b", ".b_in")):
            parameter.data += torch.randn(parameter.shape, generator=generator(0, name), dtype=torch.float64)
        parameter.requires_grad_(name in trainable_at(config, names, step=0))
    return model


def gradients(model: ToyTransformer, logits: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of Σ c_bty logits_bty with random c, for every parameter that it depends on."""
    c = torch.randn(logits.shape, generator=generator(0, "c"), dtype=torch.float64)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    found = torch.autograd.grad((c * logits).sum(), list(trained.values()), allow_unused=True)
    return {name: g for name, g in zip(trained, found, strict=True) if g is not None}


@pytest.mark.parametrize("start", BY_TABLES)
def test_tables_serve_what_is_not_changed(start: str):
    assert tables_pay(build(config(STARTS[start])))


@pytest.mark.parametrize("start", BY_COUNTS)
def test_counts_serve_what_is_not_changed(start: str):
    assert counts_pay(build(config(STARTS[start])), T)


@pytest.mark.parametrize("last", [None, 1])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("beside", "change"), CASES)
def test_the_fast_forward_is_the_plain_forward_whatever_is_changed(
    start: str, beside: Fields, change: Fields, last: int | None
):
    # In double precision: what is left is rounding, and an option that is ignored would show.
    model, tokens = build(config(STARTS[start], beside, change)), some_tokens()
    fast, plain = fast_forward(model, tokens, last), model(tokens, last=last)
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-11 * float(plain.detach().abs().max()))
    found, expected = gradients(model, fast), gradients(model, plain)
    assert set(found) == set(expected)
    for name, g in expected.items():
        torch.testing.assert_close(found[name], g, rtol=0, atol=1e-11 * float(g.abs().max()), msg=name)


@pytest.mark.parametrize("path", UNDERSTOOD)
def test_every_value_that_a_fast_forward_claims_to_understand_is_compared(path: str):
    compared = {name: [default] for name, default in fields(ModelConfig).items()}
    for field, changes in CHANGES.items():
        compared[field] += [value for _, values in changes for value in values]
    for name, claimed in UNDERSTOOD[path].items():
        for one in claimed:
            kind, values = (one, ()) if isinstance(one, type) else ((), (one,))
            assert any(value in values or isinstance(value, kind) for value in compared[name]), f"{name} = {one}"
