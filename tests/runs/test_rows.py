"""metrics.jsonl survives a crash at any moment, and says when it was changed."""

import contextlib
import json
from pathlib import Path

import pytest

from toytf import files
from toytf.errors import UserError
from toytf.measurement import Group, Headline, Measurement, as_row
from toytf.runs import rows
from toytf.runs.rows import MetricsFile, Row, read_columns, read_rows

LOSS = Group("eval", "Loss")


class Crash(BaseException):
    """The process is gone."""


def _row(step: int) -> Row:
    return {"seed": step % 2, "step": step, **as_row(_measured(step))}


def _measured(step: int) -> list[Measurement]:
    """Every second step has a metric that was not there before."""
    return [LOSS.measurement(1 / (step + 1), "loss"), *([LOSS.measurement(2.0, at=step)] if step % 2 else [])]


def _work(path: Path) -> None:
    """What a run does to the file: open it, go on where it stands, forget a row, write it again."""
    metrics = MetricsFile(path)
    for step in range(len(metrics.rows), 4):
        metrics.record(step % 2, step, _measured(step))
        if step == 1:
            metrics.note()  # as at a checkpoint
    metrics.forget(seed=1, after=2)
    metrics.record(1, 3, _measured(3))
    metrics.note(closed=True)


def _crash_at(moment: int, patch: pytest.MonkeyPatch, *, torn: bool) -> None:
    """Die at the so many-th time that something is on the disk: before it is moved to its place, or with half a row."""
    real_replace, real_sync, moments = Path.replace, files.os.fsync, []

    def reached() -> bool:
        moments.append(0)
        return len(moments) == moment

    def replace(self: Path, target: Path) -> Path:
        if reached():
            raise Crash
        return real_replace(self, target)

    def sync(file: int) -> None:
        name = Path(f"/proc/self/fd/{file}").readlink()
        if name.name == "metrics.jsonl" and reached():
            if torn:
                files.os.ftruncate(file, files.os.fstat(file).st_size - 7)
            raise Crash
        real_sync(file)

    patch.setattr(Path, "replace", replace)
    patch.setattr(files.os, "fsync", sync)


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("first", range(1, 19))
def test_a_crash_at_any_moment_and_another_while_it_is_mended_lose_no_row(
    first: int, torn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    for moment in (first, 1, 2, 3):
        with monkeypatch.context() as patch:
            _crash_at(moment, patch, torn=torn)
            with contextlib.suppress(Crash):
                _work(path)
        known = read_columns(tmp_path)
        assert all(name in known for row in read_rows(path) for name in row if "/" in name)  # at any moment
    _work(path)
    assert read_rows(path) == [_row(step) for step in range(4)]
    assert list(read_columns(tmp_path)) == ["eval/loss", "eval/at1", "eval/at3"]


def test_a_reader_looks_again_when_the_run_ends_between_its_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    metrics.append(_row(0))
    metrics.append(_row(1))
    real, looks = rows.read_bytes, []

    def late(asked: Path) -> bytes:
        looks.append(asked)
        if len(looks) == 1:
            metrics.append(_row(2))
            metrics.append(_row(3))
        return real(asked)

    monkeypatch.setattr(rows, "read_bytes", late)
    assert len(read_rows(path)) == 4


def test_a_changed_value_is_refused_by_readers_and_writers(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    _work(path)
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.7"))
    for use in (read_rows, MetricsFile):
        with pytest.raises(UserError, match="rows were changed, added or lost"):
            use(path)


def test_a_run_that_goes_on_knows_its_groups_as_they_are_declared_now(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    before, now = Group("recall", "Recall"), Group("recall", "Recall", headline=(Headline("a", "what it recalls"),))
    MetricsFile(path).record(0, 0, [before.measurement(0.5, name) for name in "ab"])
    MetricsFile(path).record(0, 1, [now.measurement(0.5, "a")])
    assert {name: about.group for name, about in read_columns(tmp_path).items()} == {"recall/a": now, "recall/b": now}


def test_columns_that_were_changed_or_lost_are_named(tmp_path: Path) -> None:
    _work(tmp_path / "metrics.jsonl")
    columns = tmp_path / "columns.json"
    content = columns.read_bytes()
    for damaged in (content.replace(b"Loss", b"Gain"), b"", b"[]", b"\xff"):
        columns.write_bytes(damaged)
        with pytest.raises(UserError, match=r"columns\.json has changed since toytf wrote it"):
            read_columns(tmp_path)
    columns.unlink()
    with pytest.raises(UserError, match=r"columns\.json is missing"):
        MetricsFile(tmp_path / "metrics.jsonl")
    columns.write_bytes(content)
    assert len(read_columns(tmp_path)) == 3


@pytest.mark.parametrize(
    ("group", "at"),
    [
        ({"title": 3}, {}),
        ({"format": "x"}, {}),
        ({"place": "x"}, {}),
        ({"variants": [["head"]]}, {}),
        ({"headline": [["*", "a phrase", "first"]]}, {}),
        ({}, {"role": None}),
        ({}, {"role": {"a": 1}}),
    ],
)
def test_columns_of_other_types_are_named_also_where_there_is_no_checksum(
    group: dict[str, object], at: dict[str, object], tmp_path: Path
) -> None:
    told = {"groups": [{"name": "eval", "title": "Loss", **group}], "metrics": {"eval/loss": [0, "loss", at, []]}}
    (tmp_path / "columns.json").write_text(json.dumps(told))
    with pytest.raises(UserError, match=r"columns\.json has changed since toytf wrote it"):
        read_columns(tmp_path)
