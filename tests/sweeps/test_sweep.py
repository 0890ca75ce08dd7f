"""Sweeps that really run: a few trainings of two steps, from the command to table, figures and page."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import yaml

import toytf
from toytf.config.yaml_text import dump_yaml
from toytf.errors import SystemRefused, UserError
from toytf.runs.rows import MetricsFile
from toytf.sweeps.opened import Failure
from toytf.sweeps.plan import plan_sweep

if TYPE_CHECKING:
    from conftest import Ended

pytestmark = pytest.mark.repeats_runs

TINY: dict[str, Any] = {
    "base": "quickstart",
    "task": {"seq_len": 8},
    "model": {"d_model": 16},
    "train": {"steps": 2, "batch_size": 4, "evaluation": {"every": 1, "sequences": 32}},
    "probes": ["memory_recall"],
    "logging": {"wandb": "off"},
}
GRID = {"model.d_model": [16, 24], "train.optimizer.lr": "log(1e-3, 1e-1, 3)"}
METRIC = "eval/in_context_accuracy"


def _file(folder: Path, **sweep: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(f"# What this shows.\n{dump_yaml({**TINY, 'sweep': sweep})}", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> toytf.Sweep:
    """Six points with two seeds, run one by one in this process."""
    folder = tmp_path_factory.mktemp("sweep")
    return toytf.sweep(_file(folder, grid=GRID, seeds=2), out=folder / "out", jobs=1)


# --- what comes out


def test_the_table_is_one_line_of_python(done: toytf.Sweep) -> None:
    table = toytf.open_sweep(done.directory).table
    assert list(table.columns[:5]) == ["run", "model.d_model", "train.optimizer.lr", "seed", "metric"]
    own = table[table["metric"] == METRIC]
    assert len(own) == 12
    assert set(own["train.optimizer.lr"]) == {0.001, 0.01, 0.1}
    assert (own["ideal"] == 1).all()
    assert own["chance"].between(0, 0.1).all()
    for run in done.runs:
        rows = table[table["run"] == run.name].set_index("metric")["value"]
        last = run.seeds.iloc[0].dropna()  # every metric's last value, by the rows of the run
        assert {name: last[name] for name in rows.index} == rows.to_dict()
        assert "train/loss" in rows.index


def test_the_csv_is_the_table(done: toytf.Sweep) -> None:
    table = done.table
    written = pd.read_csv(done.directory / "table.csv", keep_default_na=True)
    assert written["value"].tolist() == table["value"].tolist()
    assert written["run"].tolist() == table["run"].tolist()


def test_points_have_mean_and_spread_over_seeds(done: toytf.Sweep) -> None:
    points, table = done.points, done.table
    assert (len(points), set(points["seeds"])) == (6, {2})
    first = table[(table["metric"] == METRIC) & (table["model.d_model"] == 16) & (table["train.optimizer.lr"] == 1e-3)]
    assert points[METRIC].iloc[0] == pytest.approx(first["value"].mean())
    assert points[f"{METRIC}/std"].iloc[0] == pytest.approx(first["value"].std(ddof=1))
    assert (points[f"ideal/{METRIC}"] == 1).all()


def test_a_point_that_lacks_a_metric_in_one_seed_has_no_mean(done: toytf.Sweep) -> None:
    measured = done.measured()
    first = measured.index[measured["metric"] == METRIC][0]
    points = done.points_of(measured.drop(first))
    assert points[METRIC].isna().tolist() == [True] + [False] * 5
    assert points[METRIC].tolist()[1:] == done.points[METRIC].tolist()[1:]


def test_its_runs_are_runs_like_any_other(done: toytf.Sweep) -> None:
    assert {run.name for run in done.runs} == {path.name for path in (done.directory / "runs").iterdir()}
    assert not any(run.report_file.exists() for run in done.runs)  # 5 MB each
    table = toytf.open_runs(done.directory / "runs" / "*")
    assert {"model.d_model", "train.optimizer.lr", "seed", "value"} <= {*table.columns}
    assert table["run"].nunique() == 12
    assert "<table" in done._repr_html_()


def test_figures_show_ideal_and_chance_beside_curves_and_a_map(done: toytf.Sweep) -> None:
    figures = done.figures()
    assert [*figures] == ["eval_in_context_accuracy", "eval_in_context_accuracy_map"]
    curves, heat = figures.values()
    by_name = {trace.name: trace for trace in curves.data}
    assert [*by_name] == ["d_model = 16", "d_model = 24", "ideal", "chance"]
    assert (by_name["ideal"].line.dash, {*by_name["ideal"].y}) == ("dash", {1.0})
    assert by_name["chance"].line.dash == "dot"
    assert list(by_name["d_model = 16"].x) == [0.001, 0.01, 0.1]
    means = done.points[done.points["model.d_model"] == 16][METRIC]
    assert list(by_name["d_model = 16"].y) == pytest.approx(means.tolist())
    assert curves.layout.xaxis.type == "log"  # as it was asked for by log(…)
    assert len(heat.data[0].z) == 2
    assert list(heat.layout.xaxis.ticktext) == ["0.001", "0.01", "0.1"]
    for name in figures:
        assert json.loads((done.directory / "figures" / f"{name}.json").read_text())["data"]
    with pytest.raises(UserError, match="did you mean"):
        done.figure("eval_in_context_acuracy")


def test_the_page_is_whole_and_asks_nobody(done: toytf.Sweep) -> None:
    page = (done.directory / "sweep.html").read_text(encoding="utf-8")
    without_plotly = re.sub(r"<head>.*?</head>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", without_plotly)
    assert "default-src 'none'" in page
    for said in ("What this shows.", "12 of 12 runs are done", "train.optimizer.lr", METRIC, "best", "worst", "±"):
        assert said in without_plotly, said
    assert without_plotly.count("<noscript>") == 1  # for those who see no charts
    assert str(done.directory.parent) not in page  # of this machine


def test_a_study_is_one_run_with_all_seeds_and_its_theory_is_drawn(tmp_path: Path) -> None:
    study = {"experiment": "capacity", "rules": ["hebbian"], "dimensions": [5], "draws": 1, "logging": {"wandb": "off"}}
    sweep = toytf.sweep(study, {"resolution": [0.9, 0.8], "seeds": 2}, out=tmp_path / "out", jobs=1)
    assert len(sweep.runs) == 2
    assert sweep.table.groupby("run")["seed"].unique().map(list).tolist() == [[0, 1]] * 2
    theory = next(trace for trace in sweep.figure("capacity_hebbian_d5").data if trace.name == "theory")
    assert theory.line.dash == "dash"
    assert {*theory.y} == {*sweep.points["theory/capacity/hebbian_d5"]}


def test_a_figure_may_have_products_as_axes_and_lines_of_theory(tmp_path: Path) -> None:
    lines = [
        {"label": "boundary", "points": [[128, 8], [192, 16]]},
        {"label": "elsewhere", "points": [[1, 99], [2, 99]]},
    ]
    figure = {"kind": "heatmap", "metric": METRIC, "x": "model.d_model * task.seq_len", "y": "task.n_triggers"}
    grid = {"model.d_model": [16, 24], "task.n_triggers": [3, 4]}
    path = _file(tmp_path, grid=grid, figures=[{**figure, "lines": lines}])
    (heat,) = toytf.sweep(path, ["task.seq_len=8"], out=tmp_path / "out", jobs=1).figures().values()
    assert list(heat.layout.xaxis.ticktext) == ["128", "192"]
    assert [trace.name for trace in heat.data] == [None]  # no line passes where these values are
    section = yaml.safe_load(path.read_text())
    section["sweep"]["figures"][0]["lines"][0]["points"] = [[128, 3], [192, 4]]
    path.write_text(dump_yaml(section))
    (heat,) = toytf.sweep(path, ["task.seq_len=8"], out=tmp_path / "out", jobs=1, resume=True).figures().values()
    (line,) = heat.data[1:]
    assert (line.name, line.line.dash) == ("boundary", "dash")
    assert [(line.x[i], line.y[i]) for i in (0, -1)] == [(0, 0), (1, 1)]


def test_words_are_an_axis_too_and_random_points_are_drawn_by_every_factor(tmp_path: Path) -> None:
    words = toytf.sweep(_file(tmp_path, grid={"train.optimizer.kind": ["adamw", "sgd"]}), out=tmp_path / "a", jobs=1)
    assert words.figure().layout.xaxis.type == "category"
    assert list(words.figure().data[0].x) == ["adamw", "sgd"]
    draw = {"train.optimizer.lr": "log(1e-3, 1e-1)", "model.d_model": "integer(8, 32)"}
    drawn = toytf.sweep(_file(tmp_path, random={"n": 3, "draw": draw}), out=tmp_path / "b", jobs=1)
    rate, width = drawn.figures().values()
    assert (rate.layout.xaxis.type, len(rate.data[0].x), len(width.data[0].x)) == ("log", 3, 3)
    together = {"train.optimizer.lr": [1e-3, 1e-2], "model.d_model": [8, 16]}
    zipped = toytf.sweep(_file(tmp_path, zip=together), out=tmp_path / "c", jobs=1)
    assert [*zipped.figures()] == ["eval_in_context_accuracy"]  # the second follows the first
    assert list(zipped.figure().data[0].x) == [1e-3, 1e-2]


# --- going on


def _stamps(sweep: toytf.Sweep) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in (sweep.directory / "runs").rglob("*") if path.is_file()}


def test_a_sweep_grows_by_values_and_seeds_and_keeps_what_it_has(done: toytf.Sweep, tmp_path: Path) -> None:
    out = tmp_path / "grown"
    shutil.copytree(done.directory, out)
    before = _stamps(toytf.open_sweep(out))
    grown = toytf.sweep(
        _file(tmp_path, grid={**GRID, "model.d_model": [8, 16, 24]}, seeds=3), out=out, jobs=1, resume=True
    )
    assert len(grown.members) == len(grown.runs) == 27
    after = _stamps(grown)
    assert {path: after[path] for path in before} == before


def test_finished_runs_are_never_touched_and_resume_has_to_be_asked_for(
    done: toytf.Sweep, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    before, csv = _stamps(done), (done.directory / "table.csv").read_bytes()
    own, out = done.directory.parent / "mine.yaml", done.directory
    again = invoke("sweep", own, "--out", out, "--jobs", "1")
    assert (again.code, again.out) == (2, "")
    assert again.err == f"toytf: {out} already holds a sweep: add --resume to continue it, or choose another --out\n"
    other = invoke("sweep", own, "train.steps=1", "--out", out, "--resume")
    assert (other.code, other.err) == (2, f"toytf: {out} holds a different sweep: choose another --out\n")
    resumed = invoke("sweep", out / "sweep.yaml", "--resume", "--jobs", "1")
    assert (resumed.code, resumed.out.splitlines()[-1]) == (0, str(out))
    assert _stamps(done) == before
    assert (out / "table.csv").read_bytes() == csv


def test_what_failed_is_kept_and_tried_again_only_on_request(invoke: "Callable[..., Ended]", tmp_path: Path) -> None:
    path, out = _file(tmp_path, grid={"train.optimizer.lr": [1e-3, 1e30]}), tmp_path / "out"
    ended = invoke("sweep", path, "--out", out, "--jobs", "1")
    assert (ended.code, ended.out.splitlines()[-1]) == (1, str(out))
    last = ended.err.splitlines()[-1]
    assert last.startswith("toytf: 1 of 2 runs failed, first train.optimizer.lr=1.0e+30 seed 0: training diverged")
    assert last.endswith(f"to try again: toytf sweep {out / 'sweep.yaml'} --resume --retry")
    sweep = toytf.open_sweep(out)
    assert sweep.failed["error"].tolist() == ["RunFailed"]
    (lost,) = sweep.failed["run"]
    assert "training diverged" in (out / "sweep.html").read_text(encoding="utf-8")
    assert sweep.table["run"].nunique() == 1

    def starts() -> int:
        return len(toytf.Run(out / "runs" / lost).provenance.starts)

    assert starts() == 1
    resumed = invoke("sweep", path, "--out", out, "--jobs", "1", "--resume")
    assert (resumed.code, starts(), sweep.failed["run"].tolist()) == (1, 1, [lost])
    retried = invoke("sweep", path, "--out", out, "--jobs", "1", "--retry")
    assert (retried.code, starts(), sweep.failed["run"].tolist()) == (1, 2, [lost])


def test_what_failed_for_another_reason_is_done_when_it_is_tried_again(tmp_path: Path) -> None:
    path, out = _file(tmp_path, grid={"model.d_model": [16, 24]}, seeds=3), tmp_path / "out"
    whole = toytf.sweep(path, out=out, jobs=1)
    csv = (out / "table.csv").read_bytes()
    assert [run.config.stack for run in whole.runs] == [3] * 6  # one that is alone later has the same numbers
    place = whole.runs[1].directory
    shutil.rmtree(place)
    place.write_text("in the way")
    assert toytf.sweep(path, out=out, jobs=1, resume=True).failed["run"].tolist() == [place.name]
    place.unlink()
    assert len(toytf.sweep(path, out=out, jobs=1, resume=True).runs) == 5  # nobody asked for it
    again = toytf.sweep(path, out=out, jobs=1, retry=True)
    assert (len(again.runs), len(again.failed)) == (6, 0)
    assert (out / "table.csv").read_bytes() == csv


@pytest.mark.heavy
def test_two_jobs_give_the_same_bytes(done: toytf.Sweep, tmp_path: Path) -> None:
    other = toytf.sweep(done.directory.parent / "mine.yaml", out=tmp_path / "out", jobs=2)
    for name in ("table.csv", "plan.json", "sweep.yaml"):
        assert (other.directory / name).read_bytes() == (done.directory / name).read_bytes()


@pytest.mark.heavy
def test_a_sweep_that_was_killed_goes_on_to_the_same_table(tmp_path: Path) -> None:
    long = {"train.steps": 40, "train.checkpoints.every": 5, "probes": [[]]}
    path = _file(tmp_path, grid={"model.d_model": [16, 24, 32, 48]})
    arguments = [f"{key}={value}" for key, value in long.items()]
    out = tmp_path / "killed"
    command = [str(Path(sys.executable).with_name("toytf")), "sweep", str(path), *arguments, "--jobs", "1"]
    running = subprocess.Popen(
        [*command, "--out", str(out)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        until = time.monotonic() + 60
        while not [*out.glob("runs/*/summary.json")] and time.monotonic() < until:
            time.sleep(0.002)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    killed = toytf.open_sweep(out)
    n_done = len(killed.runs)
    assert 1 <= n_done < 4
    before = {run.name: run.summary_file.stat().st_mtime_ns for run in killed.runs}
    resumed = toytf.sweep(path, arguments, out=out, jobs=1, resume=True)
    assert len(resumed.runs) == 4
    assert {run.name: run.summary_file.stat().st_mtime_ns for run in resumed.runs[:n_done]} == before
    whole = toytf.sweep(path, arguments, out=tmp_path / "whole", jobs=1)
    assert (out / "table.csv").read_bytes() == (whole.directory / "table.csv").read_bytes()


@pytest.mark.heavy
def test_an_interrupt_says_how_to_go_on(tmp_path: Path) -> None:
    path, out = _file(tmp_path, grid={"model.d_model": [16, 24]}), tmp_path / "out"
    command = [str(Path(sys.executable).with_name("toytf")), "sweep", str(path), "train.steps=100000", "--jobs", "1"]
    running = subprocess.Popen(
        [*command, "--out", str(out)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    until = time.monotonic() + 60
    while not [*out.glob("runs/*/metrics.jsonl")] and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    says = f"toytf: stopped: 0 of 2 runs are done; to continue: toytf sweep {out / 'sweep.yaml'} --resume"
    assert err.splitlines()[-1] == says
    assert (out / "sweep.html").exists()


def test_a_metric_that_no_run_has_is_named(invoke: "Callable[..., Ended]", tmp_path: Path) -> None:
    path = _file(
        tmp_path, grid={"model.d_model": [16, 24]}, show=[METRIC, "eval/in_context_acuracy", "onset/recall/W_KQ1"]
    )
    ended = invoke("sweep", path, "train.steps=0", "--out", tmp_path / "out", "--jobs", "1")
    assert ended.code == 0
    assert 'no run has the metric "eval/in_context_acuracy"' in ended.err
    assert f'did you mean "{METRIC}"?' in ended.err
    assert "onset" not in ended.err.partition("accepted")[0]  # one that came in no run is no mistake


def test_a_directory_that_is_no_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not the directory of a sweep"):
        toytf.open_sweep(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(UserError, match="already has runs, which this sweep did not write: choose another --out"):
        toytf.sweep(TINY, {"seeds": 2}, out=tmp_path, jobs=1)


def test_a_point_with_a_failed_seed_has_no_mean(done: toytf.Sweep, tmp_path: Path) -> None:
    """The mean of the seeds that survived would be taken for the best."""
    shutil.copytree(done.directory, tmp_path / "sweep")
    sweep = toytf.open_sweep(tmp_path / "sweep")
    lost = sweep.members[0]
    shutil.rmtree(sweep.directory / "runs" / lost.id)
    sweep.write_failures({lost.id: Failure("RunFailed", "training diverged")})
    points = toytf.open_sweep(sweep.directory).points
    assert pd.isna(points[METRIC].loc[lost.point])
    assert points[METRIC].notna().sum() == len(points) - 1


def test_a_full_disk_ends_a_sweep_and_is_no_failure_of_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = _file(tmp_path, grid={"model.d_model": [16, 24]}, seeds=2), tmp_path / "out"
    real = MetricsFile.append

    def full(self: MetricsFile, row: Any) -> None:
        if row["step"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, row)

    with monkeypatch.context() as patched:
        patched.setattr(MetricsFile, "append", full)
        with pytest.raises(SystemRefused, match=r"the disk is full.*then continue: toytf sweep .*sweep.yaml --resume$"):
            toytf.sweep(source, out=out, jobs=1)
    assert toytf.open_sweep(out).failures == {}
    assert len(toytf.sweep(source, out=out, jobs=1, resume=True).runs) == 4


def test_a_stack_that_is_asked_for_is_taken(tmp_path: Path) -> None:
    for stack, sizes in ((1, [1, 1, 1, 1]), (4, [2, 2])):
        plan = plan_sweep("factual/quick", {"stack": stack, "seeds": 4})
        assert [len(group) for group in plan.groups] == sizes


def test_values_of_numpy_are_numbers() -> None:
    plan = plan_sweep("quickstart", {"model.d_model": np.array([8, 16]), "train.optimizer.lr": [np.float64(0.5), 1]})
    assert plan.runs[0].at == {"model.d_model": 8, "train.optimizer.lr": 0.5}
    assert len(plan.runs) == 4


@pytest.mark.parametrize(
    "override", ["seeds=1000000000", "seeds=true", "seeds={}", "train.optimizer.lr=range(0,1e308,1e-308)"]
)
def test_what_cannot_be_is_one_line(override: str, invoke: "Callable[..., Ended]", tmp_path: Path) -> None:
    ended = invoke("sweep", "quickstart", override, "--out", tmp_path / "out")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert not (tmp_path / "out").exists()


def test_an_engine_that_does_not_answer_leaves_nothing_behind(invoke: "Callable[..., Ended]", tmp_path: Path) -> None:
    options = ("--engine", "ray", "--address", "127.0.0.1:1", "--out", tmp_path / "out")
    ended = invoke("sweep", "quickstart", "seeds=2", *options)
    assert ended.code == 2
    assert "no Ray cluster answers" in ended.err
    assert not (tmp_path / "out").exists()
