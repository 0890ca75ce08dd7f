"""Trainings as one tensor program: each is, to the last digit, what it is alone."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import toytf
from tests.training.test_loop import waits_of_a_step
from toytf.build import build_model, build_task
from toytf.config.plugins import load_config
from toytf.errors import RunFailed, UserError
from toytf.experiments.launch import run_together
from toytf.models.counts import SAFE, stacked_count_forward
from toytf.models.stack import Stack
from toytf.randomness import generator
from toytf.runs import Run
from toytf.runs.checkpoints import CheckpointStore
from toytf.training.driver import Trainer, drive
from toytf.training.learner import SeedLearner, StackedLearner
from toytf.training.stacking import MOST, even_parts

pytestmark = pytest.mark.repeats_runs

FACTS: dict[str, Any] = {"train.batch_size": 16, "train.evaluation": {"every": 20, "sequences": 64}}
TEXT: dict[str, Any] = {"task.seq_len": 12, "train.batch_size": 8, "train.evaluation": {"every": 20, "sequences": 16}}
SHAPES = {
    "counts": ("factual/quick", FACTS),
    "counts, a set of answers": ("factual/quick", {**FACTS, "train.loss": "relation"}),
    "counts, in chunks": ("factual/quick", {**FACTS, "train.chunk": 7}),
    "counts, heads alone": ("factual/quick", {**FACTS, "model.feed_forward": {"kind": "none"}}),
    "tables": ("quickstart", {**TEXT, "model.d_model": 80}),
    "plain": ("quickstart", {**TEXT, "model.d_model": 16, "train.chunk": 3}),
    "layers of relu units": ("bigram/two_layers", {**TEXT, "model.d_model": 16}),
    "unfrozen later": (
        "quickstart",
        {**TEXT, "model": {"d_model": 16, "freeze": ["embed.*", "blocks.1.*"], "unfreeze": {40: ["blocks.1.*"]}}},
    ),
    "sgd": ("factual/quick", {**FACTS, "train.optimizer": {"kind": "sgd", "lr": 0.1, "weight_decay": 1e-3}}),
    "muon": ("factual/quick", {**FACTS, "model.freeze": [], "train.optimizer": {"kind": "muon"}}),
}
RATES = [{"lr": 1e-3}, {"lr": 1e-2}, {"lr": 1e-2, "weight_decay": 0.1}]


def learners(name: str, overrides: dict[str, Any], members: Sequence[dict[str, Any]]) -> list[SeedLearner]:
    """A learner in double precision for each member, which has a seed and rates of its own."""
    config: Any = load_config(name, {**overrides, "train.steps": 100})
    task = build_task(config.task, torch.device("cpu"))
    found = []
    for seed, rates in enumerate(members):
        train = config.train.model_copy(update={"optimizer": config.train.optimizer.model_copy(update=rates)})
        found.append(SeedLearner(build_model(config.model, task, seed).double(), task, [], train, seed))
    return found


def trained(learner: Any) -> list[dict[str, torch.Tensor]]:
    """The weights of every member after all steps."""
    drive(Trainer(learner, learner.members[0].config))
    return [dict(member.model.state_dict()) for member in learner.members]


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_after_100_steps_are_those_of_each_alone(shape: str) -> None:
    name, overrides = SHAPES[shape]
    alone = [trained(learner)[0] for learner in learners(name, overrides, RATES)]
    together = trained(StackedLearner(learners(name, overrides, RATES)))
    for ours, theirs in zip(together, alone, strict=True):
        for weight, value in theirs.items():
            torch.testing.assert_close(ours[weight], value, rtol=0, atol=1e-9)
    assert any(not torch.equal(together[0][weight], together[1][weight]) for weight in together[0])


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("factual/quick", {}), ("factual/quick", {"task.last": "relation"}), ("quickstart", {}),
     ("quickstart", {"task.triggers": "random", "task.noise": {"probability": 0.5}, "task.show_latents": True})],
)  # fmt: skip
def test_sequences_of_each_generator_are_those_that_it_draws_alone(name: str, overrides: dict[str, Any]) -> None:
    config: Any = load_config(name, overrides)
    task = build_task(config.task, torch.device("cpu"))
    together = task.sample_each(5, [generator(seed, "x") for seed in range(3)])
    for seed in range(3):
        alone, ours = task.sample(5, generator(seed, "x")), together.part(5 * seed, 5 * seed + 5)
        assert torch.equal(ours.tokens, alone.tokens)
        assert torch.equal(ours.targets, alone.targets)
        for named, other in ((ours.roles, alone.roles), (ours.latents, alone.latents)):
            assert all(torch.equal(named[key], other[key]) for key in other)


@pytest.mark.parametrize("scale", [100.0, 1e6], ids=["double precision", "no product"])
def test_a_saturated_member_changes_no_bit_of_the_others(scale: float) -> None:
    """Scores that lie far apart need more precision, or another way: only where they do."""
    config: Any = load_config("factual/quick", FACTS)
    task = build_task(config.task, torch.device("cpu"))

    def stack(saturated: bool) -> Stack:
        models = [build_model(config.model, task, seed) for seed in range(3)]
        for model in models:
            model.embed.W_E.requires_grad_(False)
            model.unembed.W_U.requires_grad_(False)
        if saturated:
            models[1].attention(0).W_K.data *= scale
        return Stack(models)

    tokens = task.sample_each(8, [generator(seed, "x") for seed in range(3)]).tokens.view(3, 8, -1)
    plain, one_saturated = stack(False), stack(True)
    parts = stacked_count_forward(one_saturated.model, tokens)
    assert parts is not None and len(parts) == 2  # so the scores do lie apart
    before, now = (chosen.forward(tokens, 1, fast=True) for chosen in (plain, one_saturated))
    assert torch.equal(before[[0, 2]], now[[0, 2]])
    expected = torch.stack([model(z, last=1) for model, z in zip(one_saturated.models, tokens, strict=True)]).detach()
    torch.testing.assert_close(now.detach(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_scores_lie_apart_as_the_test_above_assumes() -> None:
    assert SAFE[torch.float32] < 100 < SAFE[torch.float64] < 1e6


@pytest.mark.parametrize("shape", ["counts", "tables", "plain", "muon"])
def test_no_stacked_step_waits_for_another_device(shape: str, elsewhere: Callable[[], None]) -> None:
    name, overrides = SHAPES[shape]
    learner = StackedLearner(learners(name, overrides, RATES))
    elsewhere()
    assert waits_of_a_step(learner) == []


# Runs


QUICK: dict[str, Any] = {
    "task.n_subjects": 4, "task.n_relations": 4, "task.n_answers": 2, "task.seq_len": 8,
    "model.d_model": 16, "model.attention.n_heads": 2, "model.attention.d_head": 4, "model.feed_forward.width": 8,
    "train.steps": 40, "train.batch_size": 16, "train.evaluation": {"every": 10, "sequences": 32},
    "probes": ["facts"], "logging.wandb": "off", "device": "cpu",
}  # fmt: skip


def quick_run(*given: Any, **options: Any) -> Run:
    """A run without its page, which takes longer than the training."""
    return toytf.run(*given, page=False, **options)


FILES = ["metrics.jsonl", "summary.json", *(f"checkpoints/seed{seed}-step000040.safetensors" for seed in range(3))]


def files(run: Run) -> dict[str, bytes]:
    return {name: (run.directory / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "run"
    return quick_run("factual/quick", {**QUICK, "seeds": [0, 1, 2], "stack": 1}, out=out)


def test_a_stacked_run_leaves_the_files_of_one_whose_seeds_came_one_by_one(one_by_one: Run, tmp_path: Path) -> None:
    run = toytf.run("factual/quick", {**QUICK, "seeds": [0, 1, 2]}, out=tmp_path / "run")
    assert run.config.stack == 3  # type: ignore[attr-defined]
    assert files(run) == files(one_by_one)
    assert run.report_file.exists()


@pytest.mark.parametrize("saves", [4, 17])
def test_a_stack_that_breaks_off_between_two_saves_goes_on_to_the_same_files(
    saves: int, one_by_one: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members then have checkpoints of unlike steps: those at one step go on together."""
    real, done = CheckpointStore.save, 0

    def breaks(self: CheckpointStore, *args: Any) -> None:
        nonlocal done
        done += 1
        if done > saves:
            raise KeyboardInterrupt
        real(self, *args)

    overrides = {**QUICK, "seeds": [0, 1, 2]}
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStore, "save", breaks)
        with pytest.raises(KeyboardInterrupt):
            quick_run("factual/quick", overrides, out=tmp_path / "run")
    assert len({CheckpointStore(tmp_path / "run/checkpoints", seed).latest() for seed in range(3)}) == 2
    assert files(quick_run("factual/quick", overrides, out=tmp_path / "run", resume=True)) == files(one_by_one)


