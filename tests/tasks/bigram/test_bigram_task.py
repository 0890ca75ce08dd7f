"""The bigram task: what its sequences are, by brute force, and how often what happens."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.bigram.config import BigramConfig
from tasks.bigram.floors import most_frequent_so_far
from tasks.bigram.task import BigramTask
from toytf.errors import UserError
from toytf.memory import Association
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.randomness import generator
from toytf.task import Batch, Memory

N = 65


def make(**fields: Any) -> BigramTask:
    return BigramTask(BigramConfig(kind="bigram", **fields), torch.device("cpu"))


def sample(n: int = 200, seed: int = 0, **fields: Any) -> Batch:
    return make(**fields).sample(n, generator(seed, "batch"))


def output_maps(batch: Batch) -> list[dict[int, int]]:
    triggers, outputs = batch.latents["triggers"].tolist(), batch.latents["outputs"].tolist()
    return [dict(zip(q, o, strict=True)) for q, o in zip(triggers, outputs, strict=True)]


def is_trapped(token: int, output_of: dict[int, int]) -> bool:
    """Does following outputs from this trigger lead through triggers for ever?"""
    visited: set[int] = set()
    while token in output_of:
        if token in visited:
            return True
        visited.add(token)
        token = output_of[token]
    return False


VARIANTS: dict[str, dict[str, Any]] = {
    "fixed": {"seq_len": 64},
    "one": {"seq_len": 64, "n_triggers": 1},
    "random": {"seq_len": 64, "triggers": "random"},
    "no_repeat": {"seq_len": 64, "no_repeat": True},
    "bigram_outputs": {"seq_len": 64, "outputs": "bigram"},
    "shown": {"seq_len": 64, "show_latents": True, "triggers": "random"},
    "few_tokens": {"seq_len": 64, "n_tokens": 8},  # five triggers of eight tokens: mostly trapped
}


@pytest.fixture(params=sorted(VARIANTS))
def fields(request: pytest.FixtureRequest) -> dict[str, Any]:
    return VARIANTS[request.param]


# One sequence, by brute force


def test_targets_are_the_next_tokens(fields: dict[str, Any]):
    batch = sample(**fields)
    assert batch.tokens.shape == batch.targets.shape == (200, 64)
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])


def test_every_trigger_is_followed_by_its_output(fields: dict[str, Any]):
    batch = sample(**fields)
    shown = 5 if fields.get("show_latents") else 0
    for output_of, z, y in zip(output_maps(batch), batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        assert all(output_of[a] == b for a, b in zip(z[shown:], y[shown:], strict=True) if a in output_of)


def test_the_counter_counts_the_occurrences_so_far(fields: dict[str, Any]):
    batch = sample(**fields)
    shown = 5 if fields.get("show_latents") else 0
    for output_of, z, counter in zip(
        output_maps(batch), batch.tokens.tolist(), batch.latents["counter"].tolist(), strict=True
    ):
        expected = [z[shown : t + 1].count(z[t]) if z[t] in output_of else 0 for t in range(shown, 64)]
        assert counter[shown:] == expected


def test_roles_are_read_off_the_counter(fields: dict[str, Any]):
    batch = sample(**fields)
    counter = batch.latents["counter"]
    for role, mask in {
        "in_context": counter >= 2,
        "first_seen": counter == 1,
        "trigger": counter >= 1,
        "global": counter == 0,
        "all": counter >= 0,
    }.items():
        assert torch.equal(batch.roles[role], mask)


def test_roles_partition_the_scored_positions(fields: dict[str, Any]):
    roles = sample(**fields).roles
    assert set(roles) == set(BigramConfig.roles)
    parts = roles["global"].int() + roles["first_seen"].int() + roles["in_context"].int()
    assert torch.equal(parts, roles["all"].int())
    assert torch.equal(roles["trigger"], roles["first_seen"] | roles["in_context"])
    for part in ("untrapped", "clean_start"):
        assert (roles["in_context"] | ~roles[part]).all()


def test_what_is_in_context_can_be_copied_from_the_context(fields: dict[str, Any]):
    batch = sample(**fields)
    shown = 5 if fields.get("show_latents") else 0
    for z, y, scored in zip(
        batch.tokens.tolist(), batch.targets.tolist(), batch.roles["in_context"].tolist(), strict=True
    ):
        for t in range(shown, 64):
            if scored[t]:
                seen = z.index(z[t], shown)
                assert seen < t
                assert z[seen + 1] == y[t]


def test_trapped_sequences_hold_a_trigger_that_never_leads_out(fields: dict[str, Any]):
    batch = sample(400, **fields)
    shown = 5 if fields.get("show_latents") else 0
    expected = [
        any(is_trapped(token, output_of) for token in z[shown:])
        for output_of, z in zip(output_maps(batch), batch.tokens.tolist(), strict=True)
    ]
    assert batch.latents["trapped"].tolist() == expected
    untrapped = batch.roles["in_context"] & ~torch.tensor(expected)[:, None]
    assert torch.equal(batch.roles["untrapped"], untrapped)


def test_a_trap_reached_after_the_last_input_does_not_count():
    batch = sample(400, seq_len=3, n_tokens=8)
    rows = zip(output_maps(batch), batch.tokens.tolist(), batch.targets.tolist(), strict=True)
    inputs, last = zip(
        *((any(is_trapped(token, o) for token in z), is_trapped(y[-1], o)) for o, z, y in rows), strict=True
    )
    assert any(b and not a for a, b in zip(inputs, last, strict=True))  # there are some to be left out
    assert batch.latents["trapped"].tolist() == list(inputs)


def test_a_clean_start_is_no_trigger(fields: dict[str, Any]):
    batch = sample(**fields)
    first = 5 if fields.get("show_latents") else 0
    clean = torch.tensor(
        [z[first] not in output_of for output_of, z in zip(output_maps(batch), batch.tokens.tolist(), strict=True)]
    )
    assert clean.any()
    assert torch.equal(batch.roles["clean_start"], batch.roles["in_context"] & clean[:, None])


# The fields


def test_fixed_triggers_are_the_most_frequent_characters():
    task = make()
    assert [task.token_names[i] for i in task.fixed_triggers.tolist()] == ["␠", "e", "t", "o", "a"]
    assert (sample().latents["triggers"] == torch.arange(5)).all()


def test_the_offset_skips_the_most_frequent_characters():
    assert make(trigger_offset=3, n_triggers=2).fixed_triggers.tolist() == [3, 4]
    assert (sample(trigger_offset=3, n_triggers=2).latents["triggers"] == torch.tensor([3, 4])).all()


def test_random_triggers_are_drawn_by_frequency():
    # The first of the draws follows π_u: the space has 15.42 %, ± 4 standard errors of 20 000 draws.
    triggers = sample(20_000, triggers="random", seq_len=2).latents["triggers"]
    p = 0.1542
    assert float((triggers[:, 0] == 0).float().mean()) == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 20_000))
    assert make(triggers="random").fixed_triggers is None


def test_uniform_outputs_are_uniform():
    # χ² of 100 000 outputs over 65 tokens has mean 64 and variance 128: five standard deviations.
    outputs = sample(20_000, seq_len=2).latents["outputs"].flatten()
    seen = torch.bincount(outputs, minlength=N).double()
    chi2 = float(((seen - 100_000 / N) ** 2 / (100_000 / N)).sum())
    assert chi2 < 64 + 5 * math.sqrt(128)


def test_bigram_outputs_are_what_follows_the_trigger_in_the_text():
    task = make(outputs="bigram", seq_len=2)
    outputs = task.sample(20_000, generator(0, "batch")).latents["outputs"]
    for trigger in range(5):
        distribution = task.bigram[trigger].double()
        share = torch.bincount(outputs[:, trigger], minlength=N).double() / 20_000
        assert (share[distribution == 0] == 0).all()
        assert ((share - distribution).abs() < 5 * (distribution * (1 - distribution) / 20_000).sqrt() + 1e-4).all()


@pytest.mark.parametrize("outputs", ["uniform", "bigram"])
def test_no_repeat_conditions_the_output_distribution_on_another_token(outputs: str):
    """π_o(j|q) → π_o(j|q) / (1 − π_o(q|q)) for j ≠ q."""
    plain, other = (
        make(outputs=outputs).output_distribution.double(),
        make(outputs=outputs, no_repeat=True).output_distribution.double(),
    )
    expected = plain.clone().fill_diagonal_(0)
    expected = expected / (1 - plain.diagonal())[:, None]
    torch.testing.assert_close(other, expected, rtol=0, atol=1e-6)
    latents = sample(5000, outputs=outputs, no_repeat=True, seq_len=2).latents
    assert (latents["triggers"] != latents["outputs"]).all()


def test_shown_triggers_stand_in_front_and_are_not_scored():
    batch = sample(triggers="random", show_latents=True, seq_len=20, n_triggers=3)
    assert batch.tokens.shape == (200, 20)
    assert torch.equal(batch.tokens[:, :3], batch.latents["triggers"])
    assert not any(mask[:, :3].any() for mask in batch.roles.values())
    assert batch.roles["all"][:, 3:].all()


def test_the_same_seed_gives_the_same_sequences():
    assert torch.equal(sample(seed=1).tokens, sample(seed=1).tokens)
    assert not torch.equal(sample(seed=1).tokens, sample(seed=2).tokens)


def test_sampling_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    sample(triggers="random")
    assert torch.equal(torch.get_rng_state(), before)


CHANGES: dict[str, dict[str, Any]] = {
    "seq_len": {"seq_len": 31},
    "n_triggers": {"n_triggers": 4},
    "triggers": {"triggers": "random"},
    "trigger_offset": {"trigger_offset": 1},
    "outputs": {"outputs": "bigram"},
    "no_repeat": {"no_repeat": True},
    "noise": {"noise": {"probability": 0.5}},
    "show_latents": {"show_latents": True},
    "corpus": {"corpus": "a text"},
    "n_tokens": {"n_tokens": 30},
}


def test_the_table_of_changes_has_every_field():
    assert set(CHANGES) == set(BigramConfig.model_fields) - {"kind", "corpus_sha256"}  # the last is derived


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_every_field_of_the_task_changes_the_sequences(field: str, tmp_path: Path):
    change = dict(CHANGES[field])
    if field == "corpus":
        change["corpus"] = str(tmp_path / "text.txt")
        Path(change["corpus"]).write_text("to be or not to be, that is the question")
    before, after = sample(seq_len=32), sample(**({"seq_len": 32} | change))
    assert before.tokens.shape != after.tokens.shape or not torch.equal(before.tokens, after.tokens)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_triggers": 66}, "exceeds n_tokens = 65"),
        ({"trigger_offset": 61}, "exceeds n_tokens = 65"),
        ({"trigger_offset": 1, "triggers": "random"}, "only with triggers: fixed"),
        ({"show_latents": True, "seq_len": 6}, "at least 7, got 6"),
        ({"seq_len": 1}, "seq_len"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        BigramConfig(kind="bigram", **wrong)


# How often: 16 000 sequences of T = 256

N_SEQUENCES, CHUNK = 16_000, 2000

# scored, trapped, scored inside trapped, "repeat" right, "most frequent so far" right; each with its tolerance.
# At 512 sequences the scored fraction has a standard deviation of .007 and the trapped one of .011, so .0013 and .002
# here, √2 times that between two samples, 4 of which are .007 and .011. The last three columns move with the number of
# trapped sequences (1216 ± 34 at K = 5, 240 ± 15 at K = 1): 3 % and 6 % of their value, again times 4√2.
FREQUENCIES: dict[str, tuple[dict[str, Any], list[tuple[float, float]]]] = {
    "fixed": ({}, [(0.282, 0.008), (0.076, 0.01), (0.246, 0.035), (0.235, 0.035), (0.346, 0.035)]),
    "no_repeat": ({"no_repeat": True}, [(0.232, 0.008), (0.0022, 0.0021), (0.009, 0.009), (0, 0), (0.149, 0.01)]),
    "one": ({"n_triggers": 1}, [(0.146, 0.008), (0.015, 0.006), (0.102, 0.035), (0.10, 0.035), (0.40, 0.03)]),
    "random": ({"triggers": "random"}, [(0.224, 0.008), (0.071, 0.01), (0.277, 0.04), (0.26, 0.04), (0.37, 0.04)]),
}


def chunks(measure: Callable[[Batch], list[float]], **fields: Any) -> np.ndarray:
    task = make(**fields)
    return sum(np.array(measure(task.sample(CHUNK, generator(0, "chunk", i)))) for i in range(N_SEQUENCES // CHUNK))


@pytest.mark.parametrize("variant", sorted(FREQUENCIES))
def test_frequencies_are_those_of_an_independent_count(variant: str):
    fields, expected = FREQUENCIES[variant]

    def counts(batch: Batch) -> list[float]:
        scored, trapped = batch.roles["in_context"], batch.latents["trapped"]
        mode = most_frequent_so_far(batch.tokens, N)
        return [
            float(x.sum())
            for x in (
                scored,
                trapped,
                scored & trapped[:, None],
                scored & (batch.tokens == batch.targets),
                scored & (mode == batch.targets),
            )
        ]

    scored, trapped, inside, repeat, mode = chunks(counts, **fields)
    positions = N_SEQUENCES * 256
    measured = [scored / positions, trapped / N_SEQUENCES, inside / scored, repeat / scored, mode / scored]
    names = ("scored", "trapped", "inside trapped", "repeat", "most frequent")
    for name, value, (level, tolerance) in zip(names, measured, expected, strict=True):
        assert value == pytest.approx(level, abs=tolerance), name


@pytest.mark.parametrize(
    ("fields", "probability"),
    [
        ({"n_triggers": 5}, 5 / 65),
        ({"n_triggers": 1}, 1 / 65),
        ({"n_triggers": 5, "triggers": "random"}, 5 / 65),
        ({"n_triggers": 20}, 20 / 65),
        ({"n_triggers": 5, "no_repeat": True}, 1 - 60 * 65**4 / 64**5),  # .0025
    ],
)
def test_outputs_close_a_circle_with_probability_K_over_N(fields: dict[str, Any], probability: float):
    n = 40_000
    batch = sample(n, seq_len=2, **fields)
    circles = sum(any(is_trapped(q, output_of) for q in output_of) for output_of in output_maps(batch))
    # Four standard errors of a share.
    assert circles / n == pytest.approx(probability, abs=4 * math.sqrt(probability * (1 - probability) / n))


def test_no_more_sequences_are_trapped_than_maps_close_a_circle():
    for seed in range(3):
        batch = sample(1000, seed, seq_len=256)
        circles = [any(is_trapped(q, output_of) for q in output_of) for output_of in output_maps(batch)]
        assert not (batch.latents["trapped"] & ~torch.tensor(circles)).any()


# What can be had, and what trivial guesses get


def test_the_most_frequent_token_so_far_is_one_that_occurs_most():
    tokens = sample(20, seq_len=40).tokens
    for z, guesses in zip(tokens.tolist(), most_frequent_so_far(tokens, N).tolist(), strict=True):
        for t, guess in enumerate(guesses):
            past = z[: t + 1]
            assert past.count(guess) == max(past.count(k) for k in past)


def test_the_best_levels_are_those_of_copying_the_outputs_and_the_bigrams():
    references = make().references()
    assert references["in_context", "accuracy"].ideal == 1
    assert references["in_context", "loss"].ideal == 0
    assert references["first_seen", "loss"].ideal == pytest.approx(math.log(N), abs=1e-5)
    assert references["first_seen", "accuracy"].ideal == pytest.approx(1 / N)
    for (_, quantity), reference in references.items():
        assert reference.chance == pytest.approx(math.log(N) if quantity == "loss" else 1 / N)


def test_the_floors_are_the_heuristics_and_the_entropy_of_the_text():
    task = make()
    floors = {floor.flat: floor.value for floor in task.floors()}
    # Over all characters the entropy is 2.4987; at the positions that are scored as global there is no trigger.
    weights = torch.bincount(task.survey.tokens[task.survey.roles["global"]], minlength=N).double()
    entropy = torch.special.entr(task.bigram.double()).sum(1)
    assert floors["floor/global_loss/bigram_entropy"] == pytest.approx(
        float(weights @ entropy / weights.sum()), abs=1e-4
    )
    # 1024 sequences, about 78 ± 9 of them trapped: 11 % of the value, 3 of them.
    assert floors["floor/in_context_accuracy/repeat"] == pytest.approx(0.235, abs=0.08)
    assert floors["floor/in_context_accuracy/most_frequent"] == pytest.approx(0.346, abs=0.08)
    # On untrapped sequences repeating is never right by being trapped, and the most frequent token gets .15.
    assert "floor/untrapped_accuracy/repeat" not in floors
    assert floors["floor/untrapped_accuracy/most_frequent"] == pytest.approx(0.15, abs=0.03)


# The memories that solve it


def model_for(task: BigramTask, **fields: Any) -> ToyTransformer:
    config = ModelConfig.model_validate({"d_model": 16, **fields})
    return ToyTransformer(
        config, n_tokens=N, n_positions=task.n_positions, n_outputs=N, generator=generator(0, "model")
    )


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, {"W_KQ1", "W_KQ2", "W_OV2"}),
        ({"n_layers": 1}, {"W_KQ1"}),
        ({"position": "none"}, {"W_KQ2", "W_OV2"}),
        ({"feed_forward": {"kind": "relu"}}, {"W_KQ1", "W_KQ2", "W_OV2", "FF2"}),
        ({"feed_forward": {"kind": "relu", "layers": [0]}}, {"W_KQ1", "W_KQ2", "W_OV2"}),
    ],
)
def test_only_memories_the_model_has_room_for_are_asked_for(fields: dict[str, Any], names: set[str]):
    task = make(seq_len=16)
    assert set(task.memories(model_for(task, **fields))) == names


def view(memory: Memory, **at: str) -> Association:
    """The view of a memory at these factors."""
    (found,) = (association for factors, association in memory.views if factors == at)
    return found


def test_the_memories_are_those_of_the_paper():
    task = make(seq_len=100)
    model = model_for(task, feed_forward={"kind": "linear"})
    memories = task.memories(model)
    e, p, u = model.embed.W_E.detach(), model.pos_embed.W_pos.detach(), model.unembed.W_U.detach().T
    previous, trigger, copy = (memories[name].association for name in ("W_KQ1", "W_KQ2", "W_OV2"))
    # p_t recalls p_{t−1} among T − 1 positions, no causal mask; 63 of the first 64.
    assert torch.equal(previous.keys, p[1:])
    assert torch.equal(previous.values[previous.targets], p[:-1])
    assert previous.chance == pytest.approx(1 / 99)
    assert view(memories["W_KQ1"], view="64").chance == pytest.approx(1 / 63)
    # Query t may look at positions 1 … t, but T itself is no candidate: mean of 1/2, 1/3, …, 1/99, 1/99.
    causal = (sum(1 / t for t in range(2, 100)) + 1 / 99) / 99
    assert view(memories["W_KQ1"], criterion="causal").chance == pytest.approx(causal)
    # e_k recalls W_OV1 e_k among the five triggers, and u_k among all tokens.
    assert torch.equal(trigger.keys, e[:5])
    torch.testing.assert_close(trigger.values, e[:5] @ model.W_OV(0)[0].detach())
    assert trigger.key_names == ("␠", "e", "t", "o", "a")
    torch.testing.assert_close(trigger.weights / trigger.weights.sum(), task.unigram[:5] / task.unigram[:5].sum())
    assert torch.equal(copy.keys, e)
    assert torch.equal(copy.values[copy.targets], u)
    # The feed-forward part should hold the bigrams of the 60 tokens that are no triggers.
    assert torch.equal(memories["FF2"].conditional, task.bigram[5:])


def test_positions_count_by_how_often_they_hold_a_first_output():
    """Query t of W_KQ1 weighs as much as sequences have the first occurrence of a trigger at t − 1."""
    task = make(seq_len=16)
    first_seen = [row.count(1) / len(row) for row in task.survey.latents["counter"].T.tolist()]
    weights = task.memories(model_for(task))["W_KQ1"].association.weights
    assert weights.tolist() == pytest.approx(first_seen[:-1])


def test_sequences_shorter_than_the_model_allows_ask_for_their_own_positions():
    long, short = make(seq_len=100), make(seq_len=16)
    model = model_for(long)
    memory = short.memories(model)["W_KQ1"]
    assert torch.equal(memory.association.keys, model.pos_embed.W_pos[1:16])
    assert torch.equal(memory.association.values, model.pos_embed.W_pos[:15])
    assert len(memory.association.weights) == len(view(memory, view="64").keys) == 15


def test_random_triggers_ask_for_every_token():
    task = make(seq_len=16, triggers="random")
    assert task.memories(model_for(task))["W_KQ2"].association.chance == pytest.approx(1 / 65)


def test_the_construction_refuses_what_it_cannot_write():
    task = make(seq_len=16)
    with pytest.raises(UserError, match=r"norm = none"):
        task.ideal(model_for(task, norm="layer"), {})
    with pytest.raises(UserError, match=r'no memory is called "W_KQ3": did you mean "W_KQ'):
        task.ideal(model_for(task), {"W_KQ3": 1.0})
    with pytest.raises(UserError, match="no room"):
        task.ideal(model_for(task, n_layers=1, position="none"), {})
