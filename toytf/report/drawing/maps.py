"""Heatmaps of a still picture: one small PNG with a pixel for each cell, numbers in the cells, and a colour bar."""

import math
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from toytf.report.drawing.axes import Axis, plain
from toytf.report.drawing.marks import Mark
from toytf.report.drawing.parts import Numbers, Part, numbers, values
from toytf.report.drawing.svg import breadth, element, shown, text
from toytf.report.png import png

Palette = NDArray[np.float64]
"""Red, green and blue of 255 colours from the lowest to the highest value, behind one for no value: [256, 3]."""


class Map(Mark):
    """A heatmap trace."""

    def __init__(self, trace: Part, colour: str, x: Axis, y: Axis, place: tuple[int, int] = (0, 1)) -> None:
        super().__init__(trace, colour, x, y, place)
        rows = [numbers(row) for row in values(trace.z)]
        z = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
        for i, row in enumerate(rows):
            z[i, : len(row)] = row
        self.z = z
        self.y_edges, self.x_edges = _edges(y, trace.y, z.shape[0]), _edges(x, trace.x, z.shape[1])
        finite = z[np.isfinite(z)]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        self.low = float(low if trace.zmin is None else trace.zmin)
        self.high = float(high if trace.zmax is None else trace.zmax)
        self.palette = _palette(tuple(map(tuple, trace.colorscale or ())))
        share = (z - self.low) / ((self.high - self.low) or 1.0)
        self.indices = np.where(np.isnan(share), 0, 1 + np.round(254 * np.clip(np.nan_to_num(share), 0, 1)))
        self.has_scale = trace.showscale is not False

    @property
    def in_legend(self) -> bool:
        """The colour bar says what the colours are."""
        return False

    def reach(self) -> None:
        """The axes end where the cells do."""
        self.x.reach(self.x_edges)
        self.y.reach(self.y_edges)

    def draw(self) -> Iterator[str]:
        """The picture, and the numbers or texts in its cells if all of them fit."""
        if not self.z.size:
            return
        x, y = self.x.pixels(self.x_edges), self.y.pixels(self.y_edges)
        box = {"x": min(x), "y": min(y), "width": abs(x[-1] - x[0]), "height": abs(y[-1] - y[0])}
        down, right = (1 if edges[-1] >= edges[0] else -1 for edges in (y, x))
        yield _image(self.indices[::down, ::right], self.palette, **box)
        labels = self._labels()
        if not labels or len(x) * 12 > box["width"] or len(y) * 12 > box["height"] + 12:
            return
        if max(map(breadth, labels.values())) > abs(x[1] - x[0]):
            return
        for (i, j), label in labels.items():
            is_light = self.palette[int(self.indices[i, j])] @ (0.3, 0.59, 0.11) > 140
            fill = "#222" if is_light else "#fff"
            yield text(label, (x[j] + x[j + 1]) / 2, (y[i] + y[i + 1]) / 2 + 4, anchor="middle", fill=fill)

    def _labels(self) -> dict[tuple[int, ...], str]:
        """What is written into the cells: their numbers, or the texts of the trace."""
        if self.trace.texttemplate == "%{text}":
            texts = [values(row) for row in values(self.trace.text)]
            return {(i, j): shown(said) for i, row in enumerate(texts) for j, said in enumerate(row[: self.z.shape[1]])}
        written = re.fullmatch(r"%\{z:\.(\d)f\}", str(self.trace.texttemplate))
        if not written:
            return {}
        return {at: "" if np.isnan(value) else f"{value:.{written[1]}f}" for at, value in np.ndenumerate(self.z)}

    @property
    def scale_depth(self) -> float:
        """Pixels beside the panel that the colour bar takes up."""
        return 28 + max(breadth(label) for _, label in self._levels()) if self.has_scale else 0.0

    def scale(self) -> Iterator[str]:
        """The colour bar right of the panel, with its ends and its middle as numbers."""
        x, (bottom, top) = max(self.x.pixel_ends) + 10, self.y.pixel_ends
        yield _image(np.arange(255, 0, -1)[:, None], self.palette, x=x, y=top, width=10, height=bottom - top)
        for share, label in self._levels():
            yield text(label, x + 14, bottom + share * (top - bottom) + 9 * share)

    def _levels(self) -> Iterable[tuple[float, str]]:
        span = self.high - self.low
        step = 10 ** math.floor(math.log10(abs(span) or 1.0)) / 10
        return [(share, plain(self.low + share * span, step)) for share in (0, 0.5, 1)]


def _edges(axis: Axis, data: object, n: int) -> Numbers:
    """The places where n cells of the same size begin and end, the first and the last where the data say."""
    at = axis.positions(range(n) if data is None else data)[:n]
    at = at[np.isfinite(at)]
    first, last = (at[0], at[-1]) if len(at) else (0.0, n - 1.0)
    half = (last - first) / (n - 1) / 2 if n > 1 else 0.5
    return np.linspace(first - half, last + half, n + 1)


def _image(indices: NDArray[np.number], palette: Palette, **box: float) -> str:
    data = b64encode(png(indices.astype(np.uint8), palette, transparent=0)).decode()
    style = {"preserveAspectRatio": "none", "style": "image-rendering:pixelated"}
    where = {name: float(pixels) for name, pixels in box.items()}
    return element("image", href=f"data:image/png;base64,{data}", **style, **where)


@lru_cache(maxsize=16)
def _palette(scale: tuple[tuple[float, str], ...]) -> Palette:
    from plotly.colors import get_colorscale

    places, colours = zip(*(scale or get_colorscale("Viridis")), strict=True)
    channels = np.array([_rgb(colour) for colour in colours]).T
    shades = [np.interp(np.linspace(0, 1, 255), places, channel) for channel in channels]
    return np.vstack([np.full(3, 255.0), np.stack(shades, axis=1).round()])


def _rgb(colour: str) -> list[float]:
    """Red, green and blue of `#rrggbb` or `rgb(…)`; gray for others."""
    if colour.startswith("rgb"):
        return [float(part) for part in re.findall(r"[\d.]+", colour)[:3]]
    return [*bytes.fromhex(colour[1:])] if re.fullmatch(r"#[\da-fA-F]{6}", colour) else [128.0] * 3
