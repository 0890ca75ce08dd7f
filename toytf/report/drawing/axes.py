"""Axes of a still picture: what they span, where a value lies on them, and which of their labels have room."""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from toytf.report.drawing.parts import Numbers, Part, number, numbers, values
from toytf.report.drawing.svg import LINE, breadth, element, shortened, shown, text, wrapped

LENGTHS = (14, 20, 28)
"""Characters of tick labels, longer ones are shortened: the first number that does not make different ones alike."""


class Tick(NamedTuple):
    """A label on an axis, at a position in its coordinates."""

    at: float
    label: str


class Axis:
    """A direction of a panel. Its coordinates are numbers, their log10 on a logarithmic axis, or places of categories.

    columns: all values that are drawn along it; domain: the part of the whole picture, 0 to 1, that it takes up;
    reached: (position, padding) of what it has to show; ticks, turned, title: what `settle` finds room for, and how.
    """

    def __init__(self, name: str, layout: Part, columns: Sequence[object]) -> None:
        self.horizontal = name[0] == "x"
        self.layout = layout
        self.domain: tuple[float, ...] = tuple(round(float(end), 4) for end in layout.domain or (0, 1))
        self.is_log = layout.type == "log"
        self.reached: list[tuple[float, float]] = []
        self.carries_bars = False
        self.categories = _categories(layout, columns)
        self.pixel_ends = (0.0, 1.0)
        self.ticks: list[Tick] = []
        self.turned = False
        self.title: list[str] = []
        self.longest = LENGTHS[0]
        self.labels_depth = 0.0

    def positions(self, data: object) -> Numbers:
        """Where values lie in the coordinates of the axis; NaN for those that have no place."""
        if self.categories is None:
            found = numbers(data)
            with np.errstate(divide="ignore", invalid="ignore"):
                return numbers(np.log10(found)) if self.is_log else found
        places = self.categories
        known = [places.get(_category(value), value) for value in values(data)]
        return numbers([None if isinstance(place, str) else place for place in known])

    def position(self, value: object) -> float:
        """Where a shape or a remark lies: on an axis of categories, its numbers are places."""
        at = number(value) if self.categories is not None else np.nan
        return float(self.positions([value])[0]) if np.isnan(at) else at

    def reach(self, positions: Numbers, padding: float = 0.0) -> None:
        """Show these, with a padding that is a fraction of the whole span."""
        finite = positions[np.isfinite(positions)]
        if finite.size:
            self.reached += [(float(finite.min()), padding), (float(finite.max()), padding)]

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The coordinates where the axis begins and ends, as the layout wants or as what is drawn needs."""
        span = max(self.reached, default=(1.0,))[0] - min(self.reached, default=(0.0,))[0]
        aside = [0.0 if at == 0 and self.carries_bars else padding * span for at, padding in self.reached]
        low = min((at - free for (at, _), free in zip(self.reached, aside, strict=True)), default=0.0)
        high = max((at + free for (at, _), free in zip(self.reached, aside, strict=True)), default=1.0)
        if self.categories is not None:
            low, high = -0.5, len(self.categories) - 0.5
        automatic = (high, low) if "reversed" in str(self.layout.autorange) else (low, high)
        given = map(number, self.layout.range or (None, None))
        first, last = (auto if math.isnan(end) else end for end, auto in zip(given, automatic, strict=True))
        if self.is_log:
            first, last = max(-300.0, min(first, 300.0)), max(-300.0, min(last, 300.0))
        if abs(last - first) > 1e-12 * max(abs(first), abs(last), 1e-99):
            return first, last
        return first - 0.5 * max(abs(first), 1.0), first + 0.5 * max(abs(first), 1.0)

    def pixels(self, positions: Any) -> Any:
        """Where positions lie in the picture."""
        (first, last), (start, stop) = self.ends, self.pixel_ends
        return start + (positions - first) / (last - first) * (stop - start)

    @property
    def length(self) -> float:
        """Pixels from end to end."""
        return abs(self.pixel_ends[1] - self.pixel_ends[0])

    def settle(self, length: float) -> None:
        """Choose the labels and break the title, for an axis that is so many pixels long."""
        first, last = self.ends
        chosen = self.layout.tickvals is not None or self.categories is not None
        shares = {tick: (tick.at - min(first, last)) / abs(last - first) for tick in self._ticks(length)}
        offsets = {tick: share * length for tick, share in shares.items() if -1e-9 <= share <= 1 + 1e-9}
        ticks = [*offsets]
        self.longest = _telling({tick.label for tick in ticks})
        widest = self._widest(ticks) + 8
        angle = self.layout.tickangle
        if self.horizontal and chosen:
            self.turned = bool(angle) if angle is not None else len(_thinned(offsets, widest)) < len(ticks)
        self.ticks = _thinned(offsets, widest if self.horizontal and not self.turned else LINE - 2)
        self.title = wrapped(shown(self.layout.title.text), length)
        upright = self.horizontal and not self.turned
        self.labels_depth = float(LINE) if upright else self._widest(self.ticks) + 4

    def _widest(self, ticks: Sequence[Tick]) -> float:
        return max((breadth(shortened(tick.label, self.longest)) for tick in ticks), default=0.0)

    @property
    def depth(self) -> float:
        """Pixels that labels and title take up below or left of the panel."""
        return self.labels_depth + len(self.title) * LINE + 11

    def draw(self, across: tuple[float, float]) -> str:
        """The grid from one pixel to another, and labels and title below or left of it."""
        return "".join((*self._grid(across), *self._labels(across), *self._titles(across)))

    def _grid(self, across: tuple[float, float]) -> Iterable[str]:
        if self.categories is not None:
            return
        low, high = across
        lines = [
            f"M{at:.1f} {low:.1f}V{high:.1f}" if self.horizontal else f"M{low:.1f} {at:.1f}H{high:.1f}"
            for at in (self.pixels(tick.at) for tick in self.ticks)
        ]
        yield element("path", d="".join(lines), stroke="currentColor", stroke_opacity=0.12, fill="none")

    def _labels(self, across: tuple[float, float]) -> Iterable[str]:
        for tick in self.ticks:
            at = self.pixels(tick.at)
            if self.turned:
                yield text(tick.label, at + 4, max(across) + 6, anchor="end", turned=True, longest=self.longest)
            elif self.horizontal:
                yield text(tick.label, at, max(across) + 14, anchor="middle", longest=self.longest)
            else:
                yield text(tick.label, min(across) - 6, at + 4, anchor="end", longest=self.longest)

    def _titles(self, across: tuple[float, float]) -> Iterable[str]:
        middle = sum(self.pixel_ends) / 2
        for i, line in enumerate(self.title if self.horizontal else self.title[::-1]):
            away = self.labels_depth + 8 + LINE * (i + 0.5)
            if self.horizontal:
                yield text(line, middle, max(across) + away + 4, size=12, anchor="middle")
            else:
                yield text(line, min(across) - away + 4, middle, size=12, anchor="middle", turned=True)

    def _ticks(self, length: float) -> list[Tick]:
        layout = self.layout
        if layout.tickvals is not None:
            places = self.positions(layout.tickvals)
            names = values(layout.tickvals if layout.ticktext is None else layout.ticktext)
            found = zip(places.tolist(), names, strict=False)
            return [Tick(at, shown(name)) for at, name in found if math.isfinite(at)]
        if self.categories is not None:
            return [Tick(float(at), shown(name)) for name, at in self.categories.items()]
        low, high = min(self.ends), max(self.ends)
        most = max(2, int(length / (80 if self.horizontal else 40)))
        return _decades(low, high, most) if self.is_log else _round_numbers(low, high, most)


def _categories(layout: Part, columns: Sequence[object]) -> dict[str, int] | None:
    """Places of names in order of appearance; None on an axis of numbers."""
    arrays = [values(column) for column in columns]
    if layout.type in (None, "-"):
        words = [value for array in arrays if array.dtype.kind not in "biuf" for value in array if value is not None]
        if not any(math.isnan(number(word)) and not isinstance(word, float | np.floating) for word in words):
            return None
    elif layout.type != "category":
        return None
    names = dict.fromkeys(_category(value) for array in arrays for value in array if value is not None)
    return {name: place for place, name in enumerate(names)}


def _category(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float | np.number) else str(value)


def _telling(labels: set[str]) -> int:
    """To how many characters labels are shortened, so that one can tell them apart if possible."""
    enough = (n for n in LENGTHS if len({shortened(label, n) for label in labels}) == len(labels))
    return next(enough, LENGTHS[-1])


def _thinned(offsets: dict[Tick, float], room: float) -> list[Tick]:
    """The ticks that follow each other at a distance: of evenly spaced ones every k-th."""
    kept: list[Tick] = []
    for tick in sorted(offsets, key=lambda tick: offsets[tick]):
        if not kept or offsets[tick] - offsets[kept[-1]] >= room:
            kept.append(tick)
    return kept


def _round_numbers(low: float, high: float, most: int) -> list[Tick]:
    """Multiples of 1, 2 or 5 times a power of ten, not more than `most` steps."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    multiples = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [Tick(n * step, plain(n * step, step)) for n in multiples]


