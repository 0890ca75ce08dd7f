"""The page of one or several runs: one HTML file that opens offline, without a request to anywhere.

What it says, also without JavaScript, is in the template. What page.js shows, frames and plotly figures, is one JSON
text in the page.
"""

import html
import json
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toytf.errors import UserError
from toytf.files import write_atomic
from toytf.measurement import reference_name
from toytf.process import cpu_threads
from toytf.report.comparison import Comparison
from toytf.report.frames import FRAMES, Store, frames_of
from toytf.report.headlines import short_table
from toytf.report.portrait import example_of, model_line, provenance_of, title_of
from toytf.report.story import Story
from toytf.report.table import columns, summary_table
from toytf.runs import Run, TrainedRun
from toytf.words import listed

if TYPE_CHECKING:
    from jinja2 import Template

MAP = "attention_layer"
"""How the names of the attention maps begin: the viewer takes their place on the page."""
MAIN = 5
"""Rows of the first table: the numbers that matter."""
NAMED = 3
"""Runs that the title of their comparison names."""


@dataclass(frozen=True)
class Shown:
    """A run, and what its experiment says and draws of it."""

    run: Run
    story: Story | None
    """None: its config cannot be read here."""
    figures: dict[str, Any]
    """By name."""


def write_report(shown: Shown) -> None:
    """Write report.html into the run directory, and each figure as plotly JSON into figures/."""
    for name, figure in shown.figures.items():
        shown.run.write_figure(name, figure)
    write_atomic(shown.run.report_file, render([shown]).encode(errors="surrogateescape"))  # names of files


def render(runs: Sequence[Shown]) -> str:
    """The HTML of one run, or of several beside each other."""
    from plotly.offline import get_plotlyjs

    store, drawn, most = Store(), Figures(), max(1, FRAMES // len(runs))
    with ExitStack() as reading:
        reading.enter_context(cpu_threads(1))  # many small pictures
        for shown in runs:
            reading.enter_context(shown.run.read_once())
        comparison = Comparison([shown.run for shown in runs]) if len(runs) > 1 else None
        articles = [_article(shown, i, store, drawn, most=most) for i, shown in enumerate(runs)]
        for article, name in zip(articles, comparison.names if comparison is not None else (), strict=False):
            article["name"] = article["data"]["name"] = name
        curves = {} if comparison is None else comparison.figures()
        overlaid = [drawn.add(f"compare/{metric}", figure) for metric, figure in curves.items()]
    title = articles[0]["title"]
    if comparison is not None:
        title = f"{listed(comparison.names) if len(runs) <= NAMED else f'{len(runs)} runs'} compared"
    own = [article.pop("data") for article in articles]
    data = as_script({"runs": own, "figures": drawn.by_name, **store.to_json()})
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
        # What plotly shows of a text: without the tags that it knows, with entities as characters; others stay literal.
        title = re.sub(r"(?i)</?br/?(\s[^<>]*)?>", " ", layout.pop("title", {}).get("text") or "")
        title = re.sub(r"(?i)</?(sup|sub|s|u|b|i|a|span|em)(\s[^<>]*)?>", "", title)
        title = re.sub(r"&(#\d+|#x[\da-fA-F]+|\w+);", lambda entity: html.unescape(entity[0]), title)
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


def _article(shown: Shown, number: int, store: Store, drawn: Figures, *, most: int) -> dict[str, Any]:
    """What the page says and shows of a run, with so many frames at most; frames and figures go to the other two."""
    run, summary, known = shown.run, shown.run.summary, shown.run.columns
    unreadable = ""
    try:
        _ = run.config
    except UserError as error:  # such as of a package that is not installed here
        unreadable = str(error).replace(str(run.config_file), run.config_file.name)
    limits: dict[str, dict[str, float]] = {}  # what the ideal and the Hebbian matrix recall after the last step
    for name, about in known.items():  # not of single heads: their tokens change from checkpoint to checkpoint
        if about.group.section == "memories" and {*about.at} == {"memory"}:
            levels = {kind: summary.get(reference_name(kind, name)) for kind in ("ideal", "hebbian", "limit")}
            limits[str(about.at["memory"])] = {kind: level for kind, level in levels.items() if level is not None}
    article: dict[str, Any] = {
        "number": number,
        "name": run.name,
        "title": title_of(run),
        "unreadable": unreadable,
        "story": () if shown.story is None else shown.story.sentences,
        "numbers": short_table(summary, known, most=MAIN),
        "n_seeds": run.history["seed"].nunique(),
        "provenance": [*provenance_of(run)],
        "figures": [
            drawn.add(f"{number}/{name}", figure) for name, figure in shown.figures.items() if not name.startswith(MAP)
        ],
        "full_table": summary_table(summary, known),
        "columns": columns(summary),
        "config": run.config_file.read_text(encoding="utf-8", errors="replace"),
        "data": {"name": run.name, "solution": (), "limits": limits, "steps": {}, "frames": {}, "sequences": {}},
        **dict.fromkeys(("task", "experiment", "model", "example", "facts")),  # of a run without a checkpoint
    }
    if unreadable:
        return article
    if not isinstance(run, TrainedRun):
        return {**article, "experiment": (type(run.config).__doc__ or "").strip().partition("\n")[0]}
    article["data"]["solution"] = run.task.solution
    article["task"] = run.task.about
    if run.has_checkpoints:
        frames, newest = frames_of(run, store, most)
        article["data"] |= frames
        article["model"] = model_line(newest.model, run.config.train.steps)
        article["example"] = example_of(newest.sequences[0])
        article["facts"] = newest.facts is not None
    return article


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
