"""Worker processes end with their parent, however that ends, and whatever kind of program it is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.waiting import appear, is_gone, until

ROOT = Path(__file__).parents[2]
SCRIPT = """
from pathlib import Path
from toytf.engines import EngineOptions, Job, run_jobs
print("the script runs", flush=True)
jobs = [Job(name, "tests.engines.jobs:{work}", {{"at": Path({folder!r}) / name}}) for name in "abc"]
for ended in run_jobs(jobs, EngineOptions(jobs=2)):
    print(ended)
"""


@pytest.fixture(params=["typed", "file"])
def as_typed(request: pytest.FixtureRequest) -> bool:
    """Is the script typed in, as in a notebook, or a file without `if __name__ == "__main__"`?"""
    return bool(request.param == "typed")


def _start(work: str, folder: Path, *, as_typed: bool) -> "subprocess.Popen[str]":
    script = SCRIPT.format(work=work, folder=str(folder))
    (folder / "script.py").write_text(script)
    parent = subprocess.Popen(
        [sys.executable, "-" if as_typed else str(folder / "script.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdin is not None
    parent.stdin.write(script if as_typed else "")
    parent.stdin.close()
    parent.stdin = None
    appear(folder / "a.pid", folder / "b.pid")
    return parent


def _workers(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.glob("*.pid")]


@pytest.mark.parametrize("work", ["save_when_asked", "hear_nothing"])
def test_workers_end_when_their_parent_is_killed(work: str, as_typed: bool, tmp_path: Path) -> None:
    with _start(work, tmp_path, as_typed=as_typed) as parent:
        workers = _workers(tmp_path)
        assert not any(map(is_gone, workers))
        parent.kill()
    until(lambda: all(map(is_gone, workers)), seconds=5)


def test_the_first_interrupt_of_a_terminal_asks_and_the_second_one_ends_all(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to the whole group of the command."""
    with _start("hear_nothing", tmp_path, as_typed=True) as parent:
        workers = _workers(tmp_path)
        os.killpg(parent.pid, signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            parent.wait(0.5)
        assert not any(map(is_gone, workers))
        os.killpg(parent.pid, signal.SIGINT)
        out, err = parent.communicate(timeout=10)
    assert all(map(is_gone, workers))
    assert len(workers) == len([*tmp_path.glob("*.pid")]) == 2  # the third job was not started
    assert out == "the script runs\n"  # once: workers do not run it
    assert err.splitlines()[-1] == "KeyboardInterrupt"


def test_an_interrupt_of_a_terminal_ends_with_what_was_saved(tmp_path: Path) -> None:
    with _start("save_when_asked", tmp_path, as_typed=False) as parent:
        workers = _workers(tmp_path)
        os.killpg(parent.pid, signal.SIGINT)
        _, err = parent.communicate(timeout=10)
    assert err.splitlines()[-1] == "toytf.errors.Interrupted: stopped before all jobs were done"
    assert all(map(is_gone, workers))
    assert len([*tmp_path.glob("*.saved")]) == 2
