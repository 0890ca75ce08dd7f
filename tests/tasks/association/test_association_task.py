"""Associations: how inputs come, what their answers are, and which part of a model should store them."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import toytf
from tests.tasks.association.tasks import make, memory_model
from toytf.config.plugins import load_config
from toytf.errors import UserError
from toytf.evaluation import token_loss
from toytf.memory import gradient_step
from toytf.models.tables import fast_forward
from toytf.randomness import generator
from toytf.task import Batch
from toytf.theory import zipf

if TYPE_CHECKING:
    from conftest import Ended

# Inputs and answers


def test_the_answer_is_the_number_of_the_input_modulo_the_outputs() -> None:
    task = make(n_inputs=7, n_outputs=3)
    assert task.targets.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert task.token_names == ("z1", "z2", "z3", "z4", "z5", "z6", "z7")
    assert task.output_names == ("y1", "y2", "y3")


@given(st.integers(1, 60))
def test_bijective_answers_are_a_permutation(n: int) -> None:
    task = make(n_inputs=n, answers="bijective")
    assert sorted(task.targets.tolist()) == [*range(n)]
    assert len(task.output_names) == n
    assert task.targets.tolist() == make(n_inputs=n, answers="bijective").targets.tolist()


def test_a_batch_has_inputs_with_their_answers() -> None:
    task = make(n_inputs=30)
    batch = task.sample(50, generator(0, "batch"))
    assert batch.tokens.shape == batch.targets.shape == (50, 1)
    assert torch.equal(batch.targets[:, 0], batch.tokens[:, 0] % 5)
    assert bool(batch.roles["all"].all())
    assert torch.equal(batch.tokens, task.sample(50, generator(0, "batch")).tokens)


def test_several_generators_draw_what_each_draws_alone() -> None:
    task = make(n_inputs=1000)
    together = task.sample_each(20, [generator(seed, "batch") for seed in range(3)])
    alone = Batch.joined([task.sample(20, generator(seed, "batch")) for seed in range(3)])
    assert torch.equal(together.tokens, alone.tokens)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0])
def test_inputs_come_by_zipf_also_where_the_mean_of_an_endless_one_would_not_exist(alpha: float) -> None:
    """Each of 8 frequencies within 4 standard errors of 1e5 draws."""
    task = make(n_inputs=8, alpha=alpha)
    z = task.sample(100_000, generator(0, "batch")).tokens[:, 0]
    p = zipf(8, alpha)
    assert np.array_equal(task.frequencies, p)
    share = torch.bincount(z, minlength=8).double().numpy() / 1e5
    assert (np.abs(share - p) < 4 * np.sqrt(p * (1 - p) / 1e5)).all()


def test_what_is_rare_among_many_inputs_does_not_come_too_often() -> None:
    """All but the first 1,000 of 1e5 inputs: within 4 standard errors. A single uniform number of 24 bits for each draw
    cannot resolve their columns, and would draw them ten times as often."""
    task, n = make(n_inputs=100_000, alpha=2), 1_000_000
    rare = float((task.sample(n, generator(0, "batch")).tokens >= 1000).double().mean())
    p = float(task.frequencies[1000:].sum())
    assert p == pytest.approx(6.02e-4, rel=1e-2)  # (1/1000 − 1/1e5) / ζ(2)
    assert abs(rare - p) < 4 * math.sqrt(p / n)


# References


def test_a_constant_answer_is_wrong_in_36_percent_of_the_inputs_of_the_paper() -> None:
    """N = 100, M = 5, α = 2: 0.359. Loss H(y), summed by hand."""
    floors = {m.flat: m.value for m in make(n_inputs=100, n_outputs=5, alpha=2).floors()}
    assert 1 - floors["floor/all_accuracy/constant"] == pytest.approx(0.359, abs=5e-4)
    p = [sum((z + 1) ** -2.0 for z in range(100) if z % 5 == y) for y in range(5)]
    p = [mass / sum(p) for mass in p]
    assert floors["floor/all_loss/constant"] == pytest.approx(-sum(mass * math.log(mass) for mass in p))


def test_a_guess_is_right_once_in_M_and_the_ideal_always() -> None:
    known = make(n_outputs=5).references()
    assert (known["all", "accuracy"].ideal, known["all", "accuracy"].chance) == (1.0, 0.2)
    assert (known["all", "loss"].ideal, known["all", "loss"].chance) == (0.0, math.log(5))


def test_with_one_output_everything_is_right() -> None:
    task = make(n_inputs=9, n_outputs=1)
    model = memory_model(task)
    assert task.references()["all", "accuracy"].chance == 1.0
    assert {m.value for m in task.floors()} == {1.0, 0.0}
    (memory,) = task.memories(model).values()
    stored = memory.association
    W = model.W_OV(0)[0].detach().T
    assert bool(stored.margins(W).isinf().all()) and float(stored.recall(W, weighted=True)) == pytest.approx(1.0)


# The model


@pytest.mark.parametrize("embedding", ["sphere", "normal_over_d", "orthonormal"])
@pytest.mark.parametrize("n_inputs", [6, 16])
def test_without_residual_path_the_model_is_the_memory(embedding: str, n_inputs: int) -> None:
    """logits_y = u_yᵀ W e_z, by the plain and by the fast forward; both sum in float32."""
    task = make(n_inputs=n_inputs)
    model = memory_model(task, embedding=embedding, unembedding=embedding, **{"attention.init": "normal"})
    W, e, u = model.W_OV(0)[0].T, model.embed.W_E, model.unembed.W_U.T
    expected = torch.einsum("yi,ij,zj->zy", u, W, e)
    for logits in (model(task.inputs), fast_forward(model, task.inputs, 1)):
        torch.testing.assert_close(logits[:, 0], expected, rtol=1e-4, atol=1e-5)
    (name,) = task.memories(model)
    stored = task.memories(model)[name].association
    torch.testing.assert_close(stored.scores(W), expected, rtol=1e-4, atol=1e-5)
    assert name == "W_OV1"
    assert np.allclose(stored.weights.numpy(), task.frequencies)
    assert (stored.key_names, stored.value_names) == (task.token_names, task.output_names)


def test_a_step_on_the_population_from_nothing_stores_every_pair_by_its_frequency() -> None:
    """W_1 = W_0 − η ∇L is `gradient_step`; with orthonormal vectors every margin is then η p(z)."""
    task, lr = make(n_inputs=12, alpha=1.5), 3.0
    for embedding in ("sphere", "orthonormal"):
        model = memory_model(task, embedding=embedding, unembedding=embedding)
        W_O = model.attention(0).W_O
        assert not W_O.any()
        losses = token_loss(model(task.inputs), task.ask(task.inputs))[:, 0]
        (losses * torch.tensor(task.frequencies, dtype=torch.float32)).sum().backward()
        stored = task.memories(model)["W_OV1"].association
        W = (W_O - lr * W_O.grad)[0].detach().T
        torch.testing.assert_close(W, gradient_step(stored, lr=lr), rtol=1e-4, atol=1e-6)
        if embedding == "orthonormal":
            margins = stored.margins(W).double().numpy()
            assert margins == pytest.approx(lr * task.frequencies, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ["W_OV1"]),
        ({"attention.residual": True}, ["W_OV1"]),
        ({"feed_forward": {"kind": "linear"}}, ["W_OV1", "FF1"]),
        ({"feed_forward": {"kind": "relu", "residual": False}}, ["FF1"]),
        ({"n_layers": 2}, ["W_OV2"]),
        ({"n_layers": 2, "feed_forward": {"kind": "relu", "layers": [1]}}, ["W_OV2", "FF2"]),
        ({"n_layers": 2, "feed_forward": {"kind": "relu", "layers": [0]}}, ["W_OV2"]),
        ({"norm": "layer"}, []),
        ({"attention.kind": "linear"}, []),
    ],
)
def test_the_last_layer_stores_in_what_reaches_the_outputs(changes: dict[str, Any], names: list[str]) -> None:
    task = make(n_inputs=8)
    assert [*task.memories(memory_model(task, **changes))] == names


@pytest.mark.parametrize("reads", ["attention", "block_input"])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("kind", ["linear", "relu"])
def test_a_feed_forward_part_is_asked_with_what_it_reads(reads: str, residual: bool, kind: str) -> None:
    """Without a path around it, the logits are what it answers to its keys."""
    task = make(n_inputs=20)
    feed_forward = {"kind": kind, "reads": reads, "residual": False}
    attention = {"attention.residual": residual, "attention.init": "normal_over_d"}
    model = memory_model(task, feed_forward=feed_forward, position="normal_over_d", **attention)
    memory = task.memories(model)["FF1"]
    answers = memory.association.scores(lambda keys: model.read(memory.slot, keys))
    torch.testing.assert_close(answers, model(task.inputs)[:, 0], rtol=1e-4, atol=1e-5)


def test_frequencies_of_equal_inputs_can_be_exchanged() -> None:
    """Inputs that come equally often are told apart by their vectors only: exchange two with their answers."""
    task, order = make(n_inputs=10, alpha=0), torch.tensor([3, 0, 9, 1, 2, 8, 4, 7, 6, 5])
    other = make(n_inputs=10, alpha=0)
    other.targets = task.targets[order]
    model, same = memory_model(task, **{"attention.init": "normal"}), memory_model(task, **{"attention.init": "normal"})
    with torch.no_grad():
        same.embed.W_E.copy_(model.embed.W_E[order])
    for rule in ("hebbian", "least_squares"):
        (a, b) = (t.memories(m)["W_OV1"].matrix(rule) for t, m in ((task, model), (other, same)))
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


# The ideal construction


@pytest.mark.parametrize("rule", ["hebbian", "least_squares"])
def test_the_ideal_memory_gives_every_pair_the_score_beta(rule: str) -> None:
    """Exact with orthonormal vectors: β for the pair, 0 for all else; the ridge of the duals costs 1e-3 of each."""
    task = make(n_inputs=12, construction={"rule": rule})
    changes = {"embedding": "orthonormal", "unembedding": "orthonormal", "init": "ideal", "beta": {"W_OV1": 7.0}}
    logits = memory_model(task, **changes)(task.inputs)[:, 0]
    expected = 7.0 * torch.nn.functional.one_hot(task.targets, 5).float()
    torch.testing.assert_close(logits, expected, rtol=0, atol=0.02 if rule == "least_squares" else 1e-4)


def test_least_squares_stores_as_many_pairs_as_there_are_dimensions_where_the_sum_does_not() -> None:
    sums, duals = (make(n_inputs=32, n_outputs=8, construction={"rule": r}) for r in ("hebbian", "least_squares"))
    for task, all_right in ((sums, False), (duals, True)):
        model = memory_model(task, d=32, init="ideal")
        stored = task.memories(model)["W_OV1"].association
        assert bool(stored.recalled(model.W_OV(0)[0].detach().T).all()) == all_right


def test_with_hidden_units_beside_it_the_ideal_memory_is_in_attention_and_they_are_silent() -> None:
    task = make(n_inputs=8)
    changes = {"attention.residual": True, "attention.init": "uniform_over_d", "feed_forward": {"kind": "relu"}}
    model = memory_model(task, n_layers=2, init="ideal", **changes)
    memory = task.memories(model)["W_OV2"]
    torch.testing.assert_close(
        model.W_OV(1)[0].detach().T, memory.matrix("hebbian") / _mean_squares(memory), rtol=1e-4, atol=1e-5
    )
    assert not any(bool(model.feed_forward(layer).W_out.any()) for layer in (0, 1))  # type: ignore[union-attr]


def _mean_squares(memory: Any) -> torch.Tensor:
    stored = memory.association
    norms: torch.Tensor = stored.keys.square().sum(1).mean() * stored.values.square().sum(1).mean()
    return norms


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"norm": "layer"}, "no room for any memory of task association"),
        ({"feed_forward": {"kind": "relu", "residual": False}}, "FF1 reads or gives nothing but zeros"),
        (
            {"attention.residual": True, "feed_forward": {"kind": "relu", "residual": False}},
            "no linear feed-forward part",
        ),
        ({"beta": {"W_KQ1": 2.0}}, 'no memory is called "W_KQ1"'),
    ],
)
def test_an_ideal_memory_that_cannot_be_written_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        memory_model(make(n_inputs=8), init="ideal", **changes)


# Training


@pytest.mark.repeats_runs
def test_training_stores_all_pairs_that_fit(tmp_path: Path) -> None:
    """12 inputs in 16 dimensions: independent, so that descent separates them all."""
    changes = {
        "task.n_inputs": 12, "task.alpha": 1, "model.d_model": 16, "train.steps": 60, "train.batch_size": 256,
        "train.evaluation": {"every": 60, "sequences": 64}, "probes": ["population"], "threads": 1,
        "logging.wandb": "off",
    }  # fmt: skip
    run = toytf.run("association/memory", changes, out=tmp_path / "run", page=False)
    assert run.history["population/error"].tolist() == pytest.approx([1.0, 0.0])
    assert run.history["eval/all_accuracy"].tolist() == [0.0, 1.0]  # W = 0 says nothing: not the 0.36 of an argmax


GRID = {
    "task.n_inputs": 100, "task.alpha": 2, "model.d_model": 100, "model.embedding": "normal_over_d",
    "model.unembedding": "normal_over_d", "model.attention.init": "normal_over_d", "train.steps": 160,
    "train.batch_size": 64, "train.evaluation": {"every": 160, "sequences": 1}, "probes": ["population"],
    "seeds": [*range(50)], "stack": 50, "threads": 1, "logging.wandb": "off",
}  # fmt: skip
"""A cell of the grid of Cabannes, Dohmatob, Bietti 2024: 10,240 samples once, in batches of 64."""


@pytest.mark.slow
@pytest.mark.repeats_runs
@pytest.mark.parametrize(("lr", "error"), [(1.0, 0.0333), (10.0, 0.0121), (100.0, 0.0045)])
def test_trained_memories_have_the_errors_of_the_paper(lr: float, error: float, tmp_path: Path) -> None:
    """Means of a separate simulation over 200 seeds, standard error up to 3 %; 15 % for 50 seeds, heavy-tailed."""
    changes = {**GRID, "train.optimizer": {"kind": "sgd", "lr": lr, "momentum": 0}}
    run = toytf.run("association/memory", changes, out=tmp_path / "run", page=False)
    assert run.summary["population/error"] == pytest.approx(error, rel=0.15)


# Sizes


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"n_inputs": 10**9}, "task.n_inputs = 1,000,000,000"),
        ({"n_inputs": 10**9, "answers": "bijective"}, "task.n_inputs = 1,000,000,000"),
        ({"n_inputs": 10**6, "n_outputs": 10**7}, "task.n_outputs = 10,000,000"),
    ],
)
def test_absurd_sizes_are_refused_in_one_line(
    fields: dict[str, Any], key: str, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps({"experiment": "train", "task": {"kind": "association", **fields}}))
    ended = invoke("run", path, "--out", tmp_path / "run")
    assert (ended.code, len(ended.err.splitlines())) == (2, 1)
    assert ended.err.startswith(f"toytf: {key} needs too much memory")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"answers": "bijective", "n_outputs": 5}, "n_outputs has an effect only with answers: mod"),
        ({"alpha": -0.5}, "greater than or equal to 0"),
        ({"n_inputs": 0}, "greater than 0"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        load_config({"experiment": "train", "task": {"kind": "association", **fields}})


def test_a_sequence_and_its_task_are_explained() -> None:
    task = make(n_inputs=1000, alpha=1.5)
    assert "1,000 pairs" in task.about and "z^−1.5" in task.about
    batch = task.sample(3, generator(0, "batch"))
    assert bool(task.annotate(batch).right_keys[0].all())  # nothing else to attend to
