"""The measurements of a run as a tidy table: one row a value; its factors and references are columns."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from toytf.measurement import KINDS, Quantity, is_reference, quantity_of, reference_name

if TYPE_CHECKING:
    import pandas as pd

    from toytf.runs.rows import Row

FIRST = ("seed", "step", "group", "name", "metric", "variant")
LAST = ("value", *KINDS)


def tidy(rows: Iterable["Row"], columns: Mapping[str, Quantity]) -> "pd.DataFrame":
    """Seed, step, group, name, metric (its flat name), variant, factors, value, ideal, theory and chance.

    variant: is it a variant of another metric, such as one head of several?

    What a value can be read against is written with some rows only: in others, the last one of their seed stands here.
    """
    import pandas as pd

    rows = list(rows)
    levels: dict[tuple[Any, str], float] = {
        (row["seed"], name): value for row in rows for name, value in row.items() if is_reference(name)
    }
    found: list[dict[str, Any]] = []
    factors: dict[str, None] = {}
    for row in rows:
        for metric, value in row.items():
            if metric in ("seed", "step") or is_reference(metric):
                continue
            quantity = columns.get(metric) or quantity_of(metric)
            factors |= dict.fromkeys(quantity.at)
            own = {kind: reference_name(kind, metric) for kind in KINDS}
            found.append(
                {
                    "seed": row["seed"], "step": row["step"], "group": quantity.group.name, "name": quantity.name,
                    "metric": metric, "variant": quantity.is_variant, **quantity.at, "value": value,
                    **{kind: row.get(name, levels.get((row["seed"], name))) for kind, name in own.items()},
                }
            )  # fmt: skip
    table = pd.DataFrame(found, columns=[*FIRST, *factors, *LAST])
    table[[*factors]] = table[[*factors]].convert_dtypes()  # whole numbers stay whole beside those that are missing
    flags = [factor for factor in factors if table[factor].dtype == "boolean"]
    table[flags] = table[flags].fillna(value=False).astype(bool)  # what is not said to be so is not so
    return table.astype({"variant": bool, **dict.fromkeys(LAST, float)})


def last_of_each(table: "pd.DataFrame") -> "pd.DataFrame":
    """The last value of every metric in every seed."""
    return table.drop_duplicates(["seed", "metric"], keep="last").drop(columns="step")


def over_seeds(table: "pd.DataFrame") -> "pd.DataFrame":
    """One row a metric: the mean of its last values over seeds, and their standard deviation as `spread`.

    A metric that some seed lacks is left out: a mean over those that happened to have it would mislead.
    """
    last = last_of_each(table)
    by_metric = last.groupby("metric", sort=False)
    means = by_metric[list(LAST)].mean()
    means["spread"] = by_metric["value"].std(ddof=1)
    means = means[by_metric["seed"].nunique() == last["seed"].nunique()]
    about = last.drop_duplicates("metric").set_index("metric").drop(columns=["seed", *LAST])
    return about.join(means, how="inner").reset_index()
