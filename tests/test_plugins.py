"""A stranger's package joins the suite by its entry points alone, and a broken one cannot take it down."""

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from toytf.config.plugins import imported
from toytf.errors import UserError

if TYPE_CHECKING:
    from conftest import Command, Install

COPY = """
experiment: train
task: {kind: copy, n_tokens: 5, seq_len: 8}
model:
  d_model: 128
  n_layers: 1
  embedding: orthonormal
  position: orthonormal
  unembedding: orthonormal
  attention: {kq: joint, ov: joint, scale: 1}
  init: ideal
  beta: {W_KQ1: 30, W_OV1: 3}
train: {steps: 2, batch_size: 4, optimizer: {lr: 1e-4}, evaluation: {sequences: 16}}
probes: [memory_recall, agreement]
threads: 1
logging: {wandb: "off"}
"""


@pytest.fixture(scope="module")
def installed(install: "Install", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package `copycat`."""
    source = tmp_path_factory.mktemp("source") / "copycat"
    shutil.copytree(Path(__file__).parent / "third_party", source, ignore=shutil.ignore_patterns("__pycache__"))
    return install(source)


def _package(folder: Path, module: str, points: str, name: str = "strange") -> Path:
    """A folder with an installed package of one module and these entry points."""
    (folder / f"{name}.py").write_text(module)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(points)
    return folder


def _broken_package(folder: Path, module: str, target: str) -> Path:
    """The same whose entry point `broken` is a task."""
    return _package(folder, module, f"[toytf.tasks]\nbroken = {target}\n")


def _config(base: str, field: str, *names: str) -> str:
    """A module with a config class for each name."""
    lines = ["from typing import Literal", f"from toytf.config.plugins import {base}"]
    for i, name in enumerate(names):
        lines += [f"class Own{i}({base}):", f"    {field}: Literal[{name!r}]"]
    return "\n".join(lines) + "\n"


def test_a_package_adds_a_task_a_probe_and_a_study(installed: Path, command: "Command", tmp_path: Path) -> None:
    for kind, name, text in (
        ("tasks", "copy", "Uniform tokens; every position but the first asks for the token before it."),
        ("probes", "agreement", "How often the model says the previous token."),
        ("experiments", "coincidence", "How often a token is the one before by chance, by the number of tokens."),
    ):
        ended = command("list", kind, cwd=tmp_path, PYTHONPATH=str(installed))
        assert (ended.returncode, ended.stderr) == (0, "")
        assert re.search(rf"^  {name} +{re.escape(text)}$", ended.stdout, re.MULTILINE)


def test_a_package_s_task_is_trained_and_probed_like_our_own(
    installed: Path, command: "Command", tmp_path: Path
) -> None:
    (tmp_path / "copy.yaml").write_text(COPY)
    ended = command("run", "copy.yaml", "--out", "run", cwd=tmp_path, PYTHONPATH=str(installed))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "run"
    assert "Says the token before" in ended.stdout  # the title that the package gives
    page = (tmp_path / "run" / "report.html").read_text()
    assert "It should rise to 1, also where the loss is not counted." in page
    assert "Who says the token before, by position" in page  # its figure, of the last evaluation
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    # Written in by the ideal construction: one layer copies without an error, before and after two small steps.
    assert summary["agreement/previous"] == summary["eval/all_accuracy"] == 1.0
    assert summary["recall/W_KQ1"] == summary["recall/W_OV1"] == 1.0
    assert (summary["ideal/agreement/previous"], summary["chance/agreement/previous"]) == (1.0, 0.2)
    ended = command("probe", "run", "--probe", "attention", cwd=tmp_path, PYTHONPATH=str(installed))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert 'probe "attention" needs a task with the role' in ended.stderr


def test_a_package_s_study_is_named_fitted_drawn_and_resumed_like_our_own(
    installed: Path, command: "Command", tmp_path: Path
) -> None:
    (tmp_path / "chance.yaml").write_text("experiment: coincidence\nseeds: [0, 1]\nlogging: {wandb: 'off'}\n")
    run = ("run", "chance.yaml", "--out", "run")
    ended = command(*run, cwd=tmp_path, PYTHONPATH=str(installed))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("Measured 3 cases in 2 seeds.\nTwo tokens agree by chance (n_tokens = 8): 0.12")
    row = r"^Two tokens agree by chance \(n_tokens = 2\) +0\.\d+ ± 0\.\d+ +0\.500  coincidence/N2$"
    assert re.search(row, ended.stdout, re.MULTILINE)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for n in (2, 4, 8):
        # 4096 pairs and two seeds: four standard errors
        assert summary[f"coincidence/N{n}"] == pytest.approx(1 / n, abs=4 * (1 / n / 8192) ** 0.5)
        assert summary[f"theory/coincidence/N{n}"] == 1 / n
    assert summary["coincidence_exponent"] == pytest.approx(-1, abs=0.1)
    assert summary["theory/coincidence_exponent"] == pytest.approx(-1)
    assert "coincidence_exponent/error" in summary
    page = (tmp_path / "run" / "report.html").read_text()
    assert "It should fall like one over the number of tokens." in page
    assert json.loads((tmp_path / "run" / "figures" / "coincidence.json").read_text())["data"]

    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    for name in ("summary.json", "checksums.json"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b"".join(lines[:3]))
    again = command(*run, "--resume", cwd=tmp_path, PYTHONPATH=str(installed))
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("task.n_token=3", 'unknown key "n_token" in "task": did you mean "n_tokens"?'),
        ("task.n_tokens=1", "task.n_tokens = 1: should be greater than or equal to 2"),
        ("train.loss=in_context", 'train.loss = "in_context" is not a role of this task: accepted: all'),
        ("probes=[attention]", 'probe "attention" needs a task with the role'),
        ("task.kind=cop", 'did you mean "copy"? (accepted: association, bigram, copy, factual)'),
    ],
)
def test_mistakes_with_a_package_s_task_are_answered_like_our_own(
    override: str, says: str, installed: Path, command: "Command", tmp_path: Path
) -> None:
    (tmp_path / "copy.yaml").write_text(COPY)
    ended = command("run", "copy.yaml", override, cwd=tmp_path, PYTHONPATH=str(installed))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(r"toytf: .+\n", ended.stderr)
    assert says in ended.stderr


@pytest.mark.parametrize(
    ("module", "target"),
    [
        ("", "strange_and_absent:Task"),
        ("", "strange:Absent"),
        ("raise RuntimeError('two\\nlines')", "strange:Task"),
        ("def broken(:\n", "strange:Task"),
        ("import sys\nsys.exit(3)\n", "strange:Task"),
        ("def task(): ...\n", "strange:task"),
        ("from pydantic import BaseModel\nclass Task(BaseModel):\n    kind: str\n", "strange:Task"),
    ],
    ids=["no module", "no name", "raises", "no syntax", "exits", "a function", "a model of another kind"],
)
def test_a_broken_plug_in_is_named_in_one_line_and_left_out(
    module: str, target: str, command: "Command", tmp_path: Path
) -> None:
    path = str(_broken_package(tmp_path, module, target))
    listed = command("list", "tasks", cwd=tmp_path, PYTHONPATH=path)
    assert listed.returncode == 0, listed.stderr
    assert re.fullmatch(rf"toytf: plug-in broken \({target}\).*\n", listed.stderr)
    assert re.search(r"^  bigram +\S", listed.stdout, re.MULTILINE)
    assert "broken" not in listed.stdout


def test_a_broken_plug_in_does_not_stop_a_run_of_others(command: "Command", tiny_config: Path, tmp_path: Path) -> None:
    path = str(_broken_package(tmp_path, "def task(): ...\n", "strange:task"))
    ended = command("run", tiny_config, "train.loss=nowhere", cwd=tmp_path, PYTHONPATH=path)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "is not a role of this task" in ended.stderr.splitlines()[-1]  # validated: the schema was built without it


def test_a_mistake_of_a_package_is_one_line(installed: Path, command: "Command", tmp_path: Path) -> None:
    source = tmp_path / "site" / "copycat"
    shutil.copytree(installed, source.parent)
    (tmp_path / "copy.yaml").write_text(COPY)

    def ends(*arguments: str) -> str:
        ended = command(*arguments, cwd=tmp_path, PYTHONPATH=str(source.parent))
        assert "Traceback" not in ended.stderr
        return f"{ended.returncode} {ended.stderr.splitlines()[-1]}"

    previous, config = source / "previous.py", source / "config.py"
    text = previous.read_text()
    previous.write_text(text.replace("ProbeResult([measured],", "ProbeResult([measured, measured],"))
    said = 'probe "agreement": agreement/previous is measured twice: give one of the two a different name or factor'
    assert ends("run", "copy.yaml", "--out", "run") == f"2 toytf: {said}"
    previous.write_text(text.replace("class Agreement(", "class Agrement("))
    assert ends("run", "copy.yaml", "--out", "run").endswith("copycat.previous has no Agreement")
    points = next(source.parent.glob("copycat-*.dist-info")) / "entry_points.txt"
    points.write_text(
        points.read_text().replace("copycat = copycat.config", "agreement = copycat.config:AgreementConfig")
    )
    config.write_text(config.read_text().replace('Literal["agreement"]', 'Literal["agrement"]'))
    assert ends("list", "probes").endswith("the kind of AgreementConfig is agrement, but must be agreement")


@pytest.mark.parametrize(
    ("line", "raised"), [("{}['asked']", "KeyError: 'asked'"), ("raise SystemExit(0)", "SystemExit: 0")]
)
def test_an_error_in_a_package_s_code_ends_with_a_line_that_names_it_below_its_traceback(
    line: str, raised: str, installed: Path, command: "Command", tmp_path: Path
) -> None:
    shutil.copytree(installed, tmp_path / "site")
    previous = tmp_path / "site" / "copycat" / "previous.py"
    marked = "by_position = right.mean(0).tolist()\n"
    previous.write_text(previous.read_text().replace(marked, f"{marked}        {line}\n"))
    (tmp_path / "copy.yaml").write_text(COPY)
    ended = command("run", "copy.yaml", "--out", "run", cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f'{previous}", line ' in ended.stderr  # of the traceback
    assert ended.stderr.splitlines()[-1] == f'toytf: plug-in "agreement" (copycat.previous:Agreement): {raised}'
    assert not (tmp_path / "run").exists()


def test_a_package_s_study_cannot_write_a_figure_elsewhere(installed: Path, command: "Command", tmp_path: Path) -> None:
    shutil.copytree(installed, tmp_path / "site")
    study = tmp_path / "site" / "copycat" / "coincidence.py"
    text = study.read_text().replace("import Study\n", "import Drawn, Study\nfrom toytf.figures import empty_figure\n")
    study.write_text(text.replace("yield COIN", "yield Drawn('../../x', empty_figure)\n        yield COIN"))
    (tmp_path / "chance.yaml").write_text("experiment: coincidence\nlogging: {wandb: 'off'}\n")
    ended = command("run", "chance.yaml", "--out", "a/run", cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith('toytf: coincidence/N2: a figure cannot be called "../../x": ')
    assert not [*tmp_path.rglob("x.json")]


@pytest.mark.parametrize("name", ["tasks", "probes"])
@pytest.mark.parametrize("kind", ["a module", "a package", "a folder"])
def test_a_stranger_s_package_that_hides_ours_is_named_in_one_line(
    name: str, kind: str, command: "Command", tmp_path: Path
) -> None:
    """A folder hides an editable install, whose packages Python looks for last; it does not hide an installed wheel."""
    hiding = tmp_path / "first" / (f"{name}.py" if kind == "a module" else name)
    hiding.parent.mkdir()
    if kind == "a module":
        hiding.touch()
    else:
        hiding.mkdir()
        (hiding / ("__init__.py" if kind == "a package" else "mine.py")).touch()
    words = {"a module": ["list"], "a package": ["run", "quickstart"], "a folder": ["bench", "solver"]}[kind]
    ended = command(*words, cwd=tmp_path, PYTHONPATH=str(hiding.parent))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f'toytf: {hiding} hides the package "{name}" of toytf: rename it, or ')
    assert len(ended.stderr.splitlines()) == 1


def test_a_package_with_a_module_of_such_a_name_inside_hides_nothing(
    installed: Path, command: "Command", tmp_path: Path
) -> None:
    shutil.copytree(installed, tmp_path / "site")
    (tmp_path / "site" / "copycat" / "tasks.py").write_text("raise RuntimeError\n")
    (tmp_path / "tasks.py").write_text("raise RuntimeError\n")  # beside the user's files, and not on the path
    ended = command("list", "tasks", cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.findall(r"^  (\w+)", ended.stdout, re.MULTILINE) == ["association", "bigram", "copy", "factual"]


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("toytf.nowhere:Thing", "there is no module toytf.nowhere"),
        ("no_such_package.part:Thing", "there is no module no_such_package"),
        ("toytf.errors:Thing", "toytf.errors has no Thing"),
    ],
)
def test_an_implementation_that_is_not_there_is_named(place: str, says: str) -> None:
    with pytest.raises(UserError, match=f'the implementation "{place}" cannot be imported: {says}'):
        imported(place)


# Names


@pytest.mark.parametrize(
    ("group", "name", "module", "target", "ours"),
    [
        ("probes", "memory_recall", _config("ProbeConfig", "kind", "memory_recall"), "strange", "probes.config:"),
        ("probes", "memory_recall", _config("ProbeConfig", "kind", "memory_recall"), "strange:Own0", "probes.config:"),
        ("tasks", "bigram", _config("TaskConfig", "kind", "bigram"), "strange:Own0", "tasks.bigram.config:"),
        ("experiments", "train", _config("ExperimentConfig", "experiment", "train"), "strange:Own0", "toytf.exper"),
        ("benchmarks", "steps", "measure = dict", "strange:measure", "toytf.benchmarks.steps:measure"),
    ],
)
def test_two_plug_ins_of_one_name_are_refused_by_the_names_of_both(
    group: str, name: str, module: str, target: str, ours: str, command: "Command", tmp_path: Path
) -> None:
    path = str(_package(tmp_path, module, f"[toytf.{group}]\n{name} = {target}\n"))
    ended = command(*(["bench", "none"] if group == "benchmarks" else ["list", group]), cwd=tmp_path, PYTHONPATH=path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(r"toytf: .+\n", ended.stderr)
    assert f'two of the toytf.{group} are called "{name}"' in ended.stderr
    assert f"toytf ({ours}" in ended.stderr
    assert f"strange ({target}" in ended.stderr
    assert "uninstall one" in ended.stderr


def test_two_packages_may_name_one_and_the_same_plug_in(command: "Command", tmp_path: Path) -> None:
    """As when a package is both installed and on PYTHONPATH, under two spellings of its name."""
    points = "[toytf.probes]\nagain = probes.config\n[toytf.tasks]\nbigram = tasks.bigram.config:BigramConfig\n"
    path = str(_package(tmp_path, "", points))
    for group in ("probes", "tasks"):
        ended = command("list", group, cwd=tmp_path, PYTHONPATH=path)
        assert (ended.returncode, ended.stderr) == (0, "")


def test_a_plug_in_whose_name_is_no_name_is_left_out(command: "Command", tmp_path: Path) -> None:
    module = _config("ProbeConfig", "kind", "../../x", "fine", "two\nlines")
    path = str(_package(tmp_path, module, "[toytf.probes]\nmine = strange\n"))
    ended = command("list", "probes", cwd=tmp_path, PYTHONPATH=path)
    assert ended.returncode == 0
    assert [line.partition("loaded: ")[2].partition(" cannot")[0] for line in ended.stderr.splitlines()] == [
        '"../../x"',
        '"two lines"',
    ]
    assert re.search(r"^  fine ", ended.stdout, re.MULTILINE)
    assert "../../x" not in ended.stdout
