"""A run knows where it comes from; what it measures does not depend on whether it does."""

import errno
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml

import toytf
from toytf import files
from toytf.claims import check_claims
from toytf.config.shipped import config_folder
from toytf.config.yaml_text import inline_yaml, load_yaml
from toytf.errors import Interrupted, RunFailed
from toytf.experiments import study
from toytf.runs import provenance
from toytf.runs.provenance import Origin, Provenance, add_start, origin_of, read_provenance, without_folders

if TYPE_CHECKING:
    from conftest import Ended

STUDY: dict[str, Any] = {
    "experiment": "storage", "rules": ["hebbian", "ridge"], "dimension": 4, "n": 6, "device": "cpu", "threads": 1,
    "logging": {"wandb": "off"},
}  # fmt: skip
TITLE = "Two rules store six pairs: which recalls more?"
NOTHING = Provenance(None, ())
RESULTS = ("config.yaml", "metrics.jsonl", "columns.json", "summary.json", "checksums.json")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A study of two cases in a file with a title."""
    path = tmp_path / "two rules.yaml"
    path.write_text(f"# {TITLE}\n# You will see: ridge.\n{yaml.safe_dump(STUDY)}")
    return path


@pytest.fixture
def stopped(config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of a run that Ctrl-C ended in its second case."""
    begun: list[tuple[Any, ...]] = []

    class Stops(study.CaseLine):
        def begin(self, *arguments: Any) -> None:
            begun.append(arguments)
            if len(begun) == 2:
                raise Interrupted("stopped by the test")
            super().begin(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(study, "CaseLine", Stops)
        with pytest.raises(Interrupted):
            toytf.run(config, out=tmp_path / "run", page=False)
    return tmp_path / "run"


# --- what is noted, and when


def test_a_run_tells_its_title_its_command_and_what_it_ran_with(
    config: Path, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert invoke("run", config, "n=5", "rules=[hebbian]", "--out", out).code == 0
    told = toytf.Run.open(out).provenance
    assert told.title == f"{TITLE} (changed: n=5, rules=[hebbian])"
    (start,) = told.starts
    assert start.command == f"toytf run '{config}' n=5 'rules=[hebbian]' --out {out}"
    assert (start.toytf, start.python) == (toytf.__version__, platform.python_version())
    assert (start.torch, start.device) == (version("torch"), "cpu")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", start.started)
    assert timedelta() <= datetime.now(UTC) - datetime.fromisoformat(start.started) < timedelta(minutes=5)


def test_a_run_from_python_tells_the_same_command(config: Path, tmp_path: Path) -> None:
    run = toytf.run(config, {"n": 5, "rules": ["hebbian"]}, out=tmp_path / "run", force=True, page=False)
    (start,) = run.provenance.starts
    assert start.command == f"toytf run '{config}' n=5 'rules=[hebbian]' --out {run.directory} --force"


def test_every_continuation_is_a_start_and_the_title_stays(stopped: Path, config: Path) -> None:
    assert len(read_provenance(stopped).starts) == 1
    config.write_text(config.read_text().replace(TITLE, "Another title"))
    toytf.run(config, out=stopped, resume=True, page=False)
    told = read_provenance(stopped)
    assert told.title == TITLE
    assert [str(start.command).endswith("--resume") for start in told.starts] == [False, True]


def test_a_finished_run_that_is_opened_again_gets_no_start(config: Path, tmp_path: Path) -> None:
    run = toytf.run(config, out=tmp_path / "run", page=False)
    before = run.provenance
    assert toytf.run(config, out=tmp_path / "run", resume=True, page=False).provenance == before


def test_a_run_of_the_config_of_a_run_has_its_title(stopped: Path, tmp_path: Path) -> None:
    again = toytf.run(stopped / "config.yaml", out=tmp_path / "again", page=False)
    assert again.provenance.title == TITLE
    continued = toytf.run(stopped / "config.yaml", resume=True, page=False)
    assert continued.directory == stopped
    assert (continued.provenance.title, len(continued.provenance.starts)) == (TITLE, 2)


def test_the_run_of_a_claim_tells_the_claim(tmp_path: Path) -> None:
    out = tmp_path / "out"
    claim = {
        "title": "A claim", "kind": "derived here", "source": "Nobody 2024", "statement": "It stores.", "minutes": 0.1,
        "runs": {"it": STUDY},
        "expect": [{"run": "it", "metric": "recall/ridge", "comparison": ">=", "value": 0}],
    }  # fmt: skip
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(claim))
    (outcome,) = check_claims([str(path)], out)
    told = read_provenance(Path(outcome.runs["it"]))
    assert (told.title, [start.command for start in told.starts]) == (None, [f"toytf claims {path} --out {out}"])


# --- the title and the command


def test_folders_of_a_machine_are_not_told() -> None:
    told = without_folders(
        "toytf run '/home/me/my files/x.yaml' task.facts=/home/me/a/facts.csv 'seeds=[0, 1]' --out /tmp/r"
    )
    assert told == "toytf run x.yaml task.facts=facts.csv 'seeds=[0, 1]' --out r"
    assert without_folders("toytf run runs/x/y.yaml 'a/b c") == "toytf run runs/x/y.yaml 'a/b c"
    facts = ["task.facts=/home/me/my files/facts.csv"]
    title = origin_of("factual/countries", facts, out=None, resume=False, force=False).title
    assert title is not None and title.endswith("(changed: task.facts=facts.csv)")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# A title\n# and more\n", "A title"),
        ("\n \n##   A title   ##\n", "A title ##"),
        ("\ufeff# A title\r\n", "A title"),
        ("experiment: storage  # no title\n# nor this\n", None),
        ("#\n# after an empty one\n", None),
        ("---\n# after a mark\n", None),
        ("", None),
        ("# \x1b[31mred\u202e\x00\n", r"\x1b[31mred\u202e\x00"),
        (f"# {'x' * 301}\n", "x" * 300 + "…"),
    ],
)
def test_the_title_is_the_first_line_if_that_is_a_comment(text: str, title: str | None, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    for source in (path, str(path), str(path.with_suffix(""))):
        assert origin_of(source, (), out=None, resume=False, force=False).title == title


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"n": 5, "threads": 1}, f"{TITLE} (changed: n=5)"),
        ({"noise_vectors": 1, "n": 5}, f"{TITLE} (changed: noise_vectors=1, n=5)"),
        ({"threads": 1, "logging.wandb": "off", "device": "cpu"}, TITLE),
    ],
)
def test_a_title_says_which_keys_are_not_those_of_the_config(
    changes: dict[str, Any], told: str, config: Path, tmp_path: Path
) -> None:
    assert toytf.run(config, changes, out=tmp_path / "run", page=False).provenance.title == told


