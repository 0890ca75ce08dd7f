"""Numbers in the sentences at the end of a run: short, honest about rounding, beside what they are read against."""

import math

import pytest

from toytf.report.story import against, amount, percent, short, told


@pytest.mark.parametrize(
    ("value", "spread", "said"),
    [
        (0.9837, None, "98.4 %"),
        (1.0, None, "100 %"),
        (0.0, None, "0 %"),
        (0.9997, None, "> 99.9 %"),  # not all, so it is not said to be all
        (0.0004, None, "0.04 %"),
        (0.9837, 0.0123, "98.4 ± 1.2 %"),
        (0.9837, 0.0004, "98.4 ± 0.1 %"),  # a spread is never rounded to none
        (1.0, 0.0, "100 %"),
        (0.9999, 0.0001, "99.99 ± 0.01 %"),
        (1 - 1e-9, 1e-8, "> 99.9 %"),
        (0.1, 1.7e-17, "10.0 %"),  # equal values, but for rounding
        (0.5, math.nan, "50.0 %"),
        (math.nan, None, "nan %"),
    ],
)
def test_a_fraction_is_said_in_percent(value: float, spread: float | None, said: str) -> None:
    assert percent(value, spread) == said


@pytest.mark.parametrize(
    ("value", "spread", "said"),
    [
        (61.679, None, "61.7"),
        (1696.4, None, "1696"),
        (2.0794, None, "2.08"),
        (1.0, None, "1"),
        (64.75, 3.304, "65 ± 3"),
        (12.382, 0.572, "12.4 ± 0.6"),
        (563.25, 22.6, "563 ± 23"),
        (50.0, 0.0, "50"),
        (0.1, 1.7e-17, "0.1"),
        (0.1, math.nan, "0.1"),
        (0.1, math.inf, "0.1"),
        (math.nan, 0.1, "nan"),
    ],
)
def test_a_number_has_the_digits_that_its_spread_leaves_sure(value: float, spread: float | None, said: str) -> None:
    assert short(value, spread) == said


def test_a_metric_is_told_beside_what_it_can_be_read_against() -> None:
    summary = {"stored/d64": 563.2, "stored/d64/std": 3.1, "theory/stored/d64": 560.4, "chance/stored/d64": 1.0}
    assert told(summary, "stored/d64") == "563 ± 3 (theory 560, chance 1)"
    assert amount(summary, "stored/d64") + against({}, "stored/d64") == "563 ± 3"