def test_runs_that_differ_in_seed_and_rates_are_stacked_and_one_that_diverges_stops_no_other(tmp_path: Path) -> None:
    members = [{"seeds": [0]}, {"seeds": [1], "train.optimizer.lr": 1e30}, {"seeds": [2], "train.optimizer.lr": 1e-3}]
    sgd = {**QUICK, "train.optimizer": {"kind": "sgd", "lr": 1e-2}}
    alone = [quick_run("factual/quick", {**sgd, **members[i]}, out=tmp_path / f"alone{i}") for i in (0, 2)]
    configs = [load_config("factual/quick", {**sgd, **own, "stack": 3}) for own in members]
    assert len({config.stack_key for config in configs}) == 1
    ends = run_together(configs, [tmp_path / f"{i}" for i in range(3)], page=False)
    assert isinstance(ends[1], RunFailed)
    assert "diverged" in str(ends[1])
    assert not (tmp_path / "1/summary.json").exists()
    for end, expected in zip((ends[0], ends[2]), alone, strict=True):
        assert isinstance(end, Run)
        assert end.finished and not end.report_file.exists()
        assert end.summary == expected.summary
    again = run_together(configs, [tmp_path / f"{i}" for i in range(3)], page=False)
    assert [type(end) for end in again] == [type(end) for end in ends]


