"""Pictures of memories and their limits: how much fits into a matrix, what trained ones hold, where recall breaks."""

import numpy as np
import plotly.graph_objects as go
from image_runs import COLOURS, PALE, run
from picture import GREY, INK, TITLE, Picture

from toytf.experiments.filling.curves import recalls
from toytf.theory import HIDDEN_LOAD, asymptotic_capacity


def capacity() -> Picture:
    """How many pairs a d × d matrix stores, at best and by the Hebbian rule, with theory and the limit of large d."""
    picture = Picture(560)
    panel = picture.panel(110, 20, 960, 480)
    table = run("capacity/linear").table
    table = table[(table["group"] == "capacity") & ~table["variant"]]
    styles = {"optimum": ("the best matrix", COLOURS["W_OV2"]), "hebbian": ("the sum Σ u eᵀ", COLOURS["W_KQ2"])}
    sizes = sorted(table["d"].unique())
    for rule, (text, colour) in styles.items():
        found = table[table["rule"] == rule].groupby("d")[["value", "theory"]].mean()
        dots = {"color": colour, "size": 16}
        panel.draw(go.Scatter(x=found.index, y=found["value"], mode="markers", marker=dots))
        panel.curve(found.index, found["theory"], colour, dash="dash")
        last = float(found["value"].iloc[-1])
        words = f"<b>{text}</b>:<br>{last:.0f} pairs at d = 64,<br>theory {found['theory'].iloc[-1]:.0f} (dashed)"
        panel.beside(words, np.log10(last), colour)
    limit = [asymptotic_capacity(int(d), int(d)) for d in sizes]
    panel.curve(sizes, limit, GREY, dash="dot")
    panel.beside("limit for large d:<br>p log p = d²/2", np.log10(limit[-1]) - 0.12, GREY)
    frame = {"type": "log", "gridcolor": PALE}
    panel.axis("x", title_text="d", tickvals=sizes, range=[np.log10(15), np.log10(68)], **frame)
    panel.axis("y", title_text="pairs stored without an error", tickvals=[10, 30, 100, 300], **frame)
    return picture


