"""What notebooks show: HTML in which names are text, also of a run that is not finished."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

import toytf
from tests.report.written import recall, written
from toytf.errors import UserError
from toytf.experiments.opened import story_of
from toytf.measurement import Group, Headline
from toytf.probe import ProbeResult
from toytf.report.headlines import short_table
from toytf.runs import Run
from toytf.runs.provenance import Origin, add_start

EVIL = "<b>x</b> & <script>"
FACTS = """subject,relation,attribute
<b>x</b>,<i>r</i>,<script>
<b>x</b>,q,a & b
y,<i>r</i>,a
y,q,a & c
"""


class Tags(HTMLParser):
    """The tags and the text of a piece of HTML; refuses tags that do not close in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag != "br":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


OWN = {"p", "b", "br", "code", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}


def shown(thing: Any) -> Tags:
    """What a notebook shows of a thing, in which no name has become a tag."""
    found = Tags(thing._repr_html_())
    assert {*found.tags} <= OWN
    return found


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> toytf.TrainedRun:
    """A run without a step, in a directory and with facts whose names look like markup."""
    path = tmp_path_factory.mktemp("facts") / "facts.csv"
    path.write_text(FACTS)
    run: Any = toytf.run(
        "factual/quick",
        {
            "task": {"kind": "factual", "facts": str(path), "n_noise": 4, "seq_len": 6}, "model.d_model": 8,
            "train.steps": 0, "train.evaluation.sequences": 16, "probes": ["limits", "facts"], "threads": 1,
            "logging.wandb": "off", "device": "cpu",
        },
        out=tmp_path_factory.mktemp("runs") / "<b>x<b> & <i>",
    )  # fmt: skip
    return run


# A run


def test_a_run_shows_its_title_its_story_and_its_numbers(tiny_run: toytf.Run) -> None:
    found = shown(tiny_run)
    assert "tiny" in found.text
    assert str(tiny_run.directory) in found.text
    assert all(sentence in found.text for sentence in story_of(tiny_run).sentences)
    rows = [*short_table(tiny_run.summary, tiny_run.columns).cells()]
    assert len(rows) > 3
    assert found.tags.count("tr") == 1 + len(rows)
    assert all(cell in found.text for cells in rows for cell in cells)


def test_a_plain_run_shows_the_same_as_a_trained_one(tiny_run: toytf.Run) -> None:
    assert isinstance(tiny_run, toytf.TrainedRun)
    assert Run(tiny_run.directory)._repr_html_() == tiny_run._repr_html_()


def test_names_in_what_a_run_shows_are_text(tmp_path: Path, tiny_config: Path) -> None:
    group = Group("g", "", headline=(Headline("*", "<u>of</u> {memory}"),))
    run = written(tmp_path / "<i>run<i>", tiny_config, {(0, 0): [group.measurement(0.5, memory=EVIL)]})
    add_start(run.directory, Origin(f"A title with {EVIL}", None), None)
    found = shown(toytf.compare([run, run]))
    assert EVIL in found.text
    assert "<u>of</u>" in found.text
    assert "<i>run<i> (2)" in found.text
    found = shown(run)
    assert f"A title with {EVIL}" in found.text
    assert f"<u>of</u> {EVIL}" in found.text


@pytest.mark.parametrize(
    ("rows", "says"),
    [({}, "nothing has been measured yet"), ({(0, 1): [recall(0.5)]}, "The run has not ended: this is step 1 of 2.")],
)
def test_a_run_that_is_not_finished_says_so(rows: Any, says: str, tmp_path: Path, tiny_config: Path) -> None:
    found = shown(written(tmp_path / "run", tiny_config, rows, finished=False))
    assert says in found.text
    assert ("recalled/W_OV2" in found.text) == bool(rows)


def test_a_run_without_a_summary_shows_the_same_numbers(two_seeds_run: toytf.Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(two_seeds_run.directory, copy)
    (copy / "summary.json").unlink()
    table, other = (run._repr_html_().partition("<table>")[2] for run in (Run.open(copy), two_seeds_run))
    assert table == other != ""


def test_a_directory_that_is_no_run_or_is_damaged_says_why(tiny_run: toytf.Run, tmp_path: Path) -> None:
    assert "config.yaml" in shown(Run(tmp_path)).text
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_run.directory, damaged)
    (damaged / "summary.json").write_text("[]")
    assert "summary.json is damaged" in shown(Run(damaged)).text


