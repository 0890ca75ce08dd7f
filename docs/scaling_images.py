"""Pictures of scaling laws and of gradient descent: errors by dimension and samples; spikes, margins, forgetting."""

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


def dynamics() -> Picture:
    """Gradient descent on small memories: spikes that pay, margins that grow like log t, and what is forgotten."""
    picture = Picture(520)
    picture.text("<b>Two tokens: large steps win</b>", 70, 8, size=TITLE)
    panel = picture.panel(70, 50, 460, 440)
    history = run("dynamics/spike").history
    for rate, colour, x, y in ((1, GREY, 14, 0.53), (10, RED, 17, 0.3)):
        panel.curve(history["step"], history[f"loss/lr{rate}"], colour)
        panel.label(f"<b>η = {rate}</b>", x, y, colour)
    panel.axis("x", title_text="step", range=[0, 35], tickvals=[0, 10, 20, 30])
    panel.axis("y", title_text="loss", range=[0, 1.4], tickvals=[0, 0.5, 1], gridcolor=PALE)
    picture.text("<b>Orthonormal: margins ~ log t</b>", 545, 8, size=TITLE)
    panel = picture.panel(545, 50, 925, 440)
    history = run("dynamics/log_growth").history
    for rate, colour, y in ((1, GREY, 3.6), (10, RED, 10.4)):
        smallest = history[history["step"] > 0][["step", f"margin/smallest_lr{rate}"]].dropna()
        panel.curve(*smallest.to_numpy(dtype=float).T, colour)
        law = [(t, np.log(5 * rate * t / 5 / (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5))) for t in (20, 10_000)]
        panel.curve(*zip(*law, strict=True), BLUE, dash="dash")
        panel.label(f"<b>η = {rate}</b>", np.log10(300), y, colour)
    panel.label("dashed: log(M η p t)", np.log10(2.5), 12.2, BLUE)
    ticks = {"tickvals": [1, 100, 10_000], "ticktext": ["1", "100", "10,000"]}
    panel.axis("x", title_text="step t", range=[0, 4], **ticks, **LOG)
    panel.axis("y", title_text="margin of the rarest token", range=[-0.3, 13], tickvals=[0, 5, 10], gridcolor=PALE)
    picture.text("<b>Ten tokens, d = 2: too long hurts</b>", 1010, 8, size=TITLE)
    panel = picture.panel(1010, 50, 1385, 440)
    history = run("dynamics/forgetting").history
    shown = history[history["step"] > 0]
    panel.curve(shown["step"], shown["loss/lr0.1"], GREY)
    panel.curve(shown["step"], shown["error/lr0.1"], RED)
    panel.curve([1, 999], [0.156, 0.156], BLUE, dash="dash")
    panel.label("<b>loss</b>", np.log10(12), 1.45, GREY)
    panel.label("<b>error</b>", np.log10(250), 0.4, RED)
    panel.label("least possible error", np.log10(1.5), 0.08, BLUE)
    panel.axis("x", title_text="step", range=[0, 3], tickvals=[1, 10, 100, 1000], **LOG)
    panel.axis("y", range=[0, 1.65], tickvals=[0, 0.5, 1, 1.5], gridcolor=PALE)
    return picture


def optimisers() -> Picture:
    """How strongly inputs are stored by step size, and what one step of each optimiser makes of more samples."""
    picture = Picture(540)
    picture.text("<b>Step size decides what SGD stores</b>", 105, 8, size=TITLE)
    panel = picture.panel(105, 50, 560, 455)
    table = run("scaling/step_sizes").table
    schemes = table[table["group"] == "scheme"]
    powers = table[table["metric"].str.startswith("rho/counts")].groupby("lr")["value"].mean()
    for rate, colour in ((0.01, RED), (0.1, "#b07000"), (1, GREEN), (10, BLUE)):
        found = schemes[schemes["lr"] == rate].groupby("octave")[["value", "theory"]].mean()
        found, rank = found / found["value"].iloc[0], [1.5 * 2**octave for octave in found.index]
        _dots(panel, pd.Series(found["value"].to_numpy(), index=rank), colour)
        panel.curve(rank, found["theory"], colour, dash="dash")
        text = f"<b>lr {rate:g}</b>: q ~ counts<sup>{powers[rate]:.2f}</sup>"
        panel.beside(text, np.log10(found["value"].iloc[-1]), colour)
    panel.label("dashed: theory", np.log10(1.6), np.log10(0.04), GREY)
    panel.axis("x", title_text="rank of the input by frequency", tickvals=[1, 3, 10, 30], **LOG)
    panel.axis("y", title_text="strength q", tickvals=[0.03, 0.1, 0.3, 1], range=[-1.7, 0.25], **LOG)
    picture.text("<b>One step on n samples, d = 64</b>", 900, 8, size=TITLE)
    panel = picture.panel(900, 50, 1230, 455)
    table = run("scaling/muon").table
    errors = table[table["group"] == "error"].dropna(subset="samples")
    styles = {"sgd": ("SGD", RED, 0.03), "adam": ("Adam", GREEN, -0.05), "muon": ("Muon", BLUE, 0)}
    for optimiser, (text, colour, up) in styles.items():
        found = errors[errors["optimiser"] == optimiser].groupby("samples")[["value", "limit"]].mean()
        _dots(panel, found["value"], colour)
        panel.beside(f"<b>{text}</b>", np.log10(found["value"].iloc[-1]) + up, colour)
    panel.curve(found.index, found["limit"], GREY, dash="dot")
    panel.label("dotted: not<br>yet seen", np.log10(70), np.log10(0.03), GREY)
    panel.axis("x", title_text="samples n", tickvals=[100, 1000, 10000], ticktext=["100", "1,000", "10,000"], **LOG)
    panel.axis("y", title_text="error", tickvals=[0.03, 0.1, 0.3], **LOG)
    return picture
