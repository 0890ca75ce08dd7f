"""Files that toytf wrote are renewed; a file of the user that has their name is never overwritten."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

import toytf

if TYPE_CHECKING:
    from conftest import Ended

pytestmark = pytest.mark.repeats_runs

STUDY = {"experiment": "storage", "rules": ["hebbian"], "dimension": 4, "n": 4, "seeds": [0, 1, 2]}
EXPECTED = {"run": "few", "metric": "recall/hebbian", "comparison": ">=", "value": -1}


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    """A claim about storing few pairs, and many."""
    about = {"title": "A claim", "kind": "derived here", "source": "Nobody 2024", "statement": "Recall is a fraction."}
    runs = {name: {**STUDY, "n": n, "logging": {"wandb": "off"}} for name, n in (("few", 4), ("many", 9))}
    path = tmp_path / "mine.yaml"
    path.write_text(
        yaml.safe_dump({**about, "minutes": 0.1, "runs": runs, "expect": [EXPECTED, {**EXPECTED, "run": "many"}]})
    )
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("claims.html", "<title>My claims</title>"),
        ("claims.json", '{"mine": 1}'),
        ("claims.json", '["mine"]'),
        ("claims.json", "not JSON"),
    ],
)
def test_claims_of_the_user_are_kept(
    name: str, content: str, claim: Path, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text(content)
    ended = invoke("claims", claim, "--out", out)
    says = f"toytf: {out / name} already exists and is not of toytf: choose another --out\n"
    assert (ended.code, ended.out, ended.err) == (2, "", says)
    assert {path.name: path.read_text() for path in out.iterdir()} == {name: content}


def test_verdicts_are_renewed_and_a_run_under_the_name_of_another_is_refused(
    claim: Path, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert invoke("claims", claim, "--out", out).code == 0
    for name in ("claims.json", "claims.html"):
        (out / name).write_text((out / name).read_text(encoding="utf-8").replace("a fraction", "gone"))
    for jobs in (1, 2):
        assert invoke("claims", claim, "--out", out, "--jobs", jobs).code == 0
        assert "gone" not in (out / "claims.json").read_text() + (out / "claims.html").read_text(encoding="utf-8")
    few, many = sorted((out / "runs").iterdir(), key=lambda path: toytf.Run.open(path).config.n)  # type: ignore[attr-defined]
    shutil.rmtree(few)
    shutil.copytree(many, few)
    for jobs in (1, 2):
        ended = invoke("claims", claim, "--out", out, "--jobs", jobs)
        assert (ended.code, ended.out) == (2, "")
        assert f"{few} holds a run with a different config (n 9 → 4)" in ended.err


def test_a_page_of_the_user_is_kept_and_ones_own_is_renewed(invoke: "Callable[..., Ended]", tmp_path: Path) -> None:
    study = {**STUDY, "logging": {"wandb": "off"}}
    runs = [toytf.run(study, {"n": n}, out=tmp_path / f"n{n}").directory for n in (4, 6)]
    for page, arguments in (
        (tmp_path / "compare.html", runs),
        (tmp_path / "page.html", [runs[0], "--html", tmp_path / "page.html"]),
    ):
        page.write_text("<title>Mine</title>")
        refused = invoke("inspect", *arguments)
        says = f"toytf: {page}: this file already exists and is not a page of toytf: choose another name with --html\n"
        assert (refused.code, refused.out, refused.err) == (2, "", says)
        assert page.read_text() == "<title>Mine</title>"
        page.unlink()
        for _ in range(2):
            assert invoke("inspect", *arguments).code == 0


# --- names of files


def test_a_name_that_is_no_text_has_its_pages(invoke: "Callable[..., Ended]", tmp_path: Path) -> None:
    """As any name beyond ASCII in the C locale, and one of other bytes than UTF-8 in all."""
    study, folder = {**STUDY, "logging": {"wandb": "off"}}, tmp_path / os.fsdecode(b"caf\xe9")
    first = toytf.run(study, out=folder / os.fsdecode(b"r\xff"))
    assert first.report_file.is_file()
    assert invoke("inspect", first.directory).code == 0
    swept = toytf.sweep(study, {"n": [4, 6]}, out=folder / os.fsdecode(b"s\xff"), jobs=1)
    assert (swept.directory / "sweep.html").is_file()
    assert {run.config.logging.group for run in swept.runs} == {"s\ufffd"}  # type: ignore[attr-defined]
    assert invoke("inspect", *(run.directory for run in swept.runs)).code == 0


def test_control_characters_of_a_name_are_not_obeyed_by_the_terminal(
    claim: Path, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    """Its two spaces stay, however: the last line is a path."""
    out = tmp_path / "a\n\x1b[31mb  c"
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump({**STUDY, "logging": {"wandb": "off"}, "sweep": {"grid": {"n": [4, 6]}}}))
    swept = invoke("sweep", file, "--out", out / "sweep", "--jobs", "1")
    shown = f"{tmp_path}/a\\n\\x1b[31mb  c"
    assert swept.out.splitlines()[-2:] == [f"page: {shown}/sweep/sweep.html", f"{shown}/sweep"]
    ran = invoke("run", next((out / "sweep" / "runs").iterdir()) / "config.yaml", "--out", out / "run")
    assert ran.out.splitlines()[-1] == f"{shown}/run"
    claimed = invoke("claims", claim, "--out", out / "claims")
    assert claimed.out.splitlines()[-1] == f"{shown}/claims/claims.json"
    compared = invoke("inspect", *(out / "claims" / "runs").iterdir())
    assert compared.out == f"{shown}/claims/runs/compare.html\n"


def test_a_working_directory_that_is_gone_is_named(
    invoke: "Callable[..., Ended]", monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for command in (["run", "quickstart", "--out", tmp_path / "run"], ["sweep", "sweeps/tiny", "--jobs", "2"]):
        ended = invoke(*command)
        says = "toytf: the working directory was deleted: change to another folder\n"
        assert (ended.code, ended.out, ended.err) == (2, "", says)
    assert not (tmp_path / "run").exists()


def test_a_run_with_a_file_called_sweep_html_is_a_run(
    tiny_run: "toytf.Run", invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    shutil.copytree(tiny_run.directory, tmp_path / "run")
    (tmp_path / "run" / "sweep.html").write_text("my own")
    assert invoke("inspect", tmp_path / "run").code == 0
    assert (tmp_path / "run" / "sweep.html").read_text() == "my own"
