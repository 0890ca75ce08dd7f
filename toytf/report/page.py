"""The page of one or several runs: one HTML file that opens offline, without a request to anywhere.

What it says, also without JavaScript, is in the template. What page.js shows, frames and plotly figures, is one JSON
text in the page.
"""

import html
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toytf.errors import ToytfError, UserError, shortened
from toytf.files import write_atomic
from toytf.measurement import reference_name
from toytf.process import cpu_threads
from toytf.report.comparison import Comparison
from toytf.report.frames import FRAMES, Store, frames_of
from toytf.report.headlines import short_table
from toytf.report.learning import learning_figures
from toytf.report.portrait import example_of, model_line, provenance_of, title_of
from toytf.report.story import story_of
from toytf.report.table import columns, summary_table
from toytf.runs import Run, TrainedRun
from toytf.timing import spent_on
from toytf.words import counted, listed, say

if TYPE_CHECKING:
    from jinja2 import Template

MAP = "attention_layer"
"""How the names of the attention maps begin: the viewer takes their place on the page."""
MAIN = 5
"""Rows of the first table: the numbers that matter."""
NAMED = 3
"""Runs that the title of their comparison names."""

NO_FRAMES: dict[str, Any] = {"steps": {}, "frames": {}, "sequences": {}}
NO_MODEL: dict[str, Any] = dict.fromkeys(("task", "experiment", "model", "example", "facts"))
"""What there is to say of a run without a checkpoint."""


def write_report(run: Run) -> None:
    """Write report.html into the run directory, and each figure as plotly JSON into figures/."""
    with cpu_threads(1), run.read_once():  # many small pictures
        figures = run_figures(run)
        for name, figure in figures.items():
            run.write_figure(name, figure)
        write_atomic(run.report_file, render([(run, figures)]).encode(errors="surrogateescape"))  # names of files


_wanted: ContextVar[bool] = ContextVar("wanted", default=True)
"""Do runs that end write their pages?"""


@contextmanager
def without_pages() -> Iterator[None]:
    """Until its end, runs write no pages when they end: of many runs they would take long, and much room."""
    token = _wanted.set(False)
    try:
        yield
    finally:
        _wanted.reset(token)


def write_report_at_the_end(run: Run) -> None:
    """The same after a run that is done: a mistake in a picture, perhaps of somebody's task, costs only the page."""
    if not _wanted.get():
        return
    try:
        with spent_on("page"):
            write_report(run)
    except (ToytfError, OSError, MemoryError):
        raise
    except Exception as error:
        why = shortened(f"{type(error).__name__}: {error}")
        say(f"toytf: the page could not be drawn ({why}); all results of {run.directory} are there")


