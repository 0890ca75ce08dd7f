"""Fact tables: their distributions, their entropies, and the files they are read from."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.factual.config import read_facts
from tasks.factual.table import UNKNOWN, FactTable, random_table, structured_table, table_of
from toytf.errors import UserError

COUNTRIES = """subject,relation,attribute
France,capital,Paris
France,currency,euro
Italy,capital,Rome
Italy,currency,euro
Japan,capital,Tokyo
Japan,currency,yen
"""


def file(folder: Path, content: str) -> Path:
    path = folder / "facts.csv"
    path.write_text(content, encoding="utf-8")
    return path


def read_table(path: Path) -> FactTable:
    return table_of(read_facts(path))


def by_hand(table: FactTable) -> dict[tuple[int, int], int]:
    return {(s, r): int(table.answers[s, r]) for s, r in table.pairs}


def entropy(counts: list[int]) -> float:
    p = np.array(counts) / sum(counts)
    return float(-(p * np.log(p)).sum())


def test_a_structured_table_has_one_answer_for_each_group_of_subjects() -> None:
    table = structured_table(16, 4, 8)
    assert all(table.answers[s, r] == 8 * r + s * 8 // 16 for s in range(16) for r in range(4))
    assert table.n_answers == 32
    assert table.conditional_entropy() == pytest.approx(math.log(8))
    assert table.entropy() == pytest.approx(math.log(32))


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 6), st.integers(0, 5), st.booleans())
def test_an_answer_of_a_random_table_is_in_the_set_of_its_relation(S: int, R: int, D: int, seed: int, shared: bool):
    table = random_table(S, R, D, seed, shared=shared)
    assert all(table.sets[r, a] for (_, r), a in by_hand(table).items())
    assert (table.sets.sum(1) == D).all()
    assert table.n_answers == (D if shared else R * D)
    assert (table.sets.sum(0) == (R if shared else 1)).all()


def test_answers_of_a_random_table_are_uniform_in_their_sets() -> None:
    """10⁴ draws among 4: each comes 2500 times up to five standard errors, 5 √(10⁴ · 3/16) = 217."""
    counts = np.bincount((random_table(100, 100, 4, seed=1).answers % 4).flatten())
    assert np.abs(counts - 2500).max() < 217


def test_another_seed_gives_another_table() -> None:
    first, second, again = (random_table(8, 8, 4, seed).answers for seed in (0, 1, 0))
    assert (first == again).all()
    assert (first != second).any()


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 9))
def test_knowing_the_relation_never_raises_the_entropy(S: int, R: int, seed: int) -> None:
    table = random_table(S, R, 4, seed, shared=True)
    assert table.conditional_entropy() <= table.entropy() + 1e-12


def test_entropies_are_those_of_the_table_not_of_its_sizes(tmp_path: Path) -> None:
    table = read_table(file(tmp_path, COUNTRIES))
    assert table.entropy() == pytest.approx(entropy([2, 1, 1, 1, 1]))  # euro comes twice
    assert table.conditional_entropy() == pytest.approx((entropy([1, 1, 1]) + entropy([2, 1])) / 2)


def test_distributions_of_subjects_and_relations_weigh_the_answers(tmp_path: Path) -> None:
    table = read_table(file(tmp_path, COUNTRIES))
    given = np.array([0.5, 0.25, 0.25]), np.array([0.8, 0.2])
    expected = {"Paris": 0.4, "euro": 0.15, "Rome": 0.2, "Tokyo": 0.2, "yen": 0.05}
    assert dict(zip(table.answer_names, table.answer_distribution(*given), strict=True)) == pytest.approx(expected)
    assert table.answers_given_relation(*given)[1] @ (np.array(table.answer_names) == "euro") == pytest.approx(0.75)
    assert table.answers_given_subject(*given)[0] @ (np.array(table.answer_names) == "Paris") == pytest.approx(0.8)


def test_a_file_keeps_its_names_and_their_order(tmp_path: Path) -> None:
    table = read_table(file(tmp_path, COUNTRIES))
    assert table.subject_names == ("France", "Italy", "Japan")
    assert table.relation_names == ("capital", "currency")
    assert table.answer_names == ("Paris", "euro", "Rome", "Tokyo", "yen")
    assert table.answers.tolist() == [[0, 1], [2, 1], [3, 4]]
    assert table.sets.tolist() == [[True, False, True, True, False], [False, True, False, False, True]]


def test_columns_spaces_empty_lines_and_repeated_facts_are_free(tmp_path: Path) -> None:
    content = "\ufeffattribute, subject ,relation\nParis,France,capital\n\n Paris , France , capital \n"
    table = read_table(file(tmp_path, content))
    assert (table.subject_names, table.relation_names, table.answer_names) == (("France",), ("capital",), ("Paris",))


def test_a_name_may_hold_a_comma(tmp_path: Path) -> None:
    table = read_table(file(tmp_path, 'subject,relation,attribute\n"Korea, South",capital,Seoul\n'))
    assert table.subject_names == ("Korea, South",)


def test_a_pair_that_a_file_does_not_mention_is_unknown_and_has_no_mass(tmp_path: Path) -> None:
    table = read_table(file(tmp_path, COUNTRIES.replace("Japan,currency,yen\n", "")))
    assert table.answers[2, 1] == UNKNOWN
    assert len(table.pairs) == 5
    assert table.pair_distribution()[2, 1] == 0
    assert table.pair_distribution().sum() == pytest.approx(1)
    assert table.conditional_entropy() == pytest.approx(3 / 5 * math.log(3))  # of two currencies, both are the euro


def test_a_table_can_be_restricted_to_some_names(tmp_path: Path) -> None:
    table = read_table(file(tmp_path, COUNTRIES)).restricted(["Japan", "France"], ["capital"])
    assert table.subject_names == ("Japan", "France")
    assert table.answer_names == ("Paris", "Tokyo")
    assert table.answers.tolist() == [[1], [0]]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "the file is empty; it should begin with the line subject,relation,attribute"),
        ("\n \n", "the file is empty"),
        ("subject,relation,attribute\n", "there are no facts below the first line"),
        ("France,capital,Paris\n", 'the first line does not have the column "subject"'),
        ("subject,relation,attribute,source\na,b,c,d\n", 'unknown column "source"'),
        ("subject,relation,attribute,subject\na,b,c,d\n", 'the first line repeats the column "subject"'),
        ('subject,relation,attribute\n"a\nb",x,1\nc,y\n', "line 4: expected 3 names, got ['c', 'y']"),
        ("subject,relation,attribute\na,b\n", "line 2: expected 3 names, got ['a', 'b']"),
        ("subject,relation,attribute\na,b,\n", "line 2: expected 3 names, got ['a', 'b', '']"),
        (
            COUNTRIES + "France,capital,Lyon\n",
            '"France, capital" has two answers, "Paris" in line 2 and "Lyon" in line 8: keep one of them',
        ),
    ],
)
def test_a_file_that_is_no_fact_table_is_answered_with_one_sentence(tmp_path: Path, content: str, says: str) -> None:
    path = file(tmp_path, content)
    with pytest.raises(UserError) as error:
        read_table(path)
    assert says in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "facts.csv"
    path.write_bytes(b"subject,relation,attribute\n\xff\xfe,b,c\n")
    with pytest.raises(UserError, match="cannot be read as a CSV file in UTF-8"):
        read_table(path)


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"subjects": ["Frnace"]}, 'no subject of the file is called "Frnace": did you mean "France"?'),
        ({"relations": ["capitol"]}, 'no relation of the file is called "capitol": did you mean "capital"?'),
    ],
)
def test_a_name_that_the_file_does_not_have_is_answered_with_the_nearest(
    tmp_path: Path, chosen: dict[str, list[str]], says: str
) -> None:
    with pytest.raises(UserError) as error:
        read_table(file(tmp_path, COUNTRIES)).restricted(**chosen)
    assert says in str(error.value)


def test_a_chosen_name_without_a_fact_is_refused() -> None:
    table = table_of([("a", "x", "1"), ("b", "y", "2")])
    with pytest.raises(UserError, match=r'task\.subjects: none of the chosen facts is about "b"'):
        table.restricted(relations=["x"])
    with pytest.raises(UserError, match=r'task\.relations: none of the chosen facts is about "y"'):
        table.restricted(["a"], ["x", "y"])


def test_restricting_keeps_the_order_that_is_given_whatever_the_gaps() -> None:
    table = table_of([("A", "x", "1"), ("B", "z", "2"), ("A", "y", "3"), ("B", "x", "4")])
    assert table.restricted().relation_names == ("x", "z", "y")
    chosen = table.restricted(["B", "A"], ["z", "y", "x"])
    assert (chosen.subject_names, chosen.relation_names) == (("B", "A"), ("z", "y", "x"))
    names = [[None if a == UNKNOWN else chosen.answer_names[a] for a in row] for row in chosen.answers]
    assert names == [["2", None, "4"], [None, "3", "1"]]
    assert [[chosen.answer_names[a] for a in np.flatnonzero(row)] for row in chosen.sets] == [["2"], ["3"], ["1", "4"]]
