"""Truncated matrices: the nearest of a rank, products as products, and what the model does with them."""

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from probes.config import TruncationProbeConfig
from probes.truncation import Truncation, matrix_ranks, truncate, truncate_in
from tasks.bigram.config import BigramConfig
from tasks.bigram.task import BigramTask
from toytf.config.plugins import load_config
from toytf.errors import UserError
from toytf.evaluation import goal_metrics
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.probe import ProbeResult
from toytf.randomness import generator

D, T = 12, 16


@pytest.fixture(scope="module")
def task() -> BigramTask:
    fields = {"seq_len": T, "n_tokens": 8, "n_triggers": 3, "noise": {"probability": 0.4, "token": "extra"}}
    return BigramTask(BigramConfig.model_validate({"kind": "bigram", **fields}), torch.device("cpu"))


def make_model(**fields: Any) -> ToyTransformer:
    config = ModelConfig.model_validate({"d_model": D, "feed_forward": {"kind": "relu"}, **fields})
    return ToyTransformer(config, n_tokens=9, n_positions=T, n_outputs=9, generator=generator(0, "model"))


def truncated(model: ToyTransformer, name: str, rank: int) -> ToyTransformer:
    changed = copy.deepcopy(model)
    truncate_in(changed, name, rank)
    return changed


def tokens(task: BigramTask) -> Tensor:
    return task.sample(8, generator(0, "batch")).tokens


def probe(model: ToyTransformer, task: BigramTask, **fields: Any) -> ProbeResult:
    config = TruncationProbeConfig.model_validate({"kind": "truncation", **fields})
    return Truncation(config)(model, task, task.sample(8, generator(0, "batch")))


# One matrix


@pytest.mark.parametrize("shape", [(7, 7), (5, 9), (9, 5), (3, 6, 8)], ids=str)
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_the_error_is_what_the_dropped_singular_values_weigh(shape: tuple[int, ...], rank: int):
    """Eckart and Young: ‖W − W_r‖_F = √(Σ_{i > r} s_i²), and no matrix of that rank is nearer."""
    W = torch.randn(*shape, generator=generator(0, "W"), dtype=torch.float64)
    near = truncate(W, rank)
    singular = torch.linalg.svdvals(W)
    torch.testing.assert_close((W - near).flatten(-2).norm(dim=-1), singular[..., rank:].square().sum(-1).sqrt())
    torch.testing.assert_close(torch.linalg.svdvals(near)[..., :rank], singular[..., :rank])
    assert (torch.linalg.matrix_rank(near) == rank).all()
    for trial in range(20):
        a = torch.randn(*shape[:-1], rank, generator=generator(trial, "a"), dtype=torch.float64)
        fitted = a @ torch.linalg.lstsq(a, W).solution  # the best W with these columns
        assert ((W - fitted).flatten(-2).norm(dim=-1) >= (W - near).flatten(-2).norm(dim=-1)).all()


def test_full_rank_keeps_the_matrix_and_rank_0_removes_it():
    W = torch.randn(6, 4, generator=generator(0, "W"))
    torch.testing.assert_close(truncate(W, 4), W, rtol=0, atol=1e-5)
    assert torch.equal(truncate(W, 0), torch.zeros(6, 4))


# The matrices of a model

MODELS: dict[str, dict[str, Any]] = {
    "joint": {"attention": {"kq": "joint", "ov": "joint"}},
    "joint_heads": {"attention": {"kq": "joint", "ov": "joint", "n_heads": 2}},
    "factored": {},
    "heads": {"attention": {"n_heads": 3}},
    "narrow": {"attention": {"n_heads": 2, "d_head": 2}},
    "wide": {"attention": {"d_head": 2 * D}},
    "linear": {"feed_forward": {"kind": "linear", "layers": [1]}},
    "one_layer": {"n_layers": 1, "feed_forward": {"kind": "none"}},
}


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def model(request: pytest.FixtureRequest) -> ToyTransformer:
    return make_model(**request.param)


