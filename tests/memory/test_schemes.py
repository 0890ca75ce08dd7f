"""How strongly inputs are stored, from how often they were met."""

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from toytf.memory.schemes import Scheme, TopScheme, scheme_name, scheme_phrase, strengths

COUNTS = torch.tensor([5.0, 0.0, 2.0, 2.0, 1.0], dtype=torch.float64)


def made(given: object) -> Scheme:
    return TypeAdapter(Scheme).validate_python(given)


def stored(given: object, counts: torch.Tensor = COUNTS, samples: int | None = 10, d: int = 16) -> list[float]:
    return strengths(made(given), counts, samples=samples, alpha=2.0, d=d).tolist()


def test_each_scheme_stores_what_its_formula_says() -> None:
    assert stored("counts") == pytest.approx([0.5, 0, 0.2, 0.2, 0.1])
    assert stored("seen") == [1, 0, 1, 1, 1]
    assert stored({"kind": "at_least", "count": 2}) == [1, 0, 1, 1, 0]
    assert stored({"kind": "power", "rho": 0.5}) == pytest.approx([0.5**0.5, 0, 0.2**0.5, 0.2**0.5, 0.1**0.5])
    assert stored("power") == pytest.approx([0.5**0.25, 0, 0.2**0.25, 0.2**0.25, 0.1**0.25])


def test_a_threshold_takes_the_most_frequent_and_of_equal_ones_the_earlier() -> None:
    assert stored({"kind": "top", "share": 0.125}, d=16) == [1, 0, 1, 0, 0]


def test_a_threshold_stores_one_input_at_least_and_none_that_was_not_met() -> None:
    assert stored({"kind": "top", "share": 0.125}, d=2) == [1, 0, 0, 0, 0]
    assert stored({"kind": "top", "share": 100}) == [1, 0, 1, 1, 1]  # more than there are


def test_a_threshold_may_grow_with_the_square_of_the_dimension() -> None:
    assert TopScheme(share=1 / 64, squared=True).stored(64) == 64
    assert TopScheme(share=1 / 8).stored(64) == 8
    assert [TopScheme(share=share).stored(100) for share in (0.57, 0.29, 0.299)] == [57, 29, 29]


def test_without_samples_nothing_is_stored_and_with_infinitely_many_all_is() -> None:
    nothing = torch.zeros(3, dtype=torch.float64)
    for scheme in ("counts", "seen", "power", "top", "at_least"):
        assert stored(scheme, nothing, samples=0) == [0, 0, 0]
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    assert stored("counts", p, samples=None) == p.tolist()
    assert stored("at_least", p, samples=None) == stored("seen", p, samples=None) == [1, 1, 1]


def test_names_tell_schemes_apart() -> None:
    given = ["counts", "seen", "power", "top", "at_least", {"kind": "power", "rho": 0.5}, {"kind": "top", "share": 2}]
    given.append({"kind": "top", "squared": True})
    names = [scheme_name(made(one)) for one in given]
    assert names == ["counts", "seen", "power_best", "top0.125d", "at_least3", "power0.5", "top2d", "top0.125d2"]


@pytest.mark.parametrize(
    ("share", "size"), [(0.125, "d/8"), (0.0834, "d/12"), (0.3, "0.3 d"), (1, "1 d"), (2, "2 d"), (0.7, "0.7 d")]
)
def test_a_share_of_the_dimension_is_a_fraction_if_it_is_one(share: float, size: str) -> None:
    assert scheme_phrase(made({"kind": "top", "share": share})) == f"only the {size} most frequent"


def test_the_power_one_has_a_name_of_its_own() -> None:
    with pytest.raises(ValidationError, match="write counts"):
        made({"kind": "power", "rho": 1})
