"""The panels of a still picture: which axes and marks they have, and where they are."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from toytf.report.drawing.axes import Axis
from toytf.report.drawing.contours import Contours
from toytf.report.drawing.maps import Map
from toytf.report.drawing.marks import Bars, Curve, Mark
from toytf.report.drawing.parts import Part
from toytf.report.drawing.shapes import Shape
from toytf.report.drawing.svg import element

TRACES: dict[str, type[Mark]] = {"scatter": Curve, "bar": Bars, "heatmap": Map, "contour": Contours}
"""The types of traces that can be drawn."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 24, 14, 12
"""Pixels that are free around a panel at least."""
_LEAST = 60
"""Pixels of a panel at least."""

Places = Callable[[float], float]
"""From a place in the whole, 0 to 1, to pixels."""


class Panels:
    """All panels of a figure; a panel is a pair of axes with marks between them.

    First `spread` places them from left to right, then `stack` from above to below, and then they can be drawn.
    """

    def __init__(self, layout: Part, traces: Mapping[int, Part]) -> None:
        self.layout = layout
        refs = {i: (trace.xaxis or "x", trace.yaxis or "y") for i, trace in traces.items()}
        columns = defaultdict[str, list[object]](list)
        for i, trace in traces.items():
            for name, column in zip(refs[i], (trace.x, trace.y), strict=True):
                columns[name].append(column)
        self.axes = {
            name: Axis(name, Part(layout[f"{name[0]}axis{name[1:]}"] or {}), own) for name, own in columns.items()
        }
        colours, bars = _colours(layout), Counter[tuple[str, str]]()
        beside = Counter(refs[i] for i, trace in traces.items() if trace.type == "bar")
        marks: list[Mark] = []
        for i, trace in traces.items():
            x, y = (self.axes[name] for name in refs[i])
            place = (bars[refs[i]], beside[refs[i]]) if layout.barmode in (None, "group") else (0, 1)
            bars[refs[i]] += trace.type == "bar"
            marks.append(TRACES[trace.type](trace, colours[i % len(colours)], x, y, place))
        self.anchors = {axis: _anchor(axis, marks) for axis in self.axes.values()}
        for shape in map(Part, layout.shapes or ()):
            across, upward = self.axis(shape.xref or "x"), self.axis(shape.yref or "y")
            marks += [Shape(shape, "currentColor", across, upward)] if across and upward else []
        self.marks = marks
        self.by_axes = defaultdict[tuple[Axis, Axis], list[Mark]](list)
        for mark in sorted(marks, key=lambda mark: mark.layer):
            mark.reach()
            self.by_axes[mark.x, mark.y].append(mark)

    def axis(self, ref: str) -> Axis | None:
        """The axis that a shape or a remark refers to, as in `x2` or `y2 domain`; none if nothing is drawn along it."""
        return self.axes.get(ref.partition(" ")[0])

    def spread(self, width: float) -> None:
        """Place the panels from left to right, so that what is beside them has room, and the rest is theirs."""
        upward = [axis for axis in self.axes.values() if not axis.horizontal]
        for axis in upward:
            axis.settle(self._height * (axis.domain[1] - axis.domain[0]))
        across = [axis for axis in self.axes.values() if axis.horizontal]
        before, after = self._room(across, upward, _LEFT, _RIGHT)
        for mark in self.marks:
            if isinstance(mark, Map):
                after[mark.x.domain[1]] = max(after[mark.x.domain[1]], mark.scale_depth)
        self.x_places, self.width = _places(before, after, total=width)
        for axis in across:
            axis.pixel_ends = self.x_places(axis.domain[0]), self.x_places(axis.domain[1])
            axis.settle(axis.length)

    def stack(self, headroom: Mapping[float, float]) -> None:
        """Place the panels from above to below, with so many pixels over those that end at a place."""
        across = [axis for axis in self.axes.values() if axis.horizontal]
        upward = [axis for axis in self.axes.values() if not axis.horizontal]
        before, after = self._room(upward, across, _BOTTOM, _TOP)
        for end, pixels in headroom.items():
            after[end] = max(after[end], pixels)
        from_below, self.height = _places(before, after, unit=self._height)
        self.y_places: Places = lambda place: self.height - from_below(place)
        for axis in upward:
            axis.pixel_ends = self.y_places(axis.domain[0]), self.y_places(axis.domain[1])

    def draw(self) -> Iterator[str]:
        """Axes, and what is between them."""
        for axis, anchor in self.anchors.items():
            yield axis.draw(anchor.pixel_ends)
        for (x, y), marks in self.by_axes.items():
            box = {"x": min(x.pixel_ends), "y": min(y.pixel_ends), "width": x.length, "height": y.length}
            # A nested svg cuts off what is beyond its box, and needs no id as a clip path would.
            view = " ".join(f"{pixels:.5g}" for pixels in box.values())
            yield element("svg", *(part for mark in marks for part in mark.draw()), **box, viewBox=view)
            yield element("rect", **box, fill="none", stroke="currentColor", stroke_opacity=0.3)
            yield from next((mark.scale() for mark in marks if isinstance(mark, Map) and mark.has_scale), ())

    @property
    def _height(self) -> float:
        """Pixels of a panel as high as the whole."""
        margin = self.layout.margin
        top, bottom = (100 if margin.t is None else margin.t), (80 if margin.b is None else margin.b)
        return max(float(_LEAST), (self.layout.height or 450) - top - bottom)

    def _room(
        self, axes: Sequence[Axis], outside: Sequence[Axis], before: float, after: float
    ) -> tuple[dict[float, float], dict[float, float]]:
        """Pixels before the beginnings and after the ends of axes, for the axes outside of the panel."""
        starts, ends = {axis.domain[0]: before for axis in axes}, {axis.domain[1]: after for axis in axes}
        for axis in outside:
            place = self.anchors[axis].domain[0]
            starts[place] = max(starts[place], axis.depth)
        return starts, ends


def _anchor(axis: Axis, marks: Iterable[Mark]) -> Axis:
    """The axis across this one, at whose beginning it is drawn."""
    return next(mark.y if axis.horizontal else mark.x for mark in marks if axis in (mark.x, mark.y))


def _places(
    before: Mapping[float, float], after: Mapping[float, float], *, unit: float = 0.0, total: float = 0.0
) -> tuple[Places, float]:
    """The pixels of places in the whole, and their number.

    before, after: pixels to keep free where panels begin and end, and so the width of the gaps between them. What is
    in panels gets `unit` pixels times its share, or its share of what is left of `total`.
    """
    edges = sorted({*before, *after})
    gaps, shares = [], []
    for a, b in pairwise(edges):
        is_gap = a in after and b in before
        gaps.append(after[a] + before[b] if is_gap else 0.0)
        shares.append(0.0 if is_gap else b - a)
    first, last = before.get(edges[0], 0.0), after.get(edges[-1], 0.0)
    unit = unit or max(total - first - last - sum(gaps), _LEAST * len(shares)) / sum(shares)
    pixels = np.cumsum([first, *(gap + unit * share for gap, share in zip(gaps, shares, strict=True))])
    return lambda place: float(np.interp(place, edges, pixels)), float(pixels[-1] + last)


def _colours(layout: Part) -> Sequence[str]:
    """The colours of traces that do not name one, in their order."""
    from plotly.colors import DEFAULT_PLOTLY_COLORS

    colours: Sequence[str] = layout.colorway or layout.template.layout.colorway or DEFAULT_PLOTLY_COLORS
    return colours
