"""What every test needs: one thread, so that tests in parallel do not fight over the cores.

Beside it what several share: the installed command, packages of strangers, refusals, and finished tiny runs.
"""

import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
import yaml
from hypothesis import settings

import toytf
from toytf.config.plugins import ExperimentConfig
from toytf.config.sections import digest
from toytf.experiments.launch import run_config

torch.set_num_threads(1)
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    signal.signal(number, handler)  # also where a background job began with them ignored


HEAVY = {"browser", "install", "installed", "command", "ray"}
"""Fixtures of a browser, of packages, of processes that each load torch: a test that asks for one is `heavy`."""
WORDS = {*HEAVY, "heavy", "visit"}
"""One of these is in every file of heavy tests."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The heavy group imports the files of its tests alone."""
    asked = config.getoption("markexpr").startswith("heavy") and collection_path.name.startswith("test_")
    return True if asked and not WORDS & {*re.findall(r"\w+", collection_path.read_text(encoding="utf-8"))} else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as heavy what is."""
    for item in items:
        if HEAVY & set(getattr(item, "fixturenames", ())):
            item.add_marker("heavy")
            assert WORDS & {*re.findall(r"\w+", item.path.read_text(encoding="utf-8"))}, f"{item.path}: see WORDS"


CHECKED = {"memory", "models", "probes", "tasks", "theory", "training", "views"}
"""Folders of the tests of packages with shapes."""
decorate = jaxtyping.jaxtyped


def but_inner_functions(**options: Any) -> Callable[[Any], Any]:
    """jaxtyping's decorator, but not for what is defined inside a function: its checks would be compiled every time."""
    checked = decorate(**options)
    return lambda defined: defined if "<locals>" in defined.__qualname__ else checked(defined)


jaxtyping.jaxtyped = but_inner_functions


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Shapes are checked in the tests of their packages, but not where whole runs repeat what others have checked."""
    whole = item.get_closest_marker("repeats_runs") is not None or item.get_closest_marker("heavy") is not None
    jaxtyping.config.update("jaxtyping_disable", whole or item.nodeid.split("/")[1] not in CHECKED)


# Timings are not tested, and a failure should be the same one again.
settings.register_profile("toytf", deadline=None, derandomize=True)
settings.load_profile("toytf")

QUICKSTART = Path(__file__).parent.parent / "configs" / "quickstart.yaml"

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def command() -> Command:
    """The installed command as a person runs it: `command("list", "tasks", cwd=...)`, with nobody at the keyboard."""

    def call(*arguments: object, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
        executable = Path(sys.executable).with_name("toytf")
        return subprocess.run(
            [str(executable), *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    return call


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The command in this process, where torch is already loaded: `invoke("probe", run)`."""
    from toytf.cli import main

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["toytf", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(int(ended.value.code or 0), *capfd.readouterr())

    return call


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, models compute as on a device where reading a value is a wait."""

    def call() -> None:
        for name in ("models.causal", "models.counts", "training.gradients"):
            monkeypatch.setattr(f"toytf.{name}.free_to_read", lambda x: False)

    return call


Install = Callable[..., Path]


@pytest.fixture(scope="session")
def install(tmp_path_factory: pytest.TempPathFactory) -> Install:
    """A folder with packages installed by pip as a user would, without the network: `install(source, …)`."""

    def call(*sources: Path) -> Path:
        target = tmp_path_factory.mktemp("site")
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
        ended = subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, "--target", str(target), *map(str, sources)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return target

    return call


Refused = Callable[[str, list[str], list[str]], None]


@pytest.fixture
def refused(invoke: Callable[..., Ended], tmp_path: Path) -> Refused:
    """A config file and overrides that `toytf run` answers with 2, one line that says all of this, and no directory."""

    def check(content: str, overrides: list[str], says: list[str]) -> None:
        path = tmp_path / "mine.yaml"
        path.write_text(content, encoding="utf-8")
        ended = invoke("run", path, *overrides, "--out", tmp_path / "run")
        assert (ended.code, ended.out) == (2, "")
        assert re.fullmatch(rf"toytf: {re.escape(str(path))}: .+\n", ended.err), ended.err
        assert all(part in ended.err for part in says), ended.err
        for internal in ("constrained-int", "literal[", "tuple[", "Traceback"):  # of the libraries, not ours
            assert internal not in ended.err
        assert not (tmp_path / "run").exists()

    return check


EndsTheSame = Callable[["toytf.Run", int], None]


@pytest.fixture
def ends_the_same(tmp_path: Path) -> EndsTheSame:
    """A finished run of jobs, killed in the middle of the row after so many and resumed, has the same rows again."""

    def check(whole: "toytf.Run", rows: int) -> None:
        lines = whole.metrics_file.read_bytes().splitlines(keepends=True)
        out = tmp_path / f"killed_after_{rows}"
        out.mkdir()
        for name in ("config.yaml", "columns.json"):
            (out / name).write_bytes((whole.directory / name).read_bytes())
        (out / "metrics.jsonl").write_bytes(b"".join(lines[:rows]) + lines[rows][:50])
        again = toytf.run(whole.config_file, out=out, resume=True)
        assert sorted(again.metrics_file.read_bytes().splitlines(keepends=True)) == sorted(lines)
        assert again.summary_file.read_bytes() == whole.summary_file.read_bytes()

    return check


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ExperimentConfig], "toytf.Run"]:
    """A finished run of a config, without a page: made once for all tests and workers that ask for it."""
    root = tmp_path_factory.getbasetemp()
    root = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "made"
    root.mkdir(exist_ok=True)

    def call(config: ExperimentConfig) -> "toytf.Run":
        with (root / f"{digest(config)}.making").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return run_config(config, root / digest(config), resume=True, page=False)

    return call


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart at a size that trains in a blink, in a file tiny.yaml."""
    content = {
        "base": str(QUICKSTART),
        "task": {"seq_len": 8},
        "model": {"d_model": 16},
        "train": {"steps": 2, "batch_size": 4, "evaluation": {"sequences": 8}},
        "probes": ["memory_recall", "attention", "ablation"],
        "threads": 1,
        "logging": {"wandb": "off"},
    }
    path = tmp_path_factory.mktemp("configs") / "tiny.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="session")
def tiny_run(tiny_config: Path, tmp_path_factory: pytest.TempPathFactory) -> "toytf.Run":
    """A finished run of tiny.yaml, made from Python."""
    return toytf.run(tiny_config, {"train.steps": 2}, out=tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture(scope="session")
def two_seeds_run(tiny_config: Path, tmp_path_factory: pytest.TempPathFactory) -> "toytf.Run":
    """A finished run of tiny.yaml with the seeds 0 and 1."""
    return toytf.run(tiny_config, {"seeds": [0, 1]}, out=tmp_path_factory.mktemp("runs") / "two_seeds")
