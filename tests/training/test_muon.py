"""Muon as the optimiser of a training: what it moves, how it goes on, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import toytf
from tests.training.test_loop import TINY, make_learner
from toytf.config.plugins import load_config
from toytf.errors import Interrupted, UserError
from toytf.optimizers import AdamW, Muon, Several
from toytf.training.config import AdamWConfig, MuonConfig
from toytf.training.driver import Trainer, drive
from toytf.training.learner import StackedLearner, build_optimizer

pytestmark = pytest.mark.repeats_runs

EVERYTHING: dict[str, Any] = {
    "model": {
        "d_model": 16, "norm": "layer", "attention": {"n_heads": 2, "d_head": 4, "kq": "factored", "ov": "factored"},
        "feed_forward": {"kind": "relu", "width": 24, "bias": True}, "freeze": [],
    },
    "train.optimizer": {"kind": "muon"},
    "probes": [],
}  # fmt: skip
"""A model with every kind of parameter, all of them trained."""


def test_matrices_between_streams_are_trained_by_muon_and_all_else_by_adamw() -> None:
    learner, _ = make_learner(EVERYTHING)
    optimizer = build_optimizer(learner, learner.parameters.values())
    assert isinstance(optimizer, Several)
    of = {parameter: type(part) for part in optimizer.parts for parameter in part.parameters}
    by_rule = {name: of[parameter] for name, parameter in learner.parameters.items()}
    attention = {f"blocks.{layer}.attn.W_{part}" for layer in (0, 1) for part in "QKVO"}
    hidden = {f"blocks.{layer}.mlp.W_{part}" for layer in (0, 1) for part in ("in", "out")}
    assert {name for name, rule in by_rule.items() if rule is Muon} == attention | hidden
    others = {"embed.W_E", "pos_embed.W_pos", "unembed.W_U", "blocks.1.mlp.b_in", "blocks.0.ln1.w", "ln_final.b"}
    assert others <= {name for name, rule in by_rule.items() if rule is AdamW}


def test_the_one_matrix_of_a_linear_part_is_trained_by_muon() -> None:
    learner, _ = make_learner({**EVERYTHING, "model": {"d_model": 16, "feed_forward": {"kind": "linear"}}})
    optimizer: Any = build_optimizer(learner, learner.parameters.values())
    assert learner.parameters["blocks.1.mlp.W_in"] in {*optimizer.parts[0].parameters}


CHANGES: dict[str, Any] = {
    "kind": {"kind": "adamw"},
    "lr": {"lr": 0.01},
    "momentum": {"momentum": 0.5},
    "nesterov": {"nesterov": False},
    "weight_decay": {"weight_decay": 0.5},
    "newton_schulz_steps": {"newton_schulz_steps": 3},
    "rest": {"rest": {"lr": 0.1}},
}


def weights(optimizer: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Those after three steps."""
    learner, config = make_learner({**EVERYTHING, "train.optimizer": optimizer, "train.steps": 3})
    drive(Trainer(learner, config.train))
    return learner.model.state_dict()


def test_the_table_of_changes_has_every_field() -> None:
    assert set(CHANGES) == set(MuonConfig.model_fields)


@pytest.mark.parametrize("field", CHANGES)
def test_every_field_changes_the_training(field: str) -> None:
    before, after = weights({"kind": "muon"}), weights({"kind": "muon", **CHANGES[field]})
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert ("blocks.0.attn.W_K" if field != "rest" else "embed.W_E") in changed


def test_a_first_step_turns_every_head_by_the_learning_rate() -> None:
    """The largest singular value of a step is 0.68 to 1.21 times lr · √max(1, d_out / d_in).

    d = 16, d_head = 4: the factor is 2 for W_O, which widens, and 1 for W_V, which narrows.
    """
    learner, config = make_learner({**EVERYTHING, "train.steps": 1, "train.optimizer": {"kind": "muon", "lr": 0.1}})
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    drive(Trainer(learner, config.train))
    for part, factor in {"W_V": 1.0, "W_O": 2.0}.items():
        name = f"blocks.1.attn.{part}"
        for step in learner.model.state_dict()[name] - before[name]:
            largest = float(torch.linalg.matrix_norm(step, 2))
            assert 0.68 * 0.1 * factor < largest < 1.21 * 0.1 * factor


