"""`evaluate_on`: other data that a model is evaluated on, besides its own task."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import toytf
from toytf.build import build_evaluate_on, build_task
from toytf.config.compose import overlay
from toytf.config.plugins import load_config
from toytf.errors import Interrupted, UserError
from toytf.evaluation import role_metrics
from toytf.experiments.train import experiment
from toytf.measurement import as_row
from toytf.randomness import generator

if TYPE_CHECKING:
    from conftest import Ended

STEPS = 6
CONFIG: dict[str, Any] = {
    "experiment": "train",
    "task": {"kind": "bigram", "seq_len": 12, "noise": {"probability": 0.5}},
    "model": {"d_model": 16, "feed_forward": {"kind": "relu", "width": 8}},
    "train": {
        "steps": STEPS,
        "batch_size": 8,
        "evaluation": {"every": 2, "sequences": 16},
        "checkpoints": {"every": 2, "log_spaced": False},
    },
    "probes": [
        "memory_recall",
        "noise",
        {"kind": "truncation", "fractions": [0, 1], "matrices": ["blocks.1.mlp.W_out"]},
    ],
    "evaluate_on": {"clean": {"noise": {"probability": 0}}, "same": {}, "short": {"seq_len": 8}},
    "device": "cpu",
    "threads": 1,
    "logging": {"wandb": "off"},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    return toytf.run(CONFIG, out=tmp_path_factory.mktemp("tested") / "run")


def rows(run: toytf.Run) -> list[dict[str, float]]:
    return [json.loads(line) for line in run.metrics_file.read_text().splitlines()]


# What is measured


def test_metric_names_carry_its_name_after_an_at_sign(run: toytf.Run):
    for row in rows(run):
        assert {"eval/in_context_loss", "eval@clean/in_context_loss", "eval@short/in_context_loss"} <= set(row)
        assert {"data@clean/in_context_fraction", "noise@clean/p_noise"} <= set(row)
    assert {"eval@clean/in_context_loss", "noise@clean/p_noise"} <= set(run.summary)


def test_each_entry_has_references_of_its_own(run: toytf.Run):
    first, *between, last = rows(run)
    for row in (first, last):
        # half of what follows a trigger is noise
        assert row["ideal/eval/in_context_accuracy"] == pytest.approx(0.5, abs=0.01)
        assert row["ideal/eval@clean/in_context_accuracy"] == 1
        assert row["chance/eval@clean/in_context_accuracy"] == pytest.approx(1 / 65)
        assert "floor@clean/in_context_accuracy/repeat" in row
    assert between
    for row in between:
        assert not any(name.startswith(("ideal/", "chance/", "floor")) for name in row)


def test_the_numbers_are_those_of_the_model_on_the_changed_task(run: toytf.Run):
    clean = build_task(run.config.evaluation_tasks["clean"], torch.device("cpu"))
    for row in rows(run):
        batch = clean.sample(16, generator(0, "evaluation", int(row["step"])))
        expected = as_row(role_metrics(run.model(step=int(row["step"])), batch))
        for name, value in expected.items():
            assert row[name.replace("eval/", "eval@clean/")] == pytest.approx(value, abs=1e-6)


def test_an_entry_that_changes_nothing_gives_the_numbers_of_the_task(run: toytf.Run):
    for row in rows(run):
        again = {name: value for name, value in row.items() if "@same/" in name}
        assert len(again) > 20
        for name, value in again.items():
            assert value == row[name.replace("@same", "")], name


def test_probes_that_do_not_read_the_sequences_are_not_repeated(run: toytf.Run):
    for row in rows(run):
        assert "recall/W_OV2" in row
        assert not any(name.startswith("recall@") or "/recall@" in name for name in row)
        assert "noise@clean/p_correct" in row


def test_what_is_due_at_the_end_is_measured_there_alone(run: toytf.Run):
    found = rows(run)
    assert [row["step"] for row in found] == [0, 2, 4, 6]
    name = "blocks.1.mlp.W_out_rho0"
    for row in found:
        at_end = row["step"] == STEPS
        assert (f"truncated/{name}" in row) == (f"truncated@clean/{name}" in row) == at_end
        assert "noise/p_noise" in row
    assert {f"truncated@clean/{name}", f"ideal/truncated@clean/{name}"} <= set(run.summary)


def test_when_can_be_chosen(tmp_path: Path):
    probes = [{"kind": "noise", "when": "end"}, {**CONFIG["probes"][2], "when": "always"}]
    found = rows(toytf.run({**CONFIG, "probes": probes, "evaluate_on": {}}, out=tmp_path / "run"))
    assert ["noise/p_noise" in row for row in found] == [False, False, False, True]
    assert all("truncated/blocks.1.mlp.W_out_rho0" in row for row in found)


def test_training_does_not_depend_on_evaluate_on(run: toytf.Run, tmp_path: Path):
    alone = toytf.run({**CONFIG, "evaluate_on": {}}, out=tmp_path / "run")
    assert not any("@" in name for row in rows(alone) for name in row)
    for with_others, without in zip(rows(run), rows(alone), strict=True):
        assert {name: value for name, value in with_others.items() if "@" not in name} == without
    last = f"seed0-step{STEPS:06d}.safetensors"
    assert (run.checkpoints / last).read_bytes() == (alone.checkpoints / last).read_bytes()


def test_an_interrupted_run_with_entries_resumes_to_the_same_bytes(
    run: toytf.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Stopped after the step at which an evaluation and a checkpoint were just written, as Ctrl-C would."""

    class StopsAfterStep3(experiment.ProgressLine):
        def stepped(self, *arguments: Any) -> None:
            super().stepped(*arguments)
            if arguments[0] >= 3:
                raise Interrupted("stopped by the test")

    monkeypatch.setattr(experiment, "ProgressLine", StopsAfterStep3)
    with pytest.raises(Interrupted):
        toytf.run(CONFIG, out=tmp_path / "run")
    monkeypatch.undo()
    assert 0 < len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) < 4
    again = toytf.run(CONFIG, out=tmp_path / "run", resume=True)
    for name in ("metrics.jsonl", "summary.json", f"checkpoints/seed0-step{STEPS:06d}.safetensors"):
        assert (again.directory / name).read_bytes() == (run.directory / name).read_bytes()


