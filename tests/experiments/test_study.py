"""A study, stopped anywhere and resumed, ends as if it had not been."""

import errno
import json
import math
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
import pytest
import yaml

import toytf
from toytf.config.plugins import load_config
from toytf.errors import Interrupted, RunFailed, UserError
from toytf.experiments.capacity.experiment import Capacity
from toytf.experiments.filling.experiment import Filling
from toytf.experiments.storage.experiment import Storage
from toytf.experiments.study import Drawn, Study
from toytf.measurement import Group
from toytf.stopping import check_stop

if TYPE_CHECKING:
    from conftest import Ended

pytestmark = pytest.mark.repeats_runs

QUIET: dict[str, Any] = {"seeds": [0, 1], "device": "cpu", "threads": 1, "logging": {"wandb": "off"}}
CAPACITY = {"experiment": "capacity", "rules": ["hebbian", "optimum"], "dimensions": [2, 4], "draws": 2, **QUIET}
STORAGE = {
    "experiment": "storage",
    "rules": ["hebbian", "ridge", "mlp_h2"],
    "dimension": 4,
    "n": 6,
    "width": 5,
    **QUIET,
}
FILLING: dict[str, Any] = {
    "experiment": "filling",
    "task": {"kind": "bigram", "n_tokens": 6, "n_triggers": 1, "seq_len": 6},
    "model": {"d_model": 4, "n_layers": 2, "freeze": ["embed.*", "pos_embed.*", "unembed.*"]},
    "train": {"steps": 1, "batch_size": 4, "evaluation": {"sequences": 32}},
    "sizes": {"model": {"d_model": [4, 3, 2]}},
    **QUIET,
}
EXPERIMENTS: dict[str, tuple[dict[str, Any], type[Study[Any]]]] = {
    "capacity": (CAPACITY, Capacity),
    "storage": (STORAGE, Storage),
    "filling": (FILLING, Filling),
}


