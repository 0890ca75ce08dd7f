"""The experiment fact_grid: which models learn a table."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import toytf
from tasks.factual.grid.config import FactGridConfig
from tasks.factual.grid.experiment import boundary_places, paper_boundary
from tests.tasks.factual.small_trainings import CHANGES, SMALL, values

if TYPE_CHECKING:
    from conftest import EndsTheSame, Refused

GRID: dict[str, Any] = {
    "experiment": "fact_grid",
    "n_subjects": 4,
    "n_relations": 4,
    "n_answers": 2,
    "d_model": 4,
    "d_head": 2,
    "heads": [4, 1],
    "widths": [0, 16, 8],
    "seeds": [0, 1],
    **SMALL,
}

PAPER = {"n_subjects": 32, "n_relations": 32, "n_answers": 8, "d_model": 32, "d_head": 8}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    return toytf.run(GRID, out=tmp_path_factory.mktemp("grid") / "run")


def test_every_cell_has_an_accuracy_and_more_room_learns_more(grid: toytf.Run) -> None:
    names = {f"accuracy/H{H}_m{m}" for H in (1, 4) for m in (0, 8, 16)}
    assert names == {name for name in grid.summary if not name.endswith("/std")}
    assert grid.summary["accuracy/H4_m16"] > grid.summary["accuracy/H1_m0"] + 0.1


# The boundary of the paper


def test_the_boundary_is_that_of_the_paper_scaled_like_facts_and_attention() -> None:
    paper = FactGridConfig.model_validate({**GRID, **PAPER})
    corner, *_, end = paper_boundary(paper)
    assert corner == (1280, 1660)
    assert end == (4600, 0)
    # 1024 facts over the parameters 4 x + 2 y there: hidden units store twice as much as attention alone.
    assert 1024 / (4 * corner[0] + 2 * corner[1]) == pytest.approx(0.121, abs=0.001)
    assert 1024 / (4 * end[0]) == pytest.approx(0.056, abs=0.001)
    quarter = FactGridConfig.model_validate({**GRID, **PAPER, "n_subjects": 16, "n_relations": 16, "d_model": 16})
    assert paper_boundary(quarter)[0] == (320, 415)
    for other in ({"d_model": 8}, {"n_subjects": 5}, {"n_answers": 4}):
        assert paper_boundary(FactGridConfig.model_validate({**GRID, **PAPER, **other})) == []


def test_the_boundary_is_drawn_among_the_cells() -> None:
    config = FactGridConfig.model_validate({**GRID, **PAPER})
    (wall, top), corner, *_, end = boundary_places(config, [1, 5, 10, 20], [1, 32, 64])
    assert (wall, top) == (1, 2.5)  # H = 5 is the second column
    assert corner == pytest.approx((1, 1 + (1660 / 32 - 32) / 32))
    assert end == pytest.approx((2 + (4600 / 256 - 10) / 10, -1 / 31))  # m = 0 is just below the row m = 1
    assert boundary_places(config, [1, 2], [1, 32]) == []  # all of it is to the right
    at, up = zip(*boundary_places(config, [12, 16], [1, 128]), strict=True)  # the wall is to the left
    assert sorted(at) == list(at)
    assert sorted(up, reverse=True) == list(up)
    assert up[0] < 0.5


# The run


def test_the_figure_is_drawn(grid: toytf.Run) -> None:
    assert [path.stem for path in (grid.directory / "figures").glob("*.json")] == ["accuracy_grid"]


def test_a_resumed_run_ends_the_same(grid: toytf.Run, ends_the_same: "EndsTheSame") -> None:
    for rows in (3, len(grid.history) - 1):
        ends_the_same(grid, rows)


GRID_CHANGES = {
    "n_subjects": 5,
    "n_relations": 5,
    "n_answers": 3,
    "d_model": 5,
    "d_head": 1,
    "heads": [2],
    "widths": [4],
}


def test_the_tables_of_changes_have_every_field() -> None:
    others = {"experiment", "device", "threads", "logging"}
    assert {*CHANGES, *GRID_CHANGES} == set(FactGridConfig.model_fields) - others


@pytest.mark.parametrize("field", [*CHANGES, *GRID_CHANGES])
def test_every_field_changes_what_the_grid_measures(field: str, grid: toytf.Run, tmp_path: Path) -> None:
    small = {**GRID, "heads": [4], "widths": [0], "seeds": [0]}
    changed = toytf.run({**small, field: {**CHANGES, **GRID_CHANGES}[field]}, out=tmp_path / "run")
    assert values(changed, "accuracy")[0] != values(grid, "accuracy")[0]  # of four heads without hidden units, seed 0


MISTAKES = [
    ("heads=[2,2]", ["heads: 2 is listed twice"]),
    ("widths=[-1]", ["widths.0 = -1", "greater than or equal to 0"]),
]


@pytest.mark.parametrize(("override", "says"), MISTAKES, ids=[mistake[0] for mistake in MISTAKES])
def test_a_mistake_is_answered_with_one_line(override: str, says: list[str], refused: "Refused") -> None:
    refused("experiment: fact_grid\nheads: [2]\nwidths: [4]\n", [override], says)
