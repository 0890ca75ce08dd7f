"""`toytf inspect` on any directory: the page of what is there, or one clear line."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import toytf
from tasks.bigram.task import BigramTask
from tests.tiny import COPY, THIRD_PARTY
from toytf.errors import UserError
from toytf.experiments.experiment import Experiment
from toytf.models.transformer import ToyTransformer

if TYPE_CHECKING:
    from conftest import Command, Ended, Install, Visit

TITLE = "Copying, as a package of strangers has it"


def _copy(run: toytf.Run, tmp_path: Path, *lost: str) -> Path:
    directory = tmp_path / "copy"
    shutil.copytree(run.directory, directory)
    for name in lost:
        path = directory / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return directory


def test_a_run_builds_one_experiment_one_task_and_two_models_and_its_page_is_the_same_when_made_again(
    tiny_config: Path, tmp_path: Path, invoke: "Callable[..., Ended]", monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    for kind in (Experiment, BigramTask, ToyTransformer):
        init = kind.__init__

        def counted(self: Any, *given: Any, init: Any = init, name: str = kind.__name__, **more: Any) -> None:
            built.append(name)
            init(self, *given, **more)

        monkeypatch.setattr(kind, "__init__", counted)
    assert invoke("run", tiny_config, "train.steps=2", "--out", tmp_path / "run").code == 0
    # One model is trained; those of the page are copies of another, with the weights of their checkpoints.
    assert sorted(built) == ["BigramTask", "Experiment", "ToyTransformer", "ToyTransformer"]
    page = (tmp_path / "run" / "report.html").read_bytes()
    assert invoke("inspect", tmp_path / "run", "--html", tmp_path / "again.html").code == 0
    assert (tmp_path / "again.html").read_bytes() == page


def test_a_run_that_is_being_written_shows_what_there_is(
    two_seeds_run: toytf.Run, tmp_path: Path, invoke: "Callable[..., Ended]", visit: "Callable[..., Visit]"
) -> None:
    directory = _copy(two_seeds_run, tmp_path, "summary.json", "checksums.json", "report.html")
    rows = (directory / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (directory / "metrics.jsonl").write_bytes(b"".join(rows[:-1]) + rows[-1][:30])  # a row is half written
    for path in (directory / "checkpoints").glob("seed1-step000002.*"):
        path.unlink()
    assert invoke("inspect", directory).code == 0
    page = visit(directory / "report.html").shown()
    assert page.text(".verdict").startswith("The run has not ended: 1 of 2 seeds is done, seed 1 is at step ")
    page.page.select_option("#pick-seed", "1")
    page.shown(seed=1)
    assert page.errors == []


@pytest.mark.parametrize("error", [KeyError("latent"), ValueError("of a task of somebody's")])
def test_a_mistake_in_the_page_loses_no_result(
    error: Exception, tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def annotate(task: BigramTask, batch: Any) -> Any:
        raise error

    monkeypatch.setattr(BigramTask, "annotate", annotate)
    run = toytf.run(tiny_config, out=tmp_path / "run")
    assert run.finished
    assert run.summary["eval/in_context_accuracy"] >= 0
    assert not run.report_file.exists()
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("toytf: ")]
    assert len(said) == 1
    assert "the page could not be drawn" in said[0]
    assert type(error).__name__ in said[0]


def test_a_goal_that_is_no_role_is_refused_before_training(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BigramTask, "goal", "nothing")
    with pytest.raises(UserError, match='its goal "nothing" is not one of its roles'):
        toytf.run(tiny_config, {"probes": []}, out=tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_run_without_a_checkpoint_has_a_page_without_weights(
    tiny_run: toytf.Run, tmp_path: Path, invoke: "Callable[..., Ended]", visit: "Callable[..., Visit]"
) -> None:
    directory = _copy(tiny_run, tmp_path, "summary.json", "checksums.json", "checkpoints", "figures")
    assert invoke("inspect", directory).code == 0
    page = visit(directory / "report.html")
    page.page.wait_for_selector("html[data-shown]", state="attached")
    page.draw_all()
    assert page.page.locator("#learning0 .chart").count() >= 2
    assert page.page.locator("#bar").is_hidden()
    assert page.errors == []


def test_a_run_in_which_nothing_was_measured_is_answered_with_a_line(
    tiny_run: toytf.Run, tmp_path: Path, invoke: "Callable[..., Ended]"
) -> None:
    directory = tmp_path / "begun"
    directory.mkdir()
    shutil.copy(tiny_run.config_file, directory)
    ended = invoke("inspect", directory)
    assert (ended.code, ended.err) == (2, f"toytf: {directory}: nothing has been measured yet\n")


def test_a_directory_that_is_no_run_is_answered_with_a_line(tmp_path: Path, invoke: "Callable[..., Ended]") -> None:
    ended = invoke("inspect", tmp_path)
    assert (ended.code, ended.err) == (2, f"toytf: {tmp_path}: not a run directory (it has no config.yaml)\n")


def test_a_run_without_provenance_has_its_page(
    tiny_run: toytf.Run, tmp_path: Path, invoke: "Callable[..., Ended]", visit: "Callable[..., Visit]"
) -> None:
    directory = _copy(tiny_run, tmp_path, "provenance.json")
    assert invoke("inspect", directory).code == 0
    page = visit(directory / "report.html").shown()
    assert page.page.locator("h1").inner_text() == "copy"  # no title is known: the name of the directory
    assert "provenance.json is missing or damaged" in page.page.locator("body").text_content()
    assert page.errors == []


def test_the_end_and_the_page_of_a_stranger_s_task_say_what_the_package_says(
    install: "Install", command: "Command", tmp_path: Path, visit: "Callable[..., Visit]"
) -> None:
    shutil.copytree(THIRD_PARTY, tmp_path / "source", ignore=shutil.ignore_patterns("__pycache__"))
    site = str(install(tmp_path / "source"))
    (tmp_path / "copy.yaml").write_text(f"# {TITLE}\n{COPY}")
    ended = command("run", "copy.yaml", "logging.wandb=off", "--out", "run", cwd=tmp_path, PYTHONPATH=site)
    assert ended.returncode == 0, ended.stderr
    assert re.match(
        r"(Solved|Partly learned|Not learned): .+ of the answers are right \(ideal 100 %, chance 20.0 %\)\.",
        ended.stdout,
    )
    rows = (r"accuracy on answers .* eval/all_accuracy", r"Says the token before \(previous\) .* agreement/previous")
    assert all(re.search(f"^{row}$", ended.stdout, re.MULTILINE) for row in rows)
    page = visit(tmp_path / "run" / "report.html").shown()
    text = page.page.locator("body").text_content()
    assert page.page.locator("h1").inner_text() == TITLE
    for says in (
        "Uniform tokens; every position but the first asks for the token before it.",
        "Says the token before",
        "It should rise to 1, also where the loss is not counted.",
        "Who says the token before, by position",
    ):
        assert says in text
    assert page.errors == []

    # The package is not installed any more: the page of what can be read without it.
    again = command("inspect", "run", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, "run/report.html\n"), again.stderr
    page = visit(tmp_path / "run" / "report.html")
    page.page.wait_for_selector("html[data-shown]", state="attached")
    page.draw_all()
    text = page.page.locator("body").text_content()
    assert "Shown is what can be read without its config" in text
    assert 'no task is called "copy"' in text or "copy" in page.text(".verdict")
    assert "agreement/previous" in text
    assert page.page.locator(".chart").count() >= 2
    assert page.errors == []


@pytest.mark.parametrize("content", ["", "[1, 2]", "{", '{"title": 5, "starts": "x"}', '{"title": null}'])
def test_a_damaged_provenance_costs_only_what_it_says(
    content: str, tiny_run: toytf.Run, tmp_path: Path, invoke: "Callable[..., Ended]"
) -> None:
    directory = _copy(tiny_run, tmp_path)
    (directory / "provenance.json").write_text(content)
    assert invoke("inspect", directory).code == 0
    page = (directory / "report.html").read_text(encoding="utf-8")
    assert "provenance.json is missing or damaged" in page
    assert json.loads((directory / "summary.json").read_text())
