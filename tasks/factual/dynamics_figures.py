"""The figures of the experiment `fact_dynamics`: the curves of a training, and when theory expects its stages."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tasks.factual.dynamics_config import FactDynamicsConfig
from toytf import theory
from toytf.figures import PowerLaw, curves, fractions, power_laws
from toytf.runs import Run

LOSSES = ("eval/fact_loss", "eval/relation_loss", "eval/subject_loss")
PLACES = {
    "probability/right": "the right answer",
    "probability/same_relation": "other answers of the relation",
    "probability/same_subject": "other answers of the subject",
    "probability/elsewhere": "all others",
}
STAGES = {"marginal": "frequencies", "relation": "relations", "subject": "subjects"}

SHOWN = 13
"""Steps in the table of probabilities."""


def fact_dynamics_figures(run: Run) -> Iterator[tuple[str, Any]]:
    """Losses with their levels and stages, distances from laws, where the probability lies, and stages against α."""
    config: FactDynamicsConfig = run.config
    history = run.history
    sizes = config.n_subjects, config.n_relations, config.n_answers
    title = f"Losses; {'relations' if theory.relations_first(*sizes) else 'subjects'} first, by theory"
    yield "losses", _with_stages(run, curves(history, LOSSES, title, chance={}, levels=_levels(run)))
    distances = [f"tv/{name}" for name in ("relation", "subject", *(["marginal"] if config.table == "random" else []))]
    title = "Distance of p̂ from p(a|r) and p(a|s)" + (" and p(a)" if config.table == "random" else "")
    yield "distances", _with_stages(run, curves(history, distances, title, chance={}, levels={}))
    yield "probabilities", _probabilities(run)
    if len(config.alphas) > 1:
        yield "stages", _by_scale(run)


def _levels(run: Run) -> dict[str, float]:
    config: FactDynamicsConfig = run.config
    levels = {"ln|A|": math.log(config.n_relations * config.n_answers)}
    floors = {"marginal": "H(a)", "relation_only": "H(a|r)", "subject_only": "H(a|s)"}
    if config.table == "structured":
        del floors["marginal"]  # all answers come equally often
    levels |= {label: run.summary[f"floor/fact_loss/{known}"] for known, label in floors.items()}
    return {f"{label} = {value:.3f}": value for label, value in levels.items()}


def _with_stages(run: Run, figure: Any) -> Any:
    """Vertical lines where theory expects a stage."""
    for i, (name, label) in enumerate(STAGES.items()):
        step = run.summary.get(f"theory/stage/{name}")
        if step is not None and step <= run.config.steps:
            text = {
                "text": f"theory: {label}",
                "font_size": 10,
                "bgcolor": "white",
                "yanchor": "top",
                "y": 1 - 0.08 * i,
            }
            figure.add_vline(x=step, line={"dash": "dot", "width": 1.5, "color": "black"}, annotation=text)
    return figure


def _probabilities(run: Run) -> Any:
    """Mean over seeds, at evenly spaced evaluations."""
    means = run.history.groupby("step")[[*PLACES]].mean()
    shown = means.iloc[np.unique(np.linspace(0, len(means) - 1, SHOWN).round().astype(int))]
    columns = {f"{step}": list(values) for step, values in zip(shown.index, shown.to_numpy(), strict=True)}
    figure = fractions(columns, list(PLACES.values()), "Where the probability lies")
    return figure.update_xaxes(type="category", title="step")


def _by_scale(run: Run) -> Any:
    """Measured and predicted stages against the initial scale, for those that came."""
    config: FactDynamicsConfig = run.config
    laws: dict[str, PowerLaw] = {}
    for alpha in sorted(config.alphas):
        for name, label in STAGES.items():
            metric = f"stage/{name}{config.suffix(alpha)}"
            if metric in run.summary:
                spread, predicted = run.summary.get(f"{metric}/std"), run.summary[f"theory/{metric}"]
                laws.setdefault(label, PowerLaw()).add(alpha, run.summary[metric], spread, predicted)
    return power_laws(laws, "When each part is learned", x="initial weights α", y="step", guides={}, log_y=False)
