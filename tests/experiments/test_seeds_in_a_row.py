"""Seeds in a row: `0..99` in place of a hundred numbers."""

import pytest

import toytf
from toytf.errors import UserError


def test_seeds_in_a_row_are_the_same_as_a_list_of_them() -> None:
    short, long = (toytf.load_config("quickstart", {"seeds": seeds}) for seeds in ("3..6", [3, 4, 5, 6]))
    assert short == long
    assert toytf.load_config("quickstart", ["seeds=0..0"]).seeds == (0,)


@pytest.mark.parametrize("wrong", ["5..3", "0..10000", "1...3", "a..b", "-2..3", "0..99999999999999999999"])
def test_what_is_no_row_of_seeds_is_refused(wrong: str) -> None:
    with pytest.raises(UserError, match="seeds = "):
        toytf.load_config("quickstart", {"seeds": wrong})
