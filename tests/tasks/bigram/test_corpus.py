"""Character statistics: the table that ships, and a user's own text."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.bigram.config import SHAKESPEARE, BigramConfig
from tasks.bigram.corpus import BigramTable, count_bigrams, load_table
from tasks.bigram.task import BigramTask
from toytf.errors import UserError
from toytf.randomness import generator


def entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(np.where(p > 0, p, 1))).sum(-1)


@pytest.fixture(scope="module")
def table() -> BigramTable:
    return load_table(SHAKESPEARE, 65)


# The table that ships: facts counted once from the 42 files, to the digits given


def test_the_table_has_65_characters(table: BigramTable):
    assert len(table.characters) == len(set(table.characters)) == 65
    assert table.counts.shape == (65, 65)


def test_the_unigram_entropy_is_3_3286_nats(table: BigramTable):
    assert entropy(table.unigram) == pytest.approx(3.3286, abs=5e-5)


def test_the_conditional_entropy_is_2_4987_nats(table: BigramTable):
    assert entropy(table.bigram) @ table.unigram == pytest.approx(2.4987, abs=5e-5)


def test_1956_bigrams_occur(table: BigramTable):
    assert np.count_nonzero(table.counts) == 1956


def test_the_five_most_frequent_characters_are_those_of_the_language(table: BigramTable):
    assert table.characters[:5] == (" ", "e", "t", "o", "a")
    assert table.unigram[:5] == pytest.approx([0.1542, 0.0832, 0.0593, 0.0572, 0.0498], abs=5e-5)


def test_characters_are_ordered_by_frequency(table: BigramTable):
    assert (np.diff(table.unigram) <= 0).all()


def test_the_rows_are_distributions(table: BigramTable):
    assert table.unigram.sum() == pytest.approx(1)
    assert table.bigram.sum(1) == pytest.approx(np.ones(65))
    assert table.bigram.min() >= 0
    # Every pair but the last character of the text is a start and an end: π_u is all but stationary.
    assert table.unigram @ table.bigram == pytest.approx(table.unigram, abs=1e-6)


def test_fewer_characters_are_the_most_frequent_ones(table: BigramTable):
    small = load_table(SHAKESPEARE, 10)
    assert set(small.characters) == set(table.characters[:10])
    assert np.all(np.diff(small.unigram) <= 0)  # ordered by their own frequency
    where = [table.characters.index(character) for character in small.characters]
    assert np.array_equal(small.counts, table.counts[np.ix_(where, where)])


# Counting


def test_counts_are_those_of_adjacent_pairs():
    table = count_bigrams("abaab", 65)
    assert table.characters == ("a", "b")
    assert table.counts.tolist() == [[1, 2], [1, 0]]
    assert table.unigram.tolist() == [0.75, 0.25]


def test_rare_characters_and_carriage_returns_are_deleted_first():
    # With x and \r deleted, "a\rbxa" is "aba".
    table = count_bigrams("a\rbxabab", 2)
    assert table.characters == ("a", "b")
    assert table.counts.tolist() == [[0, 3], [2, 0]]


def test_a_character_that_nothing_follows_goes_on_by_frequency():
    table = count_bigrams("aab", 65)
    assert table.counts.tolist() == [[1, 1], [0, 0]]
    assert np.array_equal(table.bigram[1], table.unigram)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(text=st.text(alphabet="abcde \n\r☃", max_size=60), n_tokens=st.integers(1, 8))
def test_counting_equals_counting_in_python(text: str, n_tokens: int):
    kept = Counter(text.replace("\r", ""))
    ordered = sorted(kept, key=lambda c: (-kept[c], c))[:n_tokens]
    left = [c for c in text if c in ordered]
    pairs = Counter(pairwise(left))
    table = count_bigrams(text, n_tokens)
    assert table.characters == tuple(ordered)
    assert {
        (a, b): int(table.counts[i, j])
        for i, a in enumerate(table.characters)
        for j, b in enumerate(table.characters)
        if table.counts[i, j]
    } == dict(pairs)


# A user's own text


def test_a_users_text_makes_a_task_of_its_own_characters(tmp_path: Path):
    text = tmp_path / "mine.txt"
    text.write_text("the cat sat on the mat\n" * 20, encoding="utf-8")
    config = BigramConfig(kind="bigram", corpus=str(text), n_triggers=2, seq_len=32)
    task = BigramTask(config, torch.device("cpu"))
    # space, newline and a c e h m n o s t: fewer than the 65 that were allowed.
    assert sorted(task.token_names) == [*sorted("acehmnost"), "⏎", "␣"]
    batch = task.sample(64, generator(0, "batch"))
    assert batch.tokens.max() < 11
    follows = set(pairwise("the cat sat on the mat\n" * 2))
    names = {"⏎": "\n", "␣": " "}
    triggers = set(task.fixed_triggers.tolist())
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        for a, b in zip(tokens, targets, strict=True):
            if a not in triggers:
                pair = tuple(names.get(task.token_names[i], task.token_names[i]) for i in (a, b))
                assert pair in follows


def test_more_triggers_than_characters_is_the_users_error(tmp_path: Path):
    text = tmp_path / "short.txt"
    text.write_text("abab", encoding="utf-8")
    with pytest.raises(UserError, match="only 2 characters"):
        BigramTask(BigramConfig(kind="bigram", corpus=str(text), n_triggers=5), torch.device("cpu"))


def test_a_missing_text_is_named_in_the_error(tmp_path: Path):
    with pytest.raises(ValueError, match="no such text file"):
        BigramConfig(kind="bigram", corpus=str(tmp_path / "absent.txt"))


@pytest.mark.parametrize(
    ("content", "message"), [(b"\xff\xfe\x00", "UTF-8"), (b"a", "no two adjacent"), (b"", "no two")]
)
def test_a_text_that_cannot_be_used_is_the_users_error(tmp_path: Path, content: bytes, message: str):
    text = tmp_path / "bad.txt"
    text.write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_table(str(text), 65)


def test_a_text_that_has_changed_since_is_noticed(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be")
    config = BigramConfig(kind="bigram", corpus=str(text))
    assert BigramConfig(**config.model_dump()) == config
    text.write_text("that is the question")
    with pytest.raises(ValidationError, match="has changed since"):
        BigramConfig(**config.model_dump())
