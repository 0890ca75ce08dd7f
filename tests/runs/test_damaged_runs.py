"""A damaged run directory is used where it is whole, and named where it is not: no traceback, no wrong result."""

import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import toytf
from tests.hostile.damage import CHECKPOINTS, OTHERS, ROWS, Damage, flip, last_checkpoint
from toytf.errors import Interrupted, ToytfError, UserError
from toytf.experiments import study
from toytf.experiments.train import experiment as train

if TYPE_CHECKING:
    from conftest import Ended

pytestmark = pytest.mark.repeats_runs

QUIET: dict[str, Any] = {"seeds": [0, 1], "device": "cpu", "threads": 1, "logging": {"wandb": "off"}}
TRAINING = {
    "experiment": "train",
    "task": {"kind": "bigram", "seq_len": 6, "n_tokens": 8},
    "model": {"d_model": 4, "n_layers": 1},
    "train": {"steps": 4, "batch_size": 4, "evaluation": {"every": 1, "sequences": 4}, "checkpoints": {"every": 1}},
    "probes": ["memory_recall"],
    "stack": 1,  # so that a run can stop between its seeds
    **QUIET,
}
STUDY = {"experiment": "storage", "rules": ["hebbian", "ridge"], "dimension": 4, "n": 6, **QUIET}

SECONDS = re.compile(r"<dt>time</dt><dd>[^<]*</dd>")
"""What timing.json says on the page: a remark, not a record."""


def _stops(line: Any, method: str, call: int) -> type:
    """A progress line that stops the run, as Ctrl-C would, at some call of a method."""

    real, calls = getattr(line, method), []

    def stop(self: Any, *arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == call:
            raise Interrupted("stopped by the test")
        real(self, *arguments)

    return type("Stops", (line,), {method: stop})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, toytf.Run]:
    """Runs of both kinds, finished, and stopped in the middle."""
    found = {}
    for kind, config, module, line, method, call in (
        ("training", TRAINING, train, "ProgressLine", "stepped", 8),
        ("study", STUDY, study, "CaseLine", "begin", 2),
    ):
        out = tmp_path_factory.mktemp(kind)
        found[f"{kind}, finished"] = toytf.run(config, out=out / "run", page=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, line, _stops(getattr(module, line), method, call))
            with pytest.raises(Interrupted):
                toytf.run(config, out=out / "stopped" / "run")
        found[f"{kind}, stopped"] = toytf.Run.open(out / "stopped" / "run")
    return found