def _decades(low: float, high: float, most: int) -> list[Tick]:
    """Powers of ten; with 2 and 5 times them, or any round numbers, where there are not enough of them."""
    every = max(1, math.ceil((high - low) / most))
    powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    if len(powers) > 2:
        return [Tick(float(power), plain(10.0**power, 10.0**power)) for power in powers if power % every == 0]
    between = [(power, factor) for power in range(math.floor(low), math.ceil(high)) for factor in (1, 2, 5)]
    inside = [(power + math.log10(factor), factor * 10.0**power) for power, factor in between]
    inside = [(at, value) for at, value in inside if low <= at <= high]
    if len(inside) > 2:
        return [Tick(at, plain(value, value)) for at, value in inside]
    return [Tick(math.log10(tick.at), tick.label) for tick in _round_numbers(10**low, 10**high, most) if tick.at > 0]


def plain(value: float, step: float) -> str:
    """A number, to as many digits as a step: `0.25`, `20,000`, `5e−6`."""
    if value == 0:
        return "0"
    places = math.floor(math.log10(abs(step)) + 1e-9)
    if places > -5 and abs(value) < 1e7:
        return f"{value:,.{max(0, -places)}f}".replace("-", "−")
    digits = max(1, math.floor(math.log10(abs(value))) - places + 1)
    mantissa, _, exponent = f"{value:.{min(digits, 12)}g}".partition("e")
    return (f"{mantissa}e{int(exponent)}" if exponent else mantissa).replace("-", "−")
