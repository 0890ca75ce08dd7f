"""What every engine does with jobs, whether they end well or not: real processes, and a real Ray on this machine."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toytf
from tests.engines.test_studies import STORAGE
from tests.engines.waiting import appear
from toytf.engines import Ended, EngineOptions, Job, JobLost, run_jobs
from toytf.errors import Interrupted, RunFailed, UserError

OPTIONS = {"here": EngineOptions(), "process": EngineOptions(jobs=2), "ray": EngineOptions("ray", jobs=2)}


pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """One Ray for all tests: it takes seconds to start."""
    from toytf.engines.ray_session import ray_session

    with ray_session(OPTIONS["ray"]):
        yield


@pytest.fixture(params=["process", "ray"])
def options(request: pytest.FixtureRequest) -> EngineOptions:
    if request.param == "ray":
        request.getfixturevalue("ray")
    return OPTIONS[request.param]


def job(work: str, name: str = "", **arguments: Any) -> Job:
    return Job(name or work, f"tests.engines.jobs:{work}", arguments)


def by_name(jobs: list[Job], options: EngineOptions) -> dict[str, Ended]:
    return {ended.job.name: ended for ended in run_jobs(jobs, options)}


def test_all_engines_give_the_same_and_print_nothing(ray: None, capfd: pytest.CaptureFixture[str]) -> None:
    jobs = [job("describe", f"{n}", n=n) for n in range(5)]
    given = {f"{n}": {"n": n, "square": n * n, "where": Path("somewhere"), "asked": ""} for n in range(5)}
    for name in ("process", "ray"):
        ended = by_name(jobs, OPTIONS[name])
        assert {name: one.result for name, one in ended.items()} == given
        assert all((one.error, one.traceback) == (None, "") and one.seconds > 0 for one in ended.values())
    assert capfd.readouterr() == ("", "")


def test_one_job_at_a_time_needs_no_worker_and_keeps_the_order() -> None:
    asked: list[str] = []

    def jobs() -> Iterator[Job]:
        for work in ("refuse", "stumble"):
            asked.append(work)
            yield job(work)

    for n, ended in enumerate(run_jobs(jobs(), OPTIONS["here"]), 1):
        assert len(asked) == n  # the next one is asked for when this one has ended
        assert ended.error is not None
    assert asked == ["refuse", "stumble"]


def test_a_job_that_would_end_the_process_costs_nobody_else() -> None:
    left, other = run_jobs([job("leave"), job("stumble")], OPTIONS["here"])
    assert isinstance(left.error, JobLost)
    assert str(left.error) == "leave: SystemExit: 3"
    assert str(other.error) == "stumble: ZeroDivisionError: nobody foresaw this"


def test_failures_keep_their_class_and_cost_nobody_else(
    options: EngineOptions, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs = [
        job("die", "dies_once", marks=tmp_path / "once", times=1),
        job("die", "dies_always", marks=tmp_path / "always", times=9),
        job("refuse"),
        job("stumble"),
        job("give_what_does_not_pickle"),
        job("describe", n=3),
        job("nowhere"),
    ]
    ended = by_name(jobs, options)
    assert ended.keys() == {one.name for one in jobs}
    assert (ended["dies_once"].result, ended["dies_once"].error) == ("alive", None)
    assert ended["describe"].result["square"] == 9

    assert type(ended["refuse"].error) is UserError
    assert (str(ended["refuse"].error), ended["refuse"].traceback) == ("n should be even", "")

    assert isinstance(ended["stumble"].error, RunFailed)
    assert str(ended["stumble"].error) == "stumble: ZeroDivisionError: nobody foresaw this"
    assert "in stumble\n" in ended["stumble"].traceback

    signalled = "" if options.engine == "ray" else " (signal 9)"  # Ray does not tell
    assert isinstance(ended["dies_always"].error, JobLost)
    assert str(ended["dies_always"].error) == f"dies_always: its worker died{signalled} 2 times"
    assert (tmp_path / "always").read_text() == "xx"
    if options.engine == "process":
        assert ended["dies_always"].traceback.endswith("these are my last words")

    assert "pickle" in str(ended["give_what_does_not_pickle"].error)
    assert "has no attribute 'nowhere'" in str(ended["nowhere"].error)
    assert all(one.result is None for one in ended.values() if one.error is not None)
    assert capfd.readouterr() == ("", "")


def test_ray_leaves_the_signals_as_they_were(ray: None) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_interrupt_lets_jobs_save_and_starts_no_other(options: EngineOptions, tmp_path: Path) -> None:
    jobs = [
        job("describe", n=1),
        job("save_when_asked", "a", at=tmp_path / "a"),
        job("save_when_asked", "b", at=tmp_path / "b"),
        job("save_when_asked", "c", at=tmp_path / "c"),
    ]
    before, ended = signal.getsignal(signal.SIGINT), []

    def press_ctrl_c() -> None:
        appear(tmp_path / "a.pid", tmp_path / "b.pid")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press_ctrl_c)
    thread.start()
    with pytest.raises(Interrupted):
        for one in run_jobs(jobs, options):
            ended.append(one.job.name)
    thread.join()
    assert ended == ["describe"]
    assert {path.name for path in tmp_path.glob("*.saved")} == {"a.saved", "b.saved"}
    assert not (tmp_path / "c.pid").exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_leaving_early_lets_jobs_save(options: EngineOptions, tmp_path: Path) -> None:
    jobs = run_jobs([job("save_when_asked", "a", at=tmp_path / "a"), job("describe", n=1)], options)
    assert next(jobs).job.name == "describe"
    appear(tmp_path / "a.pid")
    jobs.close()
    assert (tmp_path / "a.saved").exists()


OTHERWISE = ("provenance.json", "timing.json", "report.html", "checksums.json")
"""Files that tell when and by whom a run was made, or in which order its files came."""


def _files(run: toytf.Run) -> dict[str, bytes]:
    files = {str(path.relative_to(run.directory)): path for path in run.directory.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in sorted(files.items()) if name not in OTHERWISE}


@pytest.mark.repeats_runs
def test_the_files_of_a_study_are_the_same_whatever_the_engine(options: EngineOptions, tmp_path: Path) -> None:
    one = toytf.run(STORAGE, out=tmp_path / "one")
    at_once = toytf.run(STORAGE, out=tmp_path / "at_once", engine=options)
    assert {"metrics.jsonl", "columns.json", "summary.json", "figures/scores_hebbian.json"} <= _files(one).keys()
    assert _files(at_once) == _files(one)
    assert at_once.timing is not None
    assert one.timing is not None
    assert [*at_once.timing] == [*one.timing]
    assert all(seconds > 0 for seconds in at_once.timing.values())
