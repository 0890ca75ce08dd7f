"""How a person reads bigram sequences: what the task is, which tokens matter, and where layers should look."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tasks.bigram.sequences import drawn_by_hand, make, sample
from toytf.task import Batch

# What the task is


def test_fixed_triggers_are_named() -> None:
    assert make(seq_len=16).about == (
        "The text is drawn from the character bigrams of Shakespeare. 5 characters are triggers (␣ e t o a): each "
        "sequence draws an output for each, which then always follows. Where a trigger comes again, the model should "
        "say its output, which only the context tells."
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"n_triggers": 2, "trigger_offset": 1}, "2 characters are triggers (e t): each sequence draws"),
        ({"n_triggers": 8}, "8 characters are triggers (␣ e t o a h s n): "),
        ({"n_triggers": 9}, "9 characters are triggers (␣ e t o a h s n …): "),
        ({"n_triggers": 1}, "One character is a trigger (␣): each sequence draws an output for it, which"),
        ({"triggers": "random"}, "In every sequence, 5 characters drawn by frequency are triggers: each"),
        (
            {"triggers": "random", "n_triggers": 1},
            "In every sequence, one character drawn by frequency is a trigger: each sequence draws an output for it, ",
        ),
        (
            {"noise": {"probability": 0.25, "token": "!"}},
            "always follows. With probability 0.25, ! follows instead, as noise. Where a trigger",
        ),
        ({"noise": {"probability": 0.5, "token": "extra"}}, "With probability 0.5, τ follows instead, as noise."),
        ({"noise": {"probability": 0, "token": "!"}}, "always follows. Where a trigger comes again"),
    ],
)
def test_other_triggers_and_noise_are_told(fields: dict[str, Any], says: str) -> None:
    assert says in make(seq_len=16, **fields).about


def test_an_own_text_is_not_shakespeare(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("abcabdabe" * 20)
    about = make(seq_len=16, corpus=str(path), n_triggers=1).about
    assert about.startswith("The text is drawn from the character bigrams of a text. One character is a trigger (a): ")


# Which tokens matter


def test_the_sequence_that_the_task_draws_is_read_as_it_is_drawn() -> None:
    """Roles as the docstring of the task has them: g f g g f c g g c c g."""
    task = make(seq_len=11, n_triggers=2, trigger_offset=1)
    found = task.annotate(drawn_by_hand(task))
    marks = {name: "".join(".x"[int(there)] for there in row[0]) for name, row in found.parts.items()}
    assert marks == {
        "trigger seen before: its output is asked": ".....x..xx.",
        "trigger, first time": ".x..x......",
        "output of the trigger before it": "..x..xx..xx",
    }


VARIANTS: dict[str, dict[str, Any]] = {
    "fixed": {},
    "random": {"triggers": "random"},
    "shown": {
        "triggers": "random",
        "show_latents": True,
        "n_tokens": 8,
    },  # what is shown looks like an output now and then
    "noise": {"noise": {"probability": 0.4, "token": "!"}},
    "few_tokens": {"n_tokens": 8},
}


def looks_by_hand(batch: Batch, b: int, shown: int) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Where layers 1 and 2 should look in a sequence, as pairs of query and key."""
    z, y, count = (values[b].tolist() for values in (batch.tokens, batch.targets, batch.latents["counter"]))
    back = {(t, t - 1) for t in range(1, len(z)) if count[t - 1] >= 1}
    copy = {
        (t, s)
        for t in range(len(z))
        for s in range(shown + 1, t + 1)
        if count[t] >= 2 and z[s - 1] == z[t] and z[s] == y[t]
    }
    return back, copy


@pytest.mark.parametrize("variant", VARIANTS)
def test_layers_should_look_where_brute_force_finds_it(variant: str) -> None:
    fields = {"seq_len": 24, **VARIANTS[variant]}
    task, batch = make(**fields), sample(40, **fields)
    found = task.annotate(batch)
    for b in range(40):
        expected = looks_by_hand(batch, b, 5 if variant == "shown" else 0)
        for layer, pairs in enumerate(expected):
            assert {tuple(pair) for pair in found.right_keys[layer][b].nonzero().tolist()} == pairs
    asked = batch.roles["in_context"]
    assert torch.equal(found.parts["trigger seen before: its output is asked"], asked)
    somewhere = found.right_keys[1].any(2)
    assert not bool((somewhere & ~asked).any())
    if variant == "noise":  # what follows may be noise that this trigger has not had before
        assert 0 < int((asked & ~somewhere).sum()) < int(asked.sum())
    else:
        assert torch.equal(somewhere, asked)


def test_a_sequence_that_is_cut_is_read_as_its_part_of_the_whole() -> None:
    task, batch = make(seq_len=24), sample(20, seq_len=24)
    whole, part = task.annotate(batch), task.annotate(batch.first_positions(10))
    for name, there in part.parts.items():
        assert torch.equal(there, whole.parts[name][:, :10])
    for layer, keys in part.right_keys.items():
        assert torch.equal(keys, whole.right_keys[layer][:, :10, :10])
