"""Contour lines of a still picture: where the values on a grid cross a level. Areas between them are not filled."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from toytf.report.drawing.axes import Axis
from toytf.report.drawing.marks import DASHES, SAMPLE, Mark
from toytf.report.drawing.parts import Part, number, numbers, values
from toytf.report.drawing.svg import element, ink

_AUTOMATIC = 8
"""Levels where the trace names none."""

Segments = Float[np.ndarray, "segment 2 2"]
"""Two ends each, in rows and columns of the grid."""


class Contours(Mark):
    """A contour trace: its lines alone."""

    layer = 1

    def __init__(self, trace: Part, colour: str, x: Axis, y: Axis, place: tuple[int, int] = (0, 1)) -> None:
        super().__init__(trace, colour, x, y, place)
        self.z = np.stack([numbers(row) for row in values(trace.z)]) if len(values(trace.z)) else np.empty((0, 0))
        rows, columns = self.z.shape
        self.across = x.positions(range(columns) if trace.x is None else trace.x)[:columns]
        self.upward = y.positions(range(rows) if trace.y is None else trace.y)[:rows]
        self.stroke = ink(trace.line.color, colour)

    @property
    def in_legend(self) -> bool:
        """Only if it asks for it, as in plotly."""
        return bool(self.trace.showlegend and self.trace.name)

    def reach(self) -> None:
        """The axes end where the grid does."""
        self.x.reach(self.across)
        self.y.reach(self.upward)

    def draw(self) -> Iterator[str]:
        """A path for each level that is crossed."""
        x, y = self.x.pixels(self.across), self.y.pixels(self.upward)
        for level in self._levels():
            ends = crossings(self.z, level)
            if len(ends):
                up, along = (
                    np.interp(ends[..., i], range(n), at) for i, (n, at) in enumerate(((len(y), y), (len(x), x)))
                )
                lines = zip(along[:, 0], up[:, 0], along[:, 1], up[:, 1], strict=True)
                yield self._line("".join(f"M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}" for a, b, c, d in lines))

    def sample(self, x: float, y: float) -> Iterator[str]:
        """A short piece of a line."""
        yield self._line(f"M{x:.1f} {y:.1f}h{SAMPLE}")

    def _line(self, path: str) -> str:
        line = self.trace.line
        style = {
            "stroke_width": 1 if line.width is None else line.width,
            "stroke_dasharray": DASHES.get(str(line.dash)),
        }
        return element("path", d=path, fill="none", stroke=self.stroke, opacity=self.trace.opacity, **style)

    def _levels(self) -> list[float]:
        finite = self.z[np.isfinite(self.z)]
        if not finite.size:
            return []
        start, end, size = (number(self.trace.contours[name]) for name in ("start", "end", "size"))
        if not np.isfinite(start + end + size) or size <= 0:
            return [*map(float, np.linspace(finite.min(), finite.max(), _AUTOMATIC + 2)[1:-1])]
        return [*map(float, np.arange(start, end + size / 1e6, size))]


def crossings(z: Float[np.ndarray, "row column"], level: float) -> Segments:
    """The pieces of the line on which z, linear along the sides of each cell, is at a level (marching squares)."""
    rows, columns = np.indices((max(z.shape[0] - 1, 0), max(z.shape[1] - 1, 0)))
    corners = [z[:-1, :-1], z[:-1, 1:], z[1:, 1:], z[1:, :-1]]
    places = [(rows, columns), (rows, columns + 1), (rows + 1, columns + 1), (rows + 1, columns)]
    above = np.stack([corner > level for corner in corners])
    crossed, points = [], []
    for i, j in ((0, 1), (1, 2), (2, 3), (3, 0)):  # the sides: below, right, above, left
        crossed.append(above[i] != above[j])
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(crossed[-1], (level - corners[i]) / (corners[j] - corners[i]), 0.0)
        points.append(np.stack([a + share * (b - a) for a, b in zip(places[i], places[j], strict=True)], -1))
    side, ends = np.stack(crossed), np.stack(points)
    known = np.isfinite(np.stack(corners)).all(0)
    two, four = known & (side.sum(0) == 2), known & side.all(0)
    first, last = side.argmax(0), 3 - side[::-1].argmax(0)
    found = [_joined(ends, two, first, last)]
    # At a saddle the value in the middle decides which two corners are joined.
    alike = (sum(corners) / 4 > level) == above[0]
    for cells, joints in ((four & alike, ((0, 1), (2, 3))), (four & ~alike, ((3, 0), (1, 2)))):
        found += [_joined(ends, cells, np.full_like(rows, a), np.full_like(rows, b)) for a, b in joints]
    return np.concatenate(found)


def _joined(ends: np.ndarray, cells: np.ndarray, first: np.ndarray, last: np.ndarray) -> Segments:
    """In some cells, the piece from a point on one side to that on another."""
    at = np.nonzero(cells)
    return np.stack([ends[(side[at], *at)] for side in (first, last)], 1)
