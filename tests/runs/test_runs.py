"""A run from the command line and from Python: its directory, its probes, its page, its mirror."""

import contextlib
import json
import math
import re
import shutil
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import plotly.graph_objects as go
import pytest
import torch
from safetensors.torch import load_file

import toytf
from toytf.config.plugins import load_config
from toytf.config.sections import digest
from toytf.config.shipped import config_folder
from toytf.errors import UserError

if TYPE_CHECKING:
    from conftest import Command, Ended

QUICKSTART = config_folder() / "quickstart.yaml"


@pytest.fixture(scope="module")
def command_run(
    command: "Command", tiny_config: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple["subprocess.CompletedProcess[str]", Path]:
    """`toytf run tiny.yaml` in an empty folder: how it ended, and the folder."""
    folder = tmp_path_factory.mktemp("work")
    return command("run", tiny_config, cwd=folder), folder


def test_a_run_prints_its_directory_last_named_by_config_and_hash(
    command_run: tuple["subprocess.CompletedProcess[str]", Path], tiny_config: Path
) -> None:
    ended, folder = command_run
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    directory = Path(ended.stdout.splitlines()[-1])
    assert directory == Path("runs") / f"tiny-{digest(load_config(tiny_config))}"
    assert [path.name for path in (folder / "runs").iterdir()] == [directory.name]


def test_a_run_directory_holds_the_whole_record(tiny_run: toytf.Run) -> None:
    directory = tiny_run.directory
    assert load_config(directory / "config.yaml") == tiny_run.config
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [(row["seed"], row["step"]) for row in rows] == [(0, 0), (0, 2)]
    summary = json.loads((directory / "summary.json").read_text())
    assert all(type(value) is float and math.isfinite(value) for value in summary.values())
    for metric in (
        "eval/in_context_accuracy",
        "eval/untrapped_loss",
        "eval/global_loss",
        "recall/W_OV2",
        "recall/W_KQ1",
    ):
        assert {metric, f"ideal/{metric}", f"chance/{metric}"} <= set(summary)
        assert summary[metric] == rows[-1][metric]
    assert not any(name.endswith("/std") for name in summary)
    assert "<html" in (directory / "report.html").read_text(encoding="utf-8")
    weights = sorted(path.name for path in (directory / "checkpoints").glob("*.safetensors"))
    assert weights == [f"seed0-step{step:06d}.safetensors" for step in (0, 1, 2)]


def test_the_config_of_a_run_gives_the_same_bits_again(
    command_run: tuple["subprocess.CompletedProcess[str]", Path], tmp_path: Path
) -> None:
    ended, folder = command_run
    first = folder / ended.stdout.splitlines()[-1]
    again = toytf.run(first / "config.yaml", out=tmp_path / "again").directory
    assert (again / "metrics.jsonl").read_bytes() == (first / "metrics.jsonl").read_bytes()
    assert (again / "summary.json").read_bytes() == (first / "summary.json").read_bytes()
    last = "checkpoints/seed0-step000002.safetensors"
    assert (again / last).read_bytes() == (first / last).read_bytes()


def test_a_run_is_not_written_over(tiny_run: toytf.Run, invoke: "Callable[..., Ended]") -> None:
    before = tiny_run.metrics_file.stat().st_mtime_ns
    ended = invoke("run", tiny_run.config_file, "--out", tiny_run.directory)
    assert (ended.code, ended.out) == (2, "")
    assert "already holds a run: add --resume" in ended.err
    assert tiny_run.metrics_file.stat().st_mtime_ns == before


def test_resuming_with_another_config_names_the_key(tiny_run: toytf.Run, invoke: "Callable[..., Ended]") -> None:
    ended = invoke("run", tiny_run.config_file, "train.steps=3", "--out", tiny_run.directory, "--resume")
    assert (ended.code, ended.out) == (2, "")
    assert "train.steps 2 → 3" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_resuming_a_finished_run_changes_nothing(tiny_run: toytf.Run, invoke: "Callable[..., Ended]") -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny_run.directory.rglob("*")}
    ended = invoke("run", tiny_run.config_file, "logging.project=other", "--out", tiny_run.directory, "--resume")
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == str(tiny_run.directory)
    assert {path: path.stat().st_mtime_ns for path in tiny_run.directory.rglob("*")} == before


def test_a_run_that_diverges_ends_with_1_and_one_sentence(
    invoke: "Callable[..., Ended]", tiny_config: Path, tmp_path: Path
) -> None:
    overrides = ["train.optimizer={kind: sgd, lr: 1e30}", "train.loss=all", "train.steps=5"]
    ended = invoke("run", tiny_config, *overrides, "--out", tmp_path / "run")
    assert ended.code == 1
    assert "Traceback" not in ended.err
    assert "toytf: training diverged by step" in ended.err.splitlines()[-1]
    assert "train.optimizer.lr" in ended.err.splitlines()[-1]


