"""Margins against the step of a training, and its loss with the spikes marked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Panel:
    """The margins of one memory: those of a few keys by name, and the mean of all."""

    steps: Sequence[int]
    keys: Mapping[str, Float[np.ndarray, "t"]]
    mean: Float[np.ndarray, "t"]


def margin_curves(
    panels: Mapping[str, Panel], losses: Mapping[int, float], spikes: Sequence[tuple[int, int, bool]]
) -> Any:
    """One panel for each memory over a logarithmic axis of steps, without step 0, and one for the loss.

    spikes: first step, last step, and whether it was made good; those are marked in another colour.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    from toytf.figures import COLOURS, LONGEST_LABEL, empty_figure, literal, styled

    titles = [f"margins of {name}" for name in panels] + (["loss"] if losses else [])
    rows = max(len(titles), 1)
    figure = make_subplots(
        figure=empty_figure(), rows=rows, cols=1, shared_xaxes=True, subplot_titles=titles or None,
        vertical_spacing=0.24 / rows,
    )  # fmt: skip
    for row, (memory, panel) in enumerate(panels.items(), start=1):
        shown = [i for i, step in enumerate(panel.steps) if step > 0]
        steps = [panel.steps[i] for i in shown]
        for i, (name, values) in enumerate(panel.keys.items()):
            label = literal(name, LONGEST_LABEL)
            figure.add_trace(
                go.Scatter(
                    x=steps, y=values[shown], name=label, mode="lines", legendgroup=memory,
                    legendgrouptitle_text=literal(memory), line={"color": COLOURS[i % len(COLOURS)], "width": 1},
                    hovertemplate=f"{label}, step %{{x}}: %{{y:.3g}}<extra></extra>",
                ),
                row=row, col=1,
            )  # fmt: skip
        mean = go.Scatter(
            x=steps, y=panel.mean[shown], name="mean", mode="lines", legendgroup=memory,
            line={"color": "black", "width": 3}, hovertemplate="mean, step %{x}: %{y:.3g}<extra></extra>",
        )  # fmt: skip
        figure.add_trace(mean, row=row, col=1)
        figure.add_hline(y=0, line={"dash": "dot", "width": 1, "color": "gray"}, row=row, col=1)
    if losses:
        known = {step: value for step, value in losses.items() if step > 0}
        curve = go.Scatter(
            x=[*known], y=[*known.values()], name="loss", mode="lines", showlegend=False, line={"color": COLOURS[0]}
        )
        figure.add_trace(curve, row=rows, col=1)
        for benign, label, colour in ((True, "spike, made good later", COLOURS[2]), (False, "spike", COLOURS[1])):
            spans = [(first, last) for first, last, good in spikes if good == benign]
            marked = [step for step in known if any(first <= step <= last for first, last in spans)]
            if marked:
                marks = go.Scatter(
                    x=marked, y=[known[step] for step in marked], name=label, mode="markers", legendgroup="loss",
                    legendgrouptitle_text="loss", marker={"color": colour, "size": 7},
                )  # fmt: skip
                figure.add_trace(marks, row=rows, col=1)
    figure.update_xaxes(type="log", dtick=1)
    figure.update_xaxes(title="step", row=rows)
    styled(figure, "Margins over the training", height=120 + 240 * rows)
    return figure.update_layout(legend={"orientation": "v", "y": 1, "x": 1.02}, margin_t=80)