def test_halfway_steps_are_told_for_entries_too(run: toytf.Run):
    halfway = {name for name in run.seeds.columns if name.startswith("halfway/")}
    assert {"halfway/eval/in_context_loss", "halfway/eval@clean/in_context_loss"} <= halfway


# Again, on a finished run


def test_a_probe_can_be_run_on_an_entry(run: toytf.Run, invoke: "Callable[..., Ended]"):
    ended = invoke("probe", run.directory, "--probe", "noise", "--on", "clean")
    assert (ended.code, ended.err) == (0, "")
    assert "p_noise" in ended.out
    plain = invoke("probe", run.directory, "--probe", "noise")
    assert plain.out != ended.out
    assert invoke("probe", run.directory, "--probe", "noise", "--on", "same").out == plain.out


def test_a_probe_from_python_can_be_run_on_an_entry(run: toytf.Run):
    assert run.probe("noise", on="clean").metrics["noise/attention_noise"] == 0
    assert run.probe("noise").metrics["noise/attention_noise"] > 0
    assert run.batch(3, on="short").tokens.shape == (3, 8)
    assert torch.equal(run.batch(3, on="same").tokens, run.batch(3).tokens)


def test_all_probes_of_the_config_run_on_shorter_sequences(run: toytf.Run, invoke: "Callable[..., Ended]"):
    ended = invoke("probe", run.directory, "--on", "short", "--step", "2")
    assert (ended.code, ended.err) == (0, "")
    for name in ("W_OV2", "p_noise", "W_out_rho0"):
        assert name in ended.out


def test_an_unknown_entry_is_answered_with_those_there_are(run: toytf.Run, invoke: "Callable[..., Ended]"):
    ended = invoke("probe", run.directory, "--probe", "noise", "--on", "claen")
    assert (ended.code, ended.out) == (2, "")
    says = 'its config has no evaluate_on entry "claen": did you mean "clean"? (accepted: clean, same, short)'
    assert re.fullmatch(rf"toytf: .*{re.escape(says)}\n", ended.err)


