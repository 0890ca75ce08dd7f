"""One head or feed-forward part taken out: as TransformerLens does it, and where it is known what is lost."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import probes.ablation
from probes.ablation import Component, components, hooked_accuracy, mean_activations
from tasks.bigram.config import BigramConfig
from tasks.bigram.task import BigramTask
from toytf.build import build_model, build_probe, build_task
from toytf.config.plugins import load_config, plugins
from toytf.errors import UserError
from toytf.evaluation import goal_metrics, role_metrics
from toytf.experiments.train.config import TrainExperimentConfig
from toytf.measurement import as_row
from toytf.models import HookedToyTransformer, ToyTransformer
from toytf.models.config import ModelConfig
from toytf.probe import ProbeResult
from toytf.randomness import generator
from toytf.report.headlines import headline_of
from toytf.task import Batch, Task

CONFIGS = Path(__file__).parents[2] / "configs"
TRAININGS = {
    f"{path.parent.name}/{path.stem}": config
    for path in [
        CONFIGS / "quickstart.yaml",
        *sorted(CONFIGS.glob("bigram/*.yaml")),
        *sorted(CONFIGS.glob("factual/*")),
    ]
    if path.suffix == ".yaml" and isinstance(config := load_config(path), TrainExperimentConfig)
}
D, T, N = 12, 16, 8


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def task() -> BigramTask:
    config = BigramConfig(kind="bigram", seq_len=T, n_tokens=N, n_triggers=3)
    return BigramTask(config, torch.device("cpu"))


@pytest.fixture(scope="module")
def batch(task: BigramTask) -> Batch:
    return task.sample(24, generator(0, "batch"))


def make_model(**fields: Any) -> ToyTransformer:
    """Weights are large, so that every component matters, and double: only a wrong equation differs by 1e-9."""
    config = ModelConfig.model_validate({"d_model": D, "feed_forward": {"kind": "relu"}, **fields})
    model = ToyTransformer(config, n_tokens=N, n_positions=T, n_outputs=N, generator=generator(0, "model"))
    for name, W in model.named_parameters():
        W.mul_(3 if name.startswith("blocks") else 1)
    return model.double()


MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "joint": ({"attention": {"kq": "joint", "ov": "joint", "n_heads": 2}}, "L0H0 L0H1 FF1 L1H0 L1H1 FF2"),
    "heads": ({"n_layers": 1, "attention": {"n_heads": 3, "d_head": 2}}, "L0H0 L0H1 L0H2 FF1"),
    "layer_norm": ({"norm": "layer", "attention": {"n_heads": 2}}, "L0H0 L0H1 FF1 L1H0 L1H1 FF2"),
    "linear_attention": ({"attention": {"kind": "linear"}, "n_layers": 3}, "L0H0 FF1 L1H0 FF2 L2H0 FF3"),
    "no_residual": ({"attention": {"residual": False}, "feed_forward": {"kind": "linear", "residual": False}},
                    "L0H0 FF1 L1H0 FF2"),
    "parallel": ({"feed_forward": {"kind": "relu", "bias": True, "reads": "block_input"}}, "L0H0 FF1 L1H0 FF2"),
    "last_layer": ({"feed_forward": {"kind": "linear", "layers": [1]}}, "L0H0 L1H0 FF2"),
    "attention_only": ({"feed_forward": {"kind": "none"}}, "L0H0 L1H0"),
}  # fmt: skip
"""Config, and what can be taken out."""


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> ToyTransformer:
    return make_model(**MODELS[request.param][0])


def probe(task: Task, model: ToyTransformer, batch: Batch, **fields: Any) -> ProbeResult:
    found = build_probe(plugins("probes")["ablation"](kind="ablation", **fields))
    found.check(model, task)
    return found(model, task, batch)


def ablated(task: Task, model: ToyTransformer, batch: Batch) -> dict[str, float]:
    """The metrics without their group, on all of the batch."""
    metrics = probe(task, model, batch, sequences=len(batch.tokens)).metrics
    return {name.removeprefix("ablated/"): value for name, value in metrics.items()}


def instead(component: Component, model: ToyTransformer, batch: Batch, ablation: str) -> Tensor:
    mean = mean_activations(model, batch)[component.activation]
    return mean if ablation == "mean" else torch.zeros_like(mean)


# What is taken out


@pytest.mark.parametrize("name", MODELS)
def test_every_head_and_feed_forward_part_is_taken_out_in_both_ways(name: str, task: BigramTask, batch: Batch):
    fields, expected = MODELS[name]
    found = ablated(task, make_model(**fields), batch)
    assert list(found) == ["none", *(one + way for one in expected.split() for way in ("", "/zero"))]


@pytest.mark.parametrize("ablation", ["mean", "zero"])
def test_logits_and_accuracy_are_those_of_hooks_in_TransformerLens(
    ablation: str, model: ToyTransformer, task: BigramTask, batch: Batch
):
    lens, found = HookedToyTransformer(model), ablated(task, model, batch)
    goal = batch.roles[task.goal]
    for component in components(model):
        layer, head = int(component.activation.split(".")[1]), component.head

        def by_hand(value: Tensor, hook: object, head: int | None = head) -> Tensor:
            value = value.clone()
            own = value if head is None else value[:, :, head]
            own.copy_(own.mean(0, keepdim=True).expand_as(own) if ablation == "mean" else torch.zeros_like(own))
            return value

        part = "hook_mlp_out" if head is None else "attn.hook_z"
        expected = lens.run_with_hooks(batch.tokens, fwd_hooks=[(f"blocks.{layer}.{part}", by_hand)])
        logits = model(batch.tokens, component.replaced(instead(component, model, batch, ablation)))
        torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
        assert not torch.allclose(logits, model(batch.tokens), atol=1e-2), component.name
        at = batch.targets[..., None]
        ahead = expected.gather(-1, at) > expected.scatter(-1, at, -torch.inf).amax(-1, keepdim=True)  # no tie
        right = float(ahead[..., 0][goal].float().mean())
        assert found[component.name + ("/zero" if ablation == "zero" else "")] == pytest.approx(right)


def test_nothing_taken_out_is_the_accuracy_at_the_goal(model: ToyTransformer, task: BigramTask, batch: Batch):
    none = ablated(task, model, batch)["none"]
    assert none == hooked_accuracy(model, task, batch, lambda name, value: value).value
    assert none == pytest.approx(goal_metrics(model, task, batch)["accuracy"])


def test_a_removed_part_is_one_without_weights(task: BigramTask, batch: Batch):
    """With one head, z = 0 is W_OV = 0: the probe truncation removes the same parts, from a copy of the model."""
    model = make_model()
    truncation = build_probe(plugins("probes")["truncation"](kind="truncation", fractions=[0]))(model, task, batch)
    found = ablated(task, model, batch)
    for layer in (0, 1):
        for part, component in (("attn.W_OV", f"L{layer}H0"), ("mlp.W_out", f"FF{layer + 1}")):
            expected = truncation.metrics[f"truncated/blocks.{layer}.{part}_rho0"]
            assert found[f"{component}/zero"] == pytest.approx(expected)


# The mean


def test_a_part_that_says_the_same_in_every_sequence_is_not_missed_at_its_mean(task: BigramTask, batch: Batch):
    """relu(0 x + b) W_out is a constant, which the model may need; only at 0 it is gone."""
    model = make_model(feed_forward={"kind": "relu", "bias": True})
    part = model.feed_forward(0)
    part.W_in.zero_()
    part.b_in.fill_(1.0)
    constant = next(one for one in components(model) if one.name == "FF1")
    whole = model(batch.tokens)
    logits = model(batch.tokens, constant.replaced(instead(constant, model, batch, "mean")))
    torch.testing.assert_close(logits, whole, rtol=1e-9, atol=1e-9)
    found = ablated(task, model, batch)
    assert found["FF1"] == found["none"]
    silent = model(batch.tokens, constant.replaced(instead(constant, model, batch, "zero")))
    assert not torch.allclose(silent, whole, atol=0.1)


def test_copies_of_one_sequence_lose_nothing_at_the_mean(model: ToyTransformer, task: BigramTask, batch: Batch):
    one = next(i for i in range(24) if batch.roles[task.goal][i].any())
    same = [one] * 4  # a power of two: the mean of equal numbers is that number
    roles, latents = ({name: value[same] for name, value in named.items()} for named in (batch.roles, batch.latents))
    found = ablated(task, model, Batch(batch.tokens[same], batch.targets[same], roles, latents))
    assert {found[name] for name in found if not name.endswith("/zero")} == {found["none"]}


def test_a_head_that_writes_nothing_is_not_missed(task: BigramTask, batch: Batch):
    model = make_model(attention={"n_heads": 3})
    model.attention(1).W_O[2].zero_()
    found = ablated(task, model, batch)
    assert found["L1H2"] == found["L1H2/zero"] == found["none"]


@pytest.mark.parametrize("last", [T, 1])
def test_the_mean_is_over_all_sequences_however_they_are_cut(
    last: int, model: ToyTransformer, batch: Batch, monkeypatch: pytest.MonkeyPatch
):
    """At the positions that are asked in the last layer, and at all of them before."""
    asked = Batch(batch.tokens, batch.targets[:, -last:], {"all": batch.roles["in_context"][:, -last:]})
    monkeypatch.setattr(probes.ablation, "chunk_size", lambda model, last: 7)  # 7 + 7 + 7 + 3
    means, final = mean_activations(model, asked), model.config.n_layers - 1
    _, seen = model.observe(batch.tokens, *means)
    for name, value in seen.items():
        expected = value.mean(0)[-last:] if name.startswith(f"blocks.{final}.") else value.mean(0)
        torch.testing.assert_close(means[name], expected, rtol=1e-9, atol=1e-9)


# Where it is known what is lost


def test_an_ideal_induction_head_needs_both_of_its_heads():
    """Without layer 1, layer 2 finds no key and copies tokens of the past at random, at best the most frequent ones.

    Without layer 2 there is only crosstalk between tokens and outputs: chance, 1/65.
    """
    config: Any = load_config(CONFIGS / "bigram" / "ideal.yaml", {"model.d_model": 256, "task.seq_len": 64})
    task = build_task(config.task, torch.device("cpu"))
    batch = task.sample(128, generator(0, "batch"))
    found = ablated(task, build_model(config.model, task, 0), batch)
    goal = batch.roles["in_context"]
    seen = torch.nn.functional.one_hot(batch.tokens, 65).cumsum(1)
    times = seen.gather(-1, batch.targets[..., None])[..., 0]
    at_random, most_frequent = (
        float(right[goal].float().mean()) for right in (times / seen.sum(-1), times == seen.amax(-1))
    )
    assert found["none"] > 0.9
    assert at_random == pytest.approx(0.26, abs=0.01)
    for way in ("", "/zero"):
        # Attention is not quite uniform, by crosstalk, which moves the accuracy by a few hundredths.
        assert at_random - 0.04 < found[f"L0H0{way}"] < most_frequent
        assert found[f"L1H0{way}"] < 1 / 65 + 0.03


@pytest.mark.parametrize("construction", ["ideal", "ideal_attention"])
def test_each_head_of_an_ideal_factual_model_is_needed_by_the_facts_of_its_tokens(construction: str):
    """Head h owns a group of subjects or relations: facts about others stay, and of its own only guesses are left."""
    config: Any = load_config(CONFIGS / "factual" / f"{construction}.yaml")
    task = build_task(config.task, torch.device("cpu"))
    model = build_model(config.model, task, 0)
    batch = task.sample(256, generator(0, "batch"))
    assert batch.last == 1
    found = ablated(task, model, batch)
    pattern = model.observe(batch.tokens, "blocks.0.attn.hook_pattern", last=1)[1]["blocks.0.attn.hook_pattern"]
    active = pattern[:, :, 0, -1] < 0.5  # a head at rest attends to the end token
    assert found["none"] == 1
    for head, share in enumerate(active.float().mean(0).tolist()):
        assert 1 - share <= found[f"L0H{head}/zero"] < 1 - share / 2
        assert found[f"L0H{head}"] < 1 - share / 4
    assert ("FF1" in found) == (construction == "ideal")
    if "FF1" in found:  # the pairs are nowhere else; chance is 1/128
        assert found["FF1"] < 0.05
        assert found["FF1/zero"] < 0.05


# The probe


@pytest.mark.parametrize("name", TRAININGS)
def test_every_training_that_ships_can_be_asked(name: str):
    task = build_task(TRAININGS[name].task, torch.device("cpu"))
    small = {"d_model": 16, "init": "random", "beta": {}}
    model = build_model(TRAININGS[name].model.model_copy(update=small), task, 0)
    result = probe(task, model, task.sample(16, generator(0, "batch")))
    assert len(result.metrics) == 1 + 2 * len(components(model)) > 2
    assert all(0 <= value <= 1 for value in result.metrics.values())


def test_only_the_first_sequences_are_used(task: BigramTask, batch: Batch):
    model = make_model()
    assert probe(task, model, batch, sequences=9).metrics == probe(task, model, batch.part(0, 9)).metrics
    assert probe(task, model, batch, sequences=9).metrics != probe(task, model, batch).metrics


def test_none_is_what_the_evaluation_says(task: BigramTask, batch: Batch):
    model = make_model()
    evaluated = as_row(role_metrics(model, batch, task=task))["eval/in_context_accuracy"]
    assert probe(task, model, batch).metrics["ablated/none"] == evaluated


def test_values_are_read_against_the_accuracy_at_the_goal(task: BigramTask, batch: Batch):
    none, *others = probe(task, make_model(), batch).measurements
    assert none.reference == task.references()["in_context", "accuracy"]
    assert {one.reference for one in others} == {replace(none.reference, ideal=None)}  # nobody knows their best


def test_an_ablation_is_a_component_and_a_way(task: BigramTask, batch: Batch):
    none, mean, zero = probe(task, make_model(), batch).measurements[:3]
    assert dict(none.quantity.at) == {}
    assert dict(mean.quantity.at) == {"ablation": "mean", "component": "L0H0"}
    assert dict(zero.quantity.at) == {"ablation": "zero", "component": "L0H0"}
    assert (none.flat, mean.flat, zero.flat) == ("ablated/none", "ablated/L0H0", "ablated/L0H0/zero")
    assert [one.quantity.is_variant for one in (none, mean, zero)] == [False, False, True]
    assert [headline_of(one.quantity) is None for one in (none, mean, zero)] == [True, False, True]


def test_nothing_is_measured_without_scores_or_after_divergence(task: BigramTask, batch: Batch):
    broken = make_model()
    broken.feed_forward(1).W_out.fill_(torch.nan)
    assert not probe(task, broken, batch).metrics
    fields = {"seq_len": 2, "n_tokens": N, "n_triggers": 1, "no_repeat": True}
    empty = BigramTask(BigramConfig.model_validate({"kind": "bigram", **fields}), task.device)
    assert not probe(empty, make_model(), empty.sample(8, generator(0, "batch"))).metrics


def test_a_goal_that_is_no_role_is_refused(task: BigramTask, batch: Batch, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task, "goal", "in_contxt")
    with pytest.raises(UserError, match='its goal "in_contxt" is not one of its roles: did you mean "in_context"'):
        probe(task, make_model(), batch)
