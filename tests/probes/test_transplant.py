"""Ideal parts in place of learned ones: nothing changes where they are ideal, and a broken one is mended."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import torch

import toytf
from tasks.bigram.task import BigramTask
from toytf.build import build_model, build_probe, build_task
from toytf.config.plugins import load_config, plugins
from toytf.errors import UserError
from toytf.evaluation import role_metrics
from toytf.measurement import as_row
from toytf.memory import Association
from toytf.models import Slot, ToyTransformer
from toytf.models.config import ModelConfig
from toytf.probe import ProbeResult
from toytf.randomness import generator
from toytf.task import Memory, Task

CONFIGS = Path(__file__).parents[2] / "configs"
BETA = {"W_KQ1": 20, "W_KQ2": 20, "W_OV2": 10}
SOLUTION = ("W_KQ1", "W_KQ2", "W_OV2")
NAMES = {
    "transplant/learned",
    "transplant/ideal_all",
    *(f"transplant/ideal_{name}" for name in SOLUTION),
    *(f"transplant/ideal_all_but_{name}" for name in SOLUTION),
}


def setting(path: str = "bigram/ideal.yaml", **overrides: Any) -> tuple[BigramTask, ToyTransformer]:
    """A model of d = 64 on sequences of 32."""
    small = {"model.d_model": 64, "task.seq_len": 32}
    config: Any = load_config(CONFIGS / path, small | {key.replace("__", "."): v for key, v in overrides.items()})
    task: Any = build_task(config.task, torch.device("cpu"))
    return task, build_model(config.model, task, 0)


def probe(task: Task, model: ToyTransformer, n: int = 32, **fields: Any) -> ProbeResult:
    """By the Hebbian rule, unless others are given."""
    config = plugins("probes")["transplant"](kind="transplant", **{"rules": ["hebbian"], **fields})
    return build_probe(config)(model, task, task.sample(n, generator(0, "batch")))


def after(result: ProbeResult, name: str) -> float:
    return result.metrics[f"transplant/{name}"]


def rotation(d: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(d, d, generator=generator(0, "rotation")))[0]


def scramble(model: ToyTransformer, slot: Slot) -> None:
    """Let a matrix of the construction, where scores are not scaled, answer in other directions; its norm stays."""
    d = model.config.d_model
    model.write(slot, model.read(slot, torch.eye(d)) @ rotation(d))


# What is put in


@pytest.mark.parametrize("kq", ["joint", "factored"])
@pytest.mark.parametrize("scale", [1, "sqrt_d_head"])
def test_an_ideal_model_stays_as_it_is(scale: Any, kq: str):
    """At β = 3 accuracy depends on the norm, which must be that of the matrix that acts, whatever holds it."""
    task, model = setting(
        model__attention={"kq": kq, "ov": "joint", "scale": scale, "init": "normal_over_d"},
        model__beta={"W_KQ1": 3, "W_KQ2": 3},
    )
    result = probe(task, model)
    learned = after(result, "learned")
    assert 0.2 < learned < 0.9
    # Rounding of the norm may turn one of some hundred positions.
    assert dict(result.metrics) == pytest.approx(dict.fromkeys(NAMES, learned), abs=0.005)
    assert after(probe(task, model, strength=3), "ideal_all") > learned + 0.05


def test_the_model_as_learned_has_its_own_accuracy():
    task, model = setting()
    batch = task.sample(32, generator(0, "batch"))
    assert after(probe(task, model), "learned") == as_row(role_metrics(model, batch))["eval/in_context_accuracy"]


@pytest.mark.parametrize(
    ("name", "slot"), [("W_KQ1", Slot("KQ", 0)), ("W_KQ2", Slot("KQ", 1)), ("W_OV2", Slot("OV", 1))]
)
def test_a_scrambled_matrix_is_mended_by_its_transplant_and_by_no_other(name: str, slot: Slot):
    task, model = setting(model__d_model=256)
    whole = after(probe(task, model), "learned")
    scramble(model, slot)
    result = probe(task, model)
    assert whole > 0.9  # .96 in the mean at d = 256, see configs/bigram/ideal.yaml
    for mended in (f"ideal_{name}", "ideal_all", *(f"ideal_all_but_{n}" for n in SOLUTION if n != name)):
        assert after(result, mended) == pytest.approx(whole, abs=0.005)
    # What attention finds at random may still be right, where one output fills the sequence.
    for broken in ("learned", f"ideal_all_but_{name}", *(f"ideal_{n}" for n in SOLUTION if n != name)):
        assert after(result, broken) < 0.5


def test_the_levels_are_those_of_the_accuracy():
    task, model = setting()
    result = probe(task, model, rules=None)
    level = task.references()["in_context", "accuracy"]
    variants = {f"{name}/least_squares" for name in NAMES - {"transplant/learned"}}
    assert set(result.metrics) == set(result.references) == NAMES | variants
    assert {(reference.ideal, reference.chance) for reference in result.references.values()} == {
        (level.ideal, level.chance)
    }


def test_the_two_rules_score_stored_pairs_alike():
    """What differs is crosstalk: on orthonormal vectors, where there is none, they are one matrix."""
    task, model = setting(
        "quickstart.yaml",
        model__d_model=256,
        model__embedding="orthonormal",
        model__position="one_hot",
        model__unembedding="orthonormal",
        model__attention={"kq": "joint", "ov": "joint", "init": "normal_over_d"},
    )
    for rule in task.graft_rules:
        trial = copy.deepcopy(model)
        for graft in task.grafts(model, rule):
            graft.implant(trial)
        memory = task.memories(model)["W_OV2"]
        scores = memory.association.scores(trial.W_OV(1)[0].detach().T)
        own = float(model.W_OV(1).detach().norm()) / 65**0.5  # ‖Σ u eᵀ‖ = √65 for orthonormal vectors
        torch.testing.assert_close(torch.diagonal(scores), torch.full((65,), own), rtol=0.02, atol=0)


def test_least_squares_remove_the_crosstalk_of_short_vectors():
    """|ẽ|² = |e|²/9 at d = 128 and T = 32: Hebbian signal to noise is √(128/24) = 2.3, of about 30 rivals the best is
    at 2.0; of the 194 vectors in the stream two thirds can be kept out."""
    task, model = setting("quickstart.yaml", model__d_model=128, model__init="ideal", model__beta=BETA)
    result = probe(task, model, 64, rules=None)
    hebbian, dual = after(result, "ideal_all"), after(result, "ideal_all/least_squares")
    assert hebbian < 0.9
    assert dual > hebbian + 0.05
    references = result.references
    assert references["transplant/ideal_all"].theory == pytest.approx(hebbian, abs=0.1)  # one seed scatters by .05
    assert references["transplant/ideal_all/least_squares"].theory is None
    assert references["transplant/ideal_all_but_W_KQ2"].theory is None


# Which models can take it


def test_a_rule_that_a_task_does_not_have_is_refused():
    task, model = setting()
    with pytest.raises(UserError, match='task bigram has no ideal parts by the rule "construction": accepted: hebbian'):
        probe(task, model, rules=["construction"])


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        ({"n_heads": 2}, "probe transplant: .* one head of full dimension"),
        ({"d_head": 16}, "probe transplant: .* one head of full dimension"),
    ],
)
def test_heads_that_cannot_hold_an_ideal_matrix_are_refused(attention: dict[str, Any], message: str):
    task, model = setting("quickstart.yaml", model__attention=attention)
    with pytest.raises(UserError, match=message):
        probe(task, model)


def test_a_model_without_memories_is_refused():
    task, model = setting("bigram/one_layer.yaml", model__position="none")
    with pytest.raises(UserError, match="task bigram has no memory with one answer per key that is a matrix"):
        probe(task, model)


def test_only_memories_that_fit_are_transplanted():
    task, model = setting("quickstart.yaml", model__attention={"kq": "joint", "ov": "factored", "d_head": 16})
    assert set(probe(task, model).metrics) == {name for name in NAMES if "W_OV2" not in name}
    task, model = setting("bigram/one_layer.yaml")
    assert {name for name in probe(task, model).metrics if "W_" in name} == {
        "transplant/ideal_W_KQ1",
        "transplant/ideal_all_but_W_KQ1",
    }


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_layer_norms_and_feed_forward_parts_stay_as_learned(norm: str):
    task, model = setting("quickstart.yaml", model__feed_forward={"kind": "linear"}, model__norm=norm)
    assert set(probe(task, model).metrics) == NAMES  # FF2 is a distribution


def test_a_matrix_of_zeros_has_a_transplant_of_zeros():
    silent = {"init": "zeros", "kq": "joint", "ov": "joint"}
    task, model = setting("quickstart.yaml", model__attention=silent)
    result = probe(task, model)
    assert dict(result.metrics) == dict.fromkeys(NAMES, after(result, "learned"))


def test_a_batch_without_scored_positions_has_no_metrics():
    task, model = setting()
    batch = task.sample(2, generator(0, "batch"))
    nowhere = replace(batch, roles={"in_context": torch.zeros_like(batch.roles["in_context"])})
    config = plugins("probes")["transplant"](kind="transplant")
    assert build_probe(config)(model, task, nowhere).metrics == {}


class _TwoHalves(BigramTask):
    """The same task with W_OV2 as two memories of one matrix; the second is in no solution."""

    def memories(self, model: ToyTransformer) -> Mapping[str, Memory]:
        found = dict(super().memories(model))
        whole = found.pop("W_OV2")
        for name, part in {"odd": slice(0, None, 2), "even": slice(1, None, 2)}.items():
            stored = whole.association
            half = Association(stored.keys[part], stored.values, stored.targets[part])
            found[f"W_OV2_{name}"] = Memory(half, whole.slot)
        return found


def test_memories_that_share_a_matrix_are_transplanted_as_their_sum():
    task, model = setting()
    scramble(model, Slot("OV", 1))
    halves = _TwoHalves(task.config, task.device)
    halves.solution = ("W_KQ1", "W_KQ2", "W_OV2_odd")
    found = {
        name.replace("W_OV2_odd+W_OV2_even", "W_OV2"): value for name, value in probe(halves, model).metrics.items()
    }
    assert found == pytest.approx(dict(probe(task, model).metrics), abs=0.005)


# Other tasks, runs


def test_a_strangers_task_can_be_transplanted(monkeypatch: pytest.MonkeyPatch):
    """Untrained at d = 64, a guess among 5; ideal matrices of the same norm solve it.

    ‖W‖ = √d = 8 and unit vectors: a score of 8/√7 = 3.0 puts .75 of layer 1's attention on the previous of at most 8
    positions, and the token there gets the logit .75 · 8/√5 = 2.7, beside noise of size 1/√d.
    """
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "third_party"))
    from copycat.config import CopyConfig
    from copycat.previous import CopyTask

    task = CopyTask(CopyConfig(kind="copy"), torch.device("cpu"))
    attention = {"kq": "joint", "ov": "joint", "scale": 1, "init": "normal_over_d"}
    vectors = dict.fromkeys(("embedding", "position", "unembedding"), "sphere")
    config = ModelConfig.model_validate({"d_model": 64, "n_layers": 1, "attention": attention, **vectors})
    result = probe(task, build_model(config, task, 0))
    assert after(result, "learned") < 0.4
    assert after(result, "ideal_all") > 0.9
    assert after(result, "ideal_all_but_W_OV1") == after(result, "ideal_W_KQ1") < 0.4
    assert result.references["transplant/ideal_all"].ideal == 1
    assert result.references["transplant/ideal_all"].chance == pytest.approx(1 / 5)


def test_a_finished_run_can_be_probed(tiny_run: "toytf.Run", invoke: Any):
    ended = invoke("probe", tiny_run.directory, "--probe", "transplant")
    assert ended.code == 0
    assert "ideal_all_but_W_KQ1" in ended.out
    assert isinstance(tiny_run.probe("transplant").figure(), go.Figure)
