"""The figures of a training."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from toytf.errors import UserError
from toytf.measurement import KINDS, Reference, reference_name, spread_name
from toytf.report.learning import learning_figures
from toytf.report.page import MAP

if TYPE_CHECKING:
    from toytf.config.plugins import ProbeConfig
    from toytf.measurement import Group, Quantity
    from toytf.probe import ProbeResult
    from toytf.runs import TrainedRun

MAP_LENGTH = 64
"""Positions shown in an attention map; more cannot be read."""


def training_figures(run: "TrainedRun", onsets: Mapping[str, float]) -> Iterator[tuple[str, Any]]:
    """Curves over steps, figures of probes, interventions, and attention maps of one sequence.

    onsets: by metric, the step from which it stays above chance.
    """
    phrases = {run.config.train.loss: "trained", **(run.task.short_phrases if run.task.role_phrases else {})}
    yield from learning_figures(run, phrases=phrases, onsets=onsets)
    for config in run.config.probes:  # what was drawn at the last evaluation of the first seed, or if not, now
        for on in ("", *run.config.evaluate_on) if config.reads_batch else ("",):
            names = [figure_name(config.kind, on, detail) for detail in ("", *config.details)]
            figures = {name: figure for name in names if (figure := run.kept_figure(name)) is not None}
            undrawn = not figures and run.has_checkpoints and not run.has_ended(run.config.seeds[0])
            if undrawn or any(map(run.lost_figure, names)):
                figures |= probe_figures(run.probe(config.kind, on=on or None), config, on)
            yield from figures.items()
    yield from _interventions(run)
    yield from _attention_maps(run)


def figure_name(kind: str, on: str, detail: str = "") -> str:
    """The name of a figure of a probe, its own or a detail, on the task or on an entry of `evaluate_on`."""
    return "_".join(filter(None, ["probe", kind, detail, on]))


def probe_figures(result: "ProbeResult", config: "ProbeConfig", on: str) -> dict[str, Any]:
    """The figures that a probe drew, by name, with what it was evaluated on in their titles; details are folded."""
    drawn = {} if result.draw is None else {"": result.draw}
    figures = {}
    for detail, draw in {**drawn, **result.details}.items():
        figure = draw()
        name = figure_name(config.kind, on, detail)
        if not hasattr(figure, "layout"):
            raise UserError(f'probe "{config.kind}" drew a {type(figure).__name__} as {name}, expected a plotly figure')
        figure.layout.meta = {"section": config.section, "folded": bool(detail) or config.section == "facts"}
        if on:
            figure.update_layout(title_text=f"{figure.layout.title.text} ({on})")
        figures[name] = figure
    return figures


def _interventions(run: "TrainedRun") -> Iterator[tuple[str, Any]]:
    """Accuracies with a part of the model changed, group by group, as bars; what has no chance value is no accuracy."""
    from toytf.figures import metric_bars

    summary, columns = run.summary, run.columns
    groups: dict[Group, list[str]] = {}
    for name, about in columns.items():
        shown = about.group.section == "interventions" and name in summary and not about.on
        if shown and reference_name("chance", name) in summary:
            groups.setdefault(about.group, []).append(name)
    for group, names in groups.items():
        labels = {name: _in_words(columns[name]) for name in names}
        references = {
            label: Reference(**{kind: summary.get(reference_name(kind, name)) for kind in KINDS})
            for name, label in labels.items()
        }
        spreads = {label: summary[spread_name(name)] for name, label in labels.items() if spread_name(name) in summary}
        values = {label: summary[name] for name, label in labels.items()}
        meanings = {label: group.meaning(columns[name].label) for name, label in labels.items()}
        about_it = {"section": "interventions", "says": group.says, "meanings": meanings}
        figure = metric_bars(values, references, group.heading, x="accuracy", spreads=spreads)
        figure.layout.meta = about_it
        yield f"bars_{group.name}", figure


def _in_words(about: "Quantity") -> str:
    """The name and the factors of a metric: `ideal all but W_OV2, least squares`."""
    variants = [
        value for factor, value in about.at.items() if factor in about.group.variants and factor not in about.plain
    ]
    own = [str(value) for factor, value in about.at.items() if factor not in about.group.variants]
    first = " ".join([*filter(None, [about.name.replace("_", " ")]), *own])
    return ", ".join([first, *(str(value).replace("_", " ") for value in variants)])


def _attention_maps(run: "TrainedRun") -> Iterator[tuple[str, Any]]:
    """Every head on one sequence; where only the last position is asked, all heads of a layer in one map."""
    from toytf.views.sequence import sequence_views

    if not (run.has_checkpoints or run.finished):
        return
    [view] = sequence_views(run.model(), run.task, run.batch(1), most=MAP_LENGTH)
    for layer, pattern in enumerate(view.patterns):
        together = pattern.shape[1] == 1
        for head in range(1 if together else len(pattern)):
            figure = view.figure(layer, head)
            figure.layout.meta = {"section": "attention"}
            yield f"{MAP}{layer + 1}" + ("" if together else f"_L{layer}H{head}"), figure