# What is in it


def test_everything_that_a_trained_run_gives_shows_names_as_text(evil: toytf.TrainedRun) -> None:
    names = evil.task.token_names
    assert names[:2] == ("<b>x</b>", "y")
    assert str(evil.directory) in shown(evil).text
    sequence = next(view for view in evil.sequences(20) if "<b>x</b>" in view.tokens)
    assert "<b>x</b>" in shown(sequence).text
    views = evil.memories()
    assert "<b>x</b>, <i>r</i> → <script>" in "".join(shown(view).text for view in views.values())
    facts = evil.facts()
    wrong = "".join(map(str, facts.wrong()))
    assert "<b>x</b>" in wrong
    assert "<b>x</b>" in shown(facts).text
    result = evil.probe("facts")
    assert result.failures
    assert "<b>x</b>" in shown(result).text
    assert "facts/accuracy" in shown(result).text


def test_a_probe_shows_a_table_and_the_worst_failures() -> None:
    group = Group("g", "")
    measured = [group.measurement(0.12345, "a", ideal=1.0), group.measurement(2.0, "<b>", chance=0.5)]
    result = ProbeResult(measured, {"g/a": [f"pair {i}: {EVIL}" for i in range(7)]})
    assert [*result.table] == ["measured", "ideal", "chance"]  # nothing has a theory
    assert result.table.loc["g/a", "ideal"] == 1
    assert np.isnan(result.table.loc["g/a", "chance"])
    found = shown(result)
    assert re.findall(r"0\.123(?!\d)", found.text)
    assert "–" in found.text
    assert "g/<b>" in found.text
    assert found.tags.count("li") == 5
    assert f"pair 0: {EVIL}" in found.text
    assert "Worst" not in shown(ProbeResult(measured)).text
    shown(ProbeResult())  # of a probe that has nothing to say


# Figures


def test_every_figure_of_a_run_can_be_had_by_its_name(tiny_run: toytf.Run) -> None:
    names = tiny_run.figure_names
    assert names == sorted(path.stem for path in (tiny_run.directory / "figures").iterdir())
    assert {"accuracy", "loss", "recall", "bars_ablated"} <= {*names}
    for name in names:
        figure = tiny_run.figure(name)
        assert isinstance(figure, go.Figure)
        assert figure.data


def test_an_unknown_figure_is_refused_with_the_nearest_name(tiny_run: toytf.Run) -> None:
    with pytest.raises(UserError) as refused:
        tiny_run.figure("acuracy")
    said = str(refused.value)
    assert said.startswith(f'{tiny_run.directory}: no figure is called "acuracy": did you mean "accuracy"? (accepted: ')
    assert "\n" not in said


def test_a_run_without_figures_lists_none(tmp_path: Path, tiny_config: Path) -> None:
    run = written(tmp_path / "run", tiny_config, {(0, 0): [recall(0.5)]})
    assert run.figure_names == []
    with pytest.raises(UserError, match=r'no figure is called "loss": accepted: none$'):
        run.figure("loss")


# From Python


def test_a_run_knows_its_checkpoints_by_seed(two_seeds_run: toytf.TrainedRun, tmp_path: Path) -> None:
    kept = {path.name for path in two_seeds_run.checkpoints.glob("*.safetensors")}
    for seed in (0, 1):
        steps = two_seeds_run.steps_of(seed)
        assert {name for name in kept if name.startswith(f"seed{seed}-")} == {
            f"seed{seed}-step{step:06}.safetensors" for step in steps
        }
        assert (steps[0], steps[-1]) == (0, 2)
    assert two_seeds_run.steps == two_seeds_run.steps_of(0)
    assert two_seeds_run.steps_of(7) == []


def test_facts_are_refused_for_a_task_that_has_none(tiny_run: toytf.TrainedRun) -> None:
    with pytest.raises(UserError) as refused:
        tiny_run.facts()
    assert str(refused.value) == f"{tiny_run.directory}: its task (bigram) is not about facts"


def test_a_run_without_a_model_is_shown_as_well(tmp_path: Path) -> None:
    run = written(tmp_path / "study", "configs/capacity/linear.yaml", {(0, 0): [recall(0.5)]})
    assert type(run) is Run
    assert "recalled/W_OV2" in shown(run).text
