"""What came out of a sweep in words: for each metric that is shown, where it is best and where it is worst."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from toytf.measurement import KINDS, reference_name, spread_name
from toytf.report.table import TableRow
from toytf.runs.summary import HALFWAY_STEP, ONSET
from toytf.sweeps.points import label_of
from toytf.words import counted

if TYPE_CHECKING:
    import pandas as pd

    from toytf.sweeps.opened import Sweep


NOTHING = "–"


def findings(sweep: "Sweep", points: "pd.DataFrame") -> Iterator[str]:
    """A sentence for each metric that is shown: what it is, its name, where it is best and where it is worst."""
    for metric in sweep.shown:
        known = points[metric].dropna()
        phrase = sweep.phrase(metric).rstrip(".")
        said = f"{phrase[:1].upper()}{phrase[1:]} ({metric})" if phrase else metric
        if known.empty:
            yield f"{said}: at no point do all seeds have it."
            continue
        better = direction(sweep, points, metric)
        first, last = ("largest", "smallest") if better is None else ("best", "worst")
        best, worst = (known.min(), known.max()) if better == "low" else (known.max(), known.min())
        lacking = len(points) - len(known)
        missing = f"; at {counted(lacking, 'point')} some seed failed, or never had it" if lacking else ""
        if best == worst:
            value = cell(sweep, points, metric, known.index[0])
            where = _where(sweep, known, best) if lacking else "at every point"
            yield f"{said}: {value} {where}{_against(sweep, points, metric)}{missing}."
            continue
        ends = [
            f"{word} {cell(sweep, points, metric, known[known == value].index[0])} {_where(sweep, known, value)}"
            for word, value in ((first, best), (last, worst))
        ]
        near = _near(points, metric, known, best)
        yield f"{said}: {ends[0]}{near}, {ends[1]}{_against(sweep, points, metric)}{missing}."


def direction(sweep: "Sweep", points: "pd.DataFrame", metric: str) -> str | None:
    """Is a high or a low value better? None: nobody said."""
    about = sweep.about(metric)
    if about.at.get("quantity") == "loss" or about.group.name in (ONSET.name, HALFWAY_STEP.name):
        return "low"
    return "high" if reference_name("ideal", metric) in points else None


def cell(sweep: "Sweep", points: "pd.DataFrame", metric: str, point: object) -> str:
    """A metric at a point, with its spread over seeds; a dash where there is none."""
    value, spread = _number(points, metric, point), _number(points, spread_name(metric), point)
    return NOTHING if value is None else TableRow(sweep.about(metric), value, spread, ()).cells()[1]


def levels(points: "pd.DataFrame", metric: str) -> list[str]:
    """The kinds of reference that a metric has somewhere."""
    return [kind for kind in KINDS if reference_name(kind, metric) in points]


def level(sweep: "Sweep", points: "pd.DataFrame", metric: str, kind: str, point: object) -> str:
    """What a metric can be read against at a point."""
    value = _number(points, reference_name(kind, metric), point)
    return NOTHING if value is None else TableRow(sweep.about(metric), value, None, ()).cells()[1]


def _number(points: "pd.DataFrame", column: str, point: Any) -> float | None:
    value = float(points[column].loc[point])
    return None if math.isnan(value) else value


def _where(sweep: "Sweep", known: "pd.Series[float]", value: float) -> str:
    there = list(known[known == value].index)
    first = label_of(sweep.at[there[0]])
    more = f", and at {counted(len(there) - 1, 'other point')}" if len(there) > 1 else ""
    return f"at {first}{more}" if first else ""


def _near(points: "pd.DataFrame", metric: str, known: "pd.Series[float]", best: float) -> str:
    """How many other points cannot be told from the best: they lie within its standard deviation over seeds."""
    spread = (
        _number(points, spread_name(metric), known[known == best].index[0]) if spread_name(metric) in points else None
    )
    others = int((abs(known - best) <= (spread or 0.0)).sum() - (known == best).sum())
    are = "lies" if others == 1 else "lie"
    return f" ({counted(others, 'other point')} {are} within one standard deviation of it)" if others else ""


def _against(sweep: "Sweep", points: "pd.DataFrame", metric: str) -> str:
    """What a metric can be read against, where that is the same at all points."""
    told = []
    for kind in levels(points, metric):
        found = {level(sweep, points, metric, kind, point) for point in points.index}
        if len(found) == 1:
            told.append(f"{kind} {found.pop()}")
    return f" ({', '.join(told)})" if told else ""
