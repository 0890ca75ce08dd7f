"""The sentences that studies end with: their numbers are those of the summary, beside theory."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import toytf
from tests.tiny import tiny
from toytf.config.plugins import load_config
from toytf.config.shipped import config_files
from toytf.experiments.launch import run_config
from toytf.experiments.opened import story_of
from toytf.report.story import Form, amount, percent, short, told

if TYPE_CHECKING:
    from conftest import Ended

SMALL: dict[str, dict[str, Any]] = {
    "capacity/mlp": {"rules": ["mlp_h2", "ridge"], "dimensions": [6, 8], "widths": [4, 8], "criterion": 0.9},
    "bigram/three_steps_samples": {"samples": [64, 128]},
    "bigram/noise_learning": {"n_tokens": [8, 16], "noise_probabilities": [0.5], "samples": [16, 64, 256]},
    "factual/capacity_quick": {"dimensions": [8, 12, 16], "mixes": [[1, 2]]},
    "factual/dynamics_random": {},
    "capacity/scores": {},
}


def ended(name: str, folder: Path, **more: Any) -> tuple[toytf.Run, str]:
    """A tiny run of a shipped study with two seeds, and what it says."""
    seeds = {} if name == "factual/dynamics" else {"seeds": [0, 1]}
    config = tiny(load_config(config_files()[name]), **{**SMALL.get(name, {}), **seeds, **more})
    run = run_config(config, folder / "run", resume=False)
    return run, str(story_of(run))


@pytest.mark.parametrize(
    ("name", "says", "metrics", "form"),
    [
        ("capacity/mlp", "with a recall of 0.9 at d = 8, width 8: ", "capacity/ridge_d8 capacity/mlp_h2_d8_m8", short),
        ("bigram/three_steps_samples", "each, on 128 seq", "recall/W_OV2 accuracy/step3 accuracy/read_out", percent),
        ("factual/capacity_quick", "The largest model, of d = 16", "capacity/d16_a1_b2 parameter_exponent/all", short),
        ("factual/dynamics_random", "Half of the loss was gone", "stage/relation stage/within_set", short),
        ("capacity/scores", "Of the same 4 pairs", "recall/hebbian recall/optimum", percent),
    ],
)
def test_a_study_says_its_main_numbers(name: str, says: str, metrics: str, form: Form, tmp_path: Path) -> None:
    run, story = ended(name, tmp_path)
    assert says in story
    assert all(amount(run.summary, metric, form) in story for metric in metrics.split())


def test_a_capacity_names_the_best_rule_first_beside_theory(tmp_path: Path) -> None:
    run, story = ended("capacity/linear", tmp_path)
    largest = {rule: told(run.summary, f"capacity/{rule}_d9") for rule in ("optimum", "hebbian")}
    assert all("(theory " in words for words in largest.values())
    by_rule = ", ".join(f"{rule} {words}" for rule, words in largest.items())
    assert story == f"Pairs stored without an error at d = 9: {by_rule}."


def test_samples_that_were_not_enough_are_said_to_be_more(tmp_path: Path) -> None:
    run, story = ended("bigram/noise_learning", tmp_path)
    needed = {part: [run.summary.get(f"samples_needed/{part}_a0.5_N{n}") for n in (8, 16)] for part in ("FF", "V")}
    assert story.startswith("To learn noise of probability 0.5 in one step, feed-forward needs ")
    assert ("more than 256" in story) == any(None in values for values in needed.values())


def test_of_several_shapes_of_one_size_a_sentence_is_about_the_first(tmp_path: Path) -> None:
    run, story = ended("capacity/linear", tmp_path, dimensions=[6, [4, 9], 5], rules=["hebbian"])
    assert story == f"Pairs stored without an error at d = 6: hebbian {told(run.summary, 'capacity/hebbian_d6')}."


def test_a_stage_that_came_in_one_seed_is_not_said_to_be_learned_in_none(tmp_path: Path) -> None:
    run, _ = ended("factual/dynamics_random", tmp_path)
    early = tmp_path / "early"
    early.mkdir()
    for name in ("config.yaml", "columns.json"):
        (early / name).write_bytes((run.directory / name).read_bytes())
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    changed = [
        {name: value for name, value in row.items() if row["seed"] == 0 or name not in ("stage/subject", "plateau/end")}
        for row in rows
    ]
    (early / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in changed))
    story = str(story_of(toytf.Run.open(early)))
    assert "Within 600 steps, half of the loss was gone for subjects in 1 of 2 seeds." in story
    assert "Not learned" not in story
    assert "There was no plateau on which the model makes answers up in 1 of 2 seeds." in story


def test_a_stopped_study_has_not_ended_and_can_be_inspected(tmp_path: Path, invoke: "Callable[..., Ended]") -> None:
    run, _ = ended("factual/dynamics_random", tmp_path)
    lines = run.metrics_file.read_bytes().splitlines(keepends=True)
    for n in (3, len(lines) // 2, len(lines) - 1):
        early = tmp_path / f"early{n}"
        early.mkdir()
        for name in ("config.yaml", "columns.json"):
            (early / name).write_bytes((run.directory / name).read_bytes())
        (early / "metrics.jsonl").write_bytes(b"".join(lines[:n]))
        first = story_of(toytf.Run.open(early)).sentences[0]
        assert first == "The run has not ended: 0 of 1 case is done."
        assert invoke("inspect", early).code == 0


def test_a_study_on_the_way_says_how_many_cases_are_done(tmp_path: Path) -> None:
    run, _ = ended("capacity/linear", tmp_path)
    early = tmp_path / "early"
    early.mkdir()
    for name in ("config.yaml", "columns.json", "metrics.jsonl"):
        (early / name).write_bytes((run.directory / name).read_bytes())
    lines = run.metrics_file.read_bytes().splitlines(keepends=True)
    (early / "metrics.jsonl").write_bytes(b"".join(lines[:6]))
    assert story_of(toytf.Run.open(early)).sentences[0].startswith("The run has not ended: ")
