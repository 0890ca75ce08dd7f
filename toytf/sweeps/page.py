"""The page of a sweep: one HTML file that opens offline, with what was varied, what came out, and what failed."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toytf.config.yaml_text import inline_yaml
from toytf.errors import shortened
from toytf.files import write_atomic
from toytf.measurement import reference_name
from toytf.report.page import Figures, as_script, template
from toytf.runs.checksums import Checksums, read_bytes, sha256
from toytf.sweeps.figures import sweep_figures
from toytf.sweeps.findings import cells, findings
from toytf.sweeps.opened import FIGURES, PAGE, RUNS, Sweep, member_label
from toytf.sweeps.plan import SWEEP_FILE
from toytf.words import counted

if TYPE_CHECKING:
    import pandas as pd

MOST_POINTS = 1000
"""Rows of the table of points: a page of more is slow, and nobody reads them."""
MOST_FAILED = 50
MOST_VALUES = 12
REFERENCES = ("ideal", "limit", "theory", "chance")


def write_page(sweep: Sweep, measured: "pd.DataFrame") -> None:
    """Write sweep.html, and each figure as plotly JSON into figures/."""
    drawn = dict(sweep_figures(sweep, measured))
    folder = sweep.directory / FIGURES
    known = Checksums(sweep.directory)
    for path in folder.glob("*.json"):
        if path.stem not in drawn and known[f"{FIGURES}/{path.name}"] == sha256(read_bytes(path)):
            path.unlink()  # ours, of a metric that was shown before
    for name, figure in drawn.items():
        folder.mkdir(exist_ok=True)
        file = figure.to_json().encode()
        known[f"{FIGURES}/{name}.json"] = sha256(file)
        write_atomic(folder / f"{name}.json", file)
    content = page(sweep, measured, drawn).encode(errors="surrogateescape")  # names of files
    write_atomic(sweep.directory / PAGE, content)


def page(sweep: Sweep, measured: "pd.DataFrame", drawn: dict[str, Any]) -> str:
    """The HTML of a sweep."""
    from plotly.offline import get_plotlyjs

    points = sweep.points_of(measured)
    content = Figures()
    charts = [content.add(name, figure) for name, figure in drawn.items()]
    kinds = {metric: [kind for kind in REFERENCES if reference_name(kind, metric) in points] for metric in sweep.shown}
    rows = [
        [
            *(shortened(inline_yaml(sweep.at[point].get(key)), 40) for key in sweep.factors),
            str(points.at[point, "seeds"]),
            *cells(sweep, points, kinds, point),
        ]
        for point in points.index[:MOST_POINTS]
    ]
    failed = list(_failed(sweep))
    n_seeds = int(points["seeds"].max()) if len(points) else 0
    return template("sweep.html.j2").render(
        title=sweep.title,
        name=sweep.name,
        n_points=counted(len(sweep.at), "point"),
        seeds=counted(n_seeds, "seed") if n_seeds > 1 else "",
        state=f"{sweep.state}.",
        findings=list(findings(sweep, points)),
        varied=_varied(sweep),
        figures=charts,
        spread="± is the standard deviation over seeds." if n_seeds > 1 else "One seed: no spread.",
        more=f"The first {MOST_POINTS:,} of {len(points):,} are listed." if len(points) > MOST_POINTS else "",
        columns=[*sweep.factors, "seeds", *(name for metric in kinds for name in (metric, *kinds[metric]))],
        rows=rows,
        failed=failed[:MOST_FAILED],
        more_failed=max(0, len(failed) - MOST_FAILED),
        retry=f"{_resume(sweep)} --retry",
        commands=list(_commands(sweep)),
        config=(sweep.directory / SWEEP_FILE).read_text(encoding="utf-8"),
        data=as_script({"runs": [], "figures": content.by_name}),
        plotly=get_plotlyjs(),
    )


def _varied(sweep: Sweep) -> dict[str, str]:
    """The values of every factor, and the seeds."""
    found: dict[str, str] = {}
    for key in sweep.factors:
        values = list(dict.fromkeys(inline_yaml(at.get(key)) for at in sweep.at.values()))
        more = f" … {values[-1]} ({len(values):,} values)" if len(values) > MOST_VALUES else ""
        found[key] = ", ".join(shortened(value) for value in values[: MOST_VALUES - 1 if more else None]) + more
    seeds = list(dict.fromkeys(member.seed for member in sweep.members if member.seed is not None))
    return {**found, **({"seeds": ", ".join(map(str, seeds))} if seeds else {})}


def _failed(sweep: Sweep) -> Iterator[tuple[str, str, str, str]]:
    """Run, point, why, and where if nobody foresaw it; without the folders of somebody's machine."""
    known, parents = sweep.failures, [f"{place.parent}/" for place in (sweep.directory.resolve(), sweep.directory)]
    for member in sweep.members:
        if member.id in known:
            told = (known[member.id].message, known[member.id].traceback)
            why, where = (text.replace(parents[0], "").replace(parents[1], "") for text in told)
            yield member.id, member_label(member), why, where


def _commands(sweep: Sweep) -> Iterator[tuple[str, str]]:
    """What to do next, and the command; a path is as it was given, or relative to the folder of the sweep."""
    first = next((member for member in sweep.members if sweep.run(member).finished), None)
    if len(sweep.runs) < len(sweep.members) - len(sweep.failures):
        yield "go on with what is not done", _resume(sweep)
    if first is not None:
        run = _place(sweep) / RUNS / first.id
        yield f"look at one run ({member_label(first) or 'the first'})", shlex.join(["toytf", "inspect", str(run)])
    yield "everything in Python", f"toytf.open_sweep({str(_place(sweep))!r}).table"


def _resume(sweep: Sweep) -> str:
    return shlex.join(["toytf", "sweep", str(_place(sweep) / SWEEP_FILE), "--resume"])


def _place(sweep: Sweep) -> Path:
    """The directory without the folders of somebody's machine."""
    return Path(sweep.name) if sweep.directory.is_absolute() else sweep.directory