def test_a_config_that_ships_has_its_title_and_not_that_of_its_base(tmp_path: Path) -> None:
    quickstart = origin_of("quickstart", "threads=1", out="runs/x", resume=False, force=False)
    first = (config_folder() / "quickstart.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert f"# {quickstart.title}" == first
    assert quickstart.command == "toytf run quickstart threads=1 --out runs/x"
    path = tmp_path / "mine.yaml"
    path.write_text("base: quickstart\n")
    assert origin_of(path, (), out=None, resume=False, force=False).title is None


@pytest.mark.parametrize(
    "value", [3, 1e-5, "3", "a b", "it's", None, True, "", [0, 1], {"kind": "sgd", "lr": 0.1, "of": [{}]}, ["x" * 300]]
)
def test_an_override_from_python_can_be_typed(value: Any) -> None:
    command = origin_of("quickstart", {"a.b": value}, out=None, resume=False, force=False).command
    typed = shlex.split(str(command))
    key, _, text = typed[-1].partition("=")
    assert (typed[:-1], key) == (["toytf", "run", "quickstart"], "a.b")
    assert load_yaml(text, "") == value


def test_what_yaml_has_no_word_for_is_shown_all_the_same() -> None:
    assert inline_yaml(Path("a/b.csv")) == "a/b.csv"


def test_a_mapping_has_no_title_and_is_shown_up_to_200_characters(tmp_path: Path) -> None:
    run = toytf.run(STUDY, ["n=5"], out=tmp_path / "run", page=False)
    (start,) = run.provenance.starts
    assert run.provenance.title is None
    assert start.command == f"toytf.run({STUDY}, overrides=['n=5'], out='{tmp_path / 'run'}')"
    long = {"dimensions": [*range(10_000)]}
    command = origin_of(long, (), out=None, resume=False, force=False).command
    assert command == f"toytf.run({str(long)[:200]}…)"


def test_a_gpu_is_told_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA of {device}")
    for device in ("cuda:1", None):
        add_start(tmp_path, Origin(), device)
    assert [start.device for start in read_provenance(tmp_path).starts] == ["cuda: NVIDIA of cuda:1", None]


# --- a remark, not a record


GOOD = {"started": "now", "command": None, "toytf": "9", "commit": None, "python": "4", "torch": None, "device": None}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff{{", b"[1]", b"null", b'{"title": "of somebody else"}', b'{"title": 1, "starts": []}',
        b'{"title": null, "starts": [{"started": 3}]}', b'{"title": "\\ud800", "starts": []}', b"[" * 100_000,
        json.dumps({"title": "x", "starts": [{**GOOD, "python": None}]}).encode(),
    ],
)  # fmt: skip
def test_a_damaged_or_foreign_file_says_nothing_and_stops_nothing(content: bytes, stopped: Path) -> None:
    (stopped / "provenance.json").write_bytes(content)
    assert toytf.Run.open(stopped).provenance == NOTHING
    resumed = toytf.run(stopped / "config.yaml", resume=True, page=False)
    assert (resumed.finished, resumed.provenance.title, len(resumed.provenance.starts)) == (True, None, 1)


def test_what_a_later_version_adds_is_passed_over_and_what_a_terminal_obeys_is_shown(tmp_path: Path) -> None:
    later = {"title": "a\x1bb", "starts": [{**GOOD, "command": "c\nd", "host": "h"}], "more": 1}
    (tmp_path / "provenance.json").write_text(json.dumps(later))
    told = read_provenance(tmp_path)
    assert (told.title, told.starts[0].command) == (r"a\x1bb", "c d")


def test_results_do_not_depend_on_it(config: Path, tmp_path: Path) -> None:
    named, unnamed = toytf.run(config, out=tmp_path / "a", page=False), toytf.run(STUDY, out=tmp_path / "b", page=False)
    assert named.provenance != unnamed.provenance
    for name in RESULTS:
        assert (named.directory / name).read_bytes() == (unnamed.directory / name).read_bytes()
    (named.directory / "provenance.json").unlink()
    again = toytf.Run.open(named.directory)
    assert (again.summary, again.provenance) == (unnamed.summary, NOTHING)


@pytest.mark.parametrize(("code", "says"), [(errno.ENOSPC, "the disk is full"), (errno.EIO, "Input/output error")])
def test_a_disk_that_does_not_take_it_is_a_sentence_and_leaves_the_directory_free(
    code: int, says: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def refuse(file: int) -> None:
        if "provenance" in Path(f"/proc/self/fd/{file}").readlink().name:
            raise OSError(code, os.strerror(code))
        real(file)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", refuse)
        with pytest.raises(RunFailed, match=says):
            toytf.run(config, out=tmp_path / "run", page=False)
    assert not (tmp_path / "run").exists()
    assert toytf.run(config, out=tmp_path / "run", page=False).finished


# --- the commit


def _git(folder: Path, *arguments: str) -> str:
    person = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "init.defaultBranch=main"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", *person, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def _repository(folder: Path, name: str) -> str:
    """Make a repository with the pyproject.toml of a project; its commit."""
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    _git(folder, "init")
    _git(folder, "add", ".")
    _git(folder, "commit", "-m", "first")
    return _git(folder, "rev-parse", "--short=7", "HEAD").strip()


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")


@needs_git
def test_the_commit_is_that_of_the_checkout_and_says_if_tracked_files_differ(tmp_path: Path) -> None:
    commit = _repository(tmp_path, "toytf")
    (tmp_path / "untracked").touch()
    os.utime(tmp_path / "pyproject.toml", (0, 0))  # touched, not changed
    assert provenance._commit(tmp_path) == commit
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "toytf"\nversion = "2"\n')
    assert provenance._commit(tmp_path) == f"{commit} with changes"
    _git(tmp_path, "add", ".")
    assert provenance._commit(tmp_path) == f"{commit} with changes"


@needs_git
def test_a_second_worktree_has_its_own_commit(tmp_path: Path) -> None:
    commit = _repository(tmp_path / "first", "toytf")
    _git(tmp_path / "first", "worktree", "add", "../second")
    (tmp_path / "first" / "pyproject.toml").write_text("")
    assert provenance._commit(tmp_path / "second") == commit


@needs_git
@pytest.mark.parametrize("git", ["none", "empty", "damaged"])
def test_a_repository_around_is_not_asked(git: str, tmp_path: Path) -> None:
    """As of a project whose virtual environment, or a copy of toytf's source, lies in its folder."""
    _repository(tmp_path, "mine")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "pyproject.toml").write_text('[project]\nname = "toytf"\n')
    if git == "empty":
        (copy / ".git").mkdir()
    elif git == "damaged":
        (copy / ".git").write_text("gitdir: nowhere")
    assert provenance._commit(copy) is None


@needs_git
def test_another_project_that_holds_the_package_is_not_asked(tmp_path: Path) -> None:
    _repository(tmp_path, "mine")
    assert provenance._commit(tmp_path) is None


@needs_git
def test_a_repository_without_a_commit_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "toytf"\n')
    _git(tmp_path, "init")
    assert provenance._commit(tmp_path) is None


@needs_git
def test_the_environment_does_not_point_git_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = _repository(tmp_path / "own", "toytf")
    _repository(tmp_path / "other", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nowhere"))
    assert provenance._commit(tmp_path / "own") == commit


@pytest.mark.parametrize("error", [FileNotFoundError("git"), subprocess.TimeoutExpired("git", 2), PermissionError()])
def test_without_an_answer_of_git_the_commit_is_unknown(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    (tmp_path / ".git").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "toytf"\n')
    monkeypatch.setattr(provenance.subprocess, "run", fail)
    monkeypatch.setattr(provenance, "_CHECKOUT", tmp_path)
    add_start(tmp_path, Origin("A title", "toytf run x"), "cpu")
    told = read_provenance(tmp_path)
    assert (told.title, told.starts[0].command, told.starts[0].commit) == ("A title", "toytf run x", None)