def render(runs: Sequence[tuple[Run, dict[str, Any]]]) -> str:
    """The HTML of one run, or of several beside each other."""
    from plotly.offline import get_plotlyjs

    content = Content(Store(), Figures(), max(1, FRAMES // len(runs)))
    with ExitStack() as reading:
        for run, _ in runs:
            reading.enter_context(run.read_once())
        comparison = Comparison([run for run, _ in runs]) if len(runs) > 1 else None
        articles = [_article(run, figures, i, content) for i, (run, figures) in enumerate(runs)]
        for article, name in zip(articles, comparison.names if comparison is not None else (), strict=False):
            article["name"] = article["data"]["name"] = name
        curves = {} if comparison is None else comparison.figures()
        overlaid = [content.figures.add(f"compare/{metric}", figure) for metric, figure in curves.items()]
    title = articles[0]["title"]
    if comparison is not None:
        title = f"{listed(comparison.names) if len(runs) <= NAMED else f'{len(runs)} runs'} compared"
    own = [article.pop("data") for article in articles]
    data = as_script({"runs": own, "figures": content.figures.by_name, **content.store.to_json()})
    return template("page.html.j2").render(
        title=title, articles=articles, comparison=comparison, overlaid=overlaid, data=data, plotly=get_plotlyjs()
    )


def is_page(path: Path) -> bool:
    """Did toytf write this file? The titles of its pages say so."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return "· toytf</title>".encode() in file.read(100_000)


class Figures:
    """The plotly figures of a page by name, as page.js draws them."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}

    def add(self, name: str, figure: Any) -> dict[str, Any]:
        """What the template needs of a figure; its title is text of the page, so that it is never cut."""
        content = json.loads(figure.to_json())
        layout = content["layout"]
        layout.pop("template", None)
        title = _shown(layout.pop("title", {}).get("text"))
        meta = layout.pop("meta", None)  # plotly takes anything there
        about = meta if isinstance(meta, dict) else {}
        layout["margin"] = {"l": 50, "r": 20, "t": 30 if layout.get("annotations") else 10, "b": 50}
        self.by_name[name] = {"data": content["data"], "layout": layout, "frames": content.get("frames", [])}
        return {
            "name": name, "title": title, "height": layout.get("height", 400),
            "section": about.get("section", ""), "folded": about.get("folded", False), "says": about.get("says", ""),
            "steps": about.get("steps", False), "meanings": about.get("meanings", {}),
            "stars": about.get("stars", False),
        }  # fmt: skip


def _shown(label: str | None) -> str:
    """What plotly shows of a text: without the tags that it knows, with entities as characters; others stay literal."""
    text = re.sub(r"(?i)</?br/?(\s[^<>]*)?>", " ", label or "")
    text = re.sub(r"(?i)</?(sup|sub|s|u|b|i|a|span|em)(\s[^<>]*)?>", "", text)
    return re.sub(r"&(#\d+|#x[\da-fA-F]+|\w+);", lambda entity: html.unescape(entity[0]), text)


@dataclass(frozen=True)
class Content:
    """What page.js shows on demand, and how many frames a run may have."""

    store: Store
    figures: Figures
    frames: int


def _article(run: Run, figures: dict[str, Any], number: int, content: Content) -> dict[str, Any]:
    """What the page says and shows of a run."""
    summary, known = run.summary, run.columns
    config_text, unreadable = _config(run)
    article: dict[str, Any] = {
        "number": number,
        "name": run.name,
        "title": title_of(run),
        "unreadable": unreadable,
        "story": () if unreadable else story_of(run).sentences,
        "numbers": short_table(summary, known, most=MAIN),
        "seeds": _spread_note(run),
        "several_seeds": run.history["seed"].nunique() > 1,
        "provenance": [*provenance_of(run)],
        "figures": [
            content.figures.add(f"{number}/{name}", figure)
            for name, figure in figures.items()
            if not name.startswith(MAP)
        ],
        "full_table": summary_table(summary, known),
        "columns": columns(summary),
        "config": config_text,
        "data": {"name": run.name, "solution": (), "limits": _limits(run), **NO_FRAMES},
        **NO_MODEL,
    }
    if unreadable:
        return article
    if not isinstance(run, TrainedRun):
        return {**article, "experiment": (type(run.config).__doc__ or "").strip().partition("\n")[0]}
    article["data"]["solution"] = run.task.solution
    article["task"] = run.task.about
    if run.has_checkpoints:
        frames, newest = frames_of(run, content.store, content.frames)
        article["data"] |= frames
        article["model"] = model_line(newest.model, run.config.train.steps)
        article["example"] = example_of(newest.sequences[0])
        article["facts"] = newest.facts is not None
    return article


def _config(run: Run) -> tuple[str, str]:
    """The config as it is on the disk, and why it cannot be understood here, if so."""
    text = run.config_file.read_text(encoding="utf-8", errors="replace")
    try:
        _ = run.config
    except UserError as error:  # such as of a package that is not installed here
        return text, str(error).replace(str(run.config_file), run.config_file.name)
    return text, ""


def _spread_note(run: Run) -> str:
    n = run.history["seed"].nunique()
    return (
        f"± is the standard deviation over {n} seeds; of what is fitted to all seeds, the error of the fit."
        if n > 1
        else f"{counted(n, 'seed').capitalize()}: no spread."
    )


def _limits(run: Run) -> dict[str, dict[str, float]]:
    """By part of the model, how many pairs the ideal and the Hebbian matrix recall after the last step, and the limit.

    Not of single heads: which tokens are theirs changes from checkpoint to checkpoint.
    """
    summary, found = run.summary, dict[str, dict[str, float]]()
    for name, about in run.columns.items():
        if about.group.section == "memories" and {*about.at} == {"memory"}:
            levels = {kind: summary.get(reference_name(kind, name)) for kind in ("ideal", "hebbian", "limit")}
            found[str(about.at["memory"])] = {kind: level for kind, level in levels.items() if level is not None}
    return found


def as_script(data: Any) -> str:
    """JSON that nothing in it can end early: a script element ends at the first `</script`."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


@cache
def template(name: str) -> "Template":
    """A page template of this package; what it is given is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

    loader = PackageLoader("toytf.report")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.filters["breakable"] = lambda name: Markup(re.sub("([/_])", r"\1<wbr>", str(escape(name))))
    environment.globals["asset"] = lambda file: Markup(loader.get_source(environment, file)[0])
    return environment.get_template(name)


def run_figures(run: Run) -> dict[str, Any]:
    """The figures of a run by name, as its experiment draws them; curves alone if its config cannot be read here."""
    from toytf.config.plugins import implementation

    try:
        config = run.config
    except UserError:
        return dict(learning_figures(run))
    if not run.described and not config.trains_model:
        # An earlier version made the run: nothing but the names of its metrics is known, and the figures that it drew.
        drawn = {path.stem: run.kept_figure(path.stem) for path in sorted(run.figures.glob("*.json"))}
        return {name: figure for name, figure in drawn.items() if figure is not None}
    with run.read_once():
        return dict(implementation(config)(config).figures(run))
