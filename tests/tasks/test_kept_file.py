"""Tables of users: what a CSV file may be, and the file that a run keeps."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.kept_file import KeptFile, one_answer_each, read_table
from toytf.errors import UserError

COLUMNS = ("input", "answer")
KEPT = KeptFile("mine.json", "pairs", COLUMNS, lambda path: read_table(path, COLUMNS, "pairs").rows)


def file(folder: Path, content: str) -> Path:
    path = folder / "mine.csv"
    path.write_text(content, encoding="utf-8")
    return path


def test_columns_come_in_any_order_and_optional_ones_last(tmp_path: Path) -> None:
    table = read_table(file(tmp_path, "weight,answer,input\n3,b,a\n\n4,d,c\n"), COLUMNS, "pairs", optional=["weight"])
    assert table.rows == [("a", "b", "3"), ("c", "d", "4")]
    assert table.lines == [2, 4]
    table = read_table(file(tmp_path, "answer,input\nb,a\n"), COLUMNS, "pairs", optional=["weight"])
    assert table.rows == [("a", "b")]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "the file is empty; it should begin with the line input,answer or input,answer,weight"),
        ("input\na\n", 'does not have the column "answer"'),
        ("input,answer,weight,weight\na,b,1,1\n", 'repeats the column "weight"'),
        ("input,answer,wait\na,b,1\n", 'unknown column "wait"'),
        ("input,answer\n", "there are no pairs below the first line"),
        ("input,answer,weight\na,b\n", "line 2: expected 3 names"),
        ("input,answer\na,\n", "line 2: expected 2 names"),
    ],
)
def test_what_is_no_such_table_is_said_in_a_sentence(content: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        read_table(file(tmp_path, content), COLUMNS, "pairs", optional=["weight"])
    assert says in str(refused.value) and "mine.csv" in str(refused.value)


@given(st.lists(st.tuples(st.text(), st.text() | st.floats(allow_nan=False, allow_infinity=False) | st.none())))
def test_what_a_run_keeps_is_read_again(rows: list[tuple[object, ...]]) -> None:
    content = KEPT.content(rows)
    assert [tuple(row) for row in json.loads(content)] == rows


def test_a_kept_file_must_be_what_it_was(tmp_path: Path) -> None:
    rows = [("a", "b"), ("c", "d")]
    (tmp_path / "mine.json").write_bytes(KEPT.content(rows))
    named = {**KEPT.reference(rows), "file": str(tmp_path / "mine.json")}
    assert KEPT.read(named) == [["a", "b"], ["c", "d"]]
    (tmp_path / "mine.json").write_bytes(KEPT.content(rows[:1]))
    with pytest.raises(ValueError, match="has changed since the run began"):
        KEPT.read(named)
    (tmp_path / "mine.json").unlink()
    with pytest.raises(ValueError, match="this file has the pairs of the run"):
        KEPT.read(named)
    with pytest.raises(ValueError, match=r"a list of pairs, or \{file: mine\.json, sha256: …\}"):
        KEPT.read({"file": "other.json", "sha256": "0"})


def test_rows_and_files_are_told_apart(tmp_path: Path) -> None:
    assert KEPT.read([["a", "b"]]) == [["a", "b"]]
    assert KEPT.read(str(file(tmp_path, "input,answer\na,b\n"))) == [("a", "b")]
    with pytest.raises(ValueError, match="no such file: give the path of a CSV file with the columns input, answer"):
        KEPT.read(str(tmp_path / "nowhere.csv"))
    with pytest.raises(ValueError, match="cannot be read"):
        KEPT.read("~nobody_of_this_name/mine.csv")


def test_a_question_has_one_answer() -> None:
    rows = (("a", "x", "1"), ("a", "y", "2"), ("a", "x", "1"))
    assert one_answer_each(rows, 2) is rows
    with pytest.raises(ValueError, match=r'"a" has two answers, "x" in line 2 and "y" in line 3: keep one of them'):
        one_answer_each(rows, 1, lines=[2, 3, 4])