def test_the_summary_of_two_seeds_has_their_mean_and_spread(two_seeds_run: toytf.Run) -> None:
    summary, history = two_seeds_run.summary, two_seeds_run.history
    last = history[history["step"] == 2].set_index("seed")
    means = [name for name in summary if not name.endswith("/std")]
    assert all(f"{name}/std" in summary for name in means)
    for metric in ("eval/all_loss", "recall/W_KQ1"):
        a, b = last[metric]
        assert summary[metric] == pytest.approx((a + b) / 2)
        assert summary[f"{metric}/std"] == pytest.approx(abs(a - b) / math.sqrt(2))  # n − 1 in the denominator
    assert summary["eval/all_loss/std"] > 0


# --- probe and inspect


def test_probes_run_again_on_any_checkpoint(tiny_run: toytf.Run, invoke: "Callable[..., Ended]") -> None:
    ended = invoke("probe", tiny_run.directory, "--step", "1")
    assert (ended.code, ended.err) == (0, "")
    for name in ("W_OV2", "W_KQ2", "W_KQ1", "induction", "should be"):
        assert name in ended.out


def test_one_probe_can_be_chosen(tiny_run: toytf.Run, invoke: "Callable[..., Ended]") -> None:
    ended = invoke("probe", tiny_run.directory, "--probe", "attention")
    assert ended.code == 0
    assert "induction" in ended.out
    assert "W_OV2" not in ended.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--step", "7"], "no checkpoint of seed 0 at step 7 (available: 0, 1, 2)"),
        (["--seed", "5"], "no seed 5 (available: 0)"),
        (["--probe", "attentoin"], 'did you mean "attention"?'),
    ],
)
def test_a_probe_of_what_there_is_not_lists_what_there_is(
    arguments: list[str], says: str, tiny_run: toytf.Run, invoke: "Callable[..., Ended]"
) -> None:
    ended = invoke("probe", tiny_run.directory, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(rf"toytf: .*{re.escape(says)}.*\n", ended.err)


def test_inspect_puts_several_runs_on_one_page(
    tiny_run: toytf.Run, two_seeds_run: toytf.Run, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    page = tmp_path / "both.html"
    ended = invoke("inspect", tiny_run.directory, two_seeds_run.directory, "--html", page)
    assert (ended.code, ended.out) == (0, f"{page}\n")
    text = page.read_text(encoding="utf-8")
    title = re.search(r"<title>(.*?)</title>", text, re.DOTALL)
    assert title
    assert tiny_run.name in title[1]
    assert two_seeds_run.name in title[1]
    for name in (tiny_run.name, two_seeds_run.name):
        assert f"run <b>{name}</b>" in text


@pytest.fixture
def in_two_folders(tiny_run: toytf.Run, tmp_path: Path) -> Path:
    """A folder with the runs runs/a and b."""
    for name in ("runs/a", "b"):
        shutil.copytree(tiny_run.directory, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("where", "given", "page"),
    [
        (".", ["runs/a", "b"], "runs/compare.html"),
        ("runs", ["a", "../b"], "compare.html"),
        ("runs/a", [".", "../../b"], "{folder}/runs/compare.html"),
    ],
)
def test_the_page_of_several_runs_is_beside_the_first_unless_told(
    where: str, given: list[str], page: str, in_two_folders: Path, invoke: "Callable[..., Ended]"
) -> None:
    before = set(in_two_folders.rglob("*"))
    with contextlib.chdir(in_two_folders / where):
        ended = invoke("inspect", *given)
    assert (ended.code, ended.out) == (0, page.format(folder=in_two_folders.resolve()) + "\n")
    written = in_two_folders / "runs" / "compare.html"
    assert set(in_two_folders.rglob("*")) - before == {written}
    assert re.search(r"<h\d[^>]*>\s*b\s*<", written.read_text(encoding="utf-8"))


def test_a_page_of_several_runs_that_cannot_be_written_is_named(
    in_two_folders: Path, invoke: "Callable[..., Ended]"
) -> None:
    (in_two_folders / "runs" / "compare.html").mkdir()
    ended = invoke("inspect", in_two_folders / "runs" / "a", in_two_folders / "b")
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(r"toytf: .*compare\.html: cannot be written.*\n", ended.err)


def test_inspect_says_if_the_page_cannot_be_written(
    tiny_run: toytf.Run, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    ended = invoke("inspect", tiny_run.directory, "--html", tmp_path / "nowhere" / "page.html")
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(r"toytf: .*page\.html: cannot be written.*\n", ended.err)


def test_inspect_does_not_write_over_what_is_no_page(tiny_run: toytf.Run, invoke: "Callable[..., Ended]") -> None:
    before = tiny_run.config_file.read_bytes()
    ended = invoke("inspect", tiny_run.directory, "--html", tiny_run.config_file)
    assert (ended.code, ended.out) == (2, "")
    assert "is not a page of toytf" in ended.err
    assert tiny_run.config_file.read_bytes() == before


# --- Python


def test_a_run_from_python_gives_its_history_as_a_table(tiny_run: toytf.Run) -> None:
    history = tiny_run.history
    assert isinstance(history, pd.DataFrame)
    assert history["step"].tolist() == [0, 2]
    assert history["eval/all_loss"].notna().all()


def test_a_run_from_python_gives_its_model_at_any_checkpoint(tiny_run: toytf.Run) -> None:
    for step, file in ((0, "seed0-step000000"), (None, "seed0-step000002")):
        saved = load_file(tiny_run.checkpoints / f"{file}.safetensors")
        for name, parameter in tiny_run.model(step=step).named_parameters():
            assert torch.equal(parameter, saved[name])


def test_a_run_from_python_gives_its_model_to_transformer_lens(tiny_run: toytf.Run) -> None:
    tokens = tiny_run.batch(2).tokens
    logits, cache = tiny_run.lens().run_with_cache(tokens)
    torch.testing.assert_close(logits, tiny_run.model()(tokens))
    assert cache["blocks.0.attn.hook_pattern"].shape == (2, 1, 8, 8)


def test_a_probe_from_python_has_metrics_and_a_figure(tiny_run: toytf.Run) -> None:
    result = tiny_run.probe("memory_recall")
    assert result.metrics["recall/W_OV2"] == tiny_run.summary["recall/W_OV2"]
    assert isinstance(result.figure(), go.Figure)


def test_a_mistake_from_python_is_an_exception_and_no_exit(tiny_config: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match='did you mean "steps"'):
        toytf.run(tiny_config, {"train.stepz": 2}, out=tmp_path / "run")
    with pytest.raises(UserError, match="not a run directory"):
        toytf.Run.open(tmp_path / "run")


# --- wandb


def test_wandb_writes_offline_into_the_run_directory_by_default(
    command: "Command", tiny_config: Path, tmp_path: Path
) -> None:
    assert load_config(QUICKSTART).logging.wandb == "offline"
    overrides = ["logging.wandb=offline", "logging.project=my_project", "logging.group=my_group"]
    ended = command("run", tiny_config, *overrides, "--out", "run", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    said = [line for line in (ended.stderr + ended.stdout).splitlines() if not line.startswith("time: ")]
    assert not any("wandb" in line for line in said)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    (record,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    content = record.read_bytes()
    for text in (b"my_project", b"my_group", b"run-seed0", b"eval/in_context_accuracy"):
        assert text in content


def test_offline_asks_no_host(command: "Command", tiny_config: Path, tmp_path: Path) -> None:
    """Every request would go through the proxy: a socket that notes who asks, and refuses."""
    asked: list[bytes] = []

    def listen() -> None:
        while True:
            with contextlib.suppress(OSError):
                connection, _ = proxy.accept()
                with connection:
                    asked.append(connection.recv(200))

    with socket.create_server(("127.0.0.1", 0)) as proxy:
        threading.Thread(target=listen, daemon=True).start()
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        environment = {"HTTPS_PROXY": address, "HTTP_PROXY": address, "NO_PROXY": "", "WANDB_ERROR_REPORTING": "true"}
        ended = command("run", tiny_config, "logging.wandb=offline", "--out", "run", cwd=tmp_path, **environment)
    assert ended.returncode == 0, ended.stderr
    assert [*(tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")]
    assert asked == []


@pytest.mark.parametrize(
    "error", [RuntimeError("no more\nroom"), RuntimeError(), None], ids=["error", "silent", "gone"]
)
def test_a_failure_of_wandb_does_not_stop_the_run(
    error: Exception | None,
    monkeypatch: pytest.MonkeyPatch,
    invoke: "Callable[..., Ended]",
    tiny_config: Path,
    tmp_path: Path,
) -> None:
    def fail(**_: object) -> None:
        assert error is not None
        raise error

    broken = types.ModuleType("wandb")
    vars(broken).update(init=fail, Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", broken if error is not None else None)
    ended = invoke("run", tiny_config, "logging.wandb=offline", "--out", tmp_path / "run")
    assert ended.code == 0
    assert (tmp_path / "run" / "summary.json").is_file()
    assert "Traceback" not in ended.err
    (told,) = (line for line in ended.err.splitlines() if line.startswith("toytf: "))
    assert "wandb (offline) stopped mirroring" in told


def test_only_a_training_opens_as_a_trained_run(tiny_run: toytf.Run, tmp_path: Path) -> None:
    assert isinstance(toytf.TrainedRun.open(tiny_run.directory), toytf.TrainedRun)
    study = {"experiment": "storage", "rules": ["hebbian"], "dimension": 4, "n": 6, "logging": {"wandb": "off"}}
    toytf.run(study, out=tmp_path / "run")
    assert not isinstance(toytf.Run.open(tmp_path / "run"), toytf.TrainedRun)
    with pytest.raises(UserError, match="a run of the experiment storage, which has no model"):
        toytf.TrainedRun.open(tmp_path / "run")
