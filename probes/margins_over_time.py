"""How margins grow while a matrix is trained, and the spikes of the loss on the way.

    m_t(z) = s_t(z, f(z)) − max_{y ≠ f(z)} s_t(z, y)      s_t(z, y) = u_yᵀ W_t e_z, of a W_KQ divided by the scale of
                                                          attention: scores as the model sees them

Gradient descent on a memory of orthonormal vectors gives m_t(z) ≈ log(M η p(z) t), whatever the step size: margins grow
by 1 whenever log t does. Where vectors overlap, large steps first make margins oscillate and the loss spike, and are
faster in the end (Cabannes, Simsek, Bietti 2024).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probes.config import MarginsOverTimeProbeConfig
from probes.margins_figures import Panel, margin_curves
from probes.matrices import Learned, learned_memories
from toytf.errors import UserError
from toytf.measurement import Group, Headline, Measurement
from toytf.memory import Association, exact
from toytf.models.transformer import ToyTransformer
from toytf.probe import Course, CourseProbe, ProbeResult
from toytf.spikes import increases, spikes
from toytf.task import Task

MARGIN_GROWTH = Group(
    "margin_growth", "Margins over the training", "Margins are differences of scores as the model sees them. Gradient "
    "descent lets them grow with the logarithm of the step; large steps make some fall below 0 on the way.",
    curve=False, section="memories",
    headline=(Headline("*_slope", "growth of the margins of {memory} when log step grows by 1", 2),),
    meanings=(
        ("*_slope", "Slope of the mean margin against the logarithm of the step, over the last part of the training; "
         "in theory 1 for orthogonal vectors."),
        ("*_mean", "Mean margin of all pairs in the end, as a difference of scores; higher is better."),
        ("*_min", "Smallest margin of all pairs in the end; above 0 all pairs are recalled."),
        ("*_fell", "How often a pair that was recalled at one checkpoint was not at the next, over all pairs; each is "
         "an oscillation."),
    ),
)  # fmt: skip
LOSS_SPIKES = Group(
    "loss_spikes", "Spikes of the loss", "Large steps may raise the loss for a while. A spike is benign if the loss "
    "later falls below what it was before.",
    format="whole", curve=False, headline=(Headline("count", "spikes of the loss", 2),),
    meanings=(
        ("count", "Spikes of the held-out loss: evaluations in a row whose loss is well above the best before them."),
        ("benign", "Spikes after which the loss fell below the best before them."),
        ("increases", "How often the held-out loss was higher than at the evaluation before."),
        ("first", "Step at which the first spike of the loss begins."),
        ("last", "Step at which the last spike of the loss ends."),
    ),
)  # fmt: skip

ORTHOGONAL = 1e-4
"""Vectors whose cosines are below this are orthogonal, up to rounding."""

FEWEST = 3
"""Checkpoints that a slope is fitted to, at least."""


class MarginsOverTime(CourseProbe):
    """`margin_growth/<memory>_slope`, `_mean`, `_min` and `_fell`; `loss_spikes/count`, `benign`, `first` …"""

    config: MarginsOverTimeProbeConfig

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a model in which no matrix should hold pairs."""
        if not any(True for _ in _held(model, task)):
            raise UserError(
                f"probe margins_over_time: no matrix of this model should hold pairs of the task {task.config.kind}"
            )

    @torch.no_grad()
    def over(self, course: Course, task: Task) -> ProbeResult:
        """Follow the margins of every matrix from checkpoint to checkpoint."""
        paths: dict[str, Path] = {}
        for step, model in course.models():
            for held, W in _held(model, task):
                scale = model.attention(held.slot.layer).scale if held.slot.part == "KQ" else 1.0
                # The law holds if scores are the logits, and one parameter on orthogonal vectors is trained.
                alone = (
                    task.n_positions == 1 and held.slot.part == "OV" and model.attention(held.slot.layer).W_V is None
                )
                stored, law = held.association, course.plain and alone
                for vectors in (stored.keys, stored.values) if law else ():
                    unit = torch.nn.functional.normalize(exact(vectors), dim=1)
                    law = law and bool(((unit @ unit.T).fill_diagonal_(0).abs() < ORTHOGONAL).all())
                paths.setdefault(held.name, Path()).add(step, stored, W / scale, law=law)
        found: list[Measurement] = []
        failures: dict[str, list[str]] = {}
        panels: dict[str, Panel] = {}
        for name, path in paths.items():
            if path.pairs and path.moves:
                found += [one.placed({"memory": name}) for one in path.measurements(self.config.since)]
                failures[f"{MARGIN_GROWTH.name}/{name}_fell"] = path.fallen(self.config.worst)
                panels[name] = path.panel(self.config.keys)
        at, losses = [*course.losses], [*course.losses.values()]
        high = [(at[spike.first], at[spike.last], spike.benign) for spike in spikes(losses, self.config.delta)]
        if len(losses) > 1:  # how many spikes there are, how many of them benign, and where they lie
            counts = {"count": len(high), "benign": sum(good for _, _, good in high), "increases": increases(losses)}
            ends = {"first": high[0][0], "last": high[-1][1]} if high else {}
            found += [LOSS_SPIKES.measurement(float(n), name) for name, n in {**counts, **ends}.items()]
        told = {metric: pairs for metric, pairs in failures.items() if pairs}
        return ProbeResult(found, told, lambda: margin_curves(panels, course.losses, high))


