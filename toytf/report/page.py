"""The page of a run: one HTML file that opens offline, without a request to anywhere."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from toytf.config import dump
from toytf.files import write_atomic
from toytf.report.table import BACKGROUND, GROUPS, is_variant, summary_table

if TYPE_CHECKING:
    from jinja2 import Template

    from toytf.runs import Run

CHART_TITLES = {**GROUPS, "loss": "Loss by role", "accuracy": "Accuracy by role"}

MAP = "attention_layer"
"""How the names of the attention maps begin."""

MAP_LENGTH = 64
"""Positions shown in an attention map; more cannot be read."""


def write_report(run: "Run") -> None:
    """Write report.html into the run directory, and each figure as plotly JSON into figures/."""
    figures = dict(run_figures(run))
    folder = run.directory / "figures"
    folder.mkdir(exist_ok=True)
    for name, figure in figures.items():
        write_atomic(folder / f"{name}.json", figure.to_json().encode())
    write_atomic(run.report_file, render([(run, figures)]).encode())


def render(runs: list[tuple["Run", dict[str, Any]]]) -> str:
    """The HTML of one or several runs below each other."""
    from plotly.offline import get_plotlyjs

    sections = [
        {
            "name": run.name,
            "config": dump(run.config),
            "table": summary_table(run.summary),
            "curves": [_html(figure) for name, figure in figures.items() if not name.startswith(MAP)],
            "maps": [_html(figure) for name, figure in figures.items() if name.startswith(MAP)],
        }
        for run, figures in runs
    ]
    title = ", ".join(run.name for run, _ in runs)
    return template("page.html.j2").render(title=title, sections=sections, plotly=get_plotlyjs())


def _html(figure: Any) -> str:
    config = {"displaylogo": False, "responsive": True}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=config))


def template(name: str) -> "Template":
    """A page template of this package; what it is given is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("toytf.report")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(name)


def run_figures(run: "Run") -> Iterator[tuple[str, Any]]:
    """Loss and accuracy by role, recall curves, attention curves, and the attention maps of one sequence."""
    from toytf.figures import curves

    history, summary = run.history, run.summary
    names = [name for name in history.columns if "/" in name and not is_variant(name)]
    floors = {
        name.removeprefix("floor/"): value
        for name, value in summary.items()
        if name.startswith("floor/") and not name.endswith("/std")
    }
    charts: dict[str, list[str]] = {}
    for name in names:
        group = name.partition("/")[0]
        if group == "eval":
            group = name.rpartition("_")[2]  # loss or accuracy
        if group not in (*BACKGROUND, "floor", "data"):
            charts.setdefault(group, []).append(name)
    if history["step"].max() > 0:  # else nothing moved, and the table says it all
        for group, members in charts.items():
            levels = {label: value for label, value in floors.items() if f"_{group}/" in label}
            chance = {name: summary[f"chance/{name}"] for name in members if f"chance/{name}" in summary}
            yield group, curves(history, members, CHART_TITLES.get(group, group), chance=chance, levels=levels)
    yield from _attention_maps(run)


def _attention_maps(run: "Run") -> Iterator[tuple[str, Any]]:
    import torch

    from toytf.figures import attention_map

    model, task = run.model(), run.task
    batch = run.batch(1)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.config.n_layers)]
    with torch.no_grad():
        _, seen = model.observe(batch.tokens, *names)
    tokens = [task.token_names[token] for token in batch.tokens[0, :MAP_LENGTH].tolist()]
    for layer, name in enumerate(names):
        for head, pattern in enumerate(seen[name][0, :, : len(tokens), : len(tokens)].cpu()):
            title = f"Attention of layer {layer + 1}, head {head + 1}, on one sequence"
            yield f"{MAP}{layer + 1}_head{head + 1}", attention_map(pattern.tolist(), tokens, title)
