"""Where the layers attend: the definitions one position at a time, and the ideal construction."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from probes.bigram.attention import AttentionProbe
from probes.bigram.config import AttentionProbeConfig
from tasks.bigram.config import BigramConfig
from tasks.bigram.task import BigramTask
from toytf.build import build_model, build_task
from toytf.config.plugins import load_config
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.probe import ProbeResult
from toytf.randomness import generator
from toytf.task import Batch

CONFIGS = Path(__file__).parents[3] / "configs"
B, T, N = 6, 20, 8


def probe(model: ToyTransformer, task: BigramTask, batch: Batch) -> ProbeResult:
    return AttentionProbe(AttentionProbeConfig(kind="attention"))(model, task, batch)


def small_task(**fields: Any) -> BigramTask:
    config = BigramConfig(kind="bigram", **{"seq_len": T, "n_tokens": N, "n_triggers": 3, **fields})
    return BigramTask(config, torch.device("cpu"))


class Scripted(ToyTransformer):
    """A model whose attention patterns and logits are given, to test the probe alone."""

    def __init__(self, patterns: list[torch.Tensor], logits: torch.Tensor) -> None:
        config = ModelConfig(d_model=4, n_layers=len(patterns))
        super().__init__(config, n_tokens=N, n_positions=T, n_outputs=N, generator=generator(0))
        self.script = {f"blocks.{layer}.attn.hook_pattern": pattern for layer, pattern in enumerate(patterns)}
        self.given_logits = logits

    def observe(self, tokens: torch.Tensor, *names: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return self.given_logits, {name: self.script[name] for name in names}


def random_pattern(seed: int, n_heads: int = 1, heat: float = 3.0) -> torch.Tensor:
    scores = heat * torch.randn(B, n_heads, T, T, generator=generator(seed, "pattern"))
    return scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)


def by_the_definitions(
    batch: Batch, patterns: list[torch.Tensor], logits: torch.Tensor
) -> tuple[dict[str, float], dict[str, float]]:
    """Every metric, and what uniform attention over the past would get, one position at a time (from 0)."""
    right: dict[str, list[float]] = defaultdict(list)
    chance: dict[str, list[float]] = defaultdict(list)

    def note(name: str, is_right: bool, by_chance: float) -> None:
        right[name].append(float(is_right))
        chance[name].append(by_chance)

    counter, y = batch.latents["counter"].tolist(), batch.targets.tolist()
    for b, z in enumerate(batch.tokens.tolist()):
        a = [pattern[b].mean(0).tolist() for pattern in patterns]
        attended = [[max(range(t + 1), key=rows[t].__getitem__) for t in range(T)] for rows in a]
        for i in range(T - 1):
            right["previous_token_mass"].append(a[0][i + 1][i])
            chance["previous_token_mass"].append(1 / (i + 2))
            if counter[b][i] >= 1:
                note("previous_token", attended[0][i + 1] == i, 1 / (i + 2))
            if counter[b][i] == 1:
                note("previous_token_first", attended[0][i + 1] == i, 1 / (i + 2))
        if len(patterns) == 1:
            continue
        for i in range(T):
            if counter[b][i] < 2:
                continue
            j, predicted, past = attended[1][i], int(logits[b, i].argmax()), range(i + 1)
            for suffix in ("", "/repeat") if z[i] == y[b][i] else ("",):
                note(
                    f"induction{suffix}",
                    j > 0
                    and counter[b][j - 1] >= 0
                    and z[j - 1] == z[i],  # a trigger that is only shown is no occurrence
                    sum(s > 0 and counter[b][s - 1] >= 0 and z[s - 1] == z[i] for s in past) / (i + 1),
                )
                note(f"attends_to_output{suffix}", z[j] == y[b][i], sum(z[s] == y[b][i] for s in past) / (i + 1))
                right[f"predicts_attended{suffix}"].append(z[j] == predicted)
                if j > 0:  # layer 1 at the attended position j has j + 1 positions to choose from
                    note(f"uses_previous_token{suffix}", attended[0][j] == j - 1, 1 / (j + 1))
    means = [{f"attention/{name}": sum(v) / len(v) for name, v in found.items()} for found in (right, chance)]
    return means[0], means[1]


@pytest.fixture(params=[1, 2], ids=["one_head", "two_heads"])
def scripted(request: pytest.FixtureRequest) -> tuple[Batch, list[torch.Tensor], torch.Tensor, ProbeResult]:
    task = small_task()
    batch = task.sample(B, generator(0, "batch"))
    patterns = [random_pattern(layer, request.param) for layer in range(2)]
    logits = torch.randn(B, T, N, generator=generator(0, "logits"))
    return batch, patterns, logits, probe(Scripted(patterns, logits), task, batch)


def test_metrics_are_those_of_the_definitions(scripted: Any):
    batch, patterns, logits, result = scripted
    expected, _ = by_the_definitions(batch, patterns, logits)
    assert (batch.tokens == batch.targets)[
        batch.roles["in_context"]
    ].any()  # the repeat variants are there to be tested
    assert dict(result.metrics) == pytest.approx(expected, abs=1e-6)


NAMES = [
    f"attention/{name}"
    for name in (
        "previous_token",
        "previous_token_first",
        "previous_token_mass",
        "induction",
        "induction/repeat",
        "attends_to_output",
        "attends_to_output/repeat",
        "predicts_attended",
        "predicts_attended/repeat",
        "uses_previous_token",
        "uses_previous_token/repeat",
    )
]


def test_every_metric_has_an_ideal_of_one(scripted: Any):
    *_, result = scripted
    assert set(result.metrics) == set(result.references) == set(NAMES)
    assert all(reference.ideal == 1 for reference in result.references.values())


def test_predictions_of_the_model_itself_have_no_chance_value(scripted: Any):
    *_, result = scripted
    without = {name for name, reference in result.references.items() if reference.chance is None}
    assert without == {"attention/predicts_attended", "attention/predicts_attended/repeat"}


@pytest.mark.parametrize("name", [name for name in NAMES if "predicts_attended" not in name])
def test_chance_is_what_uniform_attention_gets(scripted: Any, name: str):
    batch, patterns, logits, result = scripted
    _, chance = by_the_definitions(batch, patterns, logits)
    assert result.references[name].chance == pytest.approx(chance[name], abs=1e-6)


def test_a_perfect_induction_head_by_hand_has_every_metric_at_one():
    """Layer 1 looks one back; layer 2 looks at what followed the same trigger first; the prediction is what it saw."""
    task = small_task()
    batch = task.sample(B, generator(1, "batch"))
    first, second = torch.zeros(B, 1, T, T), torch.zeros(B, 1, T, T)
    logits = torch.zeros(B, T, N)
    first[:, :, 0, 0] = 1
    for t in range(1, T):
        first[:, :, t, t - 1] = 1
    for b, z in enumerate(batch.tokens.tolist()):
        for t in range(T):
            seen = z.index(z[t]) + 1
            second[b, 0, t, min(seen, t)] = 1
            logits[b, t, z[min(seen, t)]] = 1
    result = probe(Scripted([first, second], logits), task, batch)
    assert dict(result.metrics) == dict.fromkeys(result.metrics, 1.0)


def test_attention_to_the_first_position_is_no_induction():
    """Nothing stands before the first position, whatever token number 0 may be."""
    task = small_task()
    batch = task.sample(B, generator(1, "batch"))
    to_first = torch.zeros(B, 1, T, T)
    to_first[..., 0] = 1
    result = probe(Scripted([to_first, to_first], torch.zeros(B, T, N)), task, batch)
    assert result.metrics["attention/induction"] == 0
    assert "attention/uses_previous_token" not in result.metrics  # no attended position has a previous one


def test_a_one_layer_model_has_only_the_previous_token_part():
    task = small_task()
    batch = task.sample(B, generator(0, "batch"))
    result = probe(Scripted([random_pattern(0)], torch.zeros(B, T, N)), task, batch)
    assert set(result.metrics) == {f"attention/previous_token{suffix}" for suffix in ("", "_first", "_mass")}
    expected, _ = by_the_definitions(batch, [random_pattern(0)], torch.zeros(B, T, N))
    assert dict(result.metrics) == pytest.approx(expected, abs=1e-6)


def test_shown_triggers_are_not_scored():
    task = small_task(show_latents=True, triggers="random")
    batch = task.sample(B, generator(0, "batch"))
    patterns, logits = [random_pattern(0), random_pattern(1)], torch.randn(B, T, N, generator=generator(0, "logits"))
    expected, _ = by_the_definitions(batch, patterns, logits)
    assert dict(probe(Scripted(patterns, logits), task, batch).metrics) == pytest.approx(expected, abs=1e-6)


# The ideal construction, T = 256


@pytest.fixture(scope="module")
def ideal() -> list[ProbeResult]:
    config: Any = load_config(CONFIGS / "bigram/ideal.yaml", {"model.d_model": 256})
    task: Any = build_task(config.task, torch.device("cpu"))
    batch = task.sample(24, generator(0, "batch"))
    return [probe(build_model(config.model, task, seed), task, batch) for seed in range(3)]


def mean(results: list[ProbeResult], name: str) -> float:
    return sum(result.metrics[f"attention/{name}"] for result in results) / len(results)


def test_layer_1_of_the_construction_attends_to_the_previous_token(ideal: list[ProbeResult]):
    # Theory: .93 of the mass at d = 256 and β = 10, and the argmax right at .999 of the positions.
    assert mean(ideal, "previous_token_mass") > 0.9
    assert mean(ideal, "previous_token") > 0.99


def test_layer_2_of_the_construction_attends_to_the_output(ideal: list[ProbeResult]):
    # Theory: .97; what is lost are sequences that start with a trigger, where two positions tie.
    assert mean(ideal, "induction") >= 0.95
    assert mean(ideal, "attends_to_output") >= 0.95
    assert mean(ideal, "predicts_attended") >= 0.95


def test_an_untrained_model_attends_like_chance():
    config: Any = load_config(CONFIGS / "quickstart.yaml", {"model.attention.init": "zeros"})
    task: Any = build_task(config.task, torch.device("cpu"))
    result = probe(build_model(config.model, task, seed=0), task, task.sample(8, generator(0, "batch")))
    # Zero matrices attend uniformly, so the mass is exactly the mean of 1/t over t = 2 … 64.
    name = "attention/previous_token_mass"
    assert result.metrics[name] == pytest.approx(sum(1 / t for t in range(2, 65)) / 63, abs=1e-6)
    assert result.references[name].chance == pytest.approx(result.metrics[name], abs=1e-6)


@pytest.mark.parametrize("role", AttentionProbeConfig.needs_roles)
def test_the_task_has_the_roles_the_probe_needs(role: str):
    assert role in BigramConfig.roles
