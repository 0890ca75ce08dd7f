"""Recall against load, as curves of a tidy table, and where a curve breaks."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

LEARNED = "learned"
RULES = {
    "hebbian": "Hebbian matrix",
    "least_squares": "least squares",
    "bare": "trained on the pairs alone",
    "best": "best matrix found",
}
"""What the pairs are stored with besides training, on the same vectors and at the same rank."""

Points = Sequence[tuple[float, float]]
"""Load and recall."""

_CASE = ["seed", "setting", "size", "memory"]


def recalls(table: "pd.DataFrame") -> "pd.DataFrame":
    """Seed, setting, size, memory, rule, load and recall: one row for each way to store each memory of each case.

    load = pairs to hold / p_c,   recall = pairs recalled / pairs to hold

    p_c is the capacity if as many values compete as now. It is what the probe `limits` measures that is read here.
    """
    import pandas as pd

    table = table.reindex(columns=[*dict.fromkeys([*table.columns, *_CASE, "rule", "head", "measure"])])
    of_whole = table[table["head"].isna()]
    pairs = of_whole[of_whole["group"] == "pairs"]
    usage = of_whole[(of_whole["group"] == "utilisation") & of_whole["measure"].isna()]
    loads = usage[[*_CASE, "ideal"]].rename(columns={"ideal": "load"})
    own = pairs[pairs["rule"].isna()]
    columns = {LEARNED: "value", "hebbian": "hebbian", "best": "ideal"}
    by_rule = [own[[*_CASE, "limit"]].assign(rule=rule, recalled=own[column]) for rule, column in columns.items()]
    others = pairs[pairs["rule"].notna()].rename(columns={"value": "recalled"})
    limits = own[[*_CASE, "limit"]]
    by_rule.append(others[[*_CASE, "rule", "recalled"]].merge(limits, on=_CASE))
    counted = pd.concat(by_rule).merge(loads, on=_CASE)
    counted = counted.assign(recall=counted["recalled"] / (counted["limit"] * counted["load"]))
    bare = of_whole[of_whole["group"] == "bare"][[*_CASE, "value"]].rename(columns={"value": "recall"})
    found = pd.concat([counted.drop(columns=["recalled", "limit"]), bare.assign(rule="bare").merge(loads, on=_CASE)])
    return found.dropna(subset=["recall", "load"]).reset_index(drop=True)


def crossing(points: Points, level: float) -> float | None:
    """The first x, going up, at which a curve falls below a level, by linear interpolation between its points.

    None if it does not: because it never falls, or because it is below at the smallest x already.
    """
    ordered = sorted(points)
    for (x_0, y_0), (x_1, y_1) in zip(ordered, ordered[1:], strict=False):
        if y_1 < level <= y_0:
            return x_0 + (x_1 - x_0) * (y_0 - level) / (y_0 - y_1)
    return None


def finite(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those points that were measured."""
    return [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]