def test_a_seed_that_diverges_in_a_stack_is_named_and_the_others_are_trained_to_the_end(tmp_path: Path) -> None:
    broken: list[int] = []
    real = SeedLearner.evaluate

    def break_one(self: SeedLearner, step: int) -> Any:
        if self.seed == 1 and step == 20:
            self.model.unembed.W_U.data.fill_(torch.nan)
            broken.append(step)
        return real(self, step)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SeedLearner, "evaluate", break_one)
        with pytest.raises(RunFailed, match="diverged by step 20"):
            quick_run("factual/quick", {**QUICK, "seeds": [0, 1, 2]}, out=tmp_path / "run")
    assert broken == [20]
    latest = {seed: CheckpointStore(tmp_path / "run/checkpoints", seed).latest() for seed in range(3)}
    assert latest == {0: 40, 1: 16, 2: 40}


def test_a_member_that_diverged_pulls_no_other_back_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, evaluate = CheckpointStore.save, SeedLearner.evaluate

    def killed(self: CheckpointStore, parameters: Any, moments: Any, progress: Any) -> None:
        if progress.step == 32:
            raise KeyboardInterrupt
        real(self, parameters, moments, progress)

    def break_one(self: SeedLearner, step: int) -> Any:
        if self.seed == 1 and step == 10:
            self.model.unembed.W_U.data.fill_(torch.nan)
        return evaluate(self, step)

    overrides = {**QUICK, "seeds": [0, 1, 2]}
    monkeypatch.setattr(SeedLearner, "evaluate", break_one)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(CheckpointStore, "save", killed)
        quick_run("factual/quick", overrides, out=tmp_path / "run")

    def latest() -> dict[int, int | None]:
        return {seed: CheckpointStore(tmp_path / "run/checkpoints", seed).latest() for seed in range(3)}

    assert latest() == {0: 16, 1: 8, 2: 16}
    steps: dict[int, list[int]] = {}

    def watched(self: SeedLearner, step: int) -> Any:
        steps.setdefault(self.seed, []).append(step)
        return break_one(self, step)

    monkeypatch.setattr(SeedLearner, "evaluate", watched)
    with pytest.raises(RunFailed, match="diverged by step 10"):
        quick_run("factual/quick", overrides, out=tmp_path / "run", resume=True)
    assert latest() == {0: 40, 1: 8, 2: 40}
    assert steps == {0: [20, 30, 40], 1: [10], 2: [20, 30, 40]}


