"""Curves over the steps of a training: what was measured at several steps, beside what it can be read against."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from toytf.measurement import reference_name

if TYPE_CHECKING:
    from toytf.runs import Run

CHART_TITLES = {"loss": "Loss by role", "accuracy": "Accuracy by role"}
"""Of groups that have several quantities, which are drawn apart."""


def learning_figures(
    run: "Run", *, phrases: Mapping[str, str] | None = None, onsets: Mapping[str, float] | None = None
) -> Iterator[tuple[str, Any]]:
    """One chart for each group, quantity and entry of `evaluate_on`, of what was measured at several steps.

    phrases: what roles are; others are drawn on request. onsets: by metric, the step from which it stays above chance.
    """
    from toytf.curves import ONSET, curves

    history, summary, columns = run.history, run.summary, run.columns
    for (chart, on), members in _charts(run).items():
        group = columns[members[0]].group
        named = {}
        for name in members:
            role = str(columns[name].at.get("role", ""))
            if phrase := (phrases or {}).get(role):
                named[name] = phrase if phrase.startswith(role) else f"{role}: {phrase}"
        roles = {columns[name].at["role"] for name in named or members if "role" in columns[name].at}
        levels = {
            f"heuristic: {str(about.at.get('heuristic')).replace('_', ' ')} ({about.at.get('role')})": summary[name]
            for name, about in columns.items()
            if about.group.name == "floor" and about.on == on and about.at.get("quantity") == chart
            and name in summary and about.at.get("role") in roles
        }  # fmt: skip
        main = members
        if group.timed == "onset":  # of a memory under several criteria, which have more factors, the plain one
            fewest = min(len(columns[name].at) for name in members)
            main = [name for name in members if len(columns[name].at) == fewest]
        title = CHART_TITLES.get(chart, group.heading) + (f" ({on})" if on else "")
        figure = curves(
            history,
            members,
            title,
            chance={name: summary[level] for name in members if (level := reference_name("chance", name)) in summary},
            ideal={name: summary[level] for name in members if (level := reference_name("ideal", name)) in summary},
            levels=levels,
            onsets=onsets,
            labels=named,
            hidden=[name for name in members if name not in (named or main)],
        )
        section = group.section or "learning"
        told = {columns[name].label: columns[name].group.meaning(columns[name].label) for name in members}
        meta = {
            "section": section,
            "folded": section in ("memories", "interventions"),
            "steps": True,
            "stars": any(trace.name == ONSET for trace in figure.data),
            "meanings": {label: says for label, says in told.items() if says},
        }
        figure.layout.meta = meta
        yield chart + (f"_{on}" if on else ""), figure


def _charts(run: "Run") -> dict[tuple[str, str], list[str]]:
    """The metrics of each chart."""
    history, charts = run.history, dict[tuple[str, str], list[str]]()
    for name, about in run.columns.items():
        several = name in history and history[name].count() > history["seed"].nunique()
        if several and about.group.curve and about.group.place != "log" and not about.is_variant:
            charts.setdefault((str(about.at.get("quantity", about.group.name)), about.on), []).append(name)
    return charts
