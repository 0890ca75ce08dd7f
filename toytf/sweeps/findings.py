"""What came out of a sweep in words: for each metric that is shown, where it is best and where it is worst."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toytf.measurement import KINDS, reference_name, spread_name
from toytf.report.table import TableRow
from toytf.runs.summary import HALFWAY_STEP, ONSET
from toytf.sweeps.points import label_of
from toytf.words import counted

if TYPE_CHECKING:
    import pandas as pd

    from toytf.sweeps.opened import Sweep


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
            where = _where(sweep, known, best) if lacking else "at every point"
            said += f": {cell(sweep, points, metric, known.index[0])} {where}"
        else:
            ends = [
                f"{word} {cell(sweep, points, metric, known[known == value].index[0])} {_where(sweep, known, value)}"
                for word, value in ((first, best), (last, worst))
            ]
            spread = _number(points, spread_name(metric), known[known == best].index[0]) or 0.0
            others = int((abs(known - best) <= spread).sum() - (known == best).sum())
            lie = f"{counted(others, 'other point')} {'lies' if others == 1 else 'lie'}"
            near = f" ({lie} within one standard deviation of it)" if others else ""
            said += f": {ends[0]}{near}, {ends[1]}"
        levels = {
            kind: {cell(sweep, points, metric, point, kind) for point in points.index}
            for kind in KINDS
            if reference_name(kind, metric) in points
        }
        same = ", ".join(f"{kind} {found.pop()}" for kind, found in levels.items() if len(found) == 1)
        yield f"{said}{f' ({same})' if same else ''}{missing}."


def _where(sweep: "Sweep", known: "pd.Series[float]", value: float) -> str:
    there = list(known[known == value].index)
    first = label_of(sweep.at[there[0]])
    more = f", and at {counted(len(there) - 1, 'other point')}" if len(there) > 1 else ""
    return f"at {first}{more}" if first else ""


def direction(sweep: "Sweep", points: "pd.DataFrame", metric: str) -> str | None:
    """Is a high or a low value better? None: nobody said."""
    about = sweep.about(metric)
    if about.at.get("quantity") == "loss" or about.group.name in (ONSET.name, HALFWAY_STEP.name):
        return "low"
    return "high" if reference_name("ideal", metric) in points else None


def cell(sweep: "Sweep", points: "pd.DataFrame", metric: str, point: object, kind: str = "") -> str:
    """A metric at a point with its spread over seeds, or what it can be read against; a dash where there is none."""
    value = _number(points, reference_name(kind, metric) if kind else metric, point)
    spread = None if kind else _number(points, spread_name(metric), point)
    return "–" if value is None else TableRow(sweep.about(metric), value, spread, ()).cells()[1]


def cells(sweep: "Sweep", points: "pd.DataFrame", shown: Mapping[str, Sequence[str]], point: object) -> list[str]:
    """The metrics that are shown, each beside these kinds of what it can be read against."""
    return [cell(sweep, points, metric, point, kind) for metric, kinds in shown.items() for kind in ("", *kinds)]


def _number(points: "pd.DataFrame", column: str, point: Any) -> float | None:
    value = float(points[column].loc[point])
    return None if math.isnan(value) else value
