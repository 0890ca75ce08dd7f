"""The accuracy of Hebbian matrices in an induction head is what the overlaps of random vectors predict."""

from typing import Any

import pytest
import torch

from tasks.bigram.task import BigramTask
from tests.tasks.bigram.sequences import make
from toytf.build import build_model
from toytf.evaluation import goal_metrics
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.randomness import generator

ALL = ("W_KQ1", "W_KQ2", "W_OV2")
SCALES: dict[str, Any] = {
    # |ẽ|² = |e|²: as long as the tokens in the same stream
    "long": {
        "embedding": "normal_over_d", "position": "normal_over_d", "unembedding": "normal_over_d",
        "attention": {"kq": "joint", "ov": "joint", "scale": 1, "init": "normal_over_d"},
    },
    # |ẽ|² = |e|²/9, as in Bietti et al. 2023
    "short": {"attention": {"kq": "joint", "ov": "factored"}},
}  # fmt: skip


def ideal(task: BigramTask, d: int, scale: str, seed: int, **beta: float) -> ToyTransformer:
    """A model of the construction; at β = 20 attention is sharp, and with 10 for W_OV2 copying is clean."""
    strengths = {"W_KQ1": 20.0, "W_KQ2": 20.0, "W_OV2": 10.0, **beta}
    content = {"d_model": d, "init": "ideal", "beta": strengths, **SCALES[scale]}
    return build_model(ModelConfig.model_validate(content), task, seed)


def compared(task: BigramTask, d: int, scale: str, seeds: int = 6, **beta: float) -> tuple[float, float]:
    """Accuracy and prediction, averaged over seeds."""
    measured, predicted = 0.0, 0.0
    for seed in range(seeds):
        model, batch = ideal(task, d, scale, seed, **beta), task.sample(96, generator(seed, "batch"))
        measured += goal_metrics(model, task, batch)["accuracy"] / seeds
        predicted += (task.graft_accuracy(model, batch, "hebbian", ALL) or 0.0) / seeds
    return measured, predicted


@pytest.mark.parametrize(
    ("d", "scale", "changes"),
    [
        (128, "short", {}),
        (256, "short", {}),
        (64, "long", {}),
        (128, "long", {}),
        (256, "short", {"triggers": "random"}),
        (256, "short", {"n_triggers": 1}),
    ],
)
def test_accuracy_of_hebbian_matrices_is_predicted(d: int, scale: str, changes: dict[str, Any]) -> None:
    """A seed draws the vectors of five triggers and scatters by .03 to .05, six by .02; twice that is .04."""
    measured, predicted = compared(make(seq_len=64, **changes), d, scale)
    assert measured == pytest.approx(
        predicted, abs=0.04 if not changes.get("n_triggers") else 0.07
    )  # one trigger: more
    assert predicted < 0.985  # there is something to predict


def test_flat_attention_of_layer_1_is_part_of_the_prediction() -> None:
    """Below β = ln T = 4.2 most attention misses the previous position: e² / (e² + T/2) = .19 is left at β = 2."""
    task = make(seq_len=64)
    sharp, flat = (compared(task, 128, "long", W_KQ1=beta) for beta in (20.0, 2.0))
    assert flat[1] < sharp[1] - 0.1
    assert flat[0] == pytest.approx(flat[1], abs=0.06)  # the rest of the attention is spread as if at random


def test_crosstalk_falls_with_the_dimension_down_to_the_tie_of_the_first_positions() -> None:
    """Without crosstalk only sequences that start with a trigger (.40 of them) are in doubt, and only for it."""
    task, batch = make(seq_len=64), make(seq_len=64).sample(96, generator(0, "batch"))
    found = [task.graft_accuracy(ideal(task, d, "short", 0), batch, "hebbian", ALL) or 0 for d in (64, 128, 256, 1024)]
    assert found == sorted(found)
    assert 0.9 < found[-1] < 0.995
    clean = batch.part(0, 96)
    clean.roles["in_context"].logical_and_(batch.roles["clean_start"])  # type: ignore[attr-defined]
    assert (task.graft_accuracy(ideal(task, 1024, "short", 0), clean, "hebbian", ALL) or 0) > 0.99


@pytest.mark.parametrize(
    ("rule", "names", "fields", "noise"),
    [
        ("least_squares", ALL, {}, None),
        ("hebbian", ("W_KQ1", "W_OV2"), {}, None),
        ("hebbian", ALL, {"feed_forward": {"kind": "linear"}}, None),
        ("hebbian", ALL, {"norm": "layer"}, None),
        ("hebbian", ALL, {}, {"probability": 0.5}),
    ],
)
def test_what_the_race_does_not_describe_has_no_prediction(
    rule: str, names: tuple[str, ...], fields: dict[str, Any], noise: Any
) -> None:
    task = make(seq_len=16, noise=noise)
    config = ModelConfig.model_validate({"d_model": 32, "attention": {"kq": "joint"}, **fields})
    batch = task.sample(8, generator(0, "batch"))
    assert task.graft_accuracy(build_model(config, task, 0), batch, rule, names) is None


def test_learned_attention_is_taken_as_it_is() -> None:
    """With W_KQ1 left as it is, an ideal one gives the signal that theory gives it: the two predictions agree."""
    task = make(seq_len=32)
    model, batch = ideal(task, 256, "long", 0), task.sample(64, generator(0, "batch"))
    own = task.graft_accuracy(model, batch, "hebbian", ["W_KQ2"])
    theory = task.graft_accuracy(model, batch, "hebbian", ["W_KQ1", "W_KQ2"])
    assert own == pytest.approx(theory, abs=0.02)
    with torch.no_grad():
        model.attention(0).W_K.zero_()  # uniform attention finds nothing
    assert (task.graft_accuracy(model, batch, "hebbian", ["W_KQ2"]) or 0) < (own or 0) - 0.3