@pytest.mark.parametrize(
    ("kind", "attention", "feed_forward"),
    [
        ("joint", {"W_K": D, "W_O": D, "W_KQ": D, "W_OV": D}, {"W_in": D, "W_out": D}),
        ("joint_heads", {"W_K": D, "W_O": D, "W_KQ": D, "W_OV": D}, {"W_in": D, "W_out": D}),
        ("factored", {"W_Q": D, "W_K": D, "W_V": D, "W_O": D, "W_KQ": D, "W_OV": D}, {"W_in": D, "W_out": D}),
        # three heads of 4: side by side they have full rank, a head has 4
        ("heads", {"W_Q": D, "W_K": D, "W_V": D, "W_O": D, "W_KQ": 4, "W_OV": 4}, {"W_in": D, "W_out": D}),
        ("narrow", {"W_Q": 4, "W_K": 4, "W_V": 4, "W_O": 4, "W_KQ": 2, "W_OV": 2}, {"W_in": D, "W_out": D}),
        ("wide", {"W_Q": D, "W_K": D, "W_V": D, "W_O": D, "W_KQ": D, "W_OV": D}, {"W_in": D, "W_out": D}),
        ("linear", {"W_Q": D, "W_K": D, "W_V": D, "W_O": D, "W_KQ": D, "W_OV": D}, {"W_in": D}),
    ],
)
def test_the_rank_of_a_matrix_is_its_smaller_side(kind: str, attention: dict[str, int], feed_forward: dict[str, int]):
    ranks = matrix_ranks(make_model(**MODELS[kind]))
    for layer in (0, 1):
        found = {name.rpartition(".")[2]: r for name, r in ranks.items() if name.startswith(f"blocks.{layer}.attn.")}
        assert found == attention
    assert {name.rpartition(".")[2]: r for name, r in ranks.items() if name.startswith("blocks.1.mlp.")} == feed_forward
    assert any(name.startswith("blocks.0.mlp.") for name in ranks) == (kind != "linear")


def test_a_narrow_feed_forward_part_has_the_rank_of_its_width():
    ranks = matrix_ranks(make_model(feed_forward={"kind": "relu", "width": 5}))
    assert ranks["blocks.0.mlp.W_in"] == ranks["blocks.0.mlp.W_out"] == 5


def test_the_model_as_it_acts_has_the_ranks_that_are_told(model: ToyTransformer):
    ranks = matrix_ranks(model)
    for layer in range(model.config.n_layers):
        for product, W in {"W_KQ": model.W_KQ(layer), "W_OV": model.W_OV(layer)}.items():
            assert (torch.linalg.matrix_rank(W) == ranks[f"blocks.{layer}.attn.{product}"]).all()


