"""A study whose cases run at once is the same study: its files, its errors, and what an interrupt leaves."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import toytf
from tests.engines.waiting import until
from toytf.experiments.cases import CaseOrder, FoundAtStep
from toytf.measurement import Group
from toytf.runs.rows import MetricsFile

if TYPE_CHECKING:
    from conftest import Ended

pytestmark = [pytest.mark.repeats_runs, pytest.mark.heavy]

COMMON: dict[str, Any] = {"seeds": [0, 1], "device": "cpu", "threads": 1, "logging": {"wandb": "off"}}
STORAGE: dict[str, Any] = {
    "experiment": "storage",
    "rules": ["mlp_h2", "hebbian", "ridge"],  # the first one takes longest
    "dimension": 4,
    "n": 6,
    "width": 5,
    **COMMON,
}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "storage.yaml"
    path.write_text(yaml.safe_dump(STORAGE))
    return path


def test_rows_and_columns_get_into_the_order_of_the_cases(tmp_path: Path) -> None:
    """The last case ends first; a row from before stays first."""
    group = Group("g", "G")

    def found(*cases: str) -> list[FoundAtStep]:
        return [
            FoundAtStep(0, 0, (group.measurement(1.0, case), group.measurement(None, f"no_{case}")), ())
            for case in cases
        ]

    def written(directory: Path, order: list[str]) -> MetricsFile:
        directory.mkdir()
        metrics = MetricsFile(directory / "metrics.jsonl")
        metrics.record(0, 0, [group.measurement(0.0, "z")])
        cases = CaseOrder(["a", "b", "c"], metrics)
        for case in order:
            for one in found(case):
                metrics.record(one.seed, one.step, one.measured)
            cases.note(case, found(case), metrics)
        cases.restore(metrics)
        metrics.note(closed=True)
        return metrics

    expected, mixed = written(tmp_path / "abc", ["a", "b", "c"]), written(tmp_path / "cab", ["c", "a", "b"])
    assert [[*row][-1] for row in expected.rows] == ["g/z", "g/a", "g/b", "g/c"]
    for name in ("metrics.jsonl", "columns.json", "checksums.json"):
        assert (mixed.path.parent / name).read_bytes() == (expected.path.parent / name).read_bytes()


def test_an_interrupted_study_keeps_the_cases_that_ended(tmp_path: Path) -> None:
    """The installed command, and a Ctrl-C of the terminal once the first of two cases is there."""
    config, out = tmp_path / "capacity.yaml", tmp_path / "run"
    quick_and_slow = {"experiment": "capacity", "rules": ["hebbian", "optimum"], "dimensions": [96], "draws": 1}
    config.write_text(yaml.safe_dump(quick_and_slow | COMMON))
    with subprocess.Popen(
        [Path(sys.executable).with_name("toytf"), "run", config, "--jobs", "2", "--out", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        timing = out / "timing.json"
        until(lambda: (timing.exists() and any(json.loads(timing.read_text()).values())) or running.poll() is not None)
        os.killpg(running.pid, signal.SIGINT)
        printed, err = running.communicate(timeout=30)
    assert (running.returncode, printed) == (130, "")
    last = err.splitlines()[-1]
    assert re.fullmatch(r"toytf: stopped before all cases were done; to continue: toytf run .* --resume", last)
    known = toytf.Run.open(out).history
    assert known["seed"].tolist() == [0, 1]
    assert known["capacity/hebbian_d96"].notna().all()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--jobs", "0"], "jobs = 0: give the number of jobs that run at a time, 1 or more"),
        (["--engine", "slurm"], 'engine "slurm" does not exist: choose process or ray'),
        (["--address", "here:1"], "address is an option of the engine ray: choose that, or leave address out"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1: Connection refused"),
        (["--engine", "ray", "--address", "nonsense"], "nonsense is not the address of a Ray cluster: give host:port"),
    ],
)
def test_an_engine_that_cannot_be_is_answered_with_2_and_one_line(
    arguments: list[str], says: str, study: Path, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    ended = invoke("run", study, *arguments, "--out", tmp_path / "run")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"toytf: {says}")
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_ray_that_is_not_installed_is_answered_with_how_to_install_it(
    study: Path, invoke: "Callable[..., Ended]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = invoke("run", study, "--engine", "ray", "--out", tmp_path / "run")
    assert (ended.code, ended.err) == (2, "toytf: the engine ray needs Ray: pip install 'toytf[ray]'\n")


def test_a_training_is_no_study(tiny_config: Path, invoke: "Callable[..., Ended]", tmp_path: Path) -> None:
    ended = invoke("run", tiny_config, "--jobs", "2", "--out", tmp_path / "run")
    assert ended.code == 2
    assert ended.err == (
        "toytf: --jobs and --engine are for studies: a training runs all its seeds as one; for several, `toytf sweep`\n"
    )


def test_a_mistake_that_a_case_finds_names_the_case_and_frees_the_directory(
    invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    config = tmp_path / "capacity.yaml"
    too_few = {"experiment": "capacity", "rules": ["optimum"], "dimensions": [8], "draws": 1, "iterations": 1}
    config.write_text(yaml.safe_dump(too_few | COMMON))
    one = invoke("run", config, "--out", tmp_path / "run")
    at_once = invoke("run", config, "--out", tmp_path / "run", "--jobs", 2)
    assert one.code == at_once.code == 2
    assert one.err.splitlines()[-1].startswith("toytf: capacity/optimum_d8: iterations = 1 is too small")
    assert at_once.err.splitlines()[-1] == one.err.splitlines()[-1]
    assert not (tmp_path / "run").exists()
