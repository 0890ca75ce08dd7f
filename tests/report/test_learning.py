"""Which charts over the steps a run has, and what is drawn in them, of rows that are written by hand."""

from pathlib import Path
from typing import Any

import pytest

import toytf
from tests.report.written import written
from toytf.measurement import Group, Measurement
from toytf.report.learning import learning_figures
from toytf.task import EVAL, FLOOR

ROLES = ("in_context", "global")
RECALL = Group("recall", "Recall of the memories", section="memories", timed="onset", variants=("head",))


def measured(step: int) -> list[Measurement]:
    """Accuracies and losses by role, recalls under several criteria, and what makes no curve."""
    by_role = [
        EVAL.measurement(step / 4, role=role, quantity=quantity, chance=0.125, ideal=1.0, on=on)
        for role in ROLES
        for quantity in ("accuracy", "loss")
        for on in (None, "clean")
    ]
    recalled = [
        RECALL.measurement(step / 4, memory="W_OV2"),
        RECALL.measurement(step / 8, memory="W_KQ1"),
        RECALL.measurement(step / 8, memory="W_KQ1", view="64"),
        RECALL.measurement(0.5, memory="W_OV2", head=0),
    ]
    silent = [Group("bits", "", curve=False).measurement(0.5), Group("hidden", "", place="log").measurement(0.5)]
    first = [Group("once", "").measurement(0.5)] if not step else []
    floors = [
        FLOOR.measurement(level, role=role, quantity="accuracy", heuristic="most_frequent", on=on)
        for role in ROLES
        for on, level in ((None, 0.375), ("clean", 0.25))
    ]
    return [*by_role, *recalled, *silent, *first, *floors]


@pytest.fixture
def run(tmp_path: Path, tiny_config: Path) -> toytf.Run:
    return written(tmp_path / "run", tiny_config, {(0, step): measured(step) for step in range(4)})


def charts(run: toytf.Run, **fields: Any) -> dict[str, Any]:
    return dict(learning_figures(run, **fields))


def visible(figure: Any) -> dict[str, Any]:
    return {trace.name: trace.visible for trace in figure.data if (trace.meta or {}).get("kind") == "mean"}


def test_there_is_a_chart_for_each_quantity_and_entry_that_was_measured_at_several_steps(run: toytf.Run) -> None:
    found = charts(run)
    assert {name: figure.layout.title.text for name, figure in found.items()} == {
        "accuracy": "Accuracy by role",
        "accuracy_clean": "Accuracy by role (clean)",
        "loss": "Loss by role",
        "loss_clean": "Loss by role (clean)",
        "recall": "Recall of the memories",
    }
    curve = next(trace for trace in found["accuracy"].data if trace.name == "in_context_accuracy")
    assert list(curve.y) == [0, 0.25, 0.5, 0.75]


def test_several_seeds_at_one_step_are_no_curve(tmp_path: Path, tiny_config: Path) -> None:
    run = written(tmp_path / "run", tiny_config, {(seed, 0): measured(0) for seed in (0, 1)}, seeds=[0, 1])
    assert charts(run) == {}


def test_roles_with_a_phrase_are_said_in_words_and_others_are_drawn_on_request(run: toytf.Run) -> None:
    assert visible(charts(run)["accuracy"]) == {"in_context_accuracy": True, "global_accuracy": True}
    found = charts(run, phrases={"in_context": "answers that the context determines"})
    said = {"in_context: answers that the context determines": True, "global_accuracy": "legendonly"}
    assert visible(found["accuracy"]) == said
    assert visible(found["recall"])["W_OV2"] is True  # it has no role


def test_heuristics_are_levels_of_their_own_chart_and_of_the_roles_that_are_shown(run: toytf.Run) -> None:
    def levels(chart: str, **fields: Any) -> dict[str, list[float]]:
        drawn = charts(run, **fields)[chart].data
        return {trace.name: list(trace.y) for trace in drawn if trace.name.startswith("heuristic")}

    names = [f"heuristic: most frequent ({role})" for role in ROLES]
    assert levels("accuracy") == {name: [0.375, 0.375] for name in names}
    assert levels("accuracy_clean") == {name: [0.25, 0.25] for name in names}
    assert [*levels("accuracy", phrases={"in_context": "answers"})] == names[:1]
    assert levels("loss") == levels("recall") == {}


def test_references_of_the_summary_are_drawn(run: toytf.Run) -> None:
    drawn = {trace.name: list(trace.y) for trace in charts(run)["accuracy"].data}
    assert drawn["chance of in_context_accuracy"] == [0.125, 0.125]
    assert drawn["ideal"] == [1.0, 1.0]
    assert "ideal" not in {trace.name for trace in charts(run)["recall"].data}


def test_of_a_memory_the_plain_criterion_is_shown_and_its_onset_marked(run: toytf.Run) -> None:
    figure = charts(run, onsets={"recall/W_OV2": 2.0, "recall/W_KQ1_64": 1.0})["recall"]
    assert visible(figure) == {"W_OV2": True, "W_KQ1": True, "W_KQ1_64": "legendonly"}
    (marks,) = (trace for trace in figure.data if trace.name == "onset")
    assert (list(marks.x), list(marks.y), list(marks.customdata)) == ([2], [0.5], ["W_OV2"])


def test_charts_say_which_section_of_the_page_they_belong_to(run: toytf.Run) -> None:
    found = {name: figure.layout.meta for name, figure in charts(run).items()}
    told = found["accuracy"].pop("meanings"), found["recall"].pop("meanings")
    assert all(says for meanings in told for says in meanings.values())
    assert found["accuracy"] == {"section": "learning", "folded": False, "steps": True, "stars": False}
    assert found["recall"] == {"section": "memories", "folded": True, "steps": True, "stars": False}
