"""Figures of the probe `limits`: how full matrices are, and margins, scores and singular values of each."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from torch import Tensor

from toytf.holder import Holder
from toytf.memory import exact
from toytf.memory.measures import compared_spectra, score_levels, score_samples


def filled_bars(parts: Mapping[str, Mapping[str, float]], unlimited: Mapping[str, str]) -> object:
    """How full matrices are: a bar up to what fits, with marks for the pairs to hold and for what is recalled of them.

    parts[name] has `pairs` and `learned`, and `ideal`, `hebbian` and `limit` if they are known; unlimited[name] says
    why there is no limit, if so. The axis is logarithmic, since a toy model holds a few percent of what fits.
    """
    import plotly.graph_objects as go

    from toytf.figures import COLOURS, empty_figure, styled

    names = list(parts)
    figure = empty_figure(
        go.Bar(
            x=[part.get("limit") for part in parts.values()], y=names, orientation="h", width=0.5,
            marker={"color": "#dfe6ee", "line": {"color": "#8899aa", "width": 1}}, name="what fits: the capacity limit",
            hovertemplate="%{y}: room for %{x:,.0f} pairs<extra></extra>",
        )
    )  # fmt: skip
    marks = {
        "pairs": ("pairs to hold", "line-ns-open", COLOURS[7], 22),
        "hebbian": ("Hebbian matrix", "square-open", COLOURS[1], 15),
        "ideal": ("ideal: the best matrix", "diamond-open", COLOURS[2], 15),
        "learned": ("learned", "circle", "black", 9),
    }
    for key, (label, symbol, colour, size) in marks.items():
        marker = {"symbol": symbol, "size": size, "color": colour, "line": {"width": 2, "color": colour}}
        figure.add_trace(
            go.Scatter(
                x=[part.get(key) or None for part in parts.values()], y=names, mode="markers", name=label,
                marker=marker, hovertemplate=f"%{{y}}: {label} %{{x:,.0f}}<extra></extra>",
            )
        )  # fmt: skip
    said = [
        f"{part['learned']:,.0f} of {part['pairs']:,.0f} pairs"
        + (f", room for {part['limit']:,.0f}" if "limit" in part else "")
        + (f", no limit: {unlimited[name]}" if unlimited[name] else "")
        for name, part in parts.items()
    ]
    ends = [max(part.values()) for part in parts.values()]  # of bars without a colour: no mark is in their words
    figure.add_trace(
        go.Bar(
            x=ends, y=names, orientation="h", width=0.5, marker={"color": "rgba(0, 0, 0, 0)"}, text=said,
            textposition="outside", showlegend=False, hoverinfo="skip",
        )
    )  # fmt: skip
    figure.update_layout(barmode="overlay")
    largest = max(ends)
    figure.update_xaxes(type="log", range=[0, math.log10(max(largest, 10)) * 1.35], dtick=1)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return styled(figure, "Pairs in each matrix, and how many fit", x="pairs", height=170 + 60 * len(names))


@dataclass(eq=False)
class Details:
    """What the further figures show, a panel for each part."""

    margins: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    largest: dict[str, dict[str, float]] = field(default_factory=dict)
    scores: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    levels: dict[str, dict[str, float]] = field(default_factory=dict)
    spectra: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def add(self, holder: Holder, unit: float, possible: float | None) -> None:
        """A panel in each figure."""
        name, stored, memory = holder.name, holder.association, holder.memory
        margins = exact(stored.margins(memory)) / unit
        self.margins[name] = {"margin": margins[margins.isfinite()].numpy()}
        self.largest[name] = {"not recalled below": 0.0}
        if possible:
            self.largest[name]["largest possible minimum (theory)"] = possible
        self.scores[name] = score_samples(stored, memory)
        self.levels[name] = score_levels(stored) if isinstance(memory, Tensor) else {}
        spectra = compared_spectra(memory, len(stored.keys)) if isinstance(memory, Tensor) else {}
        if spectra:
            self.spectra[name] = spectra

    @property
    def figures(self) -> dict[str, Callable[[], object]]:
        """The figures by name, each drawn from what is here."""

        def draw(name: str) -> object:
            from toytf.figures import histograms, ranked

            unit = "in standard deviations of a score"
            if name == "margins":
                return histograms(self.margins, "Margins", lines=self.largest, x=f"margin, {unit}")
            if name == "scores":
                return histograms(self.scores, "Scores", lines=self.levels, x=f"score, {unit}")
            return ranked(self.spectra, "Singular values of √d W / ‖W‖", measured="measured", y="singular value")

        content = {"margins": self.margins, "scores": self.scores, "spectrum": self.spectra}
        return {name: partial(draw, name) for name, panels in content.items() if panels}
