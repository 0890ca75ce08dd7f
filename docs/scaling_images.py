"""Pictures of scaling laws: the error of a memory by dimension and by samples, for each way to store."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from image_runs import COLOURS, PALE, run
from picture import GREY, TITLE, Panel, Picture

BLUE, RED, GREEN = COLOURS["W_OV2"], COLOURS["W_KQ2"], COLOURS["W_KQ1"]
LOG = {"type": "log", "gridcolor": PALE}


def scaling() -> Picture:
    """Error against the dimension for four schemes, and against samples: more data hurts a full memory."""
    picture = Picture(560)
    picture.text("<b>10,000 inputs, all data: error by dimension</b>", 105, 8, size=TITLE)
    panel = picture.panel(105, 50, 560, 475)
    errors = _errors("scaling/laws", alpha=2)
    styles = {
        "seen": ("all alike", GREY, 0.02),
        "counts": ("by frequency", RED, 0),
        "top0.125d": ("only the d/8<br>most frequent", BLUE, 0.06),
    }
    for scheme, (text, colour, up) in styles.items():
        found = errors[errors["scheme"] == scheme].groupby("d")[["value", "theory"]].mean()
        _dots(panel, found["value"], colour)
        panel.curve(found.index, found["theory"], colour, dash="dash")
        panel.beside(f"<b>{text}</b>", np.log10(found["value"].iloc[-1]) + up, colour)
    panel.axis("x", title_text="dimension d", tickvals=[10, 100, 1000], **LOG)
    panel.axis("y", title_text="error", tickvals=[0.01, 0.1, 1], range=[-2.6, 0.05], **LOG)
    panel.label("dashed: theory", np.log10(11), np.log10(0.0035), GREY)
    picture.text("<b>1,000 inputs, d = 100: error by samples</b>", 850, 8, size=TITLE)
    panel = picture.panel(850, 50, 1200, 475)
    errors = _errors("scaling/samples", d=100)
    styles = {
        "seen": ("all that was<br>seen, alike", GREY, 0),
        "counts": ("by frequency", RED, 0.02),
        "top0.0834d": ("only the d/12<br>seen most often", BLUE, -0.05),
    }
    for scheme, (text, colour, up) in styles.items():
        found = errors[errors["scheme"] == scheme].groupby("samples")[["value", "limit"]].mean()
        _dots(panel, found["value"], colour)
        panel.beside(f"<b>{text}</b>", np.log10(found["value"].iloc[-1]) + up, colour)
    panel.curve(found.index, found["limit"], GREY, dash="dot")
    panel.label("dotted:<br>not yet seen", np.log10(13), np.log10(0.008), GREY)
    panel.axis(
        "x", title_text="samples n", tickvals=[10, 100, 1000, 10000], ticktext=["10", "100", "1,000", "10,000"], **LOG
    )
    panel.axis("y", tickvals=[0.01, 0.1, 1], range=[-2.6, 0.05], **LOG)
    return picture


def _errors(config: str, **at: float) -> pd.DataFrame:
    table = run(config).table
    return table[(table["group"] == "error") & _is(table, at)]


def _is(table: pd.DataFrame, at: Mapping[str, float]) -> "pd.Series[bool]":
    return np.logical_and.reduce([table[factor] == value for factor, value in at.items()])


def _dots(panel: Panel, values: "pd.Series[float]", colour: str) -> None:
    panel.draw(go.Scatter(x=values.index, y=values, mode="markers", marker={"color": colour, "size": 13}))