def _page(directory: Path) -> str:
    return SECONDS.sub("", (directory / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pages(runs: dict[str, toytf.Run], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The page of each finished run while it is whole."""
    from toytf.experiments.inspection import inspect_runs

    out, found = tmp_path_factory.mktemp("pages"), {}
    for name in ("training, finished", "study, finished"):
        shutil.copytree(runs[name].directory, out / name / "run")
        inspect_runs([out / name / "run"], None, serve=False)
        found[name] = _page(out / name / "run")
    return found


@pytest.fixture(scope="module")
def probed(runs: dict[str, toytf.Run]) -> dict[str, str]:
    """What `toytf probe` prints of each training while it is whole."""
    from toytf.experiments.inspection import print_probes

    def printed(run: toytf.Run) -> str:
        with redirect_stdout(StringIO()) as out:
            print_probes(run.directory, None, step=None, seed=None)
        return out.getvalue()

    return {name: printed(run) for name, run in runs.items() if name.startswith("training")}


CASES = [
    *(
        (state, name, damage)
        for state in ("training, finished", "training, stopped")
        for name, damage in CHECKPOINTS.items()
    ),
    *(
        (f"{kind}, {state}", name, damage)
        for kind in ("training", "study")
        for state in ("finished", "stopped")
        for name, damage in {**ROWS, **OTHERS}.items()
        if state == "finished" or not name.startswith("summary")
    ),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("state", "name", "damage"), CASES, ids=[f"{name}-{state}" for state, name, _ in CASES])
def test_a_damaged_run_is_named_or_gives_what_the_whole_one_gives(
    state: str,
    name: str,
    damage: Damage,
    runs: dict[str, toytf.Run],
    pages: dict[str, str],
    probed: dict[str, str],
    invoke: "Callable[..., Ended]",
    tmp_path: Path,
) -> None:
    whole, finished = runs[state], runs[state.partition(",")[0] + ", finished"]
    torn = name == "metrics_torn" and state.endswith("stopped")  # as a crash may leave it: the last row was not written
    out = tmp_path / "run"
    shutil.copytree(whole.directory, out)
    damage(out)

    try:
        opened = toytf.Run.open(out)
        assert torn or opened.history.equals(whole.history)
        assert torn or opened.summary == whole.summary
        assert not torn or len(opened.history) == len(whole.history) - 1
    except ToytfError as error:
        _is_a_sentence(str(error), out)

    if state.endswith("finished"):
        ended = invoke("inspect", out)
        assert ended.code in (0, 2), ended.err
        if ended.code == 0:
            assert _page(out) == pages[state]
        else:
            _is_a_sentence(ended.err, out)

    if state.startswith("training"):
        ended = invoke("probe", out)
        assert ended.code in (0, 2), ended.err
        if ended.code == 0:
            assert ended.out == probed[state]
        else:
            _is_a_sentence(ended.err, out)

    try:
        toytf.run(out / "config.yaml", out=out, resume=True, page=False)
    except ToytfError as error:
        assert not _must_go_on(state, name), error
        _is_a_sentence(str(error), out)
    else:
        for file in ("summary.json", "metrics.jsonl"):
            if state.endswith("stopped") or not name.startswith(("metrics", "summary")):
                assert (out / file).read_bytes() == (finished.directory / file).read_bytes()


def _must_go_on(state: str, name: str) -> bool:
    """Is all that matters to --resume whole, or as a crash may leave it?"""
    if state.endswith("finished"):
        return name.startswith(("training_", "timing", "lock", "checksums_missing", "seed_missing"))
    whole = ("lock_left_behind", "checksums_missing", "seed_missing", "training_gone", "safetensors_gone")
    torn = name == "metrics_torn" and state.startswith("study")  # in this training a checkpoint knows of the row
    return torn or name in whole or name.startswith("timing")


def _is_a_sentence(text: str, directory: Path) -> None:
    """One line that names a file of the run, and no more than a screen."""
    assert len(text.strip().splitlines()) == 1, text
    assert len(text) < 1000
    assert str(directory) in text


def _stopped_copy(runs: dict[str, toytf.Run], tmp_path: Path) -> Path:
    out = tmp_path / "run"
    shutil.copytree(runs["training, stopped"].directory, out)
    return out


def test_a_flipped_byte_costs_one_checkpoint_and_no_more(
    runs: dict[str, toytf.Run], invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    out = _stopped_copy(runs, tmp_path)
    flip(last_checkpoint(out, "training", seed=1), -30)
    command = ("run", out / "config.yaml", "--out", out, "--resume")
    refused = invoke(*command)
    assert refused.code == 2
    assert re.search(r"seed1-step00000\d\.training is damaged \(its checksum does not match\)", refused.err)
    assert re.search(
        r"remove \S+seed1-step00000\d\.\*; with --resume the training of seed 1 then continues from step \d",
        refused.err,
    )
    for suffix in ("safetensors", "training"):
        last_checkpoint(out, suffix, seed=1).unlink()
    assert invoke(*command).code == 0
    _ends_as(out, runs["training, finished"])


def test_lost_checkpoints_of_one_seed_cost_no_row_of_another(runs: dict[str, toytf.Run], tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(runs["training, finished"].directory, out)
    for path in [*(out / "checkpoints").glob("seed0-*"), out / "summary.json"]:
        path.unlink()
    toytf.run(out / "config.yaml", out=out, resume=True)
    _ends_as(out, runs["training, finished"])


def test_a_stray_checkpoint_beyond_the_end_is_named(runs: dict[str, toytf.Run], tmp_path: Path) -> None:
    out = _stopped_copy(runs, tmp_path)
    CHECKPOINTS["checkpoint_stray"](out)
    with pytest.raises(UserError, match=r"seed0-step999999\.training is after step 4, the last of this run"):
        toytf.run(out / "config.yaml", out=out, resume=True)


def test_rows_that_are_deleted_while_the_run_goes_on_are_written_again(
    runs: dict[str, toytf.Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "run"

    class Deletes(train.ProgressLine):
        def stepped(self, step: int) -> None:
            super().stepped(step)
            if step == 2:
                (out / "metrics.jsonl").unlink()

    monkeypatch.setattr(train, "ProgressLine", Deletes)
    toytf.run(TRAINING, out=out)
    _ends_as(out, runs["training, finished"])


def test_weights_of_another_model_are_refused_even_if_they_are_whole(
    runs: dict[str, toytf.Run], tmp_path: Path
) -> None:
    """Such as those of a run with the same seed and step that were copied here."""
    other = toytf.run({**TRAINING, "model": {"d_model": 6, "n_layers": 1}}, out=tmp_path / "other")
    out = tmp_path / "run"
    shutil.copytree(runs["training, finished"].directory, out)
    shutil.copy(last_checkpoint(other.directory, "safetensors"), out / "checkpoints")
    with pytest.raises(UserError, match=r"seed0-step000004\.safetensors is damaged .*expected \(.*4\), got \(.*6\)"):
        toytf.Run.open(out).model()


def _ends_as(out: Path, whole: toytf.Run) -> None:
    for path in sorted(whole.directory.rglob("*")):
        if path.name in ("metrics.jsonl", "summary.json", "config.yaml") or path.parent.name == "checkpoints":
            assert (out / path.relative_to(whole.directory)).read_bytes() == path.read_bytes(), path.name


def test_half_of_a_checkpoint_does_not_stop_a_resumed_run(runs: dict[str, toytf.Run], tmp_path: Path) -> None:
    out = _stopped_copy(runs, tmp_path)
    last_checkpoint(out, "safetensors", seed=1).unlink()
    toytf.run(out / "config.yaml", out=out, resume=True)
    _ends_as(out, runs["training, finished"])


def test_only_a_step_that_is_whole_is_promised(runs: dict[str, toytf.Run], tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(runs["training, finished"].directory, out)
    for step in (3, 4):
        flip(out / "checkpoints" / f"seed0-step{step:06d}.safetensors", -30)
    with pytest.raises(
        UserError, match=r"remove the checkpoints of seed 0, after step 2 and summary\.json.*continues from step 2"
    ):
        toytf.Run.open(out).model()


@pytest.mark.parametrize("kind", ["training", "study"])
def test_a_stopped_run_resumes_without_its_checksums(runs: dict[str, toytf.Run], kind: str, tmp_path: Path) -> None:
    shutil.copytree(runs[f"{kind}, stopped"].directory, tmp_path / "run")
    (tmp_path / "run" / "checksums.json").unlink()
    resumed = toytf.run(tmp_path / "run" / "config.yaml", out=tmp_path / "run", resume=True)
    assert toytf.Run.open(tmp_path / "run").summary == resumed.summary
    assert resumed.history.equals(runs[f"{kind}, finished"].history)