STOPPED = {
    **TINY, **EVERYTHING, "train.checkpoints.every": 5, "device": "cpu",
    "model.freeze": ["embed.*", "blocks.1.attn.W_K"], "model.unfreeze": {8: ["embed.*", "blocks.1.attn.W_K"]},
}  # fmt: skip


@pytest.mark.parametrize("stack", [1, 2])
def test_a_training_that_was_stopped_goes_on_to_the_same_bits(
    stack: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also over the step at which a matrix and the embedding begin to move, and what is remembered of each."""
    config = {**STOPPED, "seeds": [0, 1], "stack": stack}
    whole = toytf.run("quickstart", config, out=tmp_path / "whole", page=False)
    for step in (6, 13):
        with monkeypatch.context() as patched:
            asked = iter([False] * (step - 1) + [True] * 100)
            patched.setattr("toytf.training.driver.stop_asked", lambda asked=asked: next(asked))
            with pytest.raises(Interrupted):
                toytf.run("quickstart", config, out=tmp_path / "stopped", resume=True, page=False)
    again = toytf.run("quickstart", config, out=tmp_path / "stopped", resume=True, page=False)
    names = ["metrics.jsonl", "summary.json"]
    names += [f"checkpoints/seed{seed}-step000020.{kind}" for seed in (0, 1) for kind in ("safetensors", "training")]
    for name in names:
        assert (again.directory / name).read_bytes() == (whole.directory / name).read_bytes(), name


def test_a_checkpoint_has_the_momentum_of_matrices_and_both_moments_of_the_rest(tmp_path: Path) -> None:
    run = toytf.run("quickstart", {**STOPPED, "train.steps": 9, "seeds": [0]}, out=tmp_path / "run", page=False)
    held = {key.rpartition("/")[::2] for key in load_file(run.checkpoints / "seed0-step000009.training")}
    assert ("blocks.1.attn.W_K", "momentum_buffer") in held and ("blocks.1.attn.W_K", "exp_avg") not in held
    assert {("embed.W_E", field) for field in ("step", "exp_avg", "exp_avg_sq")} <= held


def test_the_bits_of_a_member_do_not_depend_on_how_many_there_are() -> None:
    def member(n: int) -> dict[str, torch.Tensor]:
        learners = [make_learner(EVERYTHING)[0] for _ in range(n)]
        for i, learner in enumerate(learners):
            learner.seed = i
        drive(Trainer(StackedLearner(learners), learners[0].config))
        return learners[0].model.state_dict()

    alone, of_five = member(1), member(5)
    assert all(torch.equal(alone[name], of_five[name]) for name in alone)


def test_trainings_at_several_rates_can_be_one_stack() -> None:
    """A sweep over train.optimizer.lr; the rates of the rest are those of all."""
    rate, decay, rest = (
        load_config("bigram/muon", {f"train.optimizer.{key}": 0.1}).stack_key
        for key in ("lr", "weight_decay", "rest.lr")
    )
    assert rate == decay == load_config("bigram/muon").stack_key != rest


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        ({"newton_schulz_steps": 0}, r"train\.optimizer\.newton_schulz_steps = 0"),
        ({"newton_schulz_steps": 10**9}, r"train\.optimizer\.newton_schulz_steps = 1000000000"),
        ({"momentum": 1}, r"train\.optimizer\.momentum = 1"),
        ({"betas": [0.9, 0.95]}, 'unknown key "betas" in "train.optimizer"'),
        ({"rest": {"kind": "sgd"}}, r"train\.optimizer\.rest\.kind = .sgd."),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_in_one_line(optimizer: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        load_config("quickstart", {"train.optimizer": {"kind": "muon", **optimizer}})
    assert "\n" not in str(refused.value)


def test_a_training_without_any_matrix_is_refused(tmp_path: Path) -> None:
    overrides = {**TINY, "train.optimizer": {"kind": "muon"}, "model.freeze": ["blocks.*"], "probes": []}
    with pytest.raises(UserError, match=r"model\.freeze leaves none of them to train: choose adamw"):
        toytf.run("quickstart", overrides, out=tmp_path / "run", page=False)


def test_all_else_is_trained_like_adamw_alone_would() -> None:
    assert MuonConfig().rest == AdamWConfig()
