"""One process writes a run; a second one is refused with a sentence, and changes nothing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import toytf
from toytf.errors import UserError
from toytf.runs.lock import NAME, locked

if TYPE_CHECKING:
    from conftest import Ended

pytestmark = pytest.mark.heavy


COMMAND = Path(sys.executable).with_name("toytf")


def test_the_second_of_two_commands_is_refused_and_the_first_ends(
    tiny_config: Path, invoke: "Callable[..., Ended]", monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = ["train.steps=100", "seeds=[0,1]", "train.evaluation.every=50"]
    first = subprocess.Popen(
        [COMMAND, "run", tiny_config, *changes, "--out", "run"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    while first.poll() is None and not (tmp_path / "run" / "checkpoints").exists():
        time.sleep(0.01)
    first.send_signal(signal.SIGSTOP)  # whatever the second takes, the first is not done meanwhile
    for resume in (["--resume"], []):
        second = invoke("run", tiny_config, *changes, "--out", "run", *resume)
        assert (second.code, second.out) == (2, "")
        assert f"toytf: run is in use: process {first.pid} on" in second.err
        assert len(second.err.splitlines()) == 1
    first.send_signal(signal.SIGCONT)
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 0, errors
    alone = toytf.run(tiny_config, changes, out=tmp_path / "alone", page=False)
    for name in ("metrics.jsonl", "summary.json", *(f"checkpoints/seed{seed}-step000100.training" for seed in (0, 1))):
        assert (tmp_path / "run" / name).read_bytes() == (alone.directory / name).read_bytes()
    assert not (tmp_path / "run" / NAME).exists()


def test_the_lock_of_a_dead_owner_is_taken_over(tmp_path: Path) -> None:
    program = """if True:
        import os, sys, pathlib, toytf.runs.lock
        with toytf.runs.lock.locked(pathlib.Path(sys.argv[1])):
            os._exit(9)
    """
    assert subprocess.run([sys.executable, "-c", program, tmp_path], check=False).returncode == 9
    assert (tmp_path / NAME).exists()
    with locked(tmp_path):
        assert f"process {os.getpid()} on" in (tmp_path / NAME).read_text()
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize("linked", [True, False], ids=["link", "file"])
def test_a_lock_that_is_somebodys_file_is_refused_and_stays(linked: bool, tmp_path: Path) -> None:
    own = tmp_path / "precious" if linked else tmp_path / NAME
    own.write_text("my own")
    if linked:
        (tmp_path / NAME).symlink_to(own)
    with pytest.raises(UserError, match=r"\.lock is not a lock of toytf: remove it"), locked(tmp_path):
        pass
    assert own.read_text() == "my own"


def test_a_lock_is_not_taken_twice_even_in_one_process(tmp_path: Path) -> None:
    with locked(tmp_path):
        with pytest.raises(UserError, match="is in use"), locked(tmp_path):
            pass
        assert (tmp_path / NAME).exists()


def test_two_checks_of_claims_do_not_share_a_folder(invoke: "Callable[..., Ended]", tmp_path: Path) -> None:
    with locked(tmp_path):
        ended = invoke("claims", "gradient_lemmas", "--out", tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert "is in use" in ended.err


def test_a_run_can_be_read_while_another_process_writes_it(tiny_config: Path, tmp_path: Path) -> None:
    """Rows and their checksum are two files: a reader looks again until they fit."""
    overrides = ["train.steps=150", "train.evaluation.every=1", "train.evaluation.sequences=2", "probes=[]"]
    rows = [0]
    with subprocess.Popen(
        [COMMAND, "run", tiny_config, *overrides, "--out", "run"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as writer:
        while writer.poll() is None:
            if (tmp_path / "run" / "metrics.jsonl").exists():
                rows.append(len(toytf.Run.open(tmp_path / "run").history))
    assert writer.returncode == 0
    assert sorted(rows) == rows
    assert len(set(rows)) > 10


def test_the_end_of_a_run_that_was_moved_does_not_free_another(tmp_path: Path) -> None:
    with locked(_folder(tmp_path)):
        (tmp_path / "run").rename(tmp_path / "moved")
        with locked(_folder(tmp_path)):
            with pytest.raises(UserError, match="is in use"), locked(tmp_path / "run"):
                pass
            assert (tmp_path / "run" / NAME).exists()


def _folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"
