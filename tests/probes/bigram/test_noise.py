"""Noise token or context: the definitions one position at a time."""

from typing import Any

import pytest
import torch

from probes.bigram.config import NoiseProbeConfig
from probes.bigram.noise import Noise
from tasks.bigram.config import BigramConfig
from tasks.bigram.task import BigramTask
from toytf.config.plugins import load_config
from toytf.errors import UserError
from toytf.memory import hebbian
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.models.transformer import Slot
from toytf.probe import ProbeResult
from toytf.randomness import generator
from toytf.task import Batch

B, T = 8, 24


def make_task(**fields: Any) -> BigramTask:
    small = {"seq_len": T, "n_tokens": 8, "n_triggers": 3, "noise": {"probability": 0.4, "token": "extra"}}
    return BigramTask(BigramConfig.model_validate({"kind": "bigram", **small, **fields}), torch.device("cpu"))


def make_model(task: BigramTask, **fields: Any) -> ToyTransformer:
    config = ModelConfig.model_validate({"d_model": 16, "feed_forward": {"kind": "relu"}, **fields})
    n = len(task.token_names)
    model = ToyTransformer(config, n_tokens=n, n_positions=T, n_outputs=n, generator=generator(0, "model"))
    with torch.no_grad():  # attention and predictions that are far from uniform
        for layer in range(config.n_layers):
            model.attention(layer).W_K.mul_(3)
        model.unembed.W_U.mul_(3)
    return model


def probe(model: ToyTransformer, task: BigramTask, batch: Batch) -> ProbeResult:
    return Noise(NoiseProbeConfig(kind="noise"))(model, task, batch)


def by_the_definitions(
    model: ToyTransformer, task: BigramTask, batch: Batch
) -> tuple[dict[str, float], dict[str, float]]:
    """Every metric but the margin, and what a uniform guess or uniform attention gets, one position at a time."""
    tau = task.noise[1]
    counter = batch.latents["counter"].tolist()
    values: dict[str, list[float]] = {}
    chance: dict[str, list[float]] = {}
    with torch.no_grad():
        logits, seen = model.observe(batch.tokens, "blocks.1.attn.hook_pattern")
    patterns = seen.get("blocks.1.attn.hook_pattern")

    def note(name: str, value: float, by_chance: float) -> None:
        values.setdefault(f"noise/{name}", []).append(value)
        chance.setdefault(f"noise/{name}", []).append(by_chance)

    for b, (z, y) in enumerate(zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True)):
        for t in range(T):
            if counter[b][t] < 2:
                continue
            p, guess = logits[b, t].softmax(0).tolist(), 1 / len(task.token_names)
            said_noise = float(max(range(len(p)), key=p.__getitem__) == tau)
            note("p_noise", p[tau], guess)
            note("p_correct", p[y[t]], guess)
            note("predicted_noise", said_noise, guess)
            note("predicted_noise/" + ("noise" if y[t] == tau else "output"), said_noise, guess)
            if patterns is None:
                continue
            row = patterns[b, :, t].mean(0).tolist()
            # A trigger that is only shown in front (counter −1) is no occurrence.
            after = [s for s in range(1, t + 1) if z[s - 1] == z[t] and counter[b][s - 1] >= 0]
            for name, is_noise in (("attention_output", False), ("attention_noise", True)):
                where = [s for s in after if (z[s] == tau) == is_noise]
                note(name, sum(row[s] for s in where), len(where) / (t + 1))
    means = [{name: sum(v) / len(v) for name, v in found.items()} for found in (values, chance)]
    return means[0], means[1]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "two_heads": ({}, {"attention": {"n_heads": 2}}),
    "random_shown": ({"triggers": "random", "show_latents": True}, {}),
    "character": ({"n_tokens": 65, "noise": {"probability": 0.6, "token": "!"}}, {}),
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def measured(request: pytest.FixtureRequest) -> tuple[ToyTransformer, BigramTask, Batch, ProbeResult]:
    task_fields, model_fields = request.param
    task = make_task(**task_fields)
    model, batch = make_model(task, **model_fields), task.sample(B, generator(0, "batch"))
    return model, task, batch, probe(model, task, batch)


def test_metrics_are_those_of_the_definitions(measured: Any):
    model, task, batch, result = measured
    expected, _ = by_the_definitions(model, task, batch)
    assert len(expected) == 7  # every case has noise and outputs to be told apart
    found = {name: value for name, value in result.metrics.items() if name != "noise_margin/FF2"}
    assert found == pytest.approx(expected, abs=1e-5)


