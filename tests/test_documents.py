"""README.md and docs/ are true: code runs and prints what it says, configs are valid, tutorials can be followed."""

import ast
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.main
import yaml

import toytf
from tests.documents import DOCUMENTS, FENCED, ROOT, Block, blocks, commands_in_sentences
from toytf.catalogue import claim_files
from toytf.cli import app, main
from toytf.config.plugins import load_config, plugins
from toytf.experiments.launch import run
from toytf.sweeps.plan import plan_sweep
from toytf.sweeps.sweep import sweep

if TYPE_CHECKING:
    from conftest import Install

COMMANDS = typer.main.get_command(app).commands

QUIET = {"threads": 1, "logging.wandb": "off"}
SHORT: dict[str, dict[str, Any]] = {
    "bigram": {
        "model.d_model": 24,
        "task.seq_len": 16,
        "train.steps": 64,
        "train.batch_size": 8,
        "train.evaluation.every": 32,
    },
    "factual": {
        "train.steps": 64,
        "train.batch_size": 64,
        "train.evaluation.sequences": 64,
        "train.evaluation.every": 32,
    },
    "fact_dynamics": {"steps": 64, "init_scales": [1e-2]},
    "capacity": {"dimensions": [8], "draws": 4, "seeds": [0]},
}
"""What a run of a task or an experiment is changed by here: seconds, not minutes."""


TUTORIALS = [name for name in DOCUMENTS if any("pyproject.toml" in (block.file or "") for block in blocks(name))]
OTHERS = [name for name in DOCUMENTS if name not in TUTORIALS]


def test_every_block_and_every_tutorial_is_found() -> None:
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        assert text.count("\n```") == 2 * len(FENCED.findall(text)), document
    assert {f"docs/adding_a_{what}.md" for what in ("task", "probe")} <= set(TUTORIALS)


# --- what it names


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_named_configs_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    links = [link for pair in re.findall(r"\]\(([^)#]+)|src=\"([^\"]+)", text) for link in pair if link]
    missing = [link for link in links if "://" not in link and not (ROOT / document).parent.joinpath(link).exists()]
    configs = re.findall(r"configs/[\w/*]+\.yaml", text.replace("NAME", "*"))
    missing += [config for config in configs if not any(ROOT.glob(config))]
    assert missing == []


# --- configs


PIECES = [block for name in OTHERS for block in blocks(name) if block.language == "yaml"]


@pytest.mark.parametrize("block", PIECES, ids=lambda block: f"{block.document}:{block.line}")
def test_a_config_is_valid(block: Block) -> None:
    """A piece of a config is one of a training; the files of tutorials are run below."""
    content = yaml.safe_load(block.content)
    if "sweep" in content:
        assert plan_sweep(content).runs
        return
    load_config(content if {"experiment", "base"} & set(content) else {"experiment": "train", **content}, folder=ROOT)


# --- commands


def check_command(words: list[str], runs: dict[str, Any]) -> None:
    """Can it be typed, after others that have made these runs? What it makes is added to them."""
    _, name, *arguments = words
    if arguments[:1] == ["["]:
        assert set(arguments[1:]) <= {option for parameter in COMMANDS[name].params for option in parameter.opts}
        return
    given = COMMANDS[name].make_context(name, arguments).params  # refuses an option that is not there
    if name == "run":
        runs[str(given["out"])] = load_config(given["config"], given["overrides"] or [])
    elif name == "sweep":
        assert plan_sweep(given["config"], given["overrides"] or []).runs
    elif name == "inspect":
        assert set(map(str, given["runs"])) <= set(runs)
    elif name == "probe":
        config = runs[str(given["run"])]
        assert given["probe"] is None or given["probe"] in plugins("probes")
        assert given["on"] is None or given["on"] in config.evaluate_on
        assert given["step"] is None or given["step"] <= config.train.steps
    elif name == "claims":
        named = {part for claim in claim_files() for part in (claim, *claim.split("/"))}  # area/name, either alone
        assert set(given["names"] or []) <= named
    elif name == "bench":
        assert set(given["names"] or []) <= set(plugins("benchmarks"))
    else:
        assert name == "list"
        assert given["what"] in ("", "tasks", "probes", "experiments", "configs", "claims")


