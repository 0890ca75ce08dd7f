"""Words in sentences: one is not several, and the last of several has its joint."""

from toytf.words import counted, listed


def test_what_is_counted_is_one_or_several() -> None:
    assert [counted(n, "seed") for n in (0, 1, 3, 1024)] == ["0 seeds", "1 seed", "3 seeds", "1,024 seeds"]


def test_words_are_listed_with_a_joint_before_the_last() -> None:
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"], "or")] == ["a", "a and b", "a, b or c"]
