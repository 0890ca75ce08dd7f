"""Showing claims: the verdict table in the terminal, and the page with statements, notes and links to the runs."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from toytf.errors import one_line
from toytf.report.table import number
from toytf.report.terminal import wide_console

if TYPE_CHECKING:
    from toytf.claims import Outcome

QUICK = "A quick check has fewer seeds, and fewer and shorter runs, than the claim itself: take a verdict as a hint."


def evidence(n: int, doubt: float | None, held: int | None, p: float | None) -> str:
    """How many seeds there are, and the doubt of their mean, or in how many the expectation holds."""
    if held is not None and p is not None:
        return f"{held} of {n}, p = {p:.2g}"
    return f"{n}" if not n or doubt is None else "exact" if n == 1 else f"{n}, doubt {number(doubt)}"


def print_verdicts(outcomes: list["Outcome"]) -> None:
    """Claim, source, predicted, measured ± spread, seeds, verdict; one line per expectation."""
    colours = {"confirmed": "green", "refuted": "red", "not reached": "yellow"}
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for column in ("claim", "source", "expected", "measured", "seeds", "verdict"):
        table.add_column(column)
    for outcome in outcomes:
        for i, finding in enumerate(outcome.findings):
            names = (outcome.name, outcome.source) if i == 0 else ("", "")
            expected = f"{finding.run}: {finding.metric} {finding.expected}"
            spread = f" ± {number(finding.spread)}" if finding.spread is not None else ""
            verdict = f"[{colours[finding.verdict]}]{finding.verdict}[/]"
            table.add_row(
                *(escape(one_line(text)) for text in (*names, expected)),
                number(finding.measured) + spread,
                evidence(finding.n, finding.doubt, finding.held, finding.p),
                verdict,
            )
    wide_console().print(table)
    if any(outcome.quick for outcome in outcomes):
        wide_console().print(QUICK)


def verdict_page(outcomes: list["Outcome"], folder: Path) -> str:
    """The HTML of the claims, with links to the folders of their runs, relative to the one it is put in."""
    from toytf.report.page import template

    folders = [
        {run: os.path.relpath(directory, folder) for run, directory in outcome.runs.items()} for outcome in outcomes
    ]
    hint = QUICK if any(outcome.quick for outcome in outcomes) else ""
    return template("claims.html.j2").render(
        claims=list(zip(outcomes, folders, strict=True)), number=number, evidence=evidence, hint=hint
    )
