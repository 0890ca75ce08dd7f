"""The names of metrics, and from the rows of a run to its summary: last values, onsets, mean and spread over seeds."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

ONSET_ABOVE_CHANCE = 0.1
HALFWAY = 0.5

REFERENCES = ("ideal", "theory", "chance")
"""What a metric can be read against: `ideal/<metric>` and so on."""


def on_test(name: str, test: str) -> str:
    """The name of a metric on a test: `eval@clean/in_context_accuracy`, `ideal/eval@clean/in_context_accuracy`."""
    first, _, rest = name.partition("/")
    return f"{first}/{on_test(rest, test)}" if first in REFERENCES else f"{first}@{test}/{rest}"


def by_seed(history: "pd.DataFrame") -> "pd.DataFrame":
    """One row per seed: every metric's last value, `onset/<recall>` and `halfway/<accuracy or loss>`.

    The onset is the first evaluation at which a recall exceeds chance by 0.1; halfway is the first at which an accuracy
    or loss has gone half its way from the first evaluation to the ideal. A seed in which that never happens has none,
    and a run of no steps has neither.
    """
    import pandas as pd

    seeds = history.groupby("seed")
    last = seeds.last().drop(columns="step")
    onsets = {}
    for name in last.columns if history["step"].max() > 0 else ():
        chance = f"chance/{name}"
        if chance in last.columns and name.startswith("recall/"):
            level = history["seed"].map(last[chance]) + ONSET_ABOVE_CHANCE
            onsets[f"onset/{name}"] = history[history[name] > level].groupby("seed")["step"].min()
        ideal = f"ideal/{name}"
        if ideal in last.columns and name.startswith(("eval/", "eval@")):
            start, goal = (history["seed"].map(values) for values in (seeds[name].first(), last[ideal]))
            worse = start > goal if name.endswith("_loss") else start < goal
            there = (history[name] - start) / (goal - start) >= HALFWAY
            onsets[f"halfway/{name}"] = history[there & worse].groupby("seed")["step"].min()
    return pd.concat([last, pd.DataFrame(onsets, index=last.index)], axis=1)


def summarise(history: "pd.DataFrame") -> dict[str, float]:
    """Means over seeds, and with several seeds the standard deviation as `<metric>/std`.

    A metric that some seed lacks is left out: a mean over those that happened to have it would mislead.
    """
    seeds = by_seed(history).dropna(axis=1)
    summary = {str(name): float(seeds[name].mean()) for name in seeds.columns}
    if len(seeds) > 1:
        summary |= {f"{name}/std": float(seeds[name].std(ddof=1)) for name in seeds.columns}
    return dict(sorted(summary.items()))