def test_chance_is_a_uniform_guess_or_uniform_attention(measured: Any):
    model, task, batch, result = measured
    _, chance = by_the_definitions(model, task, batch)
    found = {name: reference.chance for name, reference in result.references.items()}
    assert found.pop("noise_margin/FF2") is None
    assert found == pytest.approx(chance, abs=1e-6)


def test_the_margin_is_that_of_the_feed_forward_part_at_the_triggers(measured: Any):
    """mean_q [u_τᵀ F(e_q) − max_{y ≠ τ} u_yᵀ F(e_q)], q the triggers, or all that can be one."""
    model, task, _, result = measured
    tau, margins = task.noise[1], []
    triggers = range(3) if task.config.triggers == "fixed" else range(task.config.n_tokens)
    for q in triggers:
        e = model.embed.W_E[q]
        hidden = (e @ model.feed_forward(1).W_in).relu()
        scores = (hidden @ model.feed_forward(1).W_out @ model.unembed.W_U).tolist()
        margins.append(scores[tau] - max(score for y, score in enumerate(scores) if y != tau))
    assert result.metrics["noise_margin/FF2"] == pytest.approx(sum(margins) / len(margins), abs=1e-4)


def test_a_written_memory_of_the_noise_has_its_margin():
    """F(e) = β Σ_q u_τ e_qᵀ e with orthonormal vectors: u_τ scores β, every other 0."""
    task = make_task()
    model = make_model(task, feed_forward={"kind": "linear"}, embedding="orthonormal", unembedding="orthonormal")
    with torch.no_grad():
        model.unembed.W_U.div_(3)
    memory = task.memories(model)["FF2_noise"]
    model.write(Slot("FF", 1), 2.5 * hebbian(memory.association).T)
    assert (memory.association.recall(lambda keys: model.read(memory.slot, keys))) == 1
    result = probe(model, task, task.sample(B, generator(0, "batch")))
    assert result.metrics["noise_margin/FF2"] == pytest.approx(2.5, abs=1e-5)
    model.write(Slot("FF", 1), torch.zeros(16, 16))
    silent = probe(model, task, task.sample(B, generator(0, "batch")))
    assert silent.metrics["noise_margin/FF2"] == pytest.approx(0, abs=1e-6)


PREDICTIONS = {f"noise/{name}" for name in ("p_noise", "p_correct", "predicted_noise")}
PREDICTIONS |= {"noise/predicted_noise/noise", "noise/predicted_noise/output"}
ATTENTION = {"noise/attention_output", "noise/attention_noise"}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, PREDICTIONS | ATTENTION | {"noise_margin/FF2"}),
        ({"feed_forward": {"kind": "none"}}, PREDICTIONS | ATTENTION),
        ({"feed_forward": {"kind": "relu", "layers": [0]}}, PREDICTIONS | ATTENTION),
        ({"n_layers": 1}, PREDICTIONS),
    ],
)
def test_a_model_is_asked_for_what_it_has(fields: dict[str, Any], names: set[str]):
    task = make_task()
    result = probe(make_model(task, **fields), task, task.sample(B, generator(0, "batch")))
    assert set(result.metrics) == names


def test_only_the_margin_is_left_where_nothing_is_scored():
    task = make_task(seq_len=2, n_tokens=65, n_triggers=1, no_repeat=True)
    batch = task.sample(4, generator(0, "batch"))
    assert not batch.roles["in_context"].any()
    assert set(probe(make_model(task), task, batch).metrics) == {"noise_margin/FF2"}


def test_nothing_is_followed_by_noise_without_noise():
    task = make_task(noise={"probability": 0.0, "token": "extra"})
    result = probe(make_model(task), task, task.sample(B, generator(0, "batch")))
    assert result.metrics["noise/attention_noise"] == 0
    assert "noise/predicted_noise/noise" not in result.metrics
    assert result.metrics["noise/predicted_noise/output"] == result.metrics["noise/predicted_noise"]


def test_a_task_without_noise_is_refused_in_one_line():
    with pytest.raises(UserError) as caught:
        load_config({"experiment": "train", "task": {"kind": "bigram"}, "probes": ["noise"]})
    assert str(caught.value).endswith('probe "noise" needs a task with noise, such as task.noise.probability = 0.5')
    assert len(str(caught.value).splitlines()) == 1