@pytest.fixture(scope="module", params=["capacity", "storage", pytest.param("filling", marks=pytest.mark.heavy)])
def experiment(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def config(experiment: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / f"{experiment}.yaml"
    path.write_text(yaml.safe_dump(EXPERIMENTS[experiment][0]))
    return path


@pytest.fixture(scope="module")
def whole(config: Path, tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    """The run that nothing stopped."""
    return toytf.run(config, out=tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def watch(experiment: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], None]], list[Any]]:
    """Call a function with the number of each case before it is measured; gives the list of what was asked for."""
    study = EXPERIMENTS[experiment][1]
    real = study.seeds

    def install(before: Callable[[int], None]) -> list[Any]:
        asked: list[Any] = []

        def seeds(self: Study[Any], case: Any, seeds: Sequence[int]) -> Iterator[Any]:
            asked.append((self.label(case), list(seeds)))
            before(len(asked))
            check_stop()
            yield from real(self, case, seeds)

        monkeypatch.setattr(study, "seeds", seeds)
        return asked

    return install


def test_an_interrupted_study_says_how_to_continue_and_ends_the_same(
    config: Path,
    whole: toytf.Run,
    watch: Callable[[Callable[[int], None]], list[Any]],
    invoke: "Callable[..., Ended]",
    tmp_path: Path,
) -> None:
    asked = watch(lambda job: signal.raise_signal(signal.SIGINT) if job == 3 else None)
    stopped = invoke("run", config, "--out", tmp_path / "run")
    assert stopped.code == 130
    last = stopped.err.strip().splitlines()[-1]
    assert "Traceback" not in stopped.err
    assert last.startswith("toytf: stopped before ")
    assert asked[2][0] in last
    done = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert done.count(b"\n") == 4  # two jobs, two seeds
    assert not (tmp_path / "run" / "summary.json").exists()

    program, *words = last.partition("to continue: ")[2].split()
    assert program == "toytf"
    assert invoke(*words).code == 0
    assert [name for name, _ in asked[3:]] == [name for name, _ in asked[2:3]] + [name for name, _ in asked[4:]]
    assert asked[0] not in asked[3:]  # what was done is not done again
    assert asked[1] not in asked[3:]
    again = toytf.Run.open(tmp_path / "run")
    _is_the_same(again, whole)
    assert again.report_file.is_file()


def test_an_interrupted_study_raises_from_python(
    config: Path, watch: Callable[[Callable[[int], None]], list[Any]], tmp_path: Path
) -> None:
    watch(lambda job: signal.raise_signal(signal.SIGINT) if job == 1 else None)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="--resume"):
        toytf.run(config, out=tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("rows", [0, 3, 5, 8, 9])  # of a capacity, 8 and 9 are the fits of the two seeds
def test_a_run_killed_after_any_row_and_resumed_ends_the_same(
    rows: int, config: Path, whole: toytf.Run, tmp_path: Path
) -> None:
    """The row that was being written when the process died is torn in the middle."""
    lines = whole.metrics_file.read_bytes().splitlines(keepends=True)
    rows = min(rows, len(lines) - 1)  # a storage has fewer
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.yaml").write_bytes(whole.config_file.read_bytes())
    (out / "columns.json").write_bytes((whole.directory / "columns.json").read_bytes())
    (out / "metrics.jsonl").write_bytes(b"".join(lines[:rows]) + lines[rows][: len(lines[rows]) // 2])
    _is_the_same(toytf.run(config, out=out, resume=True, page=False), whole)


def test_a_full_disk_loses_no_row_that_was_written(
    config: Path, whole: toytf.Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, rows = os.fsync, []

    def fills_up(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().name == "metrics.jsonl":
            rows.append(file)
        if len(rows) == 4:
            os.ftruncate(file, os.fstat(file).st_size - 20)
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", fills_up)
    with pytest.raises(RunFailed, match=r"disk is full.*--resume"):
        toytf.run(config, out=tmp_path / "run")
    monkeypatch.undo()
    assert len(toytf.Run.open(tmp_path / "run").history) == 3
    _is_the_same(toytf.run(config, out=tmp_path / "run", resume=True, page=False), whole)


def test_a_seed_that_is_missing_is_done_alone(
    config: Path, whole: toytf.Run, watch: Callable[[Callable[[int], None]], list[Any]], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.yaml").write_bytes(whole.config_file.read_bytes())
    (out / "columns.json").write_bytes((whole.directory / "columns.json").read_bytes())
    (out / "metrics.jsonl").write_bytes(b"".join(whole.metrics_file.read_bytes().splitlines(keepends=True)[:3]))
    asked = watch(lambda job: None)
    _is_the_same(toytf.run(config, out=out, resume=True, page=False), whole)
    assert asked[0][1] == [1]
    assert asked[1][1] == [0, 1]


def test_the_seconds_of_every_case_are_kept(whole: toytf.Run, experiment: str) -> None:
    timing = json.loads((whole.directory / "timing.json").read_text())
    study = EXPERIMENTS[experiment][1](whole.config)
    assert list(timing) == [study.label(case) for case in study.cases()]
    assert all(seconds > 0 for seconds in timing.values())


def test_a_finished_run_is_left_alone(
    config: Path, whole: toytf.Run, watch: Callable[[Callable[[int], None]], list[Any]]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.directory.rglob("*")}
    asked = watch(lambda job: None)
    toytf.run(config, out=whole.directory, resume=True)
    assert asked == []
    assert {path: path.stat().st_mtime_ns for path in whole.directory.rglob("*")} == before


def test_a_run_that_was_refused_before_its_first_row_frees_its_directory(
    config: Path, watch: Callable[[Callable[[int], None]], list[Any]], invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    """The corrected command must work: the directory may not be taken by what was wrong."""
    wrong = [True]

    def refuse(job: int) -> None:
        if wrong:
            raise UserError("these pairs cannot be drawn")

    watch(refuse)
    ended = invoke("run", config, "--out", tmp_path / "run")
    assert ended.code == 2
    assert "these pairs cannot be drawn" in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err
    wrong.clear()
    assert invoke("run", config, "seeds=[2]", "--out", tmp_path / "run").code == 0


def _is_the_same(run: toytf.Run, whole: toytf.Run) -> None:
    assert run.summary_file.read_bytes() == whole.summary_file.read_bytes()
    assert run.config_file.read_bytes() == whole.config_file.read_bytes()
    found, expected = (sorted(one.metrics_file.read_text().splitlines()) for one in (run, whole))
    assert found == expected


def test_a_crash_in_the_second_seed_loses_nothing_of_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, whole: toytf.Run, experiment: str, config: Path
) -> None:
    """Seeds that are done one by one are written one by one."""
    study = EXPERIMENTS[experiment][1]
    real = study.measure

    def crash(self: Study[Any], case: Any, seed: int) -> Any:
        if seed == 1:
            raise RuntimeError("lightning")
        return real(self, case, seed)

    monkeypatch.setattr(study, "measure", crash)
    with pytest.raises(RuntimeError, match="lightning"):
        toytf.run(config, out=tmp_path / "run")
    assert toytf.Run.open(tmp_path / "run").history["seed"].tolist() == [0]
    monkeypatch.setattr(study, "measure", real)
    _is_the_same(toytf.run(config, out=tmp_path / "run", resume=True, page=False), whole)


# Studies of somebody else


@dataclass(frozen=True)
class Odd:
    """Factors that a stranger might think of."""

    a: Any
    b: Any = None


ODD = Group("odd", "Odd")


def _odd_study(run: Path, *cases: Any, measured: Any = None) -> toytf.Run:
    """A study of such cases in a run directory that has a config, whichever."""

    class Study_(Study[Any]):
        def cases(self) -> Any:
            return cases

        def measure(self, case: Any, seed: int) -> Any:
            return [ODD.measurement(hash((str(case), seed)) % 7)] if measured is None else measured

    config = load_config({**STORAGE, "rules": ["hebbian"], "width": None})
    run.mkdir(exist_ok=True)
    started = toytf.Run.start(run, config, resume=True)
    study = Study_(config)
    study.run(started)
    _ = [*study.figures(started)]
    started.finish()
    return started


@pytest.mark.parametrize(
    ("cases", "says"),
    [
        ((), "there are no cases to measure"),
        ((Odd("x_y", "z"), Odd("x", "y_z")), "is the name of two cases"),
        ((Odd((1, 2)), Odd("1x2")), "is the name of two cases"),
        ((Odd([1, 2]),), r"a = \[1, 2\] cannot be a factor"),
        ((Odd({"k": 1}),), "cannot be a factor"),
    ],
)
def test_cases_that_cannot_be_told_apart_or_written_down_are_refused(
    cases: tuple[Odd, ...], says: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=says):
        _odd_study(tmp_path / "run", *cases)


@pytest.mark.parametrize("measured", [[], [Drawn("picture", go.Figure)]])
def test_a_case_gives_one_measurement_at_least(measured: list[Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="measure yielded no measurement"):
        _odd_study(tmp_path / "run", Odd(1), measured=measured)


def test_cases_with_and_without_a_factor_are_measured_together(tmp_path: Path) -> None:
    first = _odd_study(tmp_path / "run", Odd(1, 2))
    first.summary_file.unlink()
    both = _odd_study(tmp_path / "run", Odd(1, 2), Odd(1))
    assert {"odd/a1_b2", "odd/a1"} <= set(both.history.columns)


def test_a_value_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    values = [
        ODD.measurement(math.inf, "infinite", theory=1.0),
        ODD.measurement(math.nan, "none", theory=math.inf),
        ODD.measurement(1.0, "one", chance=math.nan),
    ]
    run = _odd_study(tmp_path / "run", Odd(np.int64(3), np.float32(0.5)), measured=values)
    assert {name for name in run.summary if not name.endswith("/std")} == {
        "odd/one_a3_b0.5",
        "theory/odd/infinite_a3_b0.5",
    }
    json.loads(run.summary_file.read_text(), parse_constant=pytest.fail)
    nothing = _odd_study(tmp_path / "other", Odd(1), measured=[ODD.measurement(None, theory=2.0)])
    assert "theory/odd/a1" in nothing.summary
