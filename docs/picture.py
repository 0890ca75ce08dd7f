"""A picture for the documents: a plotly figure with panels placed by pixels, saved by a screenshot of chromium."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

WIDTH = 1400
"""Pixels. A page shows a picture at half of that, so letters have at least 20."""
LETTERS, TITLE = 21, 24
INK, GREY = "#222222", "#707070"


class Picture:
    """A plotly figure whose panels are placed by pixels."""

    def __init__(self, height: int) -> None:
        self.height = height
        self.figure = go.Figure()
        self.figure.update_layout(
            template="plotly_white", width=WIDTH, height=height, margin={"l": 0, "r": 0, "t": 0, "b": 0},
            font={"size": LETTERS, "color": INK, "family": "DejaVu Sans Condensed, Arial"}, showlegend=False,
        )  # fmt: skip
        self._n_panels = 0

    def text(self, text: str, x: float, y: float, *, size: int = LETTERS, colour: str = INK, **options: Any) -> None:
        """Words at a pixel; y counts from the top."""
        where = {"xref": "paper", "yref": "paper", "x": x / WIDTH, "y": 1 - y / self.height}
        style = {"showarrow": False, "xanchor": "left", "yanchor": "top", "align": "left"} | options
        self.figure.add_annotation(text=text, font={"size": size, "color": colour}, **where, **style)

    def panel(self, left: float, top: float, right: float, bottom: float) -> "Panel":
        """Axes between these pixels."""
        self._n_panels += 1
        panel = Panel(self.figure, "" if self._n_panels == 1 else str(self._n_panels))
        panel.axis("x", domain=[left / WIDTH, right / WIDTH])
        panel.axis("y", domain=[1 - bottom / self.height, 1 - top / self.height])
        return panel

    def save(self, path: Path) -> None:
        """Draw the figure in a browser without a window, and keep what it shows."""
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        if chromium is None:
            sys.exit("a picture needs chromium")
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.html"
            plot = self.figure.to_html(full_html=False, include_plotlyjs=True, config={"staticPlot": True})
            page.write_text(f'<meta charset="utf-8"><body style="margin:0">{plot}</body>', encoding="utf-8")
            options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=10000"]
            size, shot = f"--window-size={WIDTH},{self.height}", f"--screenshot={path}"
            subprocess.run([chromium, *options, size, shot, page.as_uri()], check=True, capture_output=True)


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    figure: go.Figure
    number: str

    def axis(self, which: str, **options: Any) -> None:
        """Set the x or the y axis."""
        anchor = {"x": "y", "y": "x"}[which] + self.number
        style = {"title_font_size": LETTERS + 1, "tickfont_size": LETTERS, "title_standoff": 6, "zeroline": False}
        self.figure.update_layout({f"{which}axis{self.number}": style | {"anchor": anchor} | options})

    def framed(self, which: str, n: int, **options: Any) -> None:
        """An axis over the rows or columns of a matrix of this size."""
        ends = [-0.5, n - 0.5] if which == "x" else [n - 0.5, -0.5]
        frame = {"range": ends, "showgrid": False, "showline": True, "linecolor": GREY, "mirror": True}
        self.axis(which, **frame, **options)

    def draw(self, trace: Any) -> None:
        """Add a trace."""
        self.figure.add_trace(trace.update(xaxis=f"x{self.number}", yaxis=f"y{self.number}"))

    def curve(self, x: Sequence[float], y: Sequence[float], colour: str, *, dash: str = "solid") -> None:
        """A line; thin if it is dashed."""
        line = {"color": colour, "width": 5 if dash == "solid" else 3, "dash": dash}
        self.draw(go.Scatter(x=list(x), y=list(y), mode="lines", line=line))

    def heat(self, z: np.ndarray, *, signed: bool) -> None:
        """A matrix: numbers from 0 to 1 from white to black, signed ones red > 0 > blue."""
        scale, lowest = ("RdBu_r", -1) if signed else ("Greys", 0)
        self.draw(go.Heatmap(z=z, zmin=lowest, zmax=1, colorscale=scale, showscale=False))

    def label(self, text: str, x: float, y: float, colour: str = INK, **options: Any) -> None:
        """Words at a point, such as at the end of a line instead of a legend."""
        style = {"showarrow": False, "xanchor": "left", "yanchor": "middle", "align": "left"} | options
        where = {"x": x, "y": y, "xref": f"x{self.number}", "yref": f"y{self.number}"}
        font = {"size": style.pop("font_size", LETTERS), "color": colour}
        self.figure.add_annotation(text=text, font=font, **(where | style))

    def beside(self, text: str, y: float, colour: str) -> None:
        """Words to the right of the panel."""
        self.label(text, 1.015, y, colour, xref=f"x{self.number} domain")

    def arrow(self, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
        """From one point to another."""
        tail = {"ax": start[0], "ay": start[1], "axref": f"x{self.number}", "ayref": f"y{self.number}"}
        self.label("", *end, showarrow=True, arrowcolor=colour, arrowwidth=2.5, arrowhead=2, standoff=12, **tail)

    def rings(self, x: Sequence[float], y: Sequence[float], size: int, colour: str) -> None:
        """Open squares around cells."""
        ring = {"symbol": "square-open", "size": size, "color": colour, "line_width": 3}
        self.draw(go.Scatter(x=list(x), y=list(y), mode="markers", marker=ring))
