"""What `toytf run` says at its end: one or two sentences and a short table, for everything that ships."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from markupsafe import escape

import toytf
from tests.tiny import tiny
from toytf.config.plugins import ExperimentConfig, load_config
from toytf.config.shipped import config_files
from toytf.experiments.opened import story_of
from toytf.report.headlines import ROWS, short_table
from toytf.report.page import MAIN, Shown, render
from toytf.report.story import percent
from toytf.runs import run as runs

if TYPE_CHECKING:
    from conftest import Ended

pytestmark = pytest.mark.repeats_runs

SHORTER: dict[str, dict[str, Any]] = {
    "three_steps": {"samples": [64, 128]},
    "noise_learning": {"n_tokens": [8, 16], "samples": [16, 64]},
    "fact_capacity": {"dimensions": [8, 12, 16], "mixes": [[1, 2], [1, 4]], "n_heads": 8},
    "dynamics/step_sizes": {"system": {"correlations": [0.5, 1.0], "p1": [0.75]}},
    "scaling/million": {"n_inputs": [10_000], "dimensions": [8, 16, 32]},
    "scaling/grid": {"dimensions": [2, 3], "batches": [16, 64], "samples": [64], "learning_rates": [1, 10]},
    "scaling/grid_quick": {"dimensions": [2, 3], "batches": [16, 64], "samples": [64]},
    "scaling/muon_evenly": {"dimensions": [16], "steps": 400, "evaluations": 4},
    "scaling/step_sizes": {"samples": [100]},
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", config_files())
def test_every_config_that_ships_ends_with_a_sentence_and_at_most_twelve_rows_in_words(
    name: str, made: Callable[[ExperimentConfig], toytf.Run], tmp_path: Path
) -> None:
    config = load_config(config_files()[name])
    if name in ("association/own", "factual/countries"):  # a table from a file has its own size
        steps = {"train.steps": 2, "train.evaluation.every": 1, "train.evaluation.sequences": 64}
        run = toytf.run(name, {**steps, "threads": 1, "logging.wandb": "off"}, out=tmp_path / "run", page=False)
    else:
        run = made(tiny(config, **SHORTER.get(name, SHORTER.get(config.experiment, {}))))
    table = short_table(run.summary, run.columns)
    assert 1 <= len(table.rows) <= ROWS
    undeclared = {row.quantity.group.name for _, row in table.rows if row.quantity.group.headline is None}
    assert not undeclared
    assert all("{" not in phrase for phrase, _ in table.rows)
    beaten = [row for _, row in table.rows if row.quantity.group.name == "floor" and not row.quantity.on]
    if config.trains_model and beaten:
        found = re.search(r"best heuristic ([^,)]+)", str(story_of(run)))
        assert found is None or found[1] in [percent(row.measured) for row in beaten]
    story = story_of(run)
    assert 1 <= len(story.sentences) <= 5
    assert all(sentence[0].isupper() or sentence[0].isdigit() for sentence in story.sentences)
    assert all(sentence.endswith(".") for sentence in story.sentences)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    changed = {"task.seq_len": 32, "model.d_model": 16, "train.steps": 2, "train.evaluation.sequences": 64}
    out = tmp_path_factory.mktemp("runs") / "quick"
    return toytf.run("configs/quickstart.yaml", {**changed, "threads": 1, "logging.wandb": "off"}, out=out)


def ended(invoke: "Callable[..., Ended]", run: toytf.Run, *options: str) -> list[str]:
    """The lines that a finished run prints once more."""
    done = invoke("run", run.config_file, "--out", run.directory, "--resume", *options)
    assert done.code == 0, done.err
    return done.out.splitlines()


def test_the_verdict_comes_first_and_the_page_a_next_step_and_the_directory_last(
    invoke: "Callable[..., Ended]", quick: toytf.Run
) -> None:
    lines = ended(invoke, quick)
    assert lines[0].startswith("Not learned: ")
    assert lines[-3:] == [
        f"page: {quick.report_file}",
        f"next: toytf probe {quick.directory}  (names what the model gets wrong)",
        str(quick.directory),
    ]
    assert not any(line != line.rstrip() for line in lines)  # so that it can be pasted into a document
    assert len(lines) <= 25


def test_metrics_have_the_names_of_the_summary_and_the_rest_is_counted(
    invoke: "Callable[..., Ended]", quick: toytf.Run
) -> None:
    lines, shown = ended(invoke, quick), short_table(quick.summary, quick.columns)
    named = [line.split()[-1] for line in lines if line.split() and line.split()[-1] in quick.summary]
    assert named == [cells[-1] for cells in shown.cells()]
    assert "pairs/W_OV2" in named
    assert f"{shown.others} more metrics: on the page, or with --verbose" in lines


def test_verbose_prints_every_metric(invoke: "Callable[..., Ended]", quick: toytf.Run) -> None:
    short, full = ended(invoke, quick), ended(invoke, quick, "--verbose")
    shown = short_table(quick.summary, quick.columns)
    named = {line.split()[0] for line in full if line.startswith("  ")} & quick.summary.keys()
    assert len(named) == len(shown.rows) + shown.others
    assert "recall/W_KQ1/causal" in named  # a variant
    assert (full[0], full[-3:]) == (short[0], short[-3:])


def test_a_page_reads_the_files_of_a_run_once(quick: toytf.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counting(name: str) -> None:
        real = getattr(runs, name)
        monkeypatch.setattr(runs, name, lambda path: read.append(name) or real(path))

    for name in ("read_rows", "read_columns"):
        counting(name)
    with quick.read_once():
        story_of(quick)
        history = quick.history
        history["step"] = -1  # what one reader does with it is not seen by others
        assert quick.history["step"].min() == 0
        render([Shown(quick, None, {})])
    assert sorted(read) == ["read_columns", "read_rows"]
    story_of(quick)
    assert len(read) == 4  # files may have changed since


def test_the_page_opens_with_the_same_sentences_and_rows(quick: toytf.Run) -> None:
    page = quick.report_file.read_text(encoding="utf-8").partition("<h2>The story</h2>")[2]
    story, table = story_of(quick), short_table(quick.summary, quick.columns, most=MAIN)
    places = [page.index(escape(text)) for text in (*story.sentences, *(phrase for phrase, _ in table.rows))]
    assert places == sorted(places)
    assert places[-1] < page.index("<h2>Learning</h2>")
    assert 1 < len(table.rows) <= 5
    every = page.partition("<h2>All metrics</h2>")[2].replace("<wbr>", "")
    assert all(cells[-1] in every for cells in short_table(quick.summary, quick.columns).cells())
