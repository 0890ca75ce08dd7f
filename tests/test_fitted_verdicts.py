"""Values that are fitted to all seeds together: their ± is the error of the fit, in verdicts as in tables."""

import pandas as pd
import pytest

from toytf.claims import Expectation, compare
from toytf.measurement import Group, as_row
from toytf.report.table import summary_table

POWER = Group("power", "Power", variants=("error",), pooled=True)


@pytest.mark.parametrize(("value", "verdict"), [(-0.28, "confirmed"), (-0.35, "not reached"), (-0.6, "refuted")])
def test_a_fit_to_all_seeds_is_read_against_its_own_error(value: float, verdict: str) -> None:
    """−0.25 ± 0.06 in every seed: no spread over seeds, and yet a doubt of t(0.975, 99) · 0.06 = 0.119."""
    seeds = pd.DataFrame({"power": [-0.25] * 100, "power/error": [0.06] * 100})
    found = compare(Expectation(run="r", metric="power", comparison="==", value=value, tolerance=0.15), seeds)
    assert (found.verdict, found.spread) == (verdict, 0.06)


def test_a_fit_in_every_seed_has_the_spread_of_seeds() -> None:
    seeds = pd.DataFrame({"power": [-0.25, -0.24, -0.26], "power/error": [0.06] * 3})
    found = compare(Expectation(run="r", metric="power", comparison="<", value=0), seeds)
    assert found.spread == pytest.approx(0.01)


def test_a_table_shows_the_error_of_a_fit_to_all_seeds_in_place_of_a_spread_that_is_none() -> None:
    measured = [POWER.measurement(-0.25), POWER.measurement(0.06, error=True)]
    summary = {**as_row(measured), "power/std": 0.0, "power/error/std": 0.0}
    (section,) = summary_table(summary, {one.flat: one.quantity for one in measured}, variants=False)
    assert [row.cells()[1] for row in section.rows] == ["-0.250 ± 0.060"]
