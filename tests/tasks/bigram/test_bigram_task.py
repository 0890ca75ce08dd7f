"""The bigram task: what its sequences are, by brute force, and what each field changes."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.bigram.config import BigramConfig
from tests.tasks.bigram.sequences import N, is_trapped, make, output_maps, sample
from toytf.randomness import generator

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
    assert [task.token_names[i] for i in task.fixed_triggers.tolist()] == ["␣", "e", "t", "o", "a"]
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


def test_shown_triggers_come_first_and_are_not_scored():
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
    of_no_sequence = {"kind", "corpus_sha256", "construction"}  # the second is derived, the last is about ideal models
    assert set(CHANGES) == set(BigramConfig.model_fields) - of_no_sequence


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
