"""Runs that lost files: what only describes or shows is made again, and rows without a description are refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import toytf
from toytf.runs import TrainedRun

if TYPE_CHECKING:
    from conftest import Ended

QUIET: dict[str, Any] = {"device": "cpu", "threads": 1, "logging": {"wandb": "off"}}
TRAINING = {
    "experiment": "train",
    "task": {"kind": "bigram", "seq_len": 12, "n_tokens": 12},
    "model": {"d_model": 16},
    "train": {"steps": 60, "batch_size": 16, "optimizer": {"lr": 0.05}, "evaluation": {"every": 10, "sequences": 32}},
    "probes": ["memory_recall", "limits", "heads"],
    **QUIET,
}
STUDY = {"experiment": "storage", "rules": ["hebbian", "ridge"], "dimension": 4, "n": 6, **QUIET}


@pytest.fixture(scope="module", params=[TRAINING, STUDY], ids=["training", "study"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    return toytf.run(request.param, out=tmp_path_factory.mktemp("whole") / "run", page=False)


def _copy(run: toytf.Run, tmp_path: Path, *lost: str) -> toytf.Run:
    shutil.copytree(run.directory, tmp_path / "run")
    for name in lost:
        (tmp_path / "run" / name).unlink()
    return toytf.Run.open(tmp_path / "run")


def test_rows_that_nothing_describes_are_refused_in_a_line(
    whole: toytf.Run, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    """As those of versions before 0.1.0, whether somebody looks at the run or goes on with it."""
    earlier = _copy(whole, tmp_path, "columns.json", "checksums.json", "summary.json")
    for arguments in (["inspect", earlier.directory], ["run", earlier.config_file, "--resume"]):
        ended = invoke(*arguments)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith(f"toytf: {earlier.directory / 'columns.json'} is missing: ")
        assert ended.err.endswith("(runs made before toytf 0.1.0 are not read)\n")
        assert ended.err.count("\n") == 1


def test_a_training_draws_its_probes_again_if_their_figures_are_gone(
    whole: toytf.Run, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    run = _copy(whole, tmp_path)
    shutil.rmtree(run.figures)
    assert invoke("inspect", run.directory).code == 0
    titles = ("Singular values", "Attention that fits each known kind of head")
    page = run.report_file.read_text()
    assert all(title in page for title in titles) == (whole.config.experiment == "train")


def test_probes_on_a_checkpoint_share_one_model(
    whole: toytf.Run, monkeypatch: pytest.MonkeyPatch, invoke: "Callable[..., Ended]"
) -> None:
    loaded: list[int] = []
    real = TrainedRun.model

    def counted(self: TrainedRun, **where: Any) -> Any:
        loaded.append(1)
        return real(self, **where)

    monkeypatch.setattr(TrainedRun, "model", counted)
    ended = invoke("probe", whole.directory)
    if whole.config.experiment == "train":
        assert (ended.code, len(loaded)) == (0, 1)
        assert "W_OV2" in ended.out
        assert "L0H0" in ended.out
    else:
        assert ended.code == 2
