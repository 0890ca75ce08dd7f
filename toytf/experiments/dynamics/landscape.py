"""The loss over γ for tokens in a plane: contours over the error, the way of each training, and a slider over steps."""

from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from toytf.experiments.dynamics.config import DynamicsConfig
from toytf.experiments.dynamics.plane import Plane, errors, losses
from toytf.experiments.dynamics.systems import signed
from toytf.experiments.dynamics.trajectory import Trajectory, spaced
from toytf.figures import empty_figure, styled
from toytf.memory import Association

GRID = 60
"""Points along each side."""

LEVELS = 14
"""Contour lines."""

FRAMES = 50
"""Steps of the slider, at most."""

AROUND = 0.15
"""What a picture shows beyond the way of the trainings, as a fraction of it."""

PATHS = ("#0b62b8", "#c75b00", "#107040", "#7a3db8")
"""Colours of the ways, the same on light and dark pages, since the ground is light on both."""

SAYS = (
    "The lines join points of equal loss, each {ratio:.3g} times the next; the darker the ground, the more tokens are "
    "wrong. The slider moves the training through its steps."
)

MARKED = "#c2185b"
BEST = {"color": MARKED, "width": 1.5, "dash": "dash"}


def landscape(
    config: DynamicsConfig, found: Trajectory, association: Association, plane: Plane, title: str
) -> go.Figure:
    """Loss and error over γ, and the way of γ with each step size, as it is in the end; frames show it before.

    Where not all tokens can be right, also the lowest loss and the best direction.
    """
    assert found.path is not None and association.weights is not None
    z, p = signed(association).cpu().numpy(), association.weights.cpu().numpy()
    x, y = _axes(config, found.path)
    gamma = np.stack([part.ravel() for part in np.meshgrid(x, y)], 1)
    loss = losses(gamma, z, p).reshape(GRID, GRID)
    height = np.log10(np.maximum(loss, 1e-12))
    low, high = float(height.min()), float(height.max())
    size = (high - low) / (LEVELS + 1) or 1.0
    wrong = errors(gamma, z, p).reshape(GRID, GRID)
    ground = go.Heatmap(
        x=x, y=y, z=wrong, zmin=0, zmax=float(wrong.max()), colorscale=[[0, "#ffffff"], [1, "#8c8c8c"]],
        colorbar={"title": {"text": "error"}}, hoverinfo="skip",
    )  # fmt: skip
    lines = go.Contour(
        x=x, y=y, z=height, customdata=loss, showscale=False, showlegend=False, line={"color": "#a04040", "width": 1},
        contours={"coloring": "none", "start": low + size, "end": high - size / 2, "size": size},
        hovertemplate="γ = (%{x:.2f}, %{y:.2f}): loss %{customdata:.3g}<extra></extra>",
    )  # fmt: skip
    figure = empty_figure(ground, lines)
    if plane.minimiser is not None:  # else both optima are one cone that has no end
        far, (best_x, best_y) = float(np.hypot(x, y).max()), plane.best
        ray = {"x": [0, far * best_x], "y": [0, far * best_y], "mode": "lines", "line": BEST}
        figure.add_scatter(**ray, name="best direction", hoverinfo="skip")
        marker = {"symbol": "x", "size": 10, "color": MARKED, "line": {"width": 2, "color": MARKED}}
        lowest = {"x": [plane.minimiser[0]], "y": [plane.minimiser[1]], "mode": "markers", "marker": marker}
        figure.add_scatter(**lowest, name="lowest loss", hoverinfo="skip")
    figure.add_traces([*_ways(config, found, len(found.shown) - 1)])
    _animate(figure, config, found)
    figure.update_xaxes(title="γ₀", range=[x[0], x[-1]]).update_yaxes(title="γ₁", range=[y[0], y[-1]])
    says = SAYS.format(ratio=10**size)
    whole = ", ".join(filter(None, ["Loss and error over γ", title]))
    return styled(figure, whole, height=620).update_layout(meta={"says": says}, margin_b=120)


def _ways(config: DynamicsConfig, found: Trajectory, until: int) -> Iterator[go.Scatter]:
    """The way of γ with each step size up to one of the steps that are drawn, and where it is then."""
    assert found.path is not None
    for i, lr in enumerate(config.learning_rates):
        colour = PATHS[i % len(PATHS)]
        way = found.path[: until + 1, i]
        yield go.Scatter(
            x=way[:, 0], y=way[:, 1], mode="lines+markers", name=f"η = {lr:g}", hoverinfo="skip",
            line={"color": colour, "width": 1.5}, marker={"size": 4, "color": colour},
        )  # fmt: skip
        yield go.Scatter(
            x=way[-1:, 0], y=way[-1:, 1], mode="markers", showlegend=False, name=f"η = {lr:g}",
            marker={"size": 12, "color": colour, "symbol": "star"}, hoverinfo="skip",
        )  # fmt: skip


def _animate(figure: go.Figure, config: DynamicsConfig, found: Trajectory) -> None:
    """A frame for each of some steps, and the slider that shows them."""
    wanted = spaced(found.shown[-1], FRAMES)
    places = sorted({int(place) for place in np.searchsorted(found.shown, wanted)})
    moved = [*range(len(figure.data) - 2 * len(config.learning_rates), len(figure.data))]
    figure.frames = [
        go.Frame(data=[*_ways(config, found, place)], traces=moved, name=str(found.shown[place])) for place in places
    ]
    # Without a redraw plotly takes the ground away with the first frame.
    at_once = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    buttons = [{"label": frame.name, "method": "animate", "args": [[frame.name], at_once]} for frame in figure.frames]
    slider = {
        "active": len(places) - 1, "steps": buttons, "currentvalue": {"prefix": "step "}, "pad": {"t": 45},
        "x": 0, "len": 1,
    }  # fmt: skip
    figure.update_layout(sliders=[slider])


def _axes(
    config: DynamicsConfig, path: Float[np.ndarray, "j L 2"]
) -> tuple[Float[np.ndarray, "k"], Float[np.ndarray, "k"]]:
    """The values of γ_0 and γ_1 that are shown."""
    window = config.window
    if window is None:
        points = np.vstack([path.reshape(-1, 2), np.zeros(2)])
        low, high = points.min(0), points.max(0)
        aside = np.maximum(AROUND * (high - low), 0.5)
        (left, bottom), (right, top) = (low - aside).tolist(), (high + aside).tolist()
    else:
        left, right, bottom, top = window if isinstance(window, tuple) else (-window, window, -window, window)
    return np.linspace(left, right, GRID), np.linspace(bottom, top, GRID)
