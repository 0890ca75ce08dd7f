"""toytf as people install it: a wheel, in an environment of its own, used from a folder that is no checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from toytf.config.plugins import plugins

if TYPE_CHECKING:
    from conftest import Command

ROOT = Path(__file__).parent.parent
FOLDERS = {"toytf": "toytf", "tasks": "tasks", "probes": "probes", "configs": "toytf/configs"}
FOLDERS |= {"benchmarks": "toytf/benchmarks"}
"""Where the folders of the repository are in a wheel."""

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
OFFLINE = ["--no-deps", "--no-index"]
TINY = ["train.steps=2", "train.batch_size=4", "train.evaluation.sequences=8", "model.d_model=16", "seeds=[0]"]
TINY += ["threads=1", "logging.wandb=off"]


def _call(*arguments: object, cwd: Path, expect: int = 0) -> "subprocess.CompletedProcess[str]":
    ended = subprocess.run(
        list(map(str, arguments)),
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == expect, ended.stderr
    return ended


@dataclass(frozen=True)
class Installed:
    """An environment that has toytf from a wheel."""

    wheel: Path
    bin: Path
    folder: Path

    def toytf(self, *arguments: object, expect: int = 0) -> "subprocess.CompletedProcess[str]":
        return _call(self.bin / "toytf", *arguments, cwd=self.folder, expect=expect)

    def python(self, program: str) -> str:
        return _call(self.bin / "python", "-c", program, cwd=self.folder).stdout.strip()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Built from a copy, since a build leaves files beside the sources."""
    folder = tmp_path_factory.mktemp("package")
    source, environment, work = folder / "source", folder / "environment", folder / "work"
    work.mkdir()
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    _call(*PIP, "wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", folder, source, cwd=work)
    (wheel,) = folder.glob("*.whl")
    _call(sys.executable, "-m", "venv", "--without-pip", environment, cwd=work)
    binaries = environment / "bin"
    _call(*PIP, "--python", binaries / "python", "install", *OFFLINE, wheel, cwd=work)
    # torch and the like come from the environment of the tests, but not the checkout that is installed there: a path
    # in a .pth file is searched, and the .pth files in it are not read.
    packages = _call(binaries / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=work)
    Path(packages.stdout.strip(), "tests.pth").write_text(sysconfig.get_path("purelib"))
    return Installed(wheel, binaries, work)


def test_a_wheel_has_three_packages_at_the_top_level(installed: Installed) -> None:
    """Names such as `configs` and `benchmarks` would meet those of others in site-packages."""
    top = {name.partition("/")[0] for name in zipfile.ZipFile(installed.wheel).namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"toytf", "tasks", "probes"}
    assert len(top) == 4


def test_a_wheel_has_every_file_of_these_folders(installed: Installed) -> None:
    packed = {name for name in zipfile.ZipFile(installed.wheel).namelist() if ".dist-info/" not in name}
    expected = {
        f"{inside}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, inside in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == expected


WHERE = """
import importlib.util, sys
import toytf.cli, toytf.benchmarks.steps, probes.config
from toytf.config.shipped import config_folder
assert importlib.util.find_spec("configs") is importlib.util.find_spec("benchmarks") is None
print(config_folder())
for name, module in sys.modules.items():
    if name.partition(".")[0] in ("toytf", "tasks", "probes"):
        print(module.__file__)
"""


def test_it_is_the_wheel_that_is_tested_and_not_the_checkout(installed: Installed) -> None:
    files = installed.python(WHERE).splitlines()
    assert len(files) > 10
    assert all(Path(file).is_relative_to(installed.bin.parent) for file in files)


def test_a_wheel_lists_what_the_checkout_lists(installed: Installed, command: "Command", tmp_path: Path) -> None:
    ended = installed.toytf("list")
    assert (ended.stderr, ended.stdout) == ("", command("list", cwd=tmp_path).stdout)
    assert "\n  factual/quick " in ended.stdout


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("quickstart", ["task.seq_len=8"]), ("factual/quick", ["task.n_subjects=4", "task.n_relations=2"])],
)
def test_a_wheel_runs_a_shipped_config_by_its_bare_name(name: str, sizes: list[str], installed: Installed) -> None:
    ended = installed.toytf("run", name, *TINY, *sizes)
    run = installed.folder / ended.stdout.splitlines()[-1]
    assert run.parent.name == "runs"
    assert run.name.startswith(f"{Path(name).name}-")
    assert (run / "report.html").is_file()


def test_a_wheel_has_the_benchmarks_and_the_claims(installed: Installed) -> None:
    said = installed.toytf("bench", "nowhere", expect=2).stderr  # which loads them all
    known = ", ".join(plugins("benchmarks"))
    assert said == f'toytf: benchmark "nowhere" does not exist: accepted: {known}\n'
    said = installed.toytf("claims", "bigram_ideal", expect=2).stderr
    assert said.startswith("toytf: bigram_ideal: no such claim: did you mean bigram/ideal?")
    program = (
        "from toytf.claims import choose, load_claim; print(sum(1 for path in choose([]).values() if load_claim(path)))"
    )
    assert int(installed.python(program)) == len(list((ROOT / "configs" / "claims").glob("*/*.yaml")))
