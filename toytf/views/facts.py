"""What a model knows, fact by fact: the page of a run, notebooks and the probe `facts` show the same sheet."""

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from toytf.views.blocks import block_names, block_size, block_sums
from toytf.words import counted

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SHOWN = 64
"""Subjects and relations that a figure shows one by one; of more, neighbours are taken together."""
KNOWN = ["rgb(176, 32, 32)", "rgb(224, 160, 60)", "rgb(240, 230, 140)", "rgb(110, 180, 120)", "rgb(16, 112, 64)"]
"""Colours from a fact that is wrong to one that is known."""
NAMED = 10
"""Wrong facts that a summary names."""


@dataclass(frozen=True)
class WrongFact:
    """A fact that is answered wrongly."""

    subject: str
    relation: str
    right: str
    said: str
    margin: float = math.nan
    """By how much the right answer is above the best other one (logits); not a number if that was not measured."""

    def __str__(self) -> str:
        return f"{self.subject}, {self.relation}: says {self.said}, is {self.right}"


@dataclass(frozen=True, eq=False)
class FactSheet:
    """Facts (subject s, relation r) → answer, and what a model says when each is asked in several draws of the noise.

    A fact is known if every draw is right.
    """

    subjects: tuple[str, ...]
    relations: tuple[str, ...]
    answers: tuple[str, ...]
    right: Int[np.ndarray, "S R"]
    """The number of the right answer; −1 where nothing is asked."""
    said: Int[np.ndarray, "S R"]
    """The number of the right answer if the fact is known; else that of the wrong one which most draws give."""
    known: Float[np.ndarray, "S R"]
    """The fraction of draws that are right; not a number where nothing is asked."""
    margin: Float[np.ndarray, "S R"]
    """Logit of the right answer minus the best other one, averaged over draws; not a number where nothing is asked."""
    stored: Int[np.ndarray, "S R"]
    """The number of the place that holds the fact; −1 if it is not known, nothing is asked, or there are no places."""
    places: tuple[str, ...] = ()
    """The parts of the model that can hold a fact; none if there is only one, or they cannot be told apart."""

    @property
    def asked(self) -> Bool[np.ndarray, "S R"]:
        """Where there is a fact."""
        asked: Bool[np.ndarray, "S R"] = self.right >= 0
        return asked

    @property
    def n_facts(self) -> int:
        """How many facts there are."""
        return int(self.asked.sum())

    @property
    def n_known(self) -> int:
        """How many are right in every draw of the noise."""
        return int((self.known == 1).sum())

    def wrong(self, limit: int | None = None) -> list[WrongFact]:
        """The facts that some draw gets wrong, those of the smallest margin first."""
        s, r = np.nonzero(self.asked & (self.known < 1))
        worst = np.argsort(self.margin[s, r], kind="stable")[:limit]
        return [
            WrongFact(
                self.subjects[s],
                self.relations[r],
                self.answers[self.right[s, r]],
                self.answers[self.said[s, r]],
                float(self.margin[s, r]),
            )
            for s, r in zip(s[worst].tolist(), r[worst].tolist(), strict=True)
        ]

    def table(self) -> "pd.DataFrame":
        """One row a fact: subject, relation, right, said, known, margin, stored (missing if it is in no place)."""
        import pandas as pd

        s, r = np.nonzero(self.asked)

        def named(names: tuple[str, ...], numbers: Int[np.ndarray, "fact"]) -> list[str | None]:
            return [names[i] if i >= 0 else None for i in numbers.tolist()]

        return pd.DataFrame(
            {
                "subject": named(self.subjects, s),
                "relation": named(self.relations, r),
                "right": named(self.answers, self.right[s, r]),
                "said": named(self.answers, self.said[s, r]),
                "known": self.known[s, r],
                "margin": self.margin[s, r],
                "stored": named(self.places, self.stored[s, r]),
            }
        )

    def figure(self) -> "go.Figure":
        """The margin of every fact; with many subjects or relations, the fraction known among neighbours."""
        from toytf.figures import heat_maps

        rows, columns = (block_size(len(names), SHOWN) for names in (self.subjects, self.relations))
        if rows == columns == 1:
            panel = (self.margin, self.subjects, self.relations)
            title = (
                "Logit of the right answer minus the best other one, averaged over noise: green is known, red is not"
            )
            return heat_maps({"": panel}, title, x="relation", y="subject").update_traces(colorscale=KNOWN)
        known, asked = (block_sums(facts, rows, columns) for facts in (self.known == 1, self.asked))
        fraction = np.where(asked > 0, known / np.maximum(asked, 1), np.nan)
        panel = (fraction, block_names(self.subjects, rows), block_names(self.relations, columns))
        cell = f"{counted(rows, 'subject')} × {counted(columns, 'relation')}"
        title = f"Fraction of facts known, {cell} to a cell: green is all, red is none"
        figure = heat_maps({"": panel}, title, x="relation", y="subject")
        return figure.update_traces(zmin=0, zmax=1, colorscale=KNOWN)

    def _repr_html_(self) -> str:
        """How many facts are known, and the worst of the others."""
        wrong = self.wrong(NAMED)
        summary = f"<p>{self.n_known:,} of {self.n_facts:,} facts known</p>"
        if not wrong:
            return summary
        cells = [(fact.subject, fact.relation, fact.said, fact.right, f"{fact.margin:.2f}") for fact in wrong]
        rows = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in cells)
        head = "<tr><th>subject</th><th>relation</th><th>says</th><th>is</th><th>margin</th></tr>"
        more = self.n_facts - self.n_known - len(wrong)
        rest = f"<p>and {more:,} more</p>" if more else ""
        return f"{summary}<table><thead>{head}</thead><tbody>{rows}</tbody></table>{rest}"
