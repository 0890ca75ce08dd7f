"""Files are whole or not there, whoever else writes them, and leave nothing behind."""

import errno
import os
import threading
from pathlib import Path

import pytest

import toytf
from toytf.files import remove_temporary, write_atomic


def test_threads_that_write_one_file_each_write_it_whole(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [bytes([letter]) * 5000 for letter in b"abcd"]
    failed: list[BaseException] = []

    def write(content: bytes) -> None:
        try:
            for _ in range(100):
                write_atomic(path, content)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not path.exists() or path.read_bytes() in contents
    assert failed == []
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_system_that_does_not_sync_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refuse)
    write_atomic(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_what_a_killed_writer_left_is_removed_when_the_run_goes_on(tiny_config: Path, tmp_path: Path) -> None:
    run = toytf.run(tiny_config, out=tmp_path)
    run.summary_file.unlink()
    left = [folder / ".summary.json.0123abcd.tmp" for folder in (tmp_path, run.checkpoints, run.figures)]
    own = tmp_path / ".mine.tmp"
    for path in (*left, own):
        path.write_text("half")
    toytf.run(tiny_config, out=tmp_path, resume=True)
    assert not any(path.exists() for path in left)
    assert own.exists()


def test_the_name_of_a_temporary_file_is_known_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(file: int) -> None:
        raise SystemExit

    monkeypatch.setattr(os, "fsync", killed)
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
    with pytest.raises(SystemExit):
        write_atomic(tmp_path / "config.yaml", b"half")
    monkeypatch.undo()
    assert len([*tmp_path.iterdir()]) == 1
    remove_temporary(tmp_path)
    assert [*tmp_path.iterdir()] == []
