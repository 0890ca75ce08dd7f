"""Shapes of a plotly figure in a still picture: lines, boxes and paths over the traces of a panel."""

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from toytf.report.drawing.axes import Axis
from toytf.report.drawing.marks import DASHES, SAMPLE, Mark
from toytf.report.drawing.parts import number
from toytf.report.drawing.svg import element, ink

_PAIR = re.compile(r"([-+\d.eE]+)[ ,]+([-+\d.eE]+)")


class Shape(Mark):
    """A shape; its `trace` is the shape of the layout."""

    layer = 3

    @property
    def in_legend(self) -> bool:
        """Unlike traces, shapes are only if they ask for it."""
        return bool(self.trace.showlegend and self.trace.name)

    def reach(self) -> None:
        """Lines and boxes in coordinates of the data are to be seen."""
        for axis, letter in ((self.x, "x"), (self.y, "y")):
            ends = self.trace[f"{letter}0"], self.trace[f"{letter}1"]
            if not _is_share(self.trace[f"{letter}ref"]):
                axis.reach(np.array([axis.position(end) for end in ends]))

    def draw(self) -> Iterator[str]:
        """Its outline, filled if it has a colour for that."""
        shape = self.trace
        if shape.type == "path":
            yield self._outline(_PAIR.sub(self._moved, str(shape.path)))
            return
        a, c = (place(self.x, shape[end], shape.xref) for end in ("x0", "x1"))
        b, d = (place(self.y, shape[end], shape.yref) for end in ("y0", "y1"))
        if math.isfinite(a + b + c + d):
            line = f"L{c:.1f} {d:.1f}" if shape.type == "line" else f"H{c:.1f}V{d:.1f}H{a:.1f}Z"
            yield self._outline(f"M{a:.1f} {b:.1f}{line}")

    def sample(self, x: float, y: float) -> Iterator[str]:
        """A short piece of its line."""
        yield self._outline(f"M{x:.1f} {y:.1f}h{SAMPLE}")

    def _moved(self, point: re.Match[str]) -> str:
        return f"{place(self.x, number(point[1])):.1f} {place(self.y, number(point[2])):.1f}"

    def _outline(self, path: str) -> str:
        shape, line = self.trace, self.trace.line
        style = {"stroke": ink(line.color), "stroke_dasharray": DASHES.get(str(line.dash)), "opacity": shape.opacity}
        width = 2 if line.width is None else line.width
        return element("path", d=path, fill=ink(shape.fillcolor, "none"), stroke_width=width, **style)


def place(axis: Axis, value: Any, ref: str | None = None) -> float:
    """The pixel of a coordinate of a shape or a remark: a value on the axis, or a share of its length."""
    if not _is_share(ref):
        return float(axis.pixels(axis.position(value)))
    start, stop = axis.pixel_ends
    return start + number(value) * (stop - start)


def _is_share(ref: str | None) -> bool:
    return str(ref).endswith(" domain")
