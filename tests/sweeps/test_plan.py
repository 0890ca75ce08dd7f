"""From a config and factors to runs: what is combined with what, ids and groups, and mistakes before anything runs."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from toytf.config.shipped import config_files, sweep_files
from toytf.errors import UserError
from toytf.sweeps.plan import plan_sweep

if TYPE_CHECKING:
    from conftest import Ended

STUDY = {"experiment": "capacity", "rules": ["hebbian"], "dimensions": [5], "seeds": [0, 1]}


def _points(**sweep: Any) -> list[dict[str, Any]]:
    base = {"base": "quickstart", "sweep": {"seeds": 1, **sweep}}
    return list(plan_sweep(base).points.points)


def test_a_grid_has_every_combination_and_a_zip_goes_together() -> None:
    grid = {"model.d_model": [16, 32], "task.seq_len": [8, 16]}
    together = {"train.steps": [1, 2], "train.batch_size": [3, 4]}
    assert [tuple(point.values()) for point in _points(grid=grid)] == [(16, 8), (16, 16), (32, 8), (32, 16)]
    assert [tuple(point.values()) for point in _points(zip=together)] == [(1, 3), (2, 4)]
    both = [tuple(point.values()) for point in _points(grid=grid, zip=together)]
    assert len(both) == 8
    assert both[:3] == [(16, 8, 1, 3), (16, 8, 2, 4), (16, 16, 1, 3)]


def test_points_are_just_these() -> None:
    given = [{"model.d_model": 16, "task.seq_len": 8}, {"model.d_model": 32, "task.seq_len": 4}]
    assert _points(points=given) == given


def test_random_points_are_the_same_again_and_another_key_changes_none() -> None:
    draw = {"train.optimizer.lr": "log(1e-4, 1e-1)", "model.d_model": "integer(8, 64)"}
    first = _points(random={"n": 20, "draw": draw})
    assert first == _points(random={"n": 20, "draw": draw})
    assert first != _points(random={"n": 20, "seed": 1, "draw": draw})
    more = _points(random={"n": 20, "draw": {**draw, "task.seq_len": [8, 16]}})
    assert [point["model.d_model"] for point in more] == [point["model.d_model"] for point in first]


def test_the_config_decides_whether_a_number_is_whole() -> None:
    assert [p["model.d_model"] for p in _points(grid={"model.d_model": "log(10, 100, 4)"})] == [10, 22, 46, 100]
    assert [p["train.optimizer.lr"] for p in _points(grid={"train.optimizer.lr": "log(1, 100, 4)"})] == [
        1,
        4.64,
        21.5,
        100,
    ]


def test_a_training_runs_each_seed_by_itself_and_a_study_all_of_them() -> None:
    training = plan_sweep("quickstart", ["model.d_model=[16,32]", "seeds=[3,5]"])
    assert [(run.point, run.seed, run.config.seeds) for run in training.runs] == [
        (0, 3, (3,)), (0, 5, (5,)), (1, 3, (3,)), (1, 5, (5,)),
    ]  # fmt: skip
    study = plan_sweep(STUDY, {"resolution": [0.1, 0.2]})
    assert [(run.seed, run.config.seeds) for run in study.runs] == [(None, (0, 1))] * 2


def test_the_command_line_varies_sets_and_replaces() -> None:
    base = {"base": "quickstart", "sweep": {"grid": {"model.d_model": [16, 32], "task.seq_len": [8, 16]}}}
    replaced = plan_sweep(base, ["model.d_model=log(8, 32, 3)", "train.steps=7"])
    assert [run.at["model.d_model"] for run in replaced.runs] == [8, 8, 16, 16, 32, 32]
    assert {run.config.train.steps for run in replaced.runs} == {7}
    pinned = plan_sweep(base, ["model.d_model=64"])
    assert pinned.points.factors == ("task.seq_len",)
    assert {run.config.model.d_model for run in pinned.runs} == {64}
    whole = plan_sweep(base, ["probes=[[limits]]"])
    assert whole.points.factors == ("model.d_model", "task.seq_len")
    assert [probe.kind for probe in whole.runs[0].config.probes] == ["limits"]


def test_threads_are_one_unless_the_config_says_how_many() -> None:
    assert {run.config.threads for run in plan_sweep("quickstart", ["seeds=2"]).runs} == {1}
    assert {run.config.threads for run in plan_sweep("quickstart", ["seeds=2", "threads=2"]).runs} == {2}


def test_a_plan_is_the_same_again_and_ids_name_what_is_run() -> None:
    given = ["model.d_model=[16,32]", "train.optimizer.lr=log(1e-3,1e-1,3)", "seeds=4"]
    first, again = plan_sweep("quickstart", given), plan_sweep("quickstart", given)
    assert [(run.id, run.group) for run in first.runs] == [(run.id, run.group) for run in again.runs]
    assert first.directory == again.directory
    assert re.fullmatch(r"sweeps/quickstart-[0-9a-f]{8}", str(first.directory))
    shown = plan_sweep("quickstart", [*given, "sweep.show=[recall/W_OV2]", "logging.wandb=off"])
    assert shown.directory == first.directory  # what is shown, or logged, makes no other sweep
    assert plan_sweep("quickstart", [*given, "train.steps=5"]).directory != first.directory
    one = plan_sweep("quickstart", ["model.d_model=[16,64]", "train.optimizer.lr=[1e-3,5]", "seeds=4"])
    assert first.runs[0].id == one.runs[0].id  # whatever else there is


def test_groups_hold_only_runs_that_can_be_stacked_and_are_nearly_equal() -> None:
    plan = plan_sweep("quickstart", ["model.d_model=[16,32]", "train.optimizer.lr=log(1e-3,1e-1,3)", "seeds=7"])
    assert [run.id for group in plan.groups for run in group] != []
    assert sorted(run.id for group in plan.groups for run in group) == sorted(run.id for run in plan.runs)
    for group in plan.groups:
        assert len({run.config.stack_key for run in group}) == 1
        assert len(group) <= group[0].config.worth_stacking
    for d in (16, 32):
        sizes = [len(group) for group in plan.groups if group[0].config.model.d_model == d]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("seeds", "sizes"), [(3, [3]), (4, [2, 2]), (16, [8, 8]), (17, [8, 9]), (33, [8, 8, 8, 9])])
def test_groups_are_as_few_as_pay_but_an_even_number_and_of_equal_sizes(seeds: int, sizes: list[int]) -> None:
    plan = plan_sweep("factual/quick", [f"seeds={seeds}"])
    assert [len(group) for group in plan.groups] == sizes
    assert [run for group in plan.groups for run in group] == list(plan.runs)


def test_thousands_of_points_are_planned_in_seconds_without_torch() -> None:
    code = (
        "import sys, time; from toytf.sweeps.plan import plan_sweep; began = time.process_time();"
        "plan = plan_sweep('quickstart', ['model.d_model=range(1,100,1)', 'train.optimizer.lr=log(1e-4,1e-1,20)']);"
        "print(len(plan.runs), time.process_time() - began, 'torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    runs, seconds, torch = ended.stdout.split()
    assert (runs, torch) == ("2000", "False")
    assert float(seconds) < 6  # one on a quiet machine


# --- mistakes


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["model.d_modl=[16,32]"], ["at model.d_modl=16", 'unknown key "d_modl"', 'did you mean "d_model"?']),
        (["model.d_model=[]"], ["model.d_model: the list of its values is empty"]),
        (["model.d_model=log(1,10)"], ["expected 3 numbers"]),
        (["model.d_model=log(1,8,8)"], ["1 would come twice"]),
        (["model.d_model=[16,16]"], ["two points are the same: model.d_model=16 and model.d_model=16"]),
        (["logging.project=[a,b]"], ["two points are the same: logging.project=a and logging.project=b"]),
        (["model.d_model=[16,0]"], ["at model.d_model=0: model.d_model = 0: should be greater than 0"]),
        (["probes=[limits,facts]"], ["at probes=limits", "written in two brackets, [[a, b]]"]),
        (["model.d_model=range(1,60000,1)", "seeds=2"], ["more than 100,000 runs"]),
        (["task.seq_len=range(1,999,1)", "model.d_model=range(1,999,1)"], ["998,001 points", "at most 100,000"]),
        ([], ["nothing is varied"]),
        (["seeds=0"], ["sweep.seeds = 0"]),
        (["seeds=[1,1]"], ["listed twice"]),
        (["sweep.grd=1"], ['unknown key "grd" in "sweep"', 'did you mean "grid"?']),
        (["sweep.zip={model.d_model: [1, 2], task.seq_len: [8]}"], ["model.d_model has 2, task.seq_len has 1"]),
        (["sweep.random={n: 5, draw: {model.d_model: [8, 16]}}"], ["only 2 different points could be drawn, not 5"]),
        (["sweep.random={n: 2, draw: {model.d_model: [8, 16]}}", "model.d_model=[1,2]"], ["is varied twice"]),
        (["sweep.zip={model.d_model: [8, 16]}", "model.d_model=4"], ["is varied by sweep.zip: change it there"]),
        (["sweep.points=[{model.d_model: 8}, {task.seq_len: 8}]"], ["point 2 does not have the keys of the first"]),
        (["sweep.grid={seeds: [[0], [1]]}"], ["seeds are no factor"]),
        (["sweep.grid={model: [{}], model.d_model: [1, 2]}"], ["the first contains the second"]),
        (["seeds=2", "sweep.figures=[{kind: heatmap, metric: a, x: model.d_model}]"], ["a heatmap needs y"]),
        (["seeds=2", "sweep.figures=[{kind: curves, metric: a, x: model.d_mdel}]"], ['did you mean "model.d_model"?']),
        (["seeds=2", "sweep.figures=[{kind: curves, metric: a, x: task.kind * 2}]"], ["bigram is not a number"]),
        (["seeds=2", "--engine", "condor"], ["choose process or ray"]),
        (["seeds=2", "--jobs", "0"], ["jobs = 0"]),
        (["seeds"], ["expected key=value"]),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_written(
    given: list[str], says: list[str], invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    ended = invoke("sweep", "quickstart", *given, "--out", tmp_path / "out")
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(r"toytf: .+\n", ended.err), ended.err
    assert all(part in ended.err for part in says), ended.err
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_how_many_and_writes_nothing(
    invoke: "Callable[..., Ended]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = invoke("sweep", "quickstart", "model.d_model=log(8,128,5)", "seeds=3", "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("5 points, 15 runs")
    assert "model.d_model=32" in ended.out
    assert [*tmp_path.iterdir()] == []


def test_toytf_run_points_to_toytf_sweep(invoke: "Callable[..., Ended]") -> None:
    ended = invoke("run", "sweeps/tiny")
    says = "this config has a section sweep: run it with `toytf sweep`, or leave that section out"
    assert (ended.code, ended.err) == (2, f"toytf: sweeps/tiny: {says}\n")


# --- what ships


@pytest.mark.parametrize("name", sweep_files())
def test_a_shipped_sweep_is_valid_and_says_what_it_shows_in_two_lines(name: str) -> None:
    lines = sweep_files()[name].read_text(encoding="utf-8").splitlines()
    assert [line.startswith("# ") for line in lines[:3]] == [True, True, False]
    plan = plan_sweep(name)
    assert plan.asked.title == lines[0].lstrip("# ")
    assert len(plan.runs) > 20
    assert name not in config_files()


def test_shipped_sweeps_are_listed_and_found_by_name(invoke: "Callable[..., Ended]") -> None:
    listed = invoke("list", "configs").out
    assert all(f"  {name} " in listed for name in sweep_files())
    assert {"facts", "facts_boundary", "facts_paper", "induction", "rates", "tiny"} == {
        name.removeprefix("sweeps/") for name in sweep_files()
    }
    with pytest.raises(UserError, match=r"did you mean sweeps/tiny\?"):
        plan_sweep("sweeps/tiyn")


def test_the_facts_sweep_draws_the_boundary_of_the_paper() -> None:
    """H d_head d = 1280 is a wall, and m d = 2300 − H d_head d / 2 beyond it (Nichani et al. 2024, Fig. 4 right)."""
    coarse, full = (plan_sweep(name).asked.section for name in ("sweeps/facts", "sweeps/facts_paper"))
    assert full.figures == coarse.figures
    (figure,) = coarse.figures
    (line,) = figure.lines
    assert {x for x, y in line.points if y > 2300 - 1280 / 2} == {1280}
    assert all(y == 2300 - x / 2 for x, y in line.points[1:])
