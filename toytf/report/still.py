"""A plotly figure as a still picture: inline SVG for a page on which no JavaScript runs."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from toytf.report.drawing.marks import SAMPLE, Mark
from toytf.report.drawing.panels import TRACES, Panels
from toytf.report.drawing.parts import Part
from toytf.report.drawing.remarks import headroom, remarks
from toytf.report.drawing.svg import LINE, breadth, element, shortened, shown, text
from toytf.words import counted

if TYPE_CHECKING:
    import plotly.graph_objects as go

LONGEST_LABEL = 60
"""Characters of a label in the legend; longer ones are shortened."""

_MARGIN = 12
_ROW = 19
"""Pixels from one row of the legend to the next."""


def still(figure: "go.Figure", *, width: int = 760) -> str:
    """The figure as one `<svg>` element that needs nothing else: no script, no font, no request.

    Its title is the accessible name and is not drawn. A text line counts the traces of types that are not drawn. Text
    and whatever is black have the colour of the text around the picture; the height follows the figure's.
    """
    given = figure.to_dict()
    layout, traces = Part(given["layout"]), {i: Part(trace) for i, trace in enumerate(given["data"])}
    seen = {i: trace for i, trace in traces.items() if trace.visible in (None, True)}
    known = {i: trace for i, trace in seen.items() if trace.type in TRACES}
    others = Counter(str(trace.type) for trace in seen.values() if trace.type not in TRACES)
    content, wide, height = list[str](), float(width), 0.0
    if known:
        annotations = [Part(annotation) for annotation in layout.annotations or ()]
        panels = Panels(layout, known)
        panels.spread(width)
        panels.stack(headroom(annotations, panels))
        wide = panels.width
        labelled = [] if layout.showlegend is False else [mark for mark in panels.marks if mark.in_legend]
        legend, height = _legend(labelled, wide, panels.height)
        content += [*panels.draw(), *remarks(annotations, panels), *legend]
    notes = [_note(kind, n) for kind, n in others.items()]
    if given.get("frames"):
        notes.append("the slider needs JavaScript: this is what it shows last")
    for note in notes if known or notes else ["nothing to draw"]:
        height += LINE + 4
        content.append(text(note, _MARGIN, height, size=12))
    name = shown(layout.title.text) or "figure"
    return element(
        "svg", *content, xmlns="http://www.w3.org/2000/svg", role="img", aria_label=name, width=width,
        viewBox=f"0 0 {wide:.0f} {height + 8:.0f}", style="max-width:100%;height:auto;font-family:inherit",
    )  # fmt: skip


def _legend(marks: Iterable[Mark], width: float, top: float) -> tuple[list[str], float]:
    """Rows of samples and labels from a height on, and the height where they end."""
    drawn, x, y = list[str](), _MARGIN, top + 16
    longest = min(LONGEST_LABEL, int((width - SAMPLE - 3 * _MARGIN) / breadth("n")))
    for mark in marks:
        label = shown(mark.trace.name)
        entry = SAMPLE + 6 + breadth(shortened(label, longest))
        if x > _MARGIN and x + entry > width - 8:
            x, y = _MARGIN, y + _ROW
        drawn += [*mark.sample(x, y - 4), text(label, x + SAMPLE + 6, y, longest=longest)]
        x += round(entry) + 18
    return drawn, y + 4 if drawn else top


def _note(kind: str, n: int) -> str:
    return f"{counted(n, 'trace')} of type {kind} {'is' if n == 1 else 'are'} drawn only with JavaScript"
