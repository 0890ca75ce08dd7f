"""The sheet of what a model knows, on sheets made by hand."""

from typing import Any

import numpy as np
import pytest

from toytf.views.blocks import block_names, block_size, block_sums
from toytf.views.facts import SHOWN, FactSheet, WrongFact

NAN = np.nan


def sheet(**changes: Any) -> FactSheet:
    """Five facts: three are known, Canada's capital is always wrong, Chad's in one draw of four."""
    fields = {
        "subjects": ("France", "Canada", "Chad"),
        "relations": ("capital", "language"),
        "answers": ("Paris", "Ottawa", "Ndjamena", "French"),
        "right": np.array([[0, 3], [1, 3], [2, -1]]),
        "said": np.array([[0, 3], [0, 3], [1, -1]]),
        "known": np.array([[1, 1], [0, 1], [0.75, NAN]]),
        "margin": np.array([[5, 3], [-2, 0.5], [0.125, NAN]]),
        "stored": np.array([[0, 1], [-1, 0], [-1, -1]]),
        "places": ("attention alone", "either"),
    }
    return FactSheet(**{**fields, **changes})  # type: ignore[arg-type]


def large(n_subjects: int, n_relations: int) -> FactSheet:
    """A third of the pairs is not asked, and a quarter of the others is wrong."""
    random, shape = np.random.default_rng(0), (n_subjects, n_relations)
    right = np.where(random.random(shape) < 2 / 3, 0, -1)
    known = np.where(right < 0, NAN, random.choice([0.5, 1, 1, 1], shape))
    return FactSheet(
        tuple(f"s{i}" for i in range(1, n_subjects + 1)),
        tuple(f"r{i}" for i in range(1, n_relations + 1)),
        ("a", "b"),
        right,
        np.where(known < 1, 1, right),
        known,
        known - 0.75,
        np.full(shape, -1),
    )


# Facts


def test_a_fact_is_known_if_every_draw_is_right() -> None:
    assert (sheet().n_known, sheet().n_facts) == (3, 5)


def test_wrong_facts_are_named_from_the_worst() -> None:
    wrong = sheet().wrong()
    assert wrong == [
        WrongFact("Canada", "capital", "Ottawa", "Paris", -2.0),
        WrongFact("Chad", "capital", "Ndjamena", "Ottawa", 0.125),
    ]
    assert str(wrong[0]) == "Canada, capital: says Paris, is Ottawa"
    assert sheet().wrong(1) == wrong[:1]
    assert sheet().wrong(0) == []


def test_what_is_not_a_number_is_wrong_and_comes_last() -> None:
    """A model that has diverged; a pair that is not asked stays out."""
    diverged = sheet(known=np.array([[0, 0], [0, 0], [0, NAN]]), margin=np.array([[NAN, 3], [-2, NAN], [NAN, NAN]]))
    assert [fact.subject for fact in diverged.wrong()] == ["Canada", "France", "France", "Canada", "Chad"]


def test_the_table_has_a_row_for_every_fact() -> None:
    table = sheet().table()
    assert [*table] == ["subject", "relation", "right", "said", "known", "margin", "stored"]
    assert table.loc[2].tolist()[:-1] == ["Canada", "capital", "Ottawa", "Paris", 0.0, -2.0]
    assert table["stored"].isna().tolist() == [False, False, True, False, True]
    assert table["stored"].value_counts().to_dict() == {"attention alone": 2, "either": 1}
    assert len(table) == sheet().n_facts
    nowhere = sheet(places=(), stored=np.full((3, 2), -1)).table()
    assert nowhere["stored"].isna().all()


# What is shown


def test_the_summary_counts_and_names_the_worst() -> None:
    summary = sheet()._repr_html_()
    assert "3 of 5 facts known" in summary
    assert summary.index("Canada") < summary.index("Chad")
    assert "France" not in summary
    assert "more" not in summary


def test_a_summary_of_many_wrong_facts_is_short() -> None:
    facts = large(40, 40)
    summary = facts._repr_html_()
    n_wrong = facts.n_facts - facts.n_known
    assert f"and {n_wrong - 10:,} more" in summary
    assert summary.count("<tr>") == 11


def test_who_knows_everything_has_no_table_of_mistakes() -> None:
    known = sheet(known=np.array([[1, 1], [1, 1], [1, NAN]]))
    assert known._repr_html_() == "<p>5 of 5 facts known</p>"


def test_names_are_not_markup() -> None:
    names = {
        "subjects": ("France", "<b>x</b>", "Chad"), "relations": ("<i>", "language"),
        "answers": ("<script>", "a & b", "Ndjamena", "French"),
    }  # fmt: skip
    summary = sheet(**names)._repr_html_()
    for name, escaped in {
        "<b>x</b>": "&lt;b&gt;x&lt;/b&gt;", "<i>": "&lt;i&gt;", "<script>": "&lt;script&gt;", "a & b": "a &amp; b",
    }.items():  # fmt: skip
        assert name not in summary
        assert escaped in summary


def test_the_figure_has_the_margin_of_every_fact() -> None:
    figure = sheet().figure()
    assert figure.layout.title.text.startswith("Logit of the right answer minus the best other one")
    np.testing.assert_array_equal(figure.data[0].z, sheet().margin)
    assert figure.data[0].customdata[1][0] == "Canada, capital"
    assert large(SHOWN, SHOWN).figure().layout.title.text == figure.layout.title.text


# More than can be drawn


@pytest.mark.parametrize("shape", [(65, 3), (3, 65), (200, 130), (513, 1), (64, 1000)])
def test_neighbours_taken_together_keep_the_totals(shape: tuple[int, int]) -> None:
    facts = large(*shape)
    heat = facts.figure().data[0]
    assert max(heat.z.shape) <= SHOWN
    rows, columns = (block_size(n, SHOWN) for n in shape)
    asked = block_sums(facts.asked, rows, columns)
    assert asked.sum() == facts.n_facts
    assert np.nansum(heat.z * asked) == pytest.approx(facts.n_known)
    assert (heat.zmin, heat.zmax) == (0, 1)


def test_blocks_are_called_by_their_ends() -> None:
    figure = large(512, 3).figure()
    assert figure.layout.title.text == (
        "Fraction of facts known, 8 subjects × 1 relation to a cell: green is all, red is none"
    )
    assert figure.data[0].customdata[0][1] == "s1 … s8, r2"
    assert figure.data[0].customdata[-1][0] == "s505 … s512, r1"
    assert block_names(("a", "b", "c"), 2) == ("a … b", "c")


def test_blocks_in_which_nothing_is_asked_stay_white() -> None:
    facts = large(128, 2)
    facts.right[:2], facts.known[:2] = -1, NAN
    values = facts.figure().data[0].z
    assert np.isnan(values[0, 0])
    assert not np.isnan(values[1:]).all()