def test_a_run_without_entries_says_so(tiny_run: toytf.Run, invoke: "Callable[..., Ended]"):
    ended = invoke("probe", tiny_run.directory, "--on", "clean")
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(r'toytf: .*its config has no evaluate_on entry "clean": evaluate_on is empty\n', ended.err)


# The config


def test_an_entry_is_the_task_with_changes_merged_in():
    config: Any = load_config(CONFIG)
    task, others = config.task, config.evaluation_tasks
    assert list(others) == ["clean", "same", "short"]
    assert others["same"] == task
    assert others["short"] == task.model_copy(update={"seq_len": 8})
    assert others["clean"].noise.probability == 0
    assert others["clean"].noise.token == task.noise.token  # not replaced


def test_mappings_merge_and_everything_else_replaces():
    base = {"a": 1, "b": {"c": 2, "d": [3, 4]}, "e": {"f": 5}}
    merged = overlay(base, {"b": {"d": [6]}, "e": None, "g": {"h": 7}})
    assert merged == {"a": 1, "b": {"c": 2, "d": [6]}, "e": None, "g": {"h": 7}}
    assert base == {"a": 1, "b": {"c": 2, "d": [3, 4]}, "e": {"f": 5}}


def test_evaluate_on_is_part_of_the_digest():
    with_others, without = load_config(CONFIG), load_config({**CONFIG, "evaluate_on": {}})
    assert toytf.config.sections.digest(with_others) != toytf.config.sections.digest(without)
    assert load_config(with_others.model_dump(mode="json")) == with_others


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"n_tokens": 60}, "evaluate_on.odd changes the vocabulary: it must stay that of the task"),
        (
            {"noise": {"token": "extra", "probability": 0.1}},
            "evaluate_on.odd changes the vocabulary: it must stay that of the task",
        ),
        ({"seq_len": 13}, "evaluate_on.odd has sequences of 13 tokens: at most 12, as in the task"),
        (
            {"noise": {"token": "e"}},
            "evaluate_on.odd: task.noise.token = 'e' is one of the fixed triggers: choose another",
        ),
    ],
)
def test_data_that_the_model_could_not_read_is_refused(change: dict[str, Any], line: str):
    config: Any = load_config({**CONFIG, "evaluate_on": {"odd": change}})
    with pytest.raises(UserError) as caught:
        build_evaluate_on(config.evaluation_tasks, build_task(config.task, torch.device("cpu")))
    assert str(caught.value) == line


# The page


def test_the_page_has_tables_and_curves_of_each_entry(run: toytf.Run):
    page = run.report_file.read_text(encoding="utf-8")
    for title in ("Accuracy and loss by role (clean)", "Noise token or context (clean)"):
        assert title in page
    saved = {path.stem: json.loads(path.read_text()) for path in (run.directory / "figures").glob("*.json")}
    assert {"loss", "loss_clean", "accuracy_clean", "loss_short", "noise_clean"} <= set(saved)
    assert saved["loss_clean"]["layout"]["title"]["text"] == "Loss by role (clean)"
    label = f"in_context: {run.task.role_phrases['in_context']}"
    (curve,) = (trace for trace in saved["loss_clean"]["data"] if trace["name"] == label)
    assert curve["y"] == run.history["eval@clean/in_context_loss"].tolist()


def test_curves_are_drawn_of_what_was_measured_on_the_way_only(run: toytf.Run):
    saved = {path.stem for path in (run.directory / "figures").glob("*.json")}
    assert "truncated" not in saved  # a point is no curve
    assert {"probe_truncation", "probe_truncation_clean"} <= saved


def test_the_floors_in_a_chart_are_those_of_its_entry(run: toytf.Run):
    figure = json.loads((run.directory / "figures" / "accuracy_clean.json").read_text())
    floor = run.summary["floor@clean/in_context_accuracy/most_frequent"]
    levels = [shape.get("y0") for shape in figure["layout"].get("shapes", [])]
    levels += [y for trace in figure["data"] for y in trace.get("y", []) if isinstance(y, float)]
    assert any(level == pytest.approx(floor) for level in levels if level is not None)
    assert floor != run.summary["floor/in_context_accuracy/most_frequent"]
