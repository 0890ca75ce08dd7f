"""Curves and bars of a still picture: traces of a plotly figure between their axes."""

import math
import re
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from toytf.report.drawing.axes import Axis
from toytf.report.drawing.parts import Numbers, Part, each, number, numbers, values
from toytf.report.drawing.svg import breadth, element, ink, shown, text

SAMPLE = 24
"""Pixels of a sample in the legend."""
DASHES = {"dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "12 5"}

_LINES_ONLY = 20
"""From so many points on, plotly draws a curve without markers unless it is told otherwise."""
_SYMBOLS = {
    "square": "m-1 -1h2v2h-2z",
    "diamond": "m0 -1.3l1.3 1.3 -1.3 1.3 -1.3 -1.3z",
    "star": "m0 -1.4l.31 .97 1.02 0 -.82 .6 .31 .96 -.82 -.59 -.82 .59 .31 -.96 -.82 -.6 1.02 0z",
    "line-ns": "m0 -1v2",
    "x": "m-1 -1l2 2m0 -2l-2 2",
    "x-thin": "m-1 -1l2 2m0 -2l-2 2",
}
"""Markers of radius 1 as paths from their middle on; all others are circles."""
_STROKES = ("line-ns", "x", "x-thin")
"""Markers that are lines, with nothing to fill."""


class Mark:
    """A trace between its axes: `reach` says what they have to show; when they have pixels, `draw` and `sample` it.

    colour: if the trace names none; place: which of how many bars side by side it is.
    """

    layer = 0
    """Marks of a higher layer are drawn over those of a lower one, as plotly does it."""

    def __init__(self, trace: Part, colour: str, x: Axis, y: Axis, place: tuple[int, int] = (0, 1)) -> None:
        self.trace, self.colour, self.x, self.y, self.place = trace, colour, x, y, place

    @property
    def in_legend(self) -> bool:
        """Has it an entry in the legend?"""
        return self.trace.showlegend is not False and bool(self.trace.name)

    def reach(self) -> None:
        """Tell the axes what to show."""
        raise NotImplementedError

    def draw(self) -> Iterator[str]:
        """The trace in its panel."""
        raise NotImplementedError

    def sample(self, x: float, y: float) -> Iterator[str]:
        """The mark in the legend, `SAMPLE` pixels from x on, about the height y."""
        raise NotImplementedError


class Curve(Mark):
    """A scatter trace: a line, markers or both, the area within it, and error bars."""

    layer = 2

    def __init__(self, trace: Part, colour: str, x: Axis, y: Axis, place: tuple[int, int] = (0, 1)) -> None:
        super().__init__(trace, colour, x, y, place)
        across = x.positions(range(len(values(trace.y))) if trace.x is None else trace.x)
        upward = y.positions(range(len(values(trace.x))) if trace.y is None else trace.y)
        n = min(len(across), len(upward))
        self.across, self.upward = across[:n], upward[:n]
        self.errors = _error_ends(y, numbers(trace.y)[:n], trace.error_y)
        self.filled = trace.fill == "toself"
        self.mode = str(trace.mode or ("lines+markers" if n < _LINES_ONLY and not self.filled else "lines"))
        self.line_ink = ink(trace.line.color, ink(trace.marker.color, colour))
        self.marker_ink = ink(trace.marker.color, ink(trace.line.color, colour))

    def reach(self) -> None:
        """Markers need room on all sides, lines only above and below."""
        self.x.reach(self.across, 0.04 if "markers" in self.mode else 0.0)
        for heights in (self.upward, *self.errors):
            self.y.reach(heights, 0.05)

    def draw(self) -> Iterator[str]:
        """The area, the line, error bars and markers, one over the other."""
        trace, x, y = self.trace, self.x.pixels(self.across), self.y.pixels(self.upward)
        inside = []
        if self.filled:
            fill, opacity = (ink(trace.fillcolor), None) if trace.fillcolor else (self.line_ink, 0.5)
            inside.append(element("path", d=_path(x, y), fill=fill, fill_opacity=opacity))
        if "lines" in self.mode:
            inside.append(self._line(_path(x, y)))
        inside += _error_bars(x, self.y, self.errors, self.marker_ink)
        if "markers" in self.mode:
            inside.append(self._markers(x, y))
        yield element("g", *inside, opacity=trace.opacity)

    def sample(self, x: float, y: float) -> Iterator[str]:
        """A short piece of the line with one marker."""
        if "lines" in self.mode:
            yield self._line(f"M{x:.1f} {y:.1f}h{SAMPLE}")
        if "markers" in self.mode:
            yield self._markers(np.array([x + SAMPLE / 2]), np.array([y]), most=12.0)

    def _line(self, path: str) -> str:
        line = self.trace.line
        style = {
            "stroke_width": 2 if line.width is None else line.width,
            "stroke_dasharray": DASHES.get(str(line.dash)),
        }
        return element("path", d=path, fill="none", stroke=self.line_ink, **style) if style["stroke_width"] else ""

    def _markers(self, x: Numbers, y: Numbers, most: float = math.inf) -> str:
        """One path for all markers, which are at most so many pixels wide."""
        marker, colour = self.trace.marker, self.marker_ink
        symbol = marker.symbol if isinstance(marker.symbol, str) else "circle"
        shape = _symbol(symbol, min(_size(marker.size, 6.0), most) / 2)
        hollow = symbol.endswith("-open") or symbol in _STROKES
        edge = _size(marker.line.width, 2.0 if symbol in _STROKES else float(hollow))
        stroke = None if not edge else colour if hollow else ink(marker.line.color, colour)
        path = "".join(f"M{at:.1f} {up:.1f}{shape}" for at, up in zip(x, y, strict=True) if np.isfinite(at + up))
        fill = "none" if hollow else colour
        return element("path", d=path, fill=fill, stroke=stroke, stroke_width=edge or None) if path else ""


class Bars(Mark):
    """A bar trace, upright or lying, with error bars; lying ones have texts at their ends."""

    layer = 1

    def __init__(self, trace: Part, colour: str, x: Axis, y: Axis, place: tuple[int, int] = (0, 1)) -> None:
        super().__init__(trace, colour, x, y, place)
        self.lying = trace.orientation == "h"
        self.along, self.upward = (y, x) if self.lying else (x, y)
        heights, names = (numbers(trace.x), trace.y) if self.lying else (numbers(trace.y), trace.x)
        at = self.along.positions(range(len(heights)) if names is None else names)
        n = min(len(at), len(heights))
        self.top = self.upward.positions(heights[:n])
        self.errors = _error_ends(self.upward, heights[:n], trace.error_x if self.lying else trace.error_y)
        self.zero = self.upward.positions([0.0])  # NaN on a logarithmic axis: from the edge of the panel on
        which, several = place
        width = numbers(each(trace.width, n))
        steps = np.diff(np.unique(at[np.isfinite(at)]))
        width = np.where(np.isfinite(width), width, 0.8 * (steps.min() if steps.size else 1.0) / several)
        self.sides = at[:n] + width * (which - several / 2), at[:n] + width * (which + 1 - several / 2)
        has_texts = self.lying and trace.textposition != "none"
        self.texts = [shown(label) for label in each(trace.text, n)] if has_texts else []

    def reach(self) -> None:
        """Bars begin at zero and touch that edge of the panel."""
        for side in self.sides:
            self.along.reach(side)
        self.upward.carries_bars = True
        self.upward.reach(self.zero)
        for ends in (self.top, *self.errors):
            self.upward.reach(ends, 0.12 if any(self.texts) else 0.05)

    def draw(self) -> Iterator[str]:
        """The bars as one path, then error bars and texts."""
        a, b = (self.along.pixels(side) for side in self.sides)
        zero = float(np.nan_to_num(self.upward.pixels(self.zero), nan=self.upward.pixel_ends[0])[0])
        tops = self.upward.pixels(self.top)
        boxes = [
            (zero, top, *sides) if self.lying else (*sides, zero, top) for *sides, top in zip(a, b, tops, strict=True)
        ]
        paths = [
            f"M{left:.1f} {low:.1f}H{right:.1f}V{high:.1f}H{left:.1f}Z"
            for left, right, low, high in boxes
            if np.isfinite(left + right + low + high)
        ]
        if paths:
            yield self._box("".join(paths))
        yield from _error_bars((a + b) / 2, self.upward, self.errors, "currentColor")
        first, last = sorted(self.upward.pixel_ends)
        for label, middle, top in zip(self.texts, (a + b) / 2, tops, strict=False):
            if label and np.isfinite(middle + top):
                yield text(label, max(min(max(zero, top) + 6, last - breadth(label)), first), middle + 4)

    def sample(self, x: float, y: float) -> Iterator[str]:
        """A box."""
        yield self._box(f"M{x + 5:.1f} {y - 6:.1f}h14v12h-14Z")

    def _box(self, path: str) -> str:
        marker, fill = self.trace.marker, ink(self.trace.marker.color, self.colour)
        edge = _size(marker.line.width, 0.0)
        stroke = ink(marker.line.color, fill) if edge else None
        return element("path", d=path, fill=fill, opacity=self.trace.opacity, stroke=stroke, stroke_width=edge or None)


def _size(given: object, default: float) -> float:
    """A number of pixels for all points; the default if none is given, or one for each."""
    found = number(given)
    return default if math.isnan(found) else found


def _error_ends(axis: Axis, values: Numbers, error: Part) -> tuple[Numbers, Numbers]:
    """Where the error bars of values begin and end on their axis, for as many as have one."""
    spread = numbers(error.array)
    n = 0 if error.visible is False else min(len(spread), len(values))
    return axis.positions(values[:n] - spread[:n]), axis.positions(values[:n] + spread[:n])


def _error_bars(at: Numbers, axis: Axis, ends: tuple[Numbers, Numbers], colour: str) -> Iterator[str]:
    """Lines along an axis, at pixels of the axis across."""
    spans = [span for span in zip(at, *map(axis.pixels, ends), strict=False) if np.isfinite(span).all()]
    lines = [f"M{a:.1f} {p:.1f}H{b:.1f}" if axis.horizontal else f"M{p:.1f} {a:.1f}V{b:.1f}" for p, a, b in spans]
    if lines:
        yield element("path", d="".join(lines), stroke=colour, fill="none")


@lru_cache(maxsize=64)
def _symbol(name: str, r: float) -> str:
    """A marker of radius r as a path from its middle on."""
    path = _SYMBOLS.get(name.removesuffix("-open"))
    if path is None:
        return f"m{-r:g} 0a{r:g} {r:g} 0 1 0 {2 * r:g} 0a{r:g} {r:g} 0 1 0 {-2 * r:g} 0"
    return re.sub(r"-?[\d.]+", lambda length: f"{float(length[0]) * r:g}", path)


def _path(x: Numbers, y: Numbers) -> str:
    """A line through points; where one is missing it begins anew."""
    known = np.isfinite(x + y)
    pens = np.where(np.append(False, known[:-1]), "L", "M")
    return "".join(f"{pen}{at:.1f} {up:.1f}" for pen, at, up in zip(pens[known], x[known], y[known], strict=True))
