"""Annotations of a plotly figure in a still picture: titles of panels, and remarks anywhere."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from toytf.report.drawing.axes import Axis
from toytf.report.drawing.panels import Panels
from toytf.report.drawing.parts import Part, number
from toytf.report.drawing.shapes import place
from toytf.report.drawing.svg import LINE, breadth, shown, text, wrapped

_SIZE = 13


def headroom(annotations: Iterable[Part], panels: Panels) -> Mapping[float, float]:
    """Pixels that titles need over the panels that end at a place; the panels know their width."""
    needed = defaultdict[float, float](float)
    for annotation in annotations:
        if panel := _headed(annotation, panels):
            end = panel[1].domain[1]
            needed[end] = max(needed[end], 14 + (LINE + 1) * len(_lines(annotation, panel)))
    return needed


def remarks(annotations: Iterable[Part], panels: Panels) -> Iterator[str]:
    """All annotations; the panels know where they are."""
    for annotation in annotations:
        panel = _headed(annotation, panels)
        if panel:
            x, y = panels.x_places(annotation.x), panel[1].pixel_ends[1]
            for i, line in enumerate(reversed(_lines(annotation, panel))):
                yield text(line, x, y - 8 - (LINE + 1) * i, size=_SIZE, anchor="middle")
        else:
            yield from _remark(annotation, panels)


def _headed(annotation: Part, panels: Panels) -> tuple[Axis, Axis] | None:
    """The panel that an annotation is the title of."""
    if not annotation.xref == annotation.yref == "paper" or annotation.yanchor != "bottom":
        return None
    at, up = number(annotation.x), number(annotation.y)
    over = (pair for pair in panels.by_axes if abs(up - pair[1].domain[1]) < 0.01)
    return next((pair for pair in over if pair[0].domain[0] <= at <= pair[0].domain[1]), None)


def _lines(annotation: Part, panel: tuple[Axis, Axis]) -> list[str]:
    return wrapped(shown(annotation.text), panel[0].length, _SIZE)


def _remark(annotation: Part, panels: Panels) -> Iterator[str]:
    """A text at a point of a panel, moved so that it is within the picture."""
    x, y = (_pixel(panels, str(annotation[f"{letter}ref"] or letter), annotation[letter]) for letter in "xy")
    if math.isfinite(x + y):
        label = shown(annotation.text)
        width = breadth(label)
        left = x + {"left": 3, "right": -3 - width}.get(str(annotation.xanchor), -width / 2)
        low = y + {"top": 12, "bottom": -4}.get(str(annotation.yanchor), 4)
        yield text(label, max(min(left, panels.width - width - 4), 4), max(min(low, panels.height - 4), 12))


def _pixel(panels: Panels, ref: str, value: object) -> float:
    """Where a coordinate is; NaN if it belongs to no panel."""
    axis = panels.axis(ref)
    if axis is None:
        return math.nan
    is_logarithm = axis.is_log and ref in panels.axes
    return float(axis.pixels(number(value))) if is_logarithm else place(axis, value, ref)
