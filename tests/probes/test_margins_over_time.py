"""Margins over the checkpoints of a training, on courses made by hand and on trainings."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import toytf
from probes.config import MarginsOverTimeProbeConfig
from probes.margins_over_time import MarginsOverTime
from probes.margins_over_time import Path as MarginPath
from toytf.build import build_model, build_task
from toytf.config.plugins import load_config
from toytf.errors import Interrupted, UserError
from toytf.models import ToyTransformer
from toytf.models.transformer import Slot
from toytf.probe import Course, ProbeResult
from toytf.runs import Run
from toytf.task import Task

if TYPE_CHECKING:
    from conftest import Ended

BIGRAM = {
    "task.n_tokens": 8, "task.n_triggers": 2, "task.seq_len": 8, "model.d_model": 16, "model.embedding": "one_hot",
    "model.position": "one_hot", "model.unembedding": "one_hot", "model.attention.ov": "joint",
}  # fmt: skip
"""Eight tokens and eight positions, each with an axis of its own: scores are what is written into the matrix."""


@pytest.fixture(scope="module")
def setting() -> tuple[Task, ToyTransformer]:
    config: Any = load_config("quickstart", BIGRAM)
    task = build_task(config.task, torch.device("cpu"))
    return task, build_model(config.model, task, 0)


def written(task: Task, model: ToyTransformer, margins: Mapping[int, Sequence[float]]) -> Course:
    """A course whose W_OV2 has these margins at each step: the right score of key z is margins[step][z], all others 0.

    The other matrices do not change.
    """

    def models() -> Any:
        for step, of_keys in margins.items():
            memory = task.memories(model)["W_OV2"]
            stored = memory.association
            scores = torch.diag(torch.tensor([*of_keys]))
            model.write(Slot("OV", 1), stored.keys.T @ scores @ stored.values)
            yield step, model

    return Course(models)


def over(course: Course, task: Task, **options: Any) -> ProbeResult:
    return MarginsOverTime(MarginsOverTimeProbeConfig(kind="margins_over_time", **options)).over(course, task)


def n_keys(task: Task, model: ToyTransformer) -> int:
    return len(task.memories(model)["W_OV2"].association.keys)


def test_margins_that_grow_with_the_logarithm_have_its_slope(setting: tuple[Task, ToyTransformer]) -> None:
    task, model = setting
    n = n_keys(task, model)
    steps = (1, 10, 100, 200, 400, 1000)
    course = written(task, model, {t: [2.5 * math.log(t) + z for z in range(n)] for t in steps})
    found = over(course, task, since=0).metrics
    assert found["margin_growth/W_OV2_slope"] == pytest.approx(2.5, rel=1e-5)
    assert found["margin_growth/W_OV2_mean"] == pytest.approx(2.5 * math.log(1000) + (n - 1) / 2, rel=1e-5)
    assert found["margin_growth/W_OV2_min"] == pytest.approx(2.5 * math.log(1000), rel=1e-5)
    assert found["margin_growth/W_OV2_fell"] == 0


def test_a_margin_that_is_lost_is_counted_and_named(setting: tuple[Task, ToyTransformer]) -> None:
    """A tie is not recalled: from 1 to 0 is a loss, from −1 to 0 is none, and 0 is not a margin to lose."""
    task, model = setting
    n = n_keys(task, model)
    rows = {0: [1.0, -1.0, 1.0], 1: [-1.0, 0.0, 0.0], 2: [1.0, -1.0, 1.0], 4: [-2.0, 1.0, 3.0]}
    found = over(written(task, model, {step: [*first, *[1.0] * (n - 3)] for step, first in rows.items()}), task)
    assert found.metrics["margin_growth/W_OV2_fell"] == 3
    names = task.memories(model)["W_OV2"].association.key_names
    assert names is not None
    told = [f"{names[0]}: 2 ×, last by step 4", f"{names[2]}: 1 ×, last by step 1"]
    assert found.failures["margin_growth/W_OV2_fell"] == told
    course = written(task, model, {step: [*first, *[1.0] * (n - 3)] for step, first in rows.items()})
    assert over(course, task, worst=1).failures["margin_growth/W_OV2_fell"] == told[:1]


def test_a_matrix_that_is_frozen_is_not_told_of(setting: tuple[Task, ToyTransformer]) -> None:
    task, model = setting
    n = n_keys(task, model)
    metrics = over(written(task, model, {0: [1.0] * n, 1: [2.0] * n}), task).metrics
    assert {name.partition("/")[2].rpartition("_")[0] for name in metrics} == {"W_OV2"}


def test_a_slope_is_fitted_to_the_last_part_only() -> None:
    steps, kink = [0, 1, 2, 10, 100, 1000], [9.0, -5.0, 7.0, math.log(10), math.log(100), math.log(1000)]

    def slopes(path: MarginPath, since: float) -> list[float | None]:
        return [one.value for one in path.measurements(since) if one.quantity.at["measure"] == "slope"]

    path = MarginPath(steps, [np.array([margin]) for margin in kink])
    assert slopes(path, 0.01) == pytest.approx([1], rel=1e-9)  # from step 10 on
    assert slopes(path, 0.25) == []  # one checkpoint is left
    assert slopes(MarginPath([0], [np.zeros(1)]), 0.0) == []


def test_the_scores_of_attention_are_divided_by_its_scale(setting: tuple[Task, ToyTransformer]) -> None:
    """`write` makes the scores after scaling what it is given; joint W_KQ of d = 16 has the scale √16."""
    task, model = setting
    stored = task.memories(model)["W_KQ1"].association
    assert model.attention(0).scale == 4

    def models() -> Any:
        for step, margin in ((1, 3.0), (2, 5.0)):
            model.write(Slot("KQ", 0), margin * stored.keys.T @ stored.values[stored.targets])
            yield step, model

    assert over(Course(models), task).metrics["margin_growth/W_KQ1_mean"] == pytest.approx(5, rel=1e-6)


LOSSES = {0: 1.0, 5: 0.5, 10: 0.7, 15: 0.8, 20: 0.4, 25: 0.43, 30: 0.9}
"""A spike at 10 and 15, made good at 20; 25 is within 10 % of the best; and one at 30 that is not made good."""


def test_spikes_are_told_by_their_steps(setting: tuple[Task, ToyTransformer]) -> None:
    task, model = setting
    course = Course(lambda: [(0, model)], LOSSES)
    spikes = {name.partition("/")[2]: value for name, value in over(course, task).metrics.items() if "spikes" in name}
    assert spikes == {"count": 2, "benign": 1, "increases": 4, "first": 10, "last": 30}
    above = over(course, task, delta=1).metrics  # only 0.9 > 2 · 0.4
    assert (above["loss_spikes/count"], above["loss_spikes/first"]) == (1, 30)
    assert not any("spikes" in name for name in over(Course(lambda: [(0, model)], {0: 1.0}), task).metrics)


def test_the_figure_has_a_panel_for_each_memory_and_one_for_the_loss(setting: tuple[Task, ToyTransformer]) -> None:
    task, model = setting
    n = n_keys(task, model)
    course = written(task, model, {t: [float(t)] * n for t in (0, 1, 2, 4)})
    course = Course(course.models, LOSSES)
    figure: Any = over(course, task, keys=3).figure()
    assert [note.text for note in figure.layout.annotations] == ["margins of W_OV2", "loss"]
    curves = {trace.name: [*trace.x] for trace in figure.data}
    assert len(curves) == 3 + 1 + 1 + 2  # three keys, the mean, the loss, and two kinds of spikes
    assert curves["mean"] == [1, 2, 4]  # a logarithmic axis has no place for step 0
    assert curves["spike, made good later"] == [10, 15]
    assert curves["spike"] == [30]
    assert figure.layout.xaxis.type == "log"
    every: Any = over(written(task, model, {t: [float(t)] * n for t in (0, 1, 2, 4)}), task, keys=10**9).figure()
    assert len(every.data) == n + 1  # no more than there are, and the mean


ORTHONORMAL: dict[str, Any] = {
    "experiment": "train",
    "task": {"kind": "association", "n_inputs": 5, "n_outputs": 5, "alpha": 1},
    "model": {
        "d_model": 8, "n_layers": 1, "embedding": "one_hot", "position": "none", "unembedding": "one_hot",
        "attention": {"kq": "joint", "ov": "joint", "residual": False}, "freeze": ["embed.*", "unembed.*", "*W_K"],
    },
}  # fmt: skip
"""Five pairs of orthonormal vectors in one matrix."""


def test_theory_is_given_only_where_it_applies() -> None:
    """Orthogonal vectors, one token that attends to itself, one trained matrix, and plain steps along the gradient."""

    def theory(plain: bool = True, **changes: Any) -> float | None:
        chosen: Any = load_config(ORTHONORMAL, {f"model.{key}": value for key, value in changes.items()})
        task = build_task(chosen.task, torch.device("cpu"))

        def models() -> Any:
            for step in (1, 2, 4, 8):
                model = build_model(chosen.model, task, 0)
                with torch.no_grad():
                    model.attention(0).W_O.mul_(step)
                yield step, model

        result = over(Course(models, plain=plain), task)
        return result.references["margin_growth/W_OV1_slope"].theory

    assert theory() == 1
    assert theory(plain=False) is None
    assert theory(embedding="normal") is None
    assert theory(attention={"kq": "joint", "ov": "factored", "residual": False}) is None


# Trainings


@pytest.mark.repeats_runs
def test_gradient_descent_on_orthonormal_vectors_follows_the_law(tmp_path: Path) -> None:
    """e^m + (M − 1) m = 1 + M η p t for every pair, so dm / d log t → 1 (Cabannes, Simsek, Bietti 2024).

    At M = 5, η = 10, p ∝ 1/z and t = 1000 the rarest of five has the margin 8.38. W begins at random, so rivals are not
    quite equal, which shifts margins by up to 0.1; slopes from step 250 on are within 0.02 of 1 by the law itself.
    """
    config: dict[str, Any] = {
        **ORTHONORMAL,
        "train": {
            "steps": 1000, "batch_size": 1024, "optimizer": {"kind": "sgd", "lr": 10, "momentum": 0},
            "evaluation": {"every": 500, "sequences": 16}, "checkpoints": {"every": 50},
        },
        "probes": ["margins_over_time"], "threads": 1, "logging": {"wandb": "off"},
    }  # fmt: skip
    summary = toytf.run(config, out=tmp_path / "run", page=False).summary
    assert summary["margin_growth/W_OV1_slope"] == pytest.approx(1, abs=0.02)
    assert summary["theory/margin_growth/W_OV1_slope"] == 1
    assert summary["margin_growth/W_OV1_min"] == pytest.approx(8.38, abs=0.1)


TINY: dict[str, Any] = {
    "task.seq_len": 16, "model.d_model": 16, "train.steps": 12, "train.batch_size": 8, "seeds": [0, 1],
    "train.optimizer": {"kind": "sgd", "lr": 1.0, "momentum": 0}, "train.evaluation": {"every": 2, "sequences": 16},
    "train.checkpoints": {"every": 3}, "probes": ["margins_over_time"], "threads": 1, "logging.wandb": "off",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return toytf.run("quickstart", TINY, out=tmp_path_factory.mktemp("runs") / "run", page=False)


def test_a_training_measures_it_once_and_the_finished_run_the_same_again(run: Run) -> None:
    assert run.history.groupby("step")["margin_growth/W_OV2_mean"].count().to_dict() == {
        step: 2 if step == 12 else 0 for step in range(0, 13, 2)
    }
    for seed in (0, 1):
        again = run.trained.probe("margins_over_time", seed=seed).metrics
        last = run.history.query(f"seed == {seed} and step == 12").iloc[0]
        assert {name: last[name] for name in again} == pytest.approx(again, rel=1e-6)
        assert "margin_growth/W_OV2_slope" in again and "loss_spikes/count" in again
    assert "probe_margins_over_time" in run.figure_names


def test_margins_in_the_end_are_those_of_the_last_model(run: Run) -> None:
    trained = run.trained
    model = trained.model()
    memory = trained.task.memories(model)["W_OV2"]
    margins = memory.association.margins(lambda x: model.read(memory.slot, x)).detach()
    found = trained.probe("margins_over_time").metrics
    assert found["margin_growth/W_OV2_mean"] == pytest.approx(float(margins.mean()), rel=1e-5)
    assert found["margin_growth/W_OV2_min"] == pytest.approx(float(margins.min()), rel=1e-5)


def test_a_course_has_the_checkpoints_and_losses_up_to_a_step(run: Run) -> None:
    course = run.trained.course(step=8, seed=1)
    assert [step for step, _ in course.models()] == [0, 1, 2, 3, 4, 6, 8]
    assert [*course.losses] == [0, 2, 4, 6, 8]
    rows = run.history.query("seed == 1").set_index("step")
    assert course.losses[6] == rows["eval/in_context_loss"][6]
    assert course.plain
    for step, model in course.models():
        assert all(map(torch.equal, model.parameters(), run.trained.model(step, 1).parameters()))
    assert [step for step, _ in run.trained.course().models()] == [0, 1, 2, 3, 4, 6, 8, 9, 12]


def test_the_command_looks_at_the_training_up_to_a_step(run: Run, invoke: "Callable[..., Ended]") -> None:
    whole, part = (
        invoke("probe", run.directory, "--probe", "margins_over_time", *step) for step in ((), ("--step", "6"))
    )
    assert whole.code == part.code == 0
    assert "margin_growth/W_OV2_slope" in whole.out
    assert whole.out != part.out
    missing = invoke("probe", run.directory, "--probe", "margins_over_time", "--step", "7")
    assert (missing.code, missing.err.count("\n")) == (2, 1)
    assert "no checkpoint of seed 0 at step 7" in missing.err


def test_a_training_that_was_stopped_has_the_same_course(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint that a Ctrl-C wrote at step 5 is not part of it."""
    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        asked = iter([False] * 4 + [True] * 20)
        patched.setattr("toytf.training.driver.stop_asked", lambda: next(asked))
        toytf.run("quickstart", TINY, out=tmp_path / "run", page=False)
    stopped = Run.open(tmp_path / "run").trained
    assert 5 in stopped.steps
    assert stopped.probe("margins_over_time").metrics  # it can be looked at before it has ended
    again = toytf.run("quickstart", TINY, out=tmp_path / "run", resume=True, page=False)
    assert again.metrics_file.read_bytes() == run.metrics_file.read_bytes()


def test_it_cannot_be_asked_at_every_evaluation() -> None:
    with pytest.raises(UserError, match=r"probes\.0\.when = .always."):
        load_config("quickstart", {"probes": [{"kind": "margins_over_time", "when": "always"}]})


def test_a_model_without_a_matrix_for_pairs_is_refused(tmp_path: Path) -> None:
    """The facts are stored by a feed-forward part with hidden units."""
    small = {"train.steps": 1, "probes": ["margins_over_time"], "logging.wandb": "off"}
    with pytest.raises(UserError, match="no matrix of this model should hold pairs of the task factual"):
        toytf.run("factual/quick", small, out=tmp_path / "run", page=False)


def test_a_training_without_a_step_has_the_margins_of_its_start(tmp_path: Path) -> None:
    ended = toytf.run("quickstart", {**TINY, "train.steps": 0, "seeds": [0]}, out=tmp_path / "run", page=False)
    found = {name for name in ended.summary if name.startswith(("margin_growth/W_OV2", "loss_spikes"))}
    assert found == {"margin_growth/W_OV2_mean", "margin_growth/W_OV2_min"}
