"""The memories that solve the bigram task, in a model that has room for them."""

from typing import Any

import pytest
import torch

from tasks.bigram.task import BigramTask
from tests.tasks.bigram.sequences import make, model_for
from toytf.errors import UserError
from toytf.evaluation import goal_metrics
from toytf.memory import Association
from toytf.models import Slot, ToyTransformer
from toytf.randomness import generator
from toytf.task import Memory


def view(memory: Memory, **at: str) -> Association:
    """The view of a memory at these factors."""
    (found,) = (association for factors, association in memory.views if factors == at)
    return found


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


def test_one_matrix_finds_any_number_of_triggers():
    """The values of W_KQ2 are R e, R = W_OV1: u_yᵀ W e_z = e_y·e_z with W = R⁻ᵀ, largest at y = z. 5,000 at d = 128."""
    task = make(seq_len=16)
    model = model_for(task, d_model=128)
    e = torch.randn(5000, 128, generator=generator(0, "tokens"))
    values = model.read(Slot("OV", 0), e).detach()
    W = torch.linalg.inv(model.read(Slot("OV", 0), torch.eye(128)).detach())
    assert bool(Association(e, values, torch.arange(5000)).recalled(W).all())
    assert task.memories(model)["W_KQ2"].unlimited == "its values are W_OV1 times its keys"


@pytest.mark.parametrize(
    ("position", "freeze", "unlimited"),
    [
        ("sinusoidal", ["pos_embed.W_pos"], True),  # p_{t−1} is p_t, rotated by the same angles for every t
        ("sinusoidal", [], False),  # trained, they may become anything
        ("normal", ["pos_embed.W_pos"], False),
    ],
)
def test_positions_that_one_rotation_takes_to_the_one_before_have_no_limit(
    position: str, freeze: list[str], unlimited: bool
):
    task = make(seq_len=100)
    model = model_for(task, position=position, freeze=freeze)
    memory = task.memories(model)["W_KQ1"]
    assert bool(memory.unlimited) is unlimited
    keys, values = memory.association.keys.double(), memory.association.values.double()
    missed = values - keys @ torch.linalg.lstsq(keys, values).solution
    assert (float(missed.norm() / values.norm()) < 1e-4) is (position == "sinusoidal")


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
    assert trigger.key_names == ("␣", "e", "t", "o", "a")
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


def test_shorter_sequences_ask_for_their_own_positions():
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


@pytest.mark.parametrize(
    ("only", "holds"),
    [
        (["W_KQ1"], {"blocks.0.attn.W_K"}),
        (["W_KQ2"], {"blocks.1.attn.W_K"}),
        (["W_OV2"], {"blocks.1.attn.W_V", "blocks.1.attn.W_O"}),
        (["W_KQ1", "W_KQ2"], {"blocks.0.attn.W_K", "blocks.1.attn.W_K"}),
    ],
)
def test_memories_that_are_not_named_stay_as_they_were_drawn(only: list[str], holds: set[str]):
    """The rest is equal bit for bit, feed-forward parts included; what is written is that of the whole construction."""
    task = make(seq_len=16)
    fields: dict[str, Any] = {"attention": {"kq": "joint"}, "feed_forward": {"kind": "relu"}}
    drawn, whole, some = (model_for(task, **fields) for _ in range(3))
    beta = {"W_KQ1": 3.0, "W_KQ2": 5.0}
    task.ideal(whole, beta)
    task.ideal(some, beta, only)
    for name, weights in some.named_parameters():
        assert torch.equal(weights, (whole if name in holds else drawn).get_parameter(name))
        assert torch.equal(weights, drawn.get_parameter(name)) == (name not in holds)


@pytest.mark.parametrize(
    ("name", "expected"), [("W_KQ1", 65 + 16), ("W_KQ2", 2 * (65 + 16)), ("W_OV2", 2 * (65 + 16))]
)  # fmt: skip
def test_keys_and_what_is_beside_them_are_the_whole_stream(name: str, expected: int):
    """Tokens and positions in layer 1, and what layer 1 makes of them in layer 2; each once, also for values that a
    query reads."""
    task = make(seq_len=16)
    memory = task.memories(model_for(task, d_model=128))[name]
    stream = torch.cat([memory.association.keys, memory.beside_keys])
    assert len(torch.unique(stream, dim=0)) == len(stream) == expected
    if name != "W_OV2":
        values = torch.cat([memory.association.values, memory.beside_values])
        assert torch.equal(torch.unique(values, dim=0), torch.unique(stream, dim=0))


def ideal_by(rule: str, d: int, **fields: Any) -> tuple[BigramTask, ToyTransformer]:
    task = make(seq_len=32, construction={"rule": rule})
    model = model_for(task, d_model=d, attention={"kq": "joint"}, **fields)  # |ẽ|² = |e|²/9
    task.ideal(model, {"W_KQ1": 20.0, "W_KQ2": 20.0, "W_OV2": 10.0})
    return task, model


def test_least_squares_keep_what_is_beside_a_key_out_of_its_scores():
    """256 dimensions hold the 194 vectors of the stream; Hebbian scores of short vectors have √(256/24) = 3.3 to 1."""
    accuracies = {}
    for rule in ("hebbian", "least_squares"):
        task, model = ideal_by(rule, 256)
        accuracies[rule] = goal_metrics(model, task, task.sample(256, generator(0, "batch")))["accuracy"]
        memory = task.memories(model)["W_KQ2"]
        W = model.W_KQ(1)[0].detach().T / model.attention(1).scale
        own = torch.diagonal(memory.association.scores(W)).mean()
        crosstalk = (memory.association.keys @ W.T @ memory.beside_values.T).square().mean().sqrt()
        assert float(own) == pytest.approx(20, rel=0.15)  # the ridge takes some of short vectors
        assert (float(crosstalk) < 1) == (rule == "least_squares")
    assert accuracies["least_squares"] > accuracies["hebbian"] + 0.02
    assert accuracies["least_squares"] > 0.96  # the tie of the first two positions is left


def test_by_default_the_construction_is_hebbian():
    task, model = ideal_by("hebbian", 16)
    plain = make(seq_len=32)
    other = model_for(plain, d_model=16, attention={"kq": "joint"})
    plain.ideal(other, {"W_KQ1": 20.0, "W_KQ2": 20.0, "W_OV2": 10.0})
    assert all(torch.equal(weights, other.get_parameter(name)) for name, weights in model.named_parameters())
    assert task.ideal_rule == plain.ideal_rule