def hidden_units() -> Picture:
    """How many pairs trained hidden units store: all widths on one curve in m d, with the line of other authors."""
    picture = Picture(560)
    panel = picture.panel(110, 20, 960, 480)
    table = run("capacity/trained_mlp").table
    table = table[(table["group"] == "capacity") & ~table["variant"]]
    table = table.assign(units=table["width"] * table["d"], ratio=table["width"] // table["d"])
    units = np.geomspace(table["units"].min(), table["units"].max(), 30)
    line = [asymptotic_capacity(1, 1, constant=HIDDEN_LOAD * float(x)) for x in units]
    panel.curve(units, line, GREY, dash="dash")
    shades = dict(zip((1, 2, 4, 8), ("#9ecae1", "#4292c6", "#08519c", "#041f3d"), strict=True))
    symbols = {8: "circle", 11: "square", 16: "diamond"}
    for (d, ratio), found in table.groupby(["d", "ratio"]):
        dot = {"color": shades[ratio], "size": 18, "symbol": symbols[d]}
        spread = {"array": [found["value"].std()], "color": shades[ratio], "thickness": 2}
        x, y = [found["units"].iloc[0]], [found["value"].mean()]
        panel.draw(go.Scatter(x=x, y=y, error_y=spread, mode="markers", marker=dot))
    words = "<br>".join(f'<span style="color:{colour}">●</span> m/d = {ratio}' for ratio, colour in shades.items())
    panel.beside(f"{words}<br>● d = 8, ■ 11, ◆ 16", 2.55, INK)
    panel.beside("dashed: the line that<br>the authors drew,<br>p log p = 2.86 m d", 1.9, GREY)
    frame = {"type": "log", "gridcolor": PALE}
    panel.axis("x", title_text="m d", tickvals=[64, 128, 256, 512, 1024, 2048], **frame)
    panel.axis("y", title_text="pairs stored, 99 % recalled", tickvals=[30, 100, 300, 1000], **frame)
    return picture


def limits() -> Picture:
    """Tour: what the three matrices of the quickstart hold, and how many pairs would fit."""
    summary, matrices = run("quickstart").summary, ["W_OV2", "W_KQ2", "W_KQ1"]
    picture = Picture(330)
    panel = picture.panel(110, 10, 1010, 260)
    for row, name in enumerate(reversed(matrices)):
        fits = summary.get(f"limit/pairs/{name}")
        bar = {"color": "#dfe6ee", "line": {"color": GREY, "width": 1}}
        panel.draw(go.Bar(x=[fits], y=[row], orientation="h", width=0.5, marker=bar))
        for kind, symbol, size in (("hebbian/", "square-open", 30), ("ideal/", "diamond-open", 26), ("", "circle", 15)):
            mark = {"symbol": symbol, "size": size, "color": COLOURS[name] if kind == "" else INK, "line": {"width": 2}}
            panel.draw(go.Scatter(x=[summary[f"{kind}pairs/{name}"]], y=[row], mode="markers", marker=mark))
        end, room = (10.0, "no limit") if fits is None else (fits, f"room for {fits:,.0f}")
        said = f"{summary[f'pairs/{name}']:.0f} of {summary[f'ideal/pairs/{name}']:.0f} pairs, {room}"
        panel.label(said, np.log10(end) + 0.03, row, COLOURS[name], yanchor="middle")
    panel.axis("x", title_text="pairs", type="log", range=[0, 3.4], tickvals=[1, 10, 100, 1000], gridcolor=PALE)
    panel.axis("y", tickvals=[0, 1, 2], ticktext=[f"<b>{name}</b>" for name in reversed(matrices)], range=[-0.5, 2.5])
    picture.text("● learned    ◇ the best matrix    □ the plain sum    ▭ what fits", 640, 292, colour=GREY)
    return picture


def filling() -> Picture:
    """Limits: recall against load, of W_OV2 of an induction head and of the hidden units of a factual model."""
    picture = Picture(600)
    styles = {
        ("best", ""): ("the best matrix", INK, "solid"), ("bare", ""): ("trained on the pairs alone", GREY, "solid"),
        ("least_squares", ""): ("least squares", GREY, "dash"), ("hebbian", ""): ("plain sum", GREY, "dot"),
        ("learned", "together"): ("<b>learned, all together</b>", COLOURS["W_OV2"], "solid"),
        ("learned", "alone"): ("<b>learned alone, attention<br>   written down, frozen</b>", COLOURS["W_KQ2"], "solid"),
        ("accuracy", "together"): ("accuracy of the model,<br>   all together", COLOURS["W_KQ1"], "solid"),
    }  # fmt: skip
    panels = {
        ("limits/bigram", "W_OV2", "W_OV2_alone", "untrapped"): (80, 510, "<b>W_OV2 of an induction head</b>"),
        ("limits/factual_mlp", "FF1", "FF1_alone", "fact"): (610, 1040, "<b>hidden units of a factual model</b>"),
    }
    for (config, memory, alone, role), (left, right, title) in panels.items():
        picture.text(title, left, 8, size=TITLE)
        panel = picture.panel(left, 50, right, 520)
        table = recalls(run(config).table, role)
        for (rule, setting), (_, colour, dash) in styles.items():
            chosen = {"": alone, "alone": alone, "together": "together"}[setting]
            own = table[(table["memory"] == memory) & (table["rule"] == rule) & (table["setting"] == chosen)]
            mean = own.groupby("size")[["load", "recall"]].mean().sort_values("load")
            if rule != "accuracy" or role == "fact":
                panel.curve(mean["load"], mean["recall"], colour, dash=dash)
        panel.curve([1, 1], [0, 1.05], "#cc0000", dash="dash")
        panel.axis("x", title_text="load: pairs to hold / capacity", range=[0, 1.95], tickvals=[0, 0.5, 1, 1.5])
        panel.axis("y", title_text="recall", range=[-0.02, 1.06], tickvals=[0, 0.5, 1], gridcolor=PALE)
    for i, (text, colour, dash) in enumerate(styles.values()):
        picture.text(
            f"{'─' if dash == 'solid' else '╌' if dash == 'dash' else '┈'} {text}", 1070, 60 + 62 * i, colour=colour
        )
    picture.text("╎ capacity limit", 1070, 60 + 62 * len(styles), colour="#cc0000")
    return picture
