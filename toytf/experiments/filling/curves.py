"""Recall against load, as curves of a tidy table, and where a curve breaks."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

LEARNED, ACCURACY = "learned", "accuracy"
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


def recalls(table: "pd.DataFrame", role: str) -> "pd.DataFrame":
    """Seed, setting, size, memory, rule, load and recall: one row for each way to store each memory of each case.

    The rule `accuracy` is none: there, recall is the accuracy of the whole model in a role.

    load = pairs to hold / p_c,   recall = pairs recalled / pairs to hold

    p_c is the capacity if as many values compete as now. It is what the probe `limits` measures that is read here; a
    memory in which any number of pairs fits has no load, and is left out.
    """
    import pandas as pd

    table = table.reindex(
        columns=[*dict.fromkeys([*table.columns, *_CASE, "rule", "head", "measure", "role", "quantity"])]
    )
    of_whole = table[table["head"].isna()]
    pairs = of_whole[of_whole["group"] == "pairs"]
    usage = of_whole[of_whole["group"] == "utilisation"]
    loads, capacities = (
        usage[usage["measure"] == measure][[*_CASE, "value"]].rename(columns={"value": measure})
        for measure in ("load", "capacity")
    )
    own = pairs[pairs["rule"].isna()]
    columns = {LEARNED: "value", "hebbian": "hebbian", "best": "ideal"}
    by_rule = [own[_CASE].assign(rule=rule, recalled=own[column]) for rule, column in columns.items()]
    others = pairs[pairs["rule"].notna()].rename(columns={"value": "recalled"})
    by_rule.append(others[[*_CASE, "rule", "recalled"]])
    counted = pd.concat(by_rule).merge(loads, on=_CASE).merge(capacities, on=_CASE)
    counted = counted.assign(recall=counted["recalled"] / (counted["capacity"] * counted["load"]))
    counted = counted.drop(columns=["recalled", "capacity"])
    alone = table[table["group"].isin(["bare", "most"])]
    alone = alone.assign(rule=alone["group"].replace("most", "best"))[[*_CASE, "rule", "value"]].merge(loads, on=_CASE)
    accurate = (table["group"] == "eval") & (table["role"] == role) & (table["quantity"] == "accuracy")
    of_model = table[accurate].assign(rule=ACCURACY)[[*_CASE[:-1], "rule", "value"]].merge(loads, on=_CASE[:-1])
    found = pd.concat([counted, *(part.rename(columns={"value": "recall"}) for part in (alone, of_model))])
    of_matrices = found[found["rule"] != ACCURACY].assign(rule="best")  # the best that was found is none below another
    found = pd.concat([found, of_matrices]).dropna(subset=["recall", "load"])
    return found.groupby([*_CASE, "rule", "load"], sort=False)["recall"].max().reset_index()


def learned_recalls(table: "pd.DataFrame", role: str) -> "pd.DataFrame":
    """Seed, setting, size, memory and recall of what was learned, also of memories that have no load.

    Of those it is the fraction of margins above 0.
    """
    import pandas as pd

    found = recalls(table, role)
    found = found[found["rule"] == LEARNED]
    table = table.reindex(columns=[*dict.fromkeys([*table.columns, *_CASE, "head", "measure"])])
    lost = table[(table["group"] == "margin") & (table["measure"] == "negative") & table["head"].isna()]
    rest = lost[~lost["memory"].isin(found["memory"])]
    columns = [*_CASE, "recall"]
    return pd.concat([found[columns], rest.assign(recall=1 - rest["value"])[columns]])


def crossing(points: Points, level: float) -> float | None:
    """The first x, going up, at which a curve falls below a level, by linear interpolation between its points.

    None if it does not: because it never falls, or because it is below at the smallest x already.
    """
    ordered = sorted(points)
    for (x_0, y_0), (x_1, y_1) in pairwise(ordered):
        if y_1 < level <= y_0:
            return x_0 + (x_1 - x_0) * (y_0 - level) / (y_0 - y_1)
    return None


def finite(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those points that were measured."""
    return [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]
