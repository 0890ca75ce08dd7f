"""Drawings of a training of `fact_dynamics`, from its tidy table: curves, and when theory expects the stages."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tasks.factual.dynamics.config import FactDynamicsConfig
from tasks.factual.dynamics.measures import DISTANCE, LOSS, PROBABILITY, STAGE
from toytf import theory
from toytf.curves import curves
from toytf.figures import fractions, scaling_curves, series
from toytf.task import FLOOR
from toytf.tidy import over_seeds

PLACES = {
    "right": "the right answer",
    "same_relation": "other answers of the relation",
    "same_subject": "other answers of the subject",
    "elsewhere": "all others",
}
FLOORS = {"marginal": "H(a)", "relation_only": "H(a|r)", "subject_only": "H(a|s)"}
STAGES = {"marginal": "frequencies", "relation": "relations", "subject": "subjects"}

MAX_SHOWN = 13
"""Steps in the table of probabilities."""


def losses(config: FactDynamicsConfig, table: pd.DataFrame, expected: Mapping[str, float]) -> Any:
    """The losses of the fact and its parts, the levels of models that know less, and expected stages."""
    sizes = config.n_subjects, config.n_relations, config.n_answers
    title = f"Losses; theory: {'relations' if theory.relations_first(*sizes) else 'subjects'} first"
    rows = table[(table["group"] == LOSS.name) & (table["quantity"] == "loss")]
    floors = over_seeds(table[table["group"] == FLOOR.name])  # measured with the last step
    entropies = {} if floors.empty else dict(zip(floors["heuristic"], floors["value"], strict=True))
    levels = {"ln|A|": math.log(config.n_relations * config.n_answers)}
    for heuristic, label in FLOORS.items():
        is_level = heuristic != "marginal" or config.table == "random"  # else all answers come equally often
        if is_level and heuristic in entropies:
            levels[label] = float(entropies[heuristic])
    return _over_steps(rows, title, expected, {f"{label} = {level:.3f}": level for label, level in levels.items()})


def distances(config: FactDynamicsConfig, table: pd.DataFrame, expected: Mapping[str, float]) -> Any:
    """How far the answers are from those of a model that knows only one part."""
    title = "Distance of p̂ from p(a|r) and p(a|s)" + (" and p(a)" if config.table == "random" else "")
    rows = table[table["group"] == DISTANCE.name]
    if config.table == "structured":
        rows = rows[rows["part"] != "marginal"]
    return _over_steps(rows, title, expected, {})


def probabilities(table: pd.DataFrame) -> Any:
    """Where the probability lies: mean over seeds, at evenly spaced evaluations."""
    rows = table[table["group"] == PROBABILITY.name]
    means = rows.groupby(["step", "place"])["value"].mean().unstack()[[*PLACES]]
    shown = means.iloc[np.unique(np.linspace(0, len(means) - 1, MAX_SHOWN).round().astype(int))]
    columns = {f"{step}": list(values) for step, values in zip(shown.index, shown.to_numpy(), strict=True)}
    figure = fractions(columns, list(PLACES.values()), "Which answers get the probability")
    return figure.update_xaxes(type="category", title="step")


def by_scale(table: pd.DataFrame) -> Any:
    """Measured and predicted stages against the initial scale, for those that came."""
    rows = over_seeds(table)
    rows = rows[(rows["group"] == STAGE.name) & rows["part"].isin(STAGES)]
    order = rows["part"].map([*STAGES].index)
    rows = rows.assign(order=order).sort_values(["alpha", "order"])
    found = series(rows, "alpha", lambda row: STAGES[row.part])
    return scaling_curves(found, "When each part is learned", x="initial weights α", y="step", guides={}, log_y=False)


def _over_steps(rows: pd.DataFrame, title: str, expected: Mapping[str, float], levels: Mapping[str, float]) -> Any:
    """Every metric over the steps, and vertical lines where theory expects a stage."""
    wide = rows.pivot(index=["seed", "step"], columns="metric", values="value").reset_index()
    figure = curves(wide, rows["metric"].unique().tolist(), title, chance={}, levels=levels)
    for i, (part, label) in enumerate(STAGES.items()):
        if part in expected:
            text = {
                "text": f"theory: {label}", "font_size": 10, "bgcolor": "white", "yanchor": "top", "y": 1 - 0.08 * i,
            }  # fmt: skip
            line = {"dash": "dot", "width": 1.5, "color": "black"}
            figure.add_vline(x=expected[part], line=line, annotation=text)
    return figure
