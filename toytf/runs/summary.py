"""From the rows of a run to its summary: last values, onsets, mean and spread over seeds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from toytf.measurement import Group, Quantity, flat, is_reference, quantity_of, reference_name, spread_name

if TYPE_CHECKING:
    import pandas as pd

ONSET_ABOVE_CHANCE = 0.1
HALFWAY = 0.5

ONSET = Group(
    "onset", "Step of onset", "Step from which on this recall stays more than 0.1 above chance; the smaller, the "
    "earlier it is learned.", format="whole", headline=(),
)  # fmt: skip
HALFWAY_STEP = Group(
    "halfway", "Step halfway to the ideal", "Step of the first evaluation at which this metric is halfway from its "
    "first value to its ideal; the smaller, the earlier it is learned.", format="whole", place="full", headline=(),
)  # fmt: skip


def moments(columns: Mapping[str, Quantity]) -> dict[str, tuple[str, Quantity]]:
    """The steps that a summary adds, by flat name: the metric each is about, and what it is itself."""
    found = {}
    for name, about in columns.items():
        if about.group.timed:
            group = ONSET if about.group.timed == "onset" else HALFWAY_STEP
            quantity = Quantity(replace(group, place="full") if about.is_variant else group, name)
            found[flat(quantity)] = (name, quantity)
    return found


def described(summary: Mapping[str, float], columns: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """What every metric of a summary is about, as far as it is known; not spreads, and what to read them against."""
    steps = {name: quantity for name, (_, quantity) in moments(columns).items()}
    spreads = {spread_name(name) for name in summary}
    order = [name for name in (*columns, *steps) if name in summary]
    others = [name for name in summary if not is_reference(name) and name not in spreads]
    return {
        name: columns.get(name) or steps.get(name) or quantity_of(name) for name in dict.fromkeys([*order, *others])
    }


def by_seed(history: "pd.DataFrame", columns: Mapping[str, Quantity]) -> "pd.DataFrame":
    """One row per seed: every metric's last value, `onset/<metric>` and `halfway/<metric>` of groups that are timed.

    The onset is the step from which on a metric stays 0.1 above chance (`_onset`); halfway is the first evaluation at
    which an accuracy or loss has gone half its way from the first one to the ideal. A seed in which that never happens
    has none, and a run of no steps has neither.
    """
    import pandas as pd

    seeds = history.groupby("seed")
    last = seeds.last().drop(columns="step")
    steps = {}
    for moment, (name, quantity) in moments(columns).items() if history["step"].max() > 0 else ():
        level = reference_name("chance" if quantity.group.name == ONSET.name else "ideal", name)
        if name not in last.columns or level not in last.columns:
            continue
        if quantity.group.name == ONSET.name:
            steps[moment] = _onset(history, name, last[level])
            continue
        goal = history["seed"].map(last[level])
        start = history["seed"].map(seeds[name].first())
        worse = start > goal if columns[name].at.get("quantity") == "loss" else start < goal
        there = ((history[name] - start) / (goal - start) >= HALFWAY) & worse
        steps[moment] = history[there].groupby("seed")["step"].min()
    return pd.concat([last, pd.DataFrame(steps, index=last.index)], axis=1)


def _onset(history: "pd.DataFrame", metric: str, chance: "pd.Series") -> "pd.Series":
    """The first evaluation from which a metric stays more than 0.1 above chance to the end, of seeds with such a one.

    That before the first step does not count: a matrix of few pairs recalls some by luck before it has learned any.
    """
    seen = history[history["step"] > 0].dropna(subset=metric)
    is_below = seen[metric] <= seen["seed"].map(chance) + ONSET_ABOVE_CHANCE
    last_below = seen[is_below].groupby("seed")["step"].max()
    stays = seen["step"] > seen["seed"].map(last_below).fillna(0)
    return seen[stays].groupby("seed")["step"].min()


def summarise(history: "pd.DataFrame", columns: Mapping[str, Quantity]) -> dict[str, float]:
    """Means over seeds, and with several seeds the standard deviation as `<metric>/std`.

    A metric that some seed lacks is left out: a mean over those that happened to have it would mislead.
    """
    seeds = by_seed(history, columns).dropna(axis=1)
    summary = {str(name): float(seeds[name].mean()) for name in seeds.columns}
    if len(seeds) > 1:
        summary |= {spread_name(str(name)): float(seeds[name].std(ddof=1)) for name in seeds.columns}
    return dict(sorted(summary.items()))
