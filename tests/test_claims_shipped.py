"""The claims that ship ask for what their runs measure: a misspelt metric should not be found only after minutes."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tasks.bigram.noise_learning.config import NoiseLearningConfig
from tasks.bigram.three_steps.config import ThreeStepsConfig
from tasks.factual.capacity.config import FactCapacityConfig
from tasks.factual.dynamics.config import FactDynamicsConfig
from toytf.claims import load_claim
from toytf.config.compose import overlay
from toytf.config.plugins import ExperimentConfig, plugins
from toytf.config.shipped import claim_files
from toytf.experiments.capacity.config import CapacityConfig
from toytf.experiments.launch import run_config
from toytf.experiments.storage.config import StorageConfig
from toytf.experiments.train.config import TrainExperimentConfig
from toytf.measurement import KINDS, flat, reference_name
from toytf.runs import Run

# Names of metrics do not depend on these sizes.
TINY_TRAINING = {
    "train": {"steps": 0, "evaluation": {"sequences": 64}},  # enough for rare triggers to come twice
    "model": {"d_model": 16},
}
TINY_TASKS = {
    "bigram": {"seq_len": 32},
    "factual": {"n_subjects": 4, "n_relations": 4, "n_answers": 2, "construction": {"steps": 1}},
}
TINY = {
    NoiseLearningConfig: {"repeats": 1},
    ThreeStepsConfig: {"evaluation_samples": 64},
    # a table that is never learned has no metric: ten steps learn some more than 1 in 8, at every size
    FactCapacityConfig: {
        "goal": 0.15, "resolution": 0.9, "learning_rates": [5e-2], "steps": 10, "check_every": 5,
        "batch_size": 64, "check_sequences": 64, "seq_len": 3,
    },
    # a stage that does not come has no metric: with these sizes all come, in every run
    FactDynamicsConfig: {
        "n_subjects": 8, "n_relations": 2, "n_answers": 2, "lr": 1.0, "steps": 600, "evaluate_every": 8,
    },
}  # fmt: skip
TINY_STORAGE = {
    "dimension": 4,
    "width": 3,
    "n": 4,
    "noise_vectors": 2,
    "pairs": {"first": 2, "second": 2, "answers": 2},
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], set[str]]:
    """The metrics that a run of a claim has, by a run as small as can be."""

    @cache
    def names(claim: str, run: str) -> set[str]:
        config = load_claim(claim_files()[claim])[1][run]
        done = run_config(_tiny(config), tmp_path_factory.mktemp("claims") / "run", resume=False)
        if isinstance(config, CapacityConfig):
            return _with_sizes(done, _small_sizes(config))
        return {*done.history.columns, *done.summary}

    return names


def _tiny(config: ExperimentConfig) -> ExperimentConfig:
    content = config.model_dump(mode="json", exclude_unset=False)
    changes: dict[str, Any] = TINY.get(type(config), TINY_TRAINING)
    if isinstance(config, TrainExperimentConfig):
        changes = changes | {"task": TINY_TASKS[config.task.kind]}
    if isinstance(config, CapacityConfig):
        small = _small_sizes(config)
        changes = {"dimensions": [*small["d"]], "widths": [*small["width"]], "draws": 1}
        changes |= {"resolution": 0.9, "trained": {"steps": 50}}
    if isinstance(config, StorageConfig):
        changes = {name: value for name, value in TINY_STORAGE.items() if content[name] is not None}
    content |= {"seeds": [0], "threads": 1, "device": "cpu"}
    return type(config).model_validate(overlay(content, changes))


def _small_sizes(config: CapacityConfig) -> dict[str, dict[Any, Any]]:
    """Small sizes in place of those of a capacity, by factor: what each stands for."""
    sizes = dict(zip(range(5, 12), config.dimensions, strict=False))
    widths = dict(zip(range(2, 5), config.widths, strict=False))
    assert (len(sizes), len(widths)) == (len(config.dimensions), len(config.widths))
    return {"d": sizes, "width": widths}


def _with_sizes(run: Run, given: dict[str, dict[Any, Any]]) -> set[str]:
    """The metrics of a run, had it had other sizes."""
    found: set[str] = set()
    for name in run.history.columns:
        kind = next((kind for kind in KINDS if name.startswith(reference_name(kind, ""))), None)
        about = run.columns.get(name if kind is None else name.removeprefix(reference_name(kind, "")))
        if about is not None:
            at = {factor: given.get(factor, {}).get(value, value) for factor, value in about.at.items()}
            other = flat(replace(about, at=at))
            found.add(other if kind is None else reference_name(kind, other))
    return found


@pytest.mark.parametrize("name", claim_files())
def test_a_shipped_claim_asks_for_what_its_runs_measure(name: str, measured: Callable[[str, str], set[str]]) -> None:
    claim, configs = load_claim(claim_files()[name])
    for expectation in claim.expect:
        asked = [(expectation.run, expectation.metric)]
        if isinstance(expectation.value, str):
            asked.append((expectation.of or expectation.run, expectation.value))
        for run, metric in asked:
            assert metric.removeprefix("onset/").removeprefix("halfway/") in measured(name, run)
        assert len(configs[expectation.run].seeds) >= expectation.seeds
    used = {run for expectation in claim.expect for run in (expectation.run, expectation.of) if run is not None}
    assert used == set(configs)  # no run for nothing


def test_the_areas_of_claims_are_folders_of_unlike_names() -> None:
    files = claim_files()
    folder = next(iter(files.values())).parent.parent
    assert len(files) == len(list(folder.glob("*/*.yaml")))
    assert {path.parent.name for path in files.values()} == {path.name for path in folder.iterdir() if path.is_dir()}
    assert not set(files) & {path.parent.name for path in files.values()}


def test_the_benchmarks_are_found() -> None:
    found = plugins("benchmarks")
    assert {"bigram_data", "capacity"} <= set(found)
    assert all(callable(measure) for measure in found.values())
    assert Path(found["capacity"].__code__.co_filename).name == "capacity.py"