@dataclass(eq=False)
class Path:
    """The margins of one memory, checkpoint by checkpoint."""

    steps: list[int] = field(default_factory=list)
    rows: list[Float[np.ndarray, "n"]] = field(default_factory=list)
    stored: Association | None = None
    """What should be held at the last checkpoint; its vectors may be trained as well."""
    law: bool = True
    """Do they follow the law of orthonormal vectors?"""

    def add(self, step: int, stored: Association, W: Tensor, *, law: bool) -> None:
        """One more checkpoint."""
        moved = self.stored is not None and not (
            torch.equal(stored.keys, self.stored.keys) and torch.equal(stored.values, self.stored.values)
        )
        self.steps.append(step)
        self.rows.append(exact(stored.margins(W)).numpy())
        self.stored, self.law = stored, self.law and law and not moved

    @property
    def _known(self) -> Bool[np.ndarray, "n"]:
        """Keys that have a margin at every checkpoint: what has no rival has none."""
        known: Bool[np.ndarray, "n"] = np.isfinite(np.array(self.rows)).all(0)
        return known

    @property
    def pairs(self) -> list[int]:
        """Their numbers."""
        return [int(z) for z in np.flatnonzero(self._known)]

    @property
    def margins(self) -> Float[np.ndarray, "t n"]:
        """By checkpoint and pair."""
        return np.array(self.rows)[:, self._known]

    @property
    def moves(self) -> bool:
        """Is any margin another one at another checkpoint? Those of a frozen matrix are not, and tell nothing."""
        return len(self.steps) == 1 or bool((self.margins != self.margins[0]).any())

    @property
    def falls(self) -> Bool[np.ndarray, "t n"]:
        """Did the margin of a pair go from positive to not positive, from one checkpoint to the next?"""
        recalled = self.margins > 0
        return recalled[:-1] & ~recalled[1:]

    def measurements(self, since: float) -> Iterator[Measurement]:
        """What it comes to; the slope over the steps t ≥ since · T, without t = 0, if these are enough."""
        margins = self.margins
        late = [i for i, step in enumerate(self.steps) if step >= max(1, since * self.steps[-1])]
        if len(late) >= FEWEST:  # dm / d log t by least squares
            slope = float(np.polyfit(np.log([self.steps[i] for i in late]), margins.mean(1)[late], 1)[0])
            yield MARGIN_GROWTH.measurement(slope, measure="slope", theory=1.0 if self.law else None)
        yield MARGIN_GROWTH.measurement(float(margins[-1].mean()), measure="mean")
        yield MARGIN_GROWTH.measurement(float(margins[-1].min()), measure="min")
        if len(self.steps) > 1:
            yield MARGIN_GROWTH.measurement(float(self.falls.sum()), measure="fell")

    def fallen(self, limit: int) -> list[str]:
        """The pairs that fell most often, and by which step the last time."""
        falls, names = self.falls, self._names
        often = falls.sum(0)
        order = [int(z) for z in np.argsort(-often, kind="stable")[:limit] if often[z]]
        return [f"{names[z]}: {often[z]} ×, last by step {self.steps[falls[:, z].nonzero()[0][-1] + 1]}" for z in order]

    def panel(self, n_keys: int) -> Panel:
        """Curves of a few keys, from the most to the least frequent, and of the mean."""
        weights = None if self.stored is None else self.stored.weights
        frequency = np.zeros(len(self.pairs)) if weights is None else exact(weights).numpy()[self.pairs]
        by_rank = np.argsort(-frequency, kind="stable")
        chosen = by_rank[np.linspace(0, len(by_rank) - 1, min(n_keys, len(by_rank))).round().astype(int)]
        names, margins = self._names, self.margins
        return Panel(self.steps, {names[z]: margins[:, z] for z in chosen}, margins.mean(1))

    @property
    def _names(self) -> list[str]:
        return [self.stored.key_name(z) for z in self.pairs] if self.stored is not None else []


def _held(model: ToyTransformer, task: Task) -> Iterator[tuple[Learned, Tensor]]:
    """The matrices that should hold pairs, rather than a distribution."""
    for held in learned_memories(model, task):
        if isinstance(held.memory, Tensor) and held.conditional is None:
            yield held, held.memory
