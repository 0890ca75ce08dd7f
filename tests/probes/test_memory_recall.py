"""Recall of the ideal memories: 1 in the construction, chance in a random model, and accuracy beside it."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probes.config import MemoryRecallProbeConfig
from probes.memory_recall import MemoryRecall
from tasks.bigram.config import SHAKESPEARE
from tasks.bigram.corpus import load_table
from tasks.bigram.task import BigramTask
from toytf.build import build_model, build_task
from toytf.config.plugins import load_config
from toytf.errors import UserError
from toytf.evaluation import role_metrics
from toytf.measurement import as_row
from toytf.models import Slot, ToyTransformer
from toytf.models.config import ModelConfig
from toytf.probe import ProbeResult
from toytf.randomness import generator

CONFIGS = Path(__file__).parents[2] / "configs"
N = 65


def setting(path: str, seed: int = 0, **overrides: Any) -> tuple[BigramTask, ToyTransformer]:
    config: Any = load_config(CONFIGS / path, {key.replace("__", "."): value for key, value in overrides.items()})
    task: Any = build_task(config.task, torch.device("cpu"))
    return task, build_model(config.model, task, seed)


@cache
def task_of(**fields: Any) -> BigramTask:
    return setting("quickstart.yaml", **{f"task__{key}": value for key, value in fields.items()})[0]


def recall(task: BigramTask, model: ToyTransformer, **fields: Any) -> ProbeResult:
    batch = task.sample(2, generator(0, "batch"))
    return MemoryRecall(MemoryRecallProbeConfig(kind="memory_recall", **fields))(model, task, batch)


def accuracy(task: BigramTask, model: ToyTransformer, role: str, n: int = 24) -> float:
    return as_row(role_metrics(model, task.sample(n, generator(0, "eval"))))[f"eval/{role}_accuracy"]


# The ideal construction (β = 10, 10, 1; T = 256)


@pytest.mark.parametrize("triggers", ["fixed", "random"])
def test_the_construction_recalls_everything_at_d_256(triggers: str):
    for seed in range(2):
        task, model = setting("bigram/ideal.yaml", seed, model__d_model=256, task__triggers=triggers)
        metrics = recall(task, model).metrics
        names = {f"recall/{name}" for name in ("W_KQ1", "W_KQ2", "W_OV2")}
        names |= {f"{name}_weighted" for name in names}
        names |= {f"recall/W_KQ1{view}" for view in ("_64", "/causal", "_64/causal")}
        assert set(metrics) == names
        assert metrics == dict.fromkeys(names, 1.0)


def test_the_construction_misses_a_position_or_two_at_d_128():
    task, model = setting("bigram/ideal.yaml", model__d_model=128)
    metrics = recall(task, model).metrics
    assert metrics["recall/W_KQ2"] == metrics["recall/W_OV2"] == 1
    assert metrics["recall/W_KQ1"] >= 0.99


@pytest.mark.parametrize("kq", ["joint", "factored"])
@pytest.mark.parametrize("ov", ["joint", "factored"])
def test_the_construction_can_be_written_into_joint_and_factored_matrices(kq: str, ov: str):
    task, model = setting("bigram/ideal.yaml", model__d_model=256, model__attention__kq=kq, model__attention__ov=ov)
    assert set(recall(task, model).metrics.values()) == {1.0}


def test_the_construction_solves_the_task_at_d_256():
    # Single seeds reach down to .94 on all sequences; where the first token is no trigger, .990 and more.
    for seed in range(2):
        task, model = setting("bigram/ideal.yaml", seed, model__d_model=256)
        assert accuracy(task, model, "in_context") >= 0.94
        assert accuracy(task, model, "clean_start") >= 0.96


def test_the_construction_solves_the_task_at_d_512():
    for seed in range(2):
        task, model = setting("bigram/ideal.yaml", seed)
        assert accuracy(task, model, "in_context", n=16) >= 0.97
        assert accuracy(task, model, "clean_start", n=16) >= 0.995


def test_the_construction_fails_at_inverse_temperature_one():
    for seed in range(2):
        task, model = setting(
            "bigram/ideal.yaml", seed, model__d_model=256, model__beta={"W_KQ1": 1, "W_KQ2": 1, "W_OV2": 1}
        )
        assert accuracy(task, model, "untrapped") < 0.3
        assert recall(task, model).metrics["recall/W_KQ1"] == 1  # recall does not depend on the scale of W


@pytest.mark.parametrize("layer", [0, 1])
def test_a_transposed_memory_is_caught(layer: int):
    task, model = setting("bigram/ideal.yaml", model__d_model=256)
    W_K = model.attention(layer).W_K
    W_K.data = W_K.data.mT.contiguous()
    assert accuracy(task, model, "untrapped") <= 0.27
    metrics = recall(task, model).metrics
    if layer == 0:
        assert metrics["recall/W_KQ1"] < 0.05  # p_t now recalls p_{t+1}
    else:
        assert metrics["recall/W_KQ2"] < 1  # five guesses among five are all right with probability 5^-5


# References


def test_a_random_model_is_near_chance():
    # 5 models with 65 or 63 pairs each: standard error √(p (1 − p) / 315) = .007, times 4.
    found = []
    for seed in range(5):
        task, model = setting("quickstart.yaml", seed, task__triggers="random")
        found.append(recall(task, model))
    for name, chance in {"W_KQ1": 1 / 63, "W_KQ2": 1 / 65, "W_OV2": 1 / 65}.items():
        assert found[0].references[f"recall/{name}"].chance == pytest.approx(chance)
        assert found[0].references[f"recall/{name}"].ideal == 1
        mean = np.mean([result.metrics[f"recall/{name}"] for result in found])
        assert mean == pytest.approx(chance, abs=0.028)


def test_chance_counts_the_candidates():
    task, model = setting("bigram/ideal.yaml", model__d_model=16, model__init="random", model__beta={})
    references = recall(task, model).references
    expected = {"W_KQ1": 1 / 255, "W_KQ1_64": 1 / 63, "W_KQ2": 1 / 5, "W_KQ2_weighted": 1 / 5, "W_OV2": 1 / 65}
    for name, chance in expected.items():
        assert references[f"recall/{name}"].chance == pytest.approx(chance)
    causal = (sum(1 / t for t in range(2, 256)) + 1 / 255) / 255
    assert references["recall/W_KQ1/causal"].chance == pytest.approx(causal)


def test_recall_is_the_argmax_of_the_definition():
    """mean_k 1{argmax_j u_jᵀ W_OV2 e_k = k}, e_kᵀ W_KQ2 W_OV1 e_j over triggers, p_tᵀ W_KQ1 p_s over s ≤ T − 1."""
    task, model = setting("quickstart.yaml", model__d_model=16)
    e, p, u = model.embed.W_E, model.pos_embed.W_pos, model.unembed.W_U.T
    W_OV1, W_OV2, W_KQ1, W_KQ2 = model.W_OV(0)[0], model.W_OV(1)[0], model.W_KQ(0)[0], model.W_KQ(1)[0]
    with torch.no_grad():
        answers = {
            "W_OV2": ((e @ W_OV2 @ u.T).argmax(1), torch.arange(65)),
            "W_KQ2": ((e[:5] @ W_KQ2 @ (e[:5] @ W_OV1).T).argmax(1), torch.arange(5)),
            "W_KQ1": ((p[1:] @ W_KQ1 @ p[:-1].T).argmax(1), torch.arange(63)),
        }
    metrics = recall(task, model).metrics
    for name, (answer, right) in answers.items():
        assert metrics[f"recall/{name}"] == pytest.approx(float((answer == right).float().mean()))


def test_several_heads_are_measured_one_by_one_and_summed():
    task, model = setting("quickstart.yaml", model__d_model=64, model__attention__n_heads=2)
    with torch.no_grad():
        # The second head of layer 2 holds the best copy e_k → u_k of its rank, the first nothing.
        U, S, Vh = torch.linalg.svd(torch.linalg.lstsq(model.embed.W_E, model.unembed.W_U.T).solution)
        model.attention(1).W_V[1].copy_(U[:, :32])
        model.attention(1).W_O[1].copy_(S[:32, None] * Vh[:32])
        model.attention(1).W_O[0].zero_()
        answers = (model.embed.W_E @ (U[:, :32] * S[:32]) @ Vh[:32] @ model.unembed.W_U).argmax(1)
    expected = float((answers == torch.arange(N)).float().mean())
    metrics = recall(task, model).metrics
    for name in ("W_KQ1", "W_KQ2", "W_OV2"):
        assert {f"recall/{name}", f"recall/{name}/head0", f"recall/{name}/head1"} <= set(metrics)
    assert metrics["recall/W_OV2/head0"] == 0  # all scores tie
    assert metrics["recall/W_OV2/head1"] == metrics["recall/W_OV2"] == pytest.approx(expected)
    assert "recall/W_OV2_weighted/head1" in metrics
    assert "recall/W_OV2/head0" not in recall(*setting("quickstart.yaml", model__d_model=64)).metrics


def test_what_is_in_a_name_can_be_told_apart():
    task, model = setting("quickstart.yaml", model__d_model=16, task__seq_len=80, model__attention__n_heads=2)
    found = {measured.flat: measured.quantity for measured in recall(task, model).measurements}
    assert dict(found["recall/W_KQ1_64/causal"].at) == {"memory": "W_KQ1", "view": "64", "criterion": "causal"}
    assert dict(found["recall/W_OV2_weighted/head1"].at) == {"memory": "W_OV2", "head": 1, "weighted": True}
    variants = {name for name, quantity in found.items() if quantity.is_variant}
    assert variants == {name for name in found if name.count("/") == 2}


def test_a_one_layer_model_has_only_the_first_memory():
    task, model = setting("bigram/one_layer.yaml", model__d_model=16)
    assert {name.split("/")[1][:5] for name in recall(task, model).metrics} == {"W_KQ1"}


# Names


def one_hot_model(task: BigramTask, **fields: Any) -> ToyTransformer:
    config = ModelConfig.model_validate(
        {"d_model": N, "embedding": "one_hot", "unembedding": "one_hot", "position": "none", **fields}
    )
    return ToyTransformer(config, n_tokens=N, n_positions=task.n_positions, n_outputs=N, generator=generator(0))


def test_failures_name_the_pairs_that_fail():
    task = task_of()
    model = one_hot_model(task, attention={"ov": "joint"})
    swapped = torch.eye(N)
    swapped[[1, 2]] = swapped[[2, 1]]  # e answers t and t answers e
    model.write(Slot("OV", 1), swapped)
    result = recall(task, model)
    assert result.metrics["recall/W_OV2"] == pytest.approx(63 / 65)
    assert sorted(result.failures["recall/W_OV2"]) == ["e → t, should be e", "t → e, should be t"]
    assert len(recall(task, model, failures=1).failures["recall/W_OV2"]) == 1


# The bigram table in the feed-forward part


def chance_divergence(rows: np.ndarray) -> float:
    """mean_i KL(π_b(·|i) ‖ uniform) = ln 65 − mean_i H(π_b(·|i))."""
    entropy = -(rows * np.log(np.where(rows > 0, rows, 1))).sum(1)
    return math.log(N) - float(entropy.mean())


@pytest.mark.parametrize(("triggers", "first"), [("fixed", 5), ("random", 0)])
@pytest.mark.parametrize("kind", ["linear", "relu"])
def test_a_silent_feed_forward_part_is_at_chance(kind: str, triggers: str, first: int):
    task = task_of(triggers=triggers)
    model = one_hot_model(task, feed_forward={"kind": kind, "init": "zeros"})
    result = recall(task, model)
    expected = chance_divergence(load_table(SHAKESPEARE, 65).bigram[first:])
    assert result.metrics["kl/FF2"] == pytest.approx(expected, abs=1e-4)
    assert result.references["kl/FF2"].chance == pytest.approx(expected, abs=1e-4)
    assert result.references["kl/FF2"].ideal == 0
    assert result.metrics["recall/FF2"] == 0


def test_a_feed_forward_part_that_stores_log_bigrams_has_no_divergence():
    task = task_of()
    model = one_hot_model(task, feed_forward={"kind": "linear"})
    table = load_table(SHAKESPEARE, 65)
    log_p = np.log(np.maximum(table.bigram, 1e-30))
    model.write(Slot("FF", 1), torch.tensor(log_p, dtype=torch.float32))
    result = recall(task, model)
    assert result.metrics["kl/FF2"] == pytest.approx(0, abs=1e-5)
    # A row whose two likeliest successors tie has no one answer to recall.
    best_two = np.sort(table.counts[5:], axis=1)[:, -2:]
    assert result.metrics["recall/FF2"] == pytest.approx(float((best_two[:, 0] < best_two[:, 1]).mean()))


def test_the_probe_changes_nothing():
    task, model = setting("quickstart.yaml", model__d_model=16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    recall(task, model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model.n_layers": 1}, "no room for W_KQ2, W_OV2"),
        ({"model.position": "none"}, "no room for W_KQ1"),
        ({"model.attention.residual": False}, "residual"),
        ({"model.norm": "layer"}, "norm"),
        ({"model.beta": {"W_KQ3": 2}}, 'did you mean "W_KQ'),
        ({"model.ideal_memories": ["W_KQ3"]}, 'ideal_memories: no memory of task bigram is called "W_KQ3": did you'),
        ({"model.ideal_memories": ["W_OV2"], "model.n_layers": 1}, "no room for W_OV2 of"),
    ],
)
def test_an_ideal_that_would_not_solve_the_task_is_refused(overrides: dict[str, Any], message: str):
    config: Any = load_config("configs/bigram/ideal.yaml", {"model.d_model": 16, **overrides})
    task = build_task(config.task, torch.device("cpu"))
    with pytest.raises(UserError, match=message):
        build_model(config.model, task, 0)
