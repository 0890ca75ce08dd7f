"""A run that was killed anywhere and resumed is, to the bit, the run that was not."""

import json
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

import toytf
from toytf.errors import UserError
from toytf.runs import Run
from toytf.timing import PARTS

if TYPE_CHECKING:
    from conftest import Ended

COMMAND = Path(sys.executable).with_name("toytf")
STEPS = 150


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of a tiny model; evaluations, checkpoints and an unfreezing fall on unlike steps."""
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    content = {
        "base": str(Path("configs/quickstart.yaml").resolve()),
        "task": {"seq_len": 12},
        "model": {"d_model": 16, "freeze": ["embed.*", "blocks.1.attn.W_K"], "unfreeze": {55: ["blocks.1.attn.W_K"]}},
        "train": {
            "steps": STEPS,
            "batch_size": 8,
            "evaluation": {"every": 7, "sequences": 16},
            "checkpoints": {"every": 10},
        },
        "probes": ["memory_recall", "attention"],
        "seeds": [0, 1],
        "threads": 1,
        "logging": {"wandb": "off"},
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def uninterrupted(config: Path) -> Path:
    return toytf.run(config, out=config.parent / "uninterrupted").directory


def record(out: Path) -> dict[str, bytes]:
    names = ["metrics.jsonl", "summary.json", "config.yaml"]
    names += [f"checkpoints/seed{seed}-step{STEPS:06d}.safetensors" for seed in (0, 1)]
    return {name: (out / name).read_bytes() for name in names}


def wait_for_rows(out: Path, rows: int, process: "subprocess.Popen[bytes]") -> None:
    metrics = out / "metrics.jsonl"
    while process.poll() is None and (not metrics.exists() or metrics.read_bytes().count(b"\n") < rows):
        time.sleep(0.002)


@pytest.mark.heavy
@pytest.mark.parametrize("trial", range(2))
def test_a_run_killed_at_random_steps_and_resumed_has_the_same_bits(
    config: Path, uninterrupted: Path, tmp_path: Path, trial: int, invoke: "Callable[..., Ended]"
) -> None:
    chance = random.Random(trial)
    out = tmp_path / "killed"
    words = ["run", config, "--out", out, "--resume"]
    all_rows = (uninterrupted / "metrics.jsonl").read_bytes().count(b"\n")
    for rows in sorted(chance.sample(range(all_rows - 5), 2)):
        process = subprocess.Popen([COMMAND, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_rows(out, rows, process)
        time.sleep(chance.random() * 0.02)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert not (out / "summary.json").exists()
    assert invoke(*words).code == 0
    assert record(out) == record(uninterrupted)


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_saves_and_says_how_to_continue(
    config: Path, uninterrupted: Path, tmp_path: Path, number: signal.Signals, invoke: "Callable[..., Ended]"
) -> None:
    out = tmp_path / "interrupted"
    process = subprocess.Popen(
        [COMMAND, "run", config, "--out", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for_rows(out, 10, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    last = errors.strip().splitlines()[-1]
    assert "stopped at step" in last
    program, *words = last.partition("to continue: ")[2].split()
    assert program == "toytf"
    assert invoke(*words).code == 0
    assert record(out) == record(uninterrupted)


def test_the_config_of_a_run_reruns_to_the_same_bits(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "again"
    toytf.run(uninterrupted / "config.yaml", out=out, page=False)
    assert record(out) == record(uninterrupted)


def test_seeds_are_summarised_by_mean_and_standard_deviation(uninterrupted: Path) -> None:
    rows = [json.loads(line) for line in (uninterrupted / "metrics.jsonl").read_text().splitlines()]
    a, b = (row["eval/in_context_loss"] for row in rows if row["step"] == STEPS)
    summary = json.loads((uninterrupted / "summary.json").read_text())
    assert summary["eval/in_context_loss"] == pytest.approx((a + b) / 2)
    assert summary["eval/in_context_loss/std"] == pytest.approx(abs(a - b) / 2**0.5)
    assert all(isinstance(value, float) for value in summary.values())


def test_a_run_killed_before_its_last_file_is_completed(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(uninterrupted, out)
    (out / "summary.json").unlink()
    (out / "report.html").unlink()
    toytf.run(out / "config.yaml", out=out, resume=True)
    assert record(out) == record(uninterrupted)
    assert (out / "report.html").exists()
    timing = json.loads((out / "timing.json").read_text())
    assert set(timing) == {*PARTS} - {"wandb"}  # of the training that was, and of the page


def test_lost_rows_are_noticed(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(uninterrupted, out)
    for name in ("summary.json", f"checkpoints/seed1-step{STEPS:06d}.training"):
        (out / name).unlink()
    (out / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match=r"metrics\.jsonl has changed since .*: rows were changed, added or lost"):
        toytf.run(out / "config.yaml", out=out, resume=True)
    assert (out / "metrics.jsonl").read_text() == ""


def test_parts_of_another_run_are_not_taken_for_its_own(config: Path, uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(uninterrupted, out)
    (out / "config.yaml").unlink()
    with pytest.raises(UserError, match=r"already exists, without the config\.yaml of a run beside it"):
        toytf.run(config, out=out)


def test_the_command_to_go_on_can_be_pasted(tmp_path: Path) -> None:
    words = shlex.split(Run(tmp_path / "a run").resume_command)
    assert words[3:] == ["--out", str(tmp_path / "a run"), "--resume"]


def test_resuming_the_config_of_a_run_means_that_run(
    uninterrupted: Path, invoke: "Callable[..., Ended]", monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(uninterrupted, out)
    (out / "summary.json").unlink()
    monkeypatch.chdir(tmp_path)
    ended = invoke("run", out / "config.yaml", "--resume")
    assert ended.out.splitlines()[-1] == str(out)
    assert (out / "summary.json").read_bytes() == (uninterrupted / "summary.json").read_bytes()


def test_a_run_that_goes_on_keeps_its_threads_unless_others_are_asked_for(uninterrupted: Path, tmp_path: Path) -> None:
    """On another machine `auto` may mean another number."""
    out = tmp_path / "copy"
    shutil.copytree(uninterrupted, out)
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert toytf.run({**config, "threads": "auto"}, out=out, resume=True).config.threads == config["threads"]
    with pytest.raises(UserError, match=r"threads 1 → 3\): leave threads out to continue it, or choose another --out"):
        toytf.run({**config, "threads": 3}, out=out, resume=True)


def test_a_torn_config_is_told_by_its_checksum_whatever_is_run(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(uninterrupted, out)
    (out / "config.yaml").write_text((out / "config.yaml").read_text()[:-20])
    with pytest.raises(UserError, match="restore it from a copy, or run the changed config with another --out"):
        toytf.run("quickstart", out=out, resume=True)
