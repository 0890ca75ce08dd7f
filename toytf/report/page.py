"""The page of a run: one HTML file that opens offline, without a request to anywhere."""

from typing import TYPE_CHECKING, Any

from toytf.config.sections import dump
from toytf.files import write_atomic
from toytf.report.headlines import short_table
from toytf.report.story import story_of
from toytf.report.table import columns, summary_table

if TYPE_CHECKING:
    from jinja2 import Template

    from toytf.runs import Run

MAP = "attention_layer"
"""How the names of the attention maps begin."""


def write_report(run: "Run") -> None:
    """Write report.html into the run directory, and each figure as plotly JSON into figures/."""
    with run.read_once():
        figures = run_figures(run)
        for name, figure in figures.items():
            run.write_figure(name, figure)
        write_atomic(run.report_file, render([(run, figures)]).encode())


def render(runs: list[tuple["Run", dict[str, Any]]]) -> str:
    """The HTML of one or several runs below each other."""
    from plotly.offline import get_plotlyjs

    sections = [_section(run, figures) for run, figures in runs]
    title = ", ".join(run.name for run, _ in runs)
    return template("page.html.j2").render(title=title, sections=sections, plotly=get_plotlyjs())


def _section(run: "Run", figures: dict[str, Any]) -> dict[str, Any]:
    """What the page says and shows of a run."""
    with run.read_once():
        story, summary, known = story_of(run), run.summary, run.columns
    return {
        "name": run.name,
        "config": dump(run.config),
        "story": story.sentences,
        "table": short_table(summary, known),
        "full_table": summary_table(summary, known),
        "columns": columns(summary),
        "curves": [_html(figure) for name, figure in figures.items() if not name.startswith(MAP)],
        "maps": [_html(figure) for name, figure in figures.items() if name.startswith(MAP)],
    }


def _html(figure: Any) -> str:
    config = {"displaylogo": False, "responsive": True}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=config))


def template(name: str) -> "Template":
    """A page template of this package; what it is given is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("toytf.report")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(name)


def run_figures(run: "Run") -> dict[str, Any]:
    """The figures of a run by name, as its experiment draws them."""
    from toytf.config.plugins import implementation

    if not run.described and not run.config.trains_model:
        # An earlier version made the run: nothing but the names of its metrics is known, and the figures that it drew.
        drawn = {path.stem: run.kept_figure(path.stem) for path in sorted(run.figures.glob("*.json"))}
        return {name: figure for name, figure in drawn.items() if figure is not None}
    with run.read_once():
        return dict(implementation(run.config)(run.config).figures(run))
