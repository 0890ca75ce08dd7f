"""From what a sweep varies to its points: for each of them a value of every factor, by dotted key."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from toytf.config.yaml_text import inline_yaml
from toytf.errors import UserError, shortened
from toytf.sweeps.config import MOST_RUNS, RandomConfig, SweepConfig
from toytf.sweeps.values import Values, draw_of, values_of
from toytf.words import counted

Point = dict[str, Any]
"""Values by dotted key."""

_PATIENCE = 100
"""Draws for one random point before it is said that there are no more."""


@dataclass(frozen=True)
class Points:
    """The points of a sweep in their order."""

    factors: tuple[str, ...]
    """The keys that are varied."""
    points: tuple[Point, ...]
    log: frozenset[str] = frozenset()
    """Factors that belong on a logarithmic axis."""


def points_of(section: SweepConfig, wants_whole: Callable[[str, Any, Point], bool]) -> Points:
    """Every point of a sweep.

    wants_whole(key, value, point): does the config refuse this value, which is no whole number, for a key of the point?
    """
    spread = {key: values_of(key, given) for part in (section.grid, section.zip) for key, given in part.items()}
    keys = [*section.grid, *section.zip, *dict.fromkeys(key for point in section.points for key in point)]
    keys += [*section.random.draw] if section.random else []
    _check_keys(section, keys)
    lengths = {len(spread[key].values) for key in section.zip}
    if len(lengths) > 1:
        told = ", ".join(f"{key} has {len(spread[key].values)}" for key in section.zip)
        raise UserError(f"sweep.zip takes its values together, so all keys need as many: {told}")
    n = math.prod(len(spread[key].values) for key in section.grid) * max(lengths, default=1)
    n *= max(len(section.points), 1) * (section.random.n if section.random else 1)
    if n > MOST_RUNS:
        raise UserError(f"the sweep has {n:,} points: at most {MOST_RUNS:,} are possible")
    drawn = _drawn(section.random) if section.random else [{}]
    first = {key: values.values[0] for key, values in spread.items()} | dict(drawn[0]) | dict(*section.points[:1])
    for key, values in spread.items():
        if values.whole is None:
            continue
        broken = next(value for value in values.values if not isinstance(value, int))
        if wants_whole(key, broken, first):
            if len(set(values.whole)) < len(values.whole):
                twice = max(values.whole, key=values.whole.count)
                says = f"{key} is a whole number, and {twice} would come twice"
                raise UserError(f"{says}: ask for fewer values, or list them")
            spread[key] = Values(values.whole, log=values.log)
    blocks: list[Sequence[Point]] = [[{key: value} for value in spread[key].values] for key in section.grid]
    if section.zip:
        together = zip(*(spread[key].values for key in section.zip), strict=True)
        blocks.append([dict(zip(section.zip, values, strict=True)) for values in together])
    blocks += [section.points] if section.points else []
    blocks += [drawn] if section.random else []
    found = [{key: value for part in parts for key, value in part.items()} for parts in product(*blocks)]
    draws = section.random.draw if section.random else {}
    by_log = {key for key, given in draws.items() if isinstance(given, str) and given.strip().startswith("log")}
    return Points(tuple(keys), tuple(found), frozenset(by_log | {key for key, one in spread.items() if one.log}))


def label_of(point: Mapping[str, Any]) -> str:
    """A point for people: `model.d_model=64 train.optimizer.lr=0.001`."""
    return " ".join(f"{key}={inline_yaml(value)}" for key, value in point.items())


def _check_keys(section: SweepConfig, keys: Sequence[str]) -> None:
    if not keys and section.numbers() is None:
        raise UserError(
            "nothing is varied: give a list of values, such as model.d_model=[64,128], seeds=3, or a section sweep: "
            "in the config"
        )
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"{shortened(key)} is varied twice: by two of grid, zip, points and random")
        if key == "seeds":
            raise UserError("seeds are no factor: write sweep.seeds in the config, or seeds=[0,1,2]")
        if any(other.startswith(f"{key}.") for other in keys):
            other = next(other for other in keys if other.startswith(f"{key}."))
            raise UserError(f"{shortened(key)} and {shortened(other)} are both varied: the first contains the second")
    for i, point in enumerate(section.points, 1):
        missing = [key for key in section.points[0] if key not in point]
        if missing or len(point) != len(section.points[0]):
            raise UserError(
                f"sweep.points: point {i} does not have the keys of the first: {', '.join(point) or 'none'}"
            )


def _drawn(section: RandomConfig) -> list[Point]:
    """Different points; each key has a source of its own, so that another key changes none of its values."""
    draws = {key: draw_of(f"sweep.random.draw.{key}", given) for key, given in section.draw.items()}
    sources = {key: random.Random(f"{section.seed}/{key}") for key in draws}
    found: dict[str, Point] = {}
    for _ in range(section.n):
        for _ in range(_PATIENCE):
            point = {key: draw(sources[key]) for key, draw in draws.items()}
            if label_of(point) not in found:
                found[label_of(point)] = point
                break
        else:
            raise UserError(
                f"sweep.random: only {counted(len(found), 'different point')} could be drawn, not {section.n:,}: "
                "ask for fewer, or use grid"
            )
    return list(found.values())
