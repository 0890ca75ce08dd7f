"""Pictures of the experiment `dynamics`: losses with spikes, margins beside their law, and maps over systems."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from toytf.curves import curves
from toytf.experiments.dynamics.config import DynamicsConfig
from toytf.experiments.dynamics.measures import EDGE, EXCESS, LOSS, TIME
from toytf.experiments.dynamics.trajectory import Trajectory
from toytf.figures import COLOURS, MEASURED, empty_figure, histograms, scaling_curves, series, styled
from toytf.spikes import spikes
from toytf.tidy import last_of_each, over_seeds

LINEAR = 200
"""From more steps on, the axis of steps is logarithmic; step 0 has no place on it."""

CURVES = 10
"""Curves that can be told apart in one picture."""

PANEL = 250
"""Pixels of a panel."""


def losses(config: DynamicsConfig, found: Trajectory, title: str) -> go.Figure:
    """Loss and error of the first seed against steps, with the highest step of every spike marked."""
    figure = _panels(("loss", "error"))
    steps = found.shown
    for i, lr in enumerate(config.learning_rates):
        line = {"color": COLOURS[i % len(COLOURS)], "width": 2}
        for row, values in enumerate((found.loss[:, 0, i], found.error[:, 0, i]), start=1):
            shape = "hv" if row == 2 else "linear"
            trace = go.Scatter(
                x=steps, y=values[steps], name=_rate(lr), legendgroup=_rate(lr), showlegend=row == 1, mode="lines",
                line={**line, "shape": shape},
            )  # fmt: skip
            figure.add_trace(trace, row=row, col=1)
    of_rates = [(loss, spike) for loss in found.loss[:, 0].T for spike in spikes(loss.tolist())]
    for benign, symbol in ((True, "circle-open"), (False, "x")):
        some = [(loss, spike) for loss, spike in of_rates if spike.benign == benign]
        if some:
            x = [spike.first + int(loss[spike.first : spike.last + 1].argmax()) for loss, spike in some]
            y = [float(loss[step]) for (loss, _), step in zip(some, x, strict=True)]
            name = "spike, made good later" if benign else "spike, not made good"
            marker = {"symbol": symbol, "size": 9, "color": "black", "line": {"width": 2, "color": "black"}}
            figure.add_trace(go.Scatter(x=x, y=y, name=name, mode="markers", marker=marker), row=1, col=1)
    if found.loss[steps, 0].max() > 10 * found.loss[steps, 0].min():
        figure.update_yaxes(type="log", dtick="D2", row=1)
    figure.update_yaxes(range=[-0.02, 1.02], row=2)
    return _styled(figure, _titled("Loss and error", title), config, rows=2)


def margins(config: DynamicsConfig, found: Trajectory, law: Float[np.ndarray, "j L n"] | None, title: str) -> go.Figure:
    """The margin of every token of the first seed against steps, a panel for each step size; dashed: the exact law."""
    figure = _panels([_rate(lr) for lr in config.learning_rates])
    for i in range(len(config.learning_rates)):
        for token in range(found.margins.shape[2]):
            name, colour = f"token {token + 1}", COLOURS[token % len(COLOURS)]
            common = {"x": found.shown, "legendgroup": name, "mode": "lines"}
            line = {"color": colour, "width": 2}
            figure.add_trace(
                go.Scatter(y=found.margins[:, i, token], name=name, showlegend=i == 0, line=line, **common),
                row=i + 1, col=1,
            )  # fmt: skip
            if law is not None:
                line = {"color": "black", "width": 1.5, "dash": "dot"}
                first = i == 0 and token == 0
                figure.add_trace(
                    go.Scatter(y=law[:, i, token], name="exact law", showlegend=first, line=line, **common),
                    row=i + 1, col=1,
                )  # fmt: skip
        figure.update_yaxes(title="margin", zeroline=True, zerolinewidth=2, row=i + 1)
    return _styled(figure, _titled("Margins", title), config, rows=len(config.learning_rates))


def over_systems(config: DynamicsConfig, table: pd.DataFrame) -> Iterator[tuple[str, Any]]:
    """Sharpness over steps, final losses by step size, when all tokens are right, and what the cross-entropy costs."""
    edges = table[(table["group"] == EDGE.name) & (table["name"] == "")]
    if edges["step"].nunique() > 2 and edges["metric"].nunique() <= CURVES:
        yield "edge", edge(config, edges)
    final = over_seeds(table[(table["group"] == LOSS.name) & ~table["variant"]])
    if len(config.learning_rates) > 2 and len(final) <= CURVES * len(config.learning_rates):
        curve_of = series(final, "lr", lambda row: _setting(row, final) or MEASURED)
        title = f"Loss after {config.steps} steps by step size"
        yield "step_sizes", scaling_curves(curve_of, title, x="step size η", y="loss (nats)", guides={})
    times = table[(table["group"] == TIME.name) & (table["name"] == "first_right")]
    if "correlation" in table and table["correlation"].nunique() > 1 and len(config.learning_rates) > 1:
        yield "map", step_size_map(config, table, times)
    if len(config.seeds) > 1 and (table["group"] == EXCESS.name).any():
        last = last_of_each(table[(table["group"] == EXCESS.name) & (table["name"] == "")])
        found = last["value"].to_numpy(dtype=float)
        yield "excess", histograms(
            {"excess error": {"seeds": found}}, "What the lowest cross-entropy costs in errors, over seeds",
            lines={"excess error": {"mean": float(found.mean())}}, x="its error minus that of the best direction",
        )  # fmt: skip


def edge(config: DynamicsConfig, rows: pd.DataFrame) -> go.Figure:
    """η λ / 2 against steps, with the edge of stability at 1."""
    wide = rows.pivot(index=["seed", "step"], columns="metric", values="value").reset_index()
    about = rows.drop_duplicates("metric").set_index("metric")
    labels = {str(metric): _titled(_setting(row, about), _rate(row.lr)) for metric, row in about.iterrows()}
    figure = curves(
        wide, [*labels], "Sharpness against the edge of stability: η λ / 2", chance={},
        levels={"edge of stability": 1.0}, labels=labels,
    )  # fmt: skip
    return figure.update_xaxes(**_steps(config)).update_yaxes(title="η λ / 2")


def step_size_map(config: DynamicsConfig, table: pd.DataFrame, times: pd.DataFrame) -> go.Figure:
    """The first step at which all tokens are right, over correlation and step size, a panel for each p_1."""
    rates, correlations = sorted(config.learning_rates), sorted(table["correlation"].dropna().unique())
    shares = sorted(table["p"].dropna().unique())
    by_place = times.groupby(["p", "correlation", "lr"])["value"].mean().to_dict()
    figure = make_subplots(
        figure=empty_figure(), rows=len(shares), cols=1, subplot_titles=[f"p1 = {p:.3g}" for p in shares],
        vertical_spacing=0.3 / len(shares),
    )  # fmt: skip
    for row, p in enumerate(shares, start=1):
        steps = np.array([[by_place.get((p, a, lr), np.nan) for lr in rates] for a in correlations])
        heat = go.Heatmap(
            z=np.log10(np.maximum(steps, 1)), x=[f"{lr:.3g}" for lr in rates], y=[f"{a:.3g}" for a in correlations],
            zmin=0, zmax=np.log10(config.steps), colorscale="Viridis_r", showscale=False,
            text=[["never" if np.isnan(step) else f"{step:.0f}" for step in line] for line in steps],
            texttemplate="%{text}", hovertemplate="a = %{y}, η = %{x}: step %{text}<extra></extra>",
        )  # fmt: skip
        figure.add_trace(heat, row=row, col=1)
        figure.update_yaxes(title="correlation a", type="category", row=row)
        figure.update_xaxes(type="category", row=row)
    figure.update_xaxes(title="step size η", row=len(shares))
    title = f"First step at which all tokens are right (never: not within {config.steps} steps)"
    return styled(figure, title, height=120 + (60 + 28 * len(correlations)) * len(shares))


def _panels(titles: Sequence[str]) -> go.Figure:
    return make_subplots(
        figure=empty_figure(), rows=len(titles), cols=1, subplot_titles=[*titles], vertical_spacing=0.24 / len(titles)
    )


def _styled(figure: go.Figure, title: str, config: DynamicsConfig, *, rows: int) -> go.Figure:
    height = 140 + PANEL * rows
    figure.update_xaxes(**_steps(config)).update_xaxes(title="step", row=rows)
    return styled(figure, title, height=height).update_layout(legend_y=-80 / height)


def _steps(config: DynamicsConfig) -> dict[str, Any]:
    """The axis of steps."""
    if config.steps > LINEAR:
        return {"type": "log", "range": [0, np.log10(config.steps)], "dtick": 1}
    return {"range": [-0.01 * config.steps, 1.01 * config.steps]}


def _rate(lr: float) -> str:
    return f"η = {lr:g}"


def _setting(row: Any, rows: pd.DataFrame) -> str:
    """The setting of a row, as far as it differs between rows."""
    words = {"a": "correlation", "p1": "p", "d": "d"}
    varied = {name: factor for name, factor in words.items() if factor in rows and rows[factor].nunique() > 1}
    return ", ".join(f"{name} = {getattr(row, factor):g}" for name, factor in varied.items())


def _titled(what: str, title: str) -> str:
    return ", ".join(filter(None, [what, title]))