def test_a_damaged_checkpoint_fails_its_own_run_only(tmp_path: Path) -> None:
    configs = [load_config("factual/quick", {**QUICK, "seeds": [seed], "stack": 3}) for seed in range(3)]
    folders = [tmp_path / f"{seed}" for seed in range(3)]
    run_together(configs, folders, page=False)
    whole = [(folder / "summary.json").read_bytes() for folder in folders]
    for seed, folder in enumerate(folders):
        (folder / "summary.json").unlink()
        (folder / f"checkpoints/seed{seed}-step000040.training").unlink()
    broken = folders[1] / "checkpoints/seed1-step000032.training"
    broken.write_bytes(broken.read_bytes()[:-9])
    ends = run_together(configs, folders, page=False)
    assert isinstance(ends[1], UserError) and "seed1-step000032.training is damaged" in str(ends[1])
    assert [(folders[i] / "summary.json").read_bytes() for i in (0, 2)] == [whole[0], whole[2]]


def test_the_bits_of_a_member_do_not_depend_on_how_many_there_are() -> None:
    """Also where a batch is taken in chunks, whose size must not depend on it."""
    overrides = {**TEXT, "task.seq_len": 64, "model.d_model": 16, "train.batch_size": 96, "train.steps": 3}

    def weights(n: int) -> dict[str, torch.Tensor]:
        config: Any = load_config("quickstart", overrides)
        task = build_task(config.task, torch.device("cpu"))
        members = [SeedLearner(build_model(config.model, task, i), task, [], config.train, i) for i in range(n)]
        return trained(StackedLearner(members))[0]

    alone, of_five = weights(1), weights(5)
    assert all(torch.equal(alone[name], of_five[name]) for name in alone)


def test_the_number_is_in_the_config_of_the_run_and_is_kept(tmp_path: Path) -> None:
    seeds = {**QUICK, "seeds": [0, 1], "train.steps": 0}
    run = quick_run("factual/quick", seeds, out=tmp_path / "run")
    assert "stack: 2" in (tmp_path / "run/config.yaml").read_text()
    (tmp_path / "run/summary.json").unlink()
    assert quick_run("factual/quick", seeds, out=run.directory, resume=True).finished
    with pytest.raises(UserError, match="stack"):
        quick_run("factual/quick", {**seeds, "stack": 1}, out=run.directory, resume=True)
    with pytest.raises(UserError, match="give auto, or a whole number"):
        quick_run("factual/quick", {**seeds, "stack": 0}, out=tmp_path / "other")
    with pytest.raises(UserError, match="stack = 4 cannot be compiled"):
        load_config("factual/quick", {"stack": 4, "train.compile": True})


def test_small_steps_are_stacked_and_large_ones_are_not() -> None:
    def stacked(name: str, **changes: Any) -> int:
        return load_config(name, changes).worth_stacking

    assert stacked("factual/quick") == MOST
    assert stacked("quickstart") == 1
    assert stacked("factual/quick", **{"train.compile": True}) == 1
    assert stacked("quickstart", **{"task.seq_len": 16, "train.batch_size": 8}) == MOST


def test_memory_is_counted_for_all_members() -> None:
    few, many = (load_config("factual/quick", {"seeds": [*range(n)]}).needs() for n in (1, 16))
    assert few < many <= 16 * few


@given(st.integers(0, 100), st.integers(1, 20))
def test_parts_are_even_and_whole(n: int, n_parts: int) -> None:
    parts = [*even_parts(range(n), n_parts)]
    assert [item for part in parts for item in part] == [*range(n)]
    assert len(parts) == n_parts
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_seconds_of_a_stack_are_shared(tmp_path: Path) -> None:
    configs = [load_config("factual/quick", {**QUICK, "seeds": [seed], "stack": 2}) for seed in range(2)]
    run_together(configs, [tmp_path / "0", tmp_path / "1"], page=False)
    timings = [json.loads((tmp_path / f"{i}/timing.json").read_text()) for i in range(2)]
    assert timings[0] == timings[1]
    assert timings[0]["steps"] > 0