def test_a_model_at_full_rank_says_the_same(model: ToyTransformer, task: BigramTask):
    with torch.no_grad():
        expected = model(tokens(task))
        for name, rank in matrix_ranks(model).items():
            torch.testing.assert_close(truncated(model, name, rank)(tokens(task)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("product", ["W_OV", "W_KQ"])
def test_a_product_is_truncated_as_a_product_head_by_head(model: ToyTransformer, product: str):
    """Not its factors one by one, whose product would not be the nearest matrix."""
    layer = model.config.n_layers - 1
    name = f"blocks.{layer}.attn.{product}"
    for rank in range(matrix_ranks(model)[name] + 1):
        changed = truncated(model, name, rank)
        acts, acted = getattr(changed, product)(layer), getattr(model, product)(layer)
        torch.testing.assert_close(acts, truncate(acted, rank), rtol=0, atol=1e-5)


@pytest.mark.parametrize("leaf", ["W_Q", "W_K", "W_V", "W_O"])
def test_a_weight_is_truncated_with_its_heads_side_by_side(leaf: str):
    model = make_model(attention={"n_heads": 3})
    changed = truncated(model, f"blocks.1.attn.{leaf}", 2)
    before, after = (getattr(m.attention(1), leaf).detach() for m in (model, changed))
    axis = 0 if leaf == "W_O" else 1
    flat_before, flat_after = (torch.cat(list(W), dim=axis) for W in (before, after))
    torch.testing.assert_close(flat_after, truncate(flat_before, 2), rtol=0, atol=1e-5)
    assert torch.linalg.matrix_rank(flat_after) == 2


def test_only_the_chosen_matrix_changes(model: ToyTransformer):
    for name in matrix_ranks(model):
        changed = truncated(model, name, 1)
        moved = {n for n, W in changed.named_parameters() if not torch.equal(W, model.get_parameter(n))}
        block = name.rpartition(".")[0]
        leaf = name.rpartition(".")[2]
        pair = {"W_OV": ("W_V", "W_O"), "W_KQ": ("W_Q", "W_K")}.get(leaf, (leaf,))
        assert moved == {f"{block}.{w}" for w in pair} & set(dict(model.named_parameters()))


def test_a_feed_forward_part_without_W_out_adds_nothing(task: BigramTask):
    model = make_model()
    absent = make_model(feed_forward={"kind": "relu", "layers": [0]})
    kept = {name: W for name, W in model.state_dict().items() if not name.startswith("blocks.1.mlp.")}
    absent.load_state_dict(kept)
    with torch.no_grad():
        said = truncated(model, "blocks.1.mlp.W_out", 0)(tokens(task))
        torch.testing.assert_close(said, absent(tokens(task)), rtol=0, atol=1e-6)


def test_a_removed_W_OV_adds_nothing_to_the_stream(task: BigramTask, model: ToyTransformer):
    layer = model.config.n_layers - 1

    def silence(name: str, value: Tensor) -> Tensor:
        return torch.zeros_like(value) if name == f"blocks.{layer}.hook_attn_out" else value

    with torch.no_grad():
        said = truncated(model, f"blocks.{layer}.attn.W_OV", 0)(tokens(task))
        torch.testing.assert_close(said, model(tokens(task), silence), rtol=0, atol=1e-6)


# The probe


def test_the_model_stays_as_it_is(model: ToyTransformer, task: BigramTask):
    before = {name: W.clone() for name, W in model.state_dict().items()}
    probe(model, task, matrices=tuple(matrix_ranks(model)), fractions=(0.0, 1.0), ranks=(1,))
    for name, W in model.state_dict().items():
        assert torch.equal(W, before[name]), name


def test_metrics_are_those_of_a_model_that_is_changed_by_hand(task: BigramTask):
    model = make_model(attention={"kq": "joint", "ov": "joint"})
    names = ("blocks.1.mlp.W_out", "blocks.0.attn.W_OV")
    result = probe(model, task, matrices=names, fractions=(0.0, 0.5), ranks=(1,))
    batch = task.sample(8, generator(0, "batch"))
    expected = {}
    for name in names:
        for label, rank in (("rho0", 0), ("rho0.5", 6), ("rank1", 1)):
            by_hand = copy.deepcopy(model)
            W = by_hand.get_parameter(name.replace("W_OV", "W_O"))
            with torch.no_grad():
                u, s, v = torch.linalg.svd(W, full_matrices=False)
                W.copy_(u @ torch.diag_embed(s * (torch.arange(D) < rank)) @ v)
            for quantity, value in goal_metrics(by_hand, task, batch).items():
                expected[f"truncated/{name}_{label}" + ("" if quantity == "accuracy" else f"/{quantity}")] = value
    assert len(expected) == 2 * 3 * 4
    assert any(name.endswith("/p_noise") for name in expected)
    assert dict(result.metrics) == pytest.approx(expected, abs=1e-5)


def test_every_feed_forward_weight_and_W_OV_is_truncated_by_default(task: BigramTask):
    result = probe(make_model(d_model=20), task)
    found = {name.partition("/")[2] for name in result.metrics if name.count("/") == 1}
    matrices = [f"blocks.{layer}.{part}" for layer in (0, 1) for part in ("mlp.W_in", "mlp.W_out", "attn.W_OV")]
    assert found == {f"{name}_rho{rho}" for name in matrices for rho in ("0", "0.1", "0.2", "1")}


def test_a_fraction_keeps_that_part_of_the_rank_rounded_down(task: BigramTask):
    result = probe(make_model(d_model=20), task, matrices=("blocks.1.attn.W_OV",), fractions=(0.15, 0.2, 0.3))
    ranked = probe(make_model(d_model=20), task, matrices=("blocks.1.attn.W_OV",), fractions=(), ranks=(3, 4, 6))
    name = "truncated/blocks.1.attn.W_OV"
    for fraction, rank in ((0.15, 3), (0.2, 4), (0.3, 6)):
        assert result.metrics[f"{name}_rho{fraction}/loss"] == ranked.metrics[f"{name}_rank{rank}/loss"]


def test_a_truncation_is_a_matrix_and_what_is_kept_of_it(task: BigramTask):
    result = probe(make_model(), task, matrices=("blocks.1.mlp.W_out",), fractions=(0.5,), ranks=(3,))
    found = [dict(measured.quantity.at) for measured in result.measurements]
    matrix = {"matrix": "blocks.1.mlp.W_out"}
    assert found[:2] == [matrix | {"rho": 0.5}, matrix | {"rho": 0.5, "quantity": "loss"}]
    assert found[-1] == matrix | {"rank": 3, "quantity": "p_noise"}


def test_accuracy_and_loss_are_read_against_those_of_the_goal(task: BigramTask):
    references = probe(make_model(), task, fractions=(0.0,)).references
    known = task.references()
    name = "truncated/blocks.1.mlp.W_out_rho0"
    assert references[name] == known["in_context", "accuracy"]
    assert references[f"{name}/loss"] == known["in_context", "loss"]
    assert references[f"{name}/p_noise"].ideal is None


def test_the_figure_has_a_curve_per_matrix_over_the_fraction_kept(task: BigramTask):
    figure = probe(make_model(), task, matrices=("blocks.1.mlp.W_out",), fractions=(1.0, 0.0), ranks=(3,)).figure()
    accuracy = figure.data[0]
    assert accuracy.name == "W_out2 (blocks.1.mlp.W_out)"
    assert list(accuracy.x) == [0.0, 0.25, 1.0]
    assert [a.text for a in figure.layout.annotations] == [
        "accuracy",
        "loss",
        "probability of the right answer",
        "probability of noise",
    ]


def test_nothing_to_truncate_is_an_empty_figure(task: BigramTask):
    result = probe(make_model(), task, fractions=())
    assert not result.metrics
    assert len(result.figure().data) == 0


def test_nothing_is_measured_without_scores_or_after_divergence(task: BigramTask):
    broken = make_model()
    with torch.no_grad():
        broken.feed_forward(1).W_out.fill_(torch.nan)
    assert not probe(broken, task, fractions=(1.0,)).metrics
    empty = BigramTask(BigramConfig(kind="bigram", seq_len=2, n_tokens=8, n_triggers=1, no_repeat=True), task.device)
    assert not probe(make_model(), empty, fractions=(1.0,)).metrics


# Mistakes

OUT = "blocks.1.mlp.W_out"
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "rank_0": (
        {"matrices": [OUT], "ranks": [0]},
        f"probe truncation: rank = 0: expected 1 to {D} for {OUT} of this model; to remove the matrix, use the "
        "fraction 0",
    ),
    "negative_rank": (
        {"matrices": [OUT], "ranks": [-1]},
        f"probe truncation: rank = -1: expected 1 to {D} for {OUT} of this model",
    ),
    "rank_above_d": (
        {"matrices": [OUT], "ranks": [D + 1]},
        f"probe truncation: rank = {D + 1}: expected 1 to {D} for {OUT} of this model",
    ),
    "no_such_layer": (
        {"matrices": ["blocks.2.mlp.W_out"]},
        'probe truncation: "blocks.2.mlp.W_out" is in layer 2, but the model only has layers 0 to 1',
    ),
    "no_such_matrix": (
        {"matrices": ["blocks.1.mlp.W_uot"]},
        f'probe truncation: the model has no matrix "blocks.1.mlp.W_uot": did you mean "{OUT}"? (accepted: ',
    ),
    "not_a_weight_that_can_be_truncated": (
        {"matrices": ["embed.W_E"]},
        'probe truncation: the model has no matrix "embed.W_E": ',
    ),
}


@pytest.mark.parametrize(("fields", "line"), MISTAKES.values(), ids=MISTAKES)
def test_what_does_not_fit_the_model_is_refused_in_one_line(fields: dict[str, Any], line: str, task: BigramTask):
    model = make_model()
    chosen = Truncation(TruncationProbeConfig.model_validate({"kind": "truncation", **fields}))
    with pytest.raises(UserError) as caught:
        chosen.check(model, task)
    said = str(caught.value)
    assert said.startswith(line) if line.endswith(("accepted: ", '": ')) else said == line
    assert len(said.splitlines()) == 1
    with pytest.raises(UserError, match=re.escape(said)):
        chosen(model, task, task.sample(2, generator(0, "batch")))


def test_a_small_fraction_keeps_the_largest_singular_value(task: BigramTask):
    model, batch = make_model(), task.sample(16, generator(0, "batch"))
    small, one = (
        Truncation(TruncationProbeConfig.model_validate({"kind": "truncation", "matrices": [OUT], **fields}))
        for fields in ({"fractions": [0.01]}, {"fractions": [], "ranks": [1]})
    )
    found, expected = (chosen(model, task, batch).metrics for chosen in (small, one))
    assert found[f"truncated/{OUT}_rho0.01/loss"] == expected[f"truncated/{OUT}_rank1/loss"]


def test_a_joint_product_has_no_first_factor(task: BigramTask):
    joint = make_model(**MODELS["joint"])
    with pytest.raises(UserError, match=r'no matrix "blocks\.1\.attn\.W_V"'):
        Truncation(TruncationProbeConfig(kind="truncation", matrices=("blocks.1.attn.W_V",))).check(joint, task)


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_a_fraction_is_from_0_to_1(fraction: float):
    with pytest.raises(UserError, match=r"probes\.0\.fractions\.0 = "):
        load_config(
            {
                "experiment": "train",
                "task": {"kind": "bigram"},
                "probes": [{"kind": "truncation", "fractions": [fraction]}],
            }
        )


def test_a_bias_is_no_matrix() -> None:
    names = matrix_ranks(make_model(feed_forward={"kind": "relu", "bias": True}))
    assert "blocks.0.mlp.W_in" in names
    assert not any("b_in" in name for name in names)
