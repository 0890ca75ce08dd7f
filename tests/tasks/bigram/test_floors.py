"""How often sequences are trapped or scored, the best levels, and what trivial guesses reach."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tasks.bigram.floors import most_frequent_so_far
from tests.tasks.bigram.sequences import N, is_trapped, make, output_maps, sample
from toytf.randomness import generator
from toytf.task import Batch

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
