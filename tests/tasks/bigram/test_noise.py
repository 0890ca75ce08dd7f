"""Noise in the bigram task: what it replaces, what it leaves alone, and the levels that remain."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tasks.bigram.config import BigramConfig
from tasks.bigram.floors import optimal_levels
from tasks.bigram.task import BigramTask
from tests.tasks.bigram.sequences import N, model_for
from toytf.errors import UserError
from toytf.randomness import generator
from toytf.task import Batch


def make(probability: float | None = 0.3, token: str = "!", **fields: Any) -> BigramTask:
    noise = None if probability is None else {"probability": probability, "token": token}
    config = BigramConfig.model_validate({"kind": "bigram", "seq_len": 64, "noise": noise, **fields})
    return BigramTask(config, torch.device("cpu"))


def sample(task: BigramTask, n: int = 300) -> Batch:
    return task.sample(n, generator(0, "batch"))


def after_triggers(task: BigramTask, batch: Batch) -> list[tuple[int, int, int, int]]:
    """(sequence, trigger, its output, what follows) of every trigger that occurs, one position at a time."""
    found = []
    triggers, outputs = batch.latents["triggers"].tolist(), batch.latents["outputs"].tolist()
    shown = task.config.n_triggers if task.config.show_latents else 0
    for b, (z, y) in enumerate(zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True)):
        output_of = dict(zip(triggers[b], outputs[b], strict=True))
        pairs = zip(z[shown:], y[shown:], strict=True)
        found += [(b, token, output_of[token], following) for token, following in pairs if token in output_of]
    return found


VARIANTS: dict[str, dict[str, Any]] = {
    "fixed": {},
    "random": {"triggers": "random"},
    "extra": {"token": "extra"},
    "extra_random": {"token": "extra", "triggers": "random", "no_repeat": True},
    "extra_bigram_shown": {"token": "extra", "outputs": "bigram", "show_latents": True},
}


@pytest.fixture(params=sorted(VARIANTS))
def fields(request: pytest.FixtureRequest) -> dict[str, Any]:
    return VARIANTS[request.param]


# The sequences


def test_a_trigger_is_followed_by_its_output_or_by_the_noise(fields: dict[str, Any]):
    task = make(**fields)
    tau = task.noise[1]
    for _, _, output, following in after_triggers(task, sample(task)):
        assert following in (output, tau)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_the_noise_comes_after_a_trigger_with_probability_alpha(alpha: float, fields: dict[str, Any]):
    task = make(alpha, **fields)
    tau = task.noise[1]
    came = [following == tau for _, _, output, following in after_triggers(task, sample(task)) if output != tau]
    # Four standard errors of a share.
    assert np.mean(came) == pytest.approx(alpha, abs=4 * math.sqrt(alpha * (1 - alpha) / len(came)))


def test_the_noise_at_one_occurrence_says_nothing_about_the_next():
    alpha = 0.4
    task = make(alpha)
    tau = task.noise[1]
    last: dict[tuple[int, int], bool] = {}
    counts = np.zeros((2, 2))
    for b, trigger, output, following in after_triggers(task, sample(task, 600)):
        if output != tau:
            if (b, trigger) in last:
                counts[int(last[b, trigger]), int(following == tau)] += 1
            last[b, trigger] = following == tau
    assert counts.sum() > 4000
    assert stats.chi2_contingency(counts).pvalue > 1e-4
    for row in counts:  # whatever came before, α again: four standard errors
        assert row[1] / row.sum() == pytest.approx(alpha, abs=4 * math.sqrt(alpha * (1 - alpha) / row.sum()))


def test_bigrams_are_those_of_the_text_where_there_is_no_trigger():
    task, plain = make(0.5), make(None)
    assert torch.equal(task.bigram, plain.bigram)
    batch = sample(task, 1500)
    where = batch.roles["global"]
    seen = np.zeros((N, N))
    np.add.at(seen, (batch.tokens[where].numpy(), batch.targets[where].numpy()), 1)
    distribution = task.bigram.double().numpy()
    assert seen[:5].sum() == 0  # the five triggers
    assert (seen[distribution == 0] == 0).all()
    values = []
    for row in (row for row in range(5, N) if seen[row].sum() >= 500):
        expected = distribution[row] / distribution[row].sum() * seen[row].sum()
        rare = expected < 5
        observed = np.append(seen[row][~rare], seen[row][rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        kept = expected > 0
        values.append(float(stats.chisquare(observed[kept], expected[kept]).pvalue))
    assert len(values) > 15
    assert min(values) > 1e-4 / len(values)  # the smallest of uniform numbers: once in 10 000 times
    assert task.noise[1] in batch.tokens[where]  # and so it is after the noise token, which is a character too


@pytest.mark.parametrize("variant", ["fixed", "random"])
def test_probability_0_gives_the_sequences_of_no_noise(variant: str):
    clean, plain = (sample(make(p, **VARIANTS[variant]), 50) for p in (0.0, None))
    assert torch.equal(clean.tokens, plain.tokens)
    assert torch.equal(clean.targets, plain.targets)
    for name in plain.roles:
        assert torch.equal(clean.roles[name], plain.roles[name])


def test_noise_leaves_triggers_outputs_and_the_first_token_alone():
    noisy, plain = (sample(make(p, triggers="random"), 50) for p in (0.7, None))
    for name in ("triggers", "outputs"):
        assert torch.equal(noisy.latents[name], plain.latents[name])
    assert torch.equal(noisy.tokens[:, 0], plain.tokens[:, 0])
    assert not torch.equal(noisy.tokens, plain.tokens)


def test_the_default_noise_is_an_exclamation_mark():
    task = make(0.5)
    assert task.token_names[task.noise[1]] == "!"
    assert len(task.token_names) == N


# A token of its own


def test_an_extra_token_has_no_other_place_in_the_distributions():
    task, plain = make(0.5, "extra"), make(None)
    assert task.token_names == task.output_names == (*plain.token_names, "τ")
    assert task.noise == (0.5, N)
    assert torch.equal(task.bigram[:N, :N], plain.bigram)
    assert torch.equal(task.output_distribution[:N, :N], plain.output_distribution)
    assert torch.equal(task.unigram[:N], plain.unigram)
    for distribution in (task.bigram, task.output_distribution):
        assert (distribution[:, N] == 0).all()
        torch.testing.assert_close(distribution.sum(1), torch.ones(N + 1))
    assert task.unigram[N] == 0
    assert torch.equal(task.bigram[N, :N], plain.unigram)


@pytest.mark.parametrize("variant", ["extra", "extra_random", "extra_bigram_shown"])
def test_an_extra_token_comes_only_after_triggers_and_is_none(variant: str):
    task = make(0.5, **VARIANTS[variant])
    batch = sample(task)
    assert (batch.targets == N).any()
    assert not ((batch.targets == N) & ~batch.roles["trigger"] & batch.roles["all"]).any()
    assert not (batch.tokens[:, 0] == N).any()
    assert not (batch.latents["outputs"] == N).any()
    assert not (batch.latents["triggers"] == N).any()
    assert batch.roles["global"][batch.tokens == N].all()


def test_the_extra_token_is_never_a_random_trigger():
    task = make(0.5, "extra", triggers="random", n_tokens=6, n_triggers=6)
    assert (sample(task).latents["triggers"].sort(1).values == torch.arange(6)).all()


def test_unigrams_follow_an_extra_token():
    task = make(0.5, "extra")
    batch = sample(task, 1500)
    seen = torch.bincount(batch.targets[batch.tokens == N], minlength=N + 1).double().numpy()
    assert seen[N] == 0
    expected = task.unigram.double().numpy()[:N]
    expected = expected / expected.sum() * seen.sum()
    rare = expected < 5
    observed = np.append(seen[:N][~rare], seen[:N][rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    assert seen.sum() > 5000
    assert stats.chisquare(observed, expected).pvalue > 1e-4


# Mistakes


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"token": "e"}, "task.noise.token = 'e' is one of the fixed triggers: choose another"),
        ({"token": "r", "trigger_offset": 7}, "task.noise.token = 'r' is one of the fixed triggers: choose another"),
        (
            {"token": "\n", "trigger_offset": 8, "n_triggers": 8},
            r"task.noise.token = '\n' is one of the fixed triggers: choose another",
        ),
        ({"token": "é"}, "task.noise.token = 'é' is not a character of the corpus: choose one of "),
        ({"token": "!!"}, "task.noise.token = '!!' is not a character of the corpus: choose one of "),
        ({"n_tokens": 20}, "task.noise.token = '!' is not a character of the corpus: choose one of "),
    ],
)
def test_a_token_that_cannot_be_the_noise_is_refused_in_one_line(fields: dict[str, Any], line: str):
    with pytest.raises(UserError) as caught:
        make(**fields)
    said = str(caught.value)
    assert said.startswith(line)
    assert len(said.splitlines()) == 1
    if "character" in line:
        assert said.endswith(', or "extra" for a token of its own')


def test_a_random_trigger_or_a_skipped_one_may_be_the_noise():
    assert make(token="e", triggers="random").noise == (0.3, 1)
    assert make(token="e", trigger_offset=2).noise == (0.3, 1)


@pytest.mark.parametrize("probability", [-0.1, 1.0, 1.5])
def test_a_probability_is_from_0_to_below_1(probability: float):
    with pytest.raises(ValueError, match="probability"):
        make(probability)


# Levels


def test_every_shown_output_is_known_without_noise():
    references = make(0.0).references()
    for role in ("in_context", "untrapped", "clean_start"):
        assert references[role, "loss"].ideal == 0
        assert references[role, "accuracy"].ideal == 1


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8])
def test_the_best_loss_in_context_depends_on_whether_the_output_is_known(alpha: float):
    """Known: some earlier occurrence of the trigger was followed by something else than τ; one position at a time."""
    task = make(alpha)
    batch, noise = task.survey, task.noise[1]
    entropy = -alpha * math.log(alpha) - (1 - alpha) * math.log(1 - alpha)
    rows = zip(*(x.tolist() for x in (batch.tokens, batch.targets, batch.roles["in_context"])), strict=True)
    distribution = (1 - alpha) * task.output_distribution.double()
    distribution[:, noise] += alpha
    unknown = torch.special.entr(distribution).sum(1).tolist()
    losses, accuracies = [], []
    for tokens, targets, scored in rows:
        for t in (t for t, asked in enumerate(scored) if asked):
            known = any(tokens[s] == tokens[t] and targets[s] != noise for s in range(t))
            losses.append(entropy if known else unknown[tokens[t]])
            accuracies.append(max(alpha, 1 - alpha) if known else float(distribution[tokens[t]].max()))
    assert task.references()["in_context", "loss"].ideal == pytest.approx(np.mean(losses), abs=1e-4)
    assert task.references()["in_context", "accuracy"].ideal == pytest.approx(np.mean(accuracies), abs=1e-4)


@pytest.mark.parametrize("token", ["!", "extra"])
@pytest.mark.parametrize("outputs", ["uniform", "bigram"])
def test_the_best_loss_at_first_sight_is_the_entropy_of_output_and_noise(token: str, outputs: str):
    """(1 − α) π_o(·|q) + α δ_τ, one position at a time."""
    alpha = 0.35
    task = make(alpha, token, outputs=outputs)
    loss, accuracy = [], []
    output_distribution = task.output_distribution.double().tolist()
    for z, first in zip(task.survey.tokens.tolist(), task.survey.roles["first_seen"].tolist(), strict=True):
        for token_id in (a for a, is_first in zip(z, first, strict=True) if is_first):
            distribution = [
                (1 - alpha) * p + alpha * (y == task.noise[1]) for y, p in enumerate(output_distribution[token_id])
            ]
            loss.append(-sum(p * math.log(p) for p in distribution if p > 0))
            accuracy.append(max(distribution))
    references = task.references()
    assert references["first_seen", "loss"].ideal == pytest.approx(np.mean(loss), abs=1e-4)
    assert references["first_seen", "accuracy"].ideal == pytest.approx(np.mean(accuracy), abs=1e-5)
    chance = len(task.token_names)
    assert references["first_seen", "loss"].chance == pytest.approx(math.log(chance))


def test_noise_leaves_the_level_of_the_bigrams_alone():
    task = make(0.5)
    where = task.survey.roles["global"]
    entropy = torch.special.entr(task.bigram.double()).sum(1)[task.survey.tokens[where]].mean()
    assert task.references()["global", "loss"].ideal == pytest.approx(float(entropy), abs=1e-4)
    floors = {floor.flat: floor.value for floor in task.floors()}
    assert floors["floor/global_loss/bigram_entropy"] == pytest.approx(float(entropy), abs=1e-4)


def test_the_levels_leave_the_distribution_of_the_task_as_it_was():
    task = make(0.5)
    before = task.output_distribution.clone()
    optimal_levels(sample(task), task.bigram, task.output_distribution, task.noise)
    assert torch.equal(task.output_distribution, before)


def test_the_rival_is_the_noise_token_at_every_position():
    task = make(0.5)
    batch = sample(task, 3)
    (rival,) = task.rivals(batch).values()
    assert (rival == task.token_names.index("!")).all()
    assert rival.shape == batch.targets.shape
    assert make(None).rivals(batch) == {}


# Memories

SOLUTION = {"W_KQ1", "W_KQ2", "W_OV2"}


@pytest.mark.parametrize(
    ("probability", "feed_forward", "names"),
    [
        (0.5, {"kind": "relu"}, {"FF2", "FF2_noise"}),
        (0.5, {"kind": "linear", "layers": [1]}, {"FF2", "FF2_noise"}),
        (0.5, {"kind": "relu", "layers": [0]}, set()),
        (0.5, {}, set()),
        (None, {"kind": "relu"}, {"FF2"}),
    ],
)
def test_the_noise_is_a_memory_of_the_second_feed_forward_part(
    probability: float | None, feed_forward: dict[str, Any], names: set[str]
):
    task = make(probability)
    assert set(task.memories(model_for(task, feed_forward=feed_forward))) == SOLUTION | names


def test_the_memory_of_the_noise_maps_each_trigger_to_it():
    task = make(0.5, trigger_offset=1, n_triggers=3)
    model = model_for(task, feed_forward={"kind": "relu"})
    memory = task.memories(model)["FF2_noise"]
    stored = memory.association
    assert (memory.slot.part, memory.slot.layer, memory.conditional) == ("FF", 1, None)
    assert torch.equal(stored.keys, model.embed.W_E[1:4])
    assert torch.equal(stored.values, model.unembed.W_U.T)
    assert stored.targets.tolist() == [task.token_names.index("!")] * 3
    assert stored.key_names == task.token_names[1:4]
    assert stored.value_names == task.token_names
    assert torch.equal(stored.weights, task.unigram[1:4])


def test_no_memory_of_triggers_asks_for_what_is_never_one():
    task = make(0.5, "extra", triggers="random")
    memories = task.memories(model_for(task, feed_forward={"kind": "relu"}))
    for name in ("W_KQ2", "FF2_noise"):
        assert memories[name].association.key_names == task.token_names[:N]


@pytest.mark.parametrize("kind", ["linear", "relu"])
def test_the_construction_writes_the_induction_head_alone(kind: str):
    task = make(0.5)
    attention = {"kq": "joint", "ov": "joint"}
    plain, noisy = (model_for(task, feed_forward={"kind": kind}, attention=attention) for _ in range(2))
    task.ideal(noisy, {})
    make(None).ideal(plain, {})
    silent = "W_in" if kind == "linear" else "W_out"
    for name, parameter in noisy.named_parameters():
        assert torch.equal(parameter, plain.get_parameter(name)), name
        if name.endswith(f"mlp.{silent}"):
            assert (parameter == 0).all()
    untouched = model_for(task, feed_forward={"kind": kind}, attention=attention)
    changed = {n for n, p in noisy.named_parameters() if not torch.equal(p, untouched.get_parameter(n))}
    assert changed == {
        "blocks.0.attn.W_K",
        "blocks.1.attn.W_K",
        "blocks.1.attn.W_O",
        f"blocks.0.mlp.{silent}",
        f"blocks.1.mlp.{silent}",
    }


def test_a_strength_for_the_noise_is_refused():
    task = make(0.5)
    with pytest.raises(UserError, match=r'no memory is called "FF2_noise": accepted: W_KQ1, W_KQ2, W_OV2'):
        task.ideal(model_for(task, feed_forward={"kind": "linear"}), {"FF2_noise": 1.0})