@pytest.mark.parametrize("document", OTHERS)
def test_commands_can_be_typed(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options exist, configs with their overrides are valid, and runs were made by a command before."""
    monkeypatch.chdir(tmp_path)
    table = next(block for block in blocks("docs/factual.md") if block.content.startswith("subject,relation,attribute"))
    Path("mine.csv").write_text(table.content, encoding="utf-8")
    runs = {"runs/quickstart": load_config("quickstart")}  # by `make quickstart`
    for words in [words for block in blocks(document) for words in block.commands] + commands_in_sentences(document):
        try:
            check_command(words, runs)
        except Exception as error:
            raise AssertionError(f"{document}: {shlex.join(words)}") from error


# --- code, and tutorials


def short_run(config: Any, overrides: Mapping[str, Any] | None = None, **options: Any) -> toytf.Run:
    """What `toytf.run` does, shortened."""
    return run(config, {**(overrides or {}), **changes(config)}, **options)


def short_sweep(config: Any, overrides: Mapping[str, Any], **options: Any) -> toytf.Sweep:
    """What `toytf.sweep` does, shortened and in this process."""
    few = {"train.steps": 2, "train.evaluation.sequences": 32, "probes": [["memory_recall"]]}
    return sweep(config, {**changes(config), **few, **overrides}, **{**options, "jobs": 1})


def changes(config: Any) -> dict[str, Any]:
    """What a run of a config is changed by here."""
    loaded = load_config(config)
    return QUIET | SHORT.get(loaded.task.kind if loaded.trains_model else loaded.experiment, {})


def follow(document: str, *, shortened: bool = True) -> None:
    """Run what a document holds, one block after the other, in this directory: its code, and commands of a tutorial.

    shortened: what depends on a training is run, but its numbers are not compared.
    """
    names, printed, missing = dict[str, Any](), "", list[str]()
    with pytest.MonkeyPatch.context() as patch:
        if shortened:
            patch.setattr(toytf, "run", short_run)
            patch.setattr(toytf, "sweep", short_sweep)
        for block in blocks(document):
            if block.runs:
                if block.content.startswith(("import ", "from ")):  # a block that does not import goes on
                    names = {"__name__": document}
                execute(block, names, compared=not shortened or not (block.needs_run or "run" in names))
            if block.commands and document in TUTORIALS:
                printed = "".join(type_command(words, shortened=shortened) for words in block.commands)
            if block.language == "text" and not shortened:
                missing += missing_lines(block.content, printed)
    assert not missing, missing


def type_command(words: list[str], *, shortened: bool) -> str:
    """Run a command in this process and return what it prints; a claim takes too long if time is short."""
    if words[1] == "claims" and shortened:
        check_command(words, {})
        return ""
    extra: list[str] = []
    if words[1] == "run":
        extra = [f"{key}={value}" for key, value in (changes(words[2]) if shortened else QUIET).items()]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
        patch.setattr(sys, "argv", [*words, *extra])
        with pytest.raises(SystemExit) as ended:
            main()
    sys.stdout.write(printed.getvalue())
    assert not ended.value.code, shlex.join(words)
    return printed.getvalue()


def missing_lines(said: str, printed: str) -> list[str]:
    """The lines that are said to be printed and are not, up to spaces; one that ends with … begins a line."""
    lines = ["".join(line.split()) for line in printed.splitlines()]

    def is_there(line: str) -> bool:
        words, cut, _ = "".join(line.split()).partition("…")
        return any(other.startswith(words) if cut else words == other for other in lines)

    return [line for line in said.splitlines() if not is_there(line)]


def execute(block: Block, names: dict[str, Any], *, compared: bool) -> None:
    """Run a block, statement by statement; where a comment says what is printed, that must be printed."""
    lines = block.content.splitlines()
    for statement in ast.parse(block.content, block.document).body:
        comment = lines[(statement.end_lineno or 1) - 1].partition("  # ")[2]
        ast.increment_lineno(statement, block.line)  # an error names the line of the document
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(ast.Module([statement], []), f"<{block.document}>", "exec", dont_inherit=True), names)
        if printed.getvalue() and compared:
            said = expected(comment)
            assert agree(said, printed.getvalue()), f"{block.document}:{statement.end_lineno}: {printed.getvalue()}"


NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"


def expected(comment: str) -> list[str]:
    """The numbers and words that a comment says are printed, such as `feasible 0.006 0.386: what it means`, if any."""
    words = re.split(r"[ ,]+", comment.partition(":")[0])
    numbers = [word for word in words if re.fullmatch(NUMBER, word)]
    others = [word for word in words if word not in numbers]
    is_output = (numbers and len(others) <= 1) or words in (["True"], ["False"])
    return words if is_output else []


def agree(said: list[str], printed: str) -> bool:
    """Are these the words, and the numbers up to one unit of the last digit that is said?"""
    numbers = iter(re.findall(NUMBER, printed))
    for word in said:
        if not re.fullmatch(NUMBER, word):
            if not re.search(rf"\b{word}\b", printed):
                return False
            continue
        digits, _, power = word.partition("e")
        decimals = len(digits.partition(".")[2])
        unit = 10.0 ** (int(power or 0) - decimals) if decimals else 0  # a whole number is exact
        if not abs(float(next(numbers, "nan")) - float(word)) <= 1.001 * unit:
            return False
    return not said or next(numbers, None) is None


def test_what_is_said_and_printed_is_compared_to_the_last_digit() -> None:
    assert expected("feasible 0.006 0.386") == ["feasible", "0.006", "0.386"]
    assert expected("381.8: pairs that a matrix of rank 16 can hold") == ["381.8"]
    assert expected("1.12e-3, 9.92e-4: falls like 1/t") == ["1.12e-3", "9.92e-4"]
    for comment in ("a pandas DataFrame", "[batch, head, query, key]", "the last of 3 seeds", ""):
        assert expected(comment) == []
    assert agree(["feasible", "0.31"], "feasible tensor(0.3140)\n")
    assert not agree(["feasible", "0.31"], "infeasible tensor(0.3140)\n")
    assert not agree(["0.31"], "0.33")
    assert not agree(["0.31"], "0.31 0.5")
    assert not agree(["0.31", "0.5"], "0.31")
    assert not agree(["9.34e-4"], "0.000937")
    assert agree(["9.34e-4"], "0.00093391")


def test_what_a_command_is_said_to_print_is_looked_for_line_by_line() -> None:
    printed = "Solved.\n\n  recall   0.730 \nworst: t=56, t=62\n"
    assert missing_lines("recall 0.730\n\nworst: t=56, …\n", printed) == []
    assert missing_lines("recall 0.7\nworst: t=57, …\nSolved.", printed) == ["recall 0.7", "worst: t=57, …"]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `make quickstart`, shortened, which documents go on with."""
    return short_run("quickstart", out=tmp_path_factory.mktemp("made") / "quickstart").directory


@pytest.fixture(scope="module")
def whole_quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `make quickstart`."""
    return toytf.run("quickstart", QUIET, out=tmp_path_factory.mktemp("made") / "quickstart").directory


def as_checkout(folder: Path, quickstart: Path) -> Path:
    """A directory with `configs/` and `runs/quickstart`, as a reader has it."""
    (folder / "configs").symlink_to(ROOT / "configs")
    shutil.copytree(quickstart, folder / "runs" / "quickstart")
    return folder


CODE = [name for name in OTHERS if any(block.runs for block in blocks(name))]


@pytest.mark.heavy
@pytest.mark.parametrize("document", CODE)
def test_code_runs_and_prints_what_it_says(
    document: str, tmp_path: Path, quickstart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(as_checkout(tmp_path, quickstart))
    follow(document)


@pytest.mark.slow
@pytest.mark.parametrize("document", [name for name in CODE if any(block.needs_run for block in blocks(name))])
def test_code_prints_what_it_says_of_a_trained_model(
    document: str, tmp_path: Path, whole_quickstart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(as_checkout(tmp_path, whole_quickstart))
    follow(document, shortened=False)


def write_files(document: str, folder: Path) -> None:
    """The files that a tutorial shows: all that its drawing of the package names, and no other there."""
    drawn, parents = set(), dict[int, Path]()
    drawing = next(block for block in blocks(document) if block.file is None and "pyproject.toml" in block.content)
    for line in drawing.content.splitlines():
        name, depth = line.split()[0], len(line) - len(line.lstrip())
        parents[depth] = parents.get(depth - 2, folder) / name
        if "(empty)" in line:
            parents[depth].parent.mkdir(parents=True, exist_ok=True)
            parents[depth].touch()
        elif not name.endswith("/"):
            drawn.add(parents[depth])
    shown = {folder / block.file: block.content for block in blocks(document) if block.file}
    assert drawn == {path for path in shown if path.parent != folder}
    for path, content in shown.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


@pytest.fixture(scope="module")
def packages(install: "Install", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of all tutorials, installed."""
    source = tmp_path_factory.mktemp("tutorials")
    for document in TUTORIALS:
        write_files(document, source)
    return install(*(path.parent for path in source.glob("*/pyproject.toml")))


ACCURATE = {"docs/adding_a_task.md": ["runs/copy", "runs/copy-ideal"]}
"""Runs that a tutorial promises an accuracy above 0.95."""


def follow_apart(document: str, folder: Path, packages: Path, *, shortened: bool) -> str:
    """Follow a tutorial in a process of its own, which finds the package by its entry points; what it printed."""
    write_files(document, folder)
    command = f"from tests.test_documents import follow; follow({document!r}, shortened={shortened})"
    ended = subprocess.run(
        [sys.executable, "-c", command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(packages)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("document", TUTORIALS)
def test_a_tutorial_can_be_followed(document: str, tmp_path: Path, quickstart: Path, packages: Path) -> None:
    folder = as_checkout(tmp_path, quickstart)
    printed = follow_apart(document, folder, packages, shortened=True)
    project = tomllib.loads(next(folder.glob("*/pyproject.toml")).read_text(encoding="utf-8"))["project"]
    for names in project["entry-points"].values():
        for name in names:
            assert re.search(rf"^  {name} +\S", printed, re.MULTILINE)  # `toytf list` shows it with a sentence
    for words in (words for block in blocks(document) for words in block.commands if "--out" in words):
        assert toytf.Run(folder / words[words.index("--out") + 1]).finished
    for directory in ACCURATE.get(document, []):
        assert toytf.Run(folder / directory).summary["eval/copied_accuracy"] > 0.95


@pytest.mark.slow
def test_the_tour_prints_what_it_says(tmp_path: Path, whole_quickstart: Path, packages: Path) -> None:
    follow_apart("docs/tour.md", as_checkout(tmp_path, whole_quickstart), packages, shortened=False)
