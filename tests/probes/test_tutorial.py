"""What docs/adding_a_probe.md says can be done as it says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Command

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "adding_a_probe.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w./-]+)`\n\n```\w+\n(.*?)^```", TUTORIAL, re.DOTALL | re.MULTILINE))
BLOCKS = re.findall(r"^```python\n(.*?)^```", TUTORIAL, re.DOTALL | re.MULTILINE)
SCRIPTS = [block for block in BLOCKS if block not in FILES.values()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the tutorial, beside configs/; its package is installed in site/."""
    folder = tmp_path_factory.mktemp("tutorial")
    (folder / "configs").symlink_to(ROOT / "configs")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    (folder / "toytf-direction" / "toytf_direction" / "__init__.py").touch()
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    install = [sys.executable, "-m", "pip", "install", *options, "--target", "site", "./toytf-direction"]
    ended = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return folder


def test_every_block_of_code_is_tested() -> None:
    assert len(FILES) == 4
    assert len(SCRIPTS) == 2


def test_the_probe_is_listed_measured_shown_and_drawn(folder: Path, command: "Command") -> None:
    site = str(folder / "site")
    assert "direction        Cosine between" in command("list", "probes", cwd=folder, PYTHONPATH=site).stdout
    tiny = ("task.seq_len=8", "model.d_model=16", "train.steps=2", "train.batch_size=4", "train.evaluation.sequences=8")
    quiet = ("threads=1", "logging.wandb=off")
    run = command("run", "direction.yaml", *tiny, *quiet, "--out", "runs/direction", cwd=folder, PYTHONPATH=site)
    assert run.returncode == 0, run.stderr
    assert "Direction of the learned matrices (cosine)" in run.stdout
    page = (folder / "runs/direction/report.html").read_text(encoding="utf-8")
    assert "A matrix can recall every pair at a much smaller cosine." in page
    assert "Answers to single keys" in page
    summary = json.loads((folder / "runs/direction/summary.json").read_text(encoding="utf-8"))
    for memory in ("W_KQ1", "W_KQ2", "W_OV2"):
        assert -1 < summary[f"direction/{memory}"] < 1
        assert (summary[f"ideal/direction/{memory}"], summary[f"chance/direction/{memory}"]) == (1, 0)

    probe = command("probe", "runs/direction", "--probe", "direction", cwd=folder, PYTHONPATH=site)
    assert probe.returncode == 0, probe.stderr
    environment = {**os.environ, "PYTHONPATH": site}
    for script in SCRIPTS:
        python = [sys.executable, "-c", script]
        ended = subprocess.run(python, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
    assert (folder / "direction.html").exists()
