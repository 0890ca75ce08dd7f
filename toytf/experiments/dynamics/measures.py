"""What `dynamics` measures: curves over steps, and what they say as a whole."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from toytf import theory
from toytf.experiments.dynamics.config import DynamicsConfig, PlaneConfig, RandomConfig, TwoParticlesConfig
from toytf.experiments.dynamics.plane import Plane
from toytf.experiments.dynamics.systems import System
from toytf.experiments.dynamics.trajectory import TOKENS, Trajectory, tenth
from toytf.measurement import Group, Headline, Measurement
from toytf.spikes import increases, spikes

LARGE = 0.01
"""An excess above it counts as one."""


def _headlines(label: str, phrase: str, rank: int = 0) -> tuple[Headline, ...]:
    """A phrase for each kind of system."""
    where = ("a = {correlation}, η = {lr}", "d = {d}, η = {lr}", "η = {lr}")
    return tuple(Headline(label, f"{phrase}, {at}", rank) for at in where)


LOSS = Group(
    "loss", "Loss", "Cross-entropy over the population at the last step, in nats; large steps may spike on the way "
    "and end lower, and theory is the exact law where there is one.", unit="nats", variants=("at",),
    headline=_headlines("*", "loss after the last step"),
    meanings=(("*/at*", "Cross-entropy over the population at this step, in nats."),),
)  # fmt: skip
ERROR = Group(
    "error", "Error, the frequency of tokens that are answered wrongly", "Frequency of tokens that are answered "
    "wrongly at the last step; a tie is an error, so that W = 0 has the error 1.", variants=("at",),
    headline=_headlines("[!b]*", "error after the last step", 1),
    meanings=(
        ("*/at*", "Frequency of tokens that are answered wrongly at this step; a tie is an error."),
        ("best*", "Lowest error of all steps; if the last one is higher, training went on for too long."),
    ),
)  # fmt: skip
FORGOTTEN = Group(
    "forgotten", "Error at the last step minus the lowest error", "Error at the last step minus the lowest of all "
    "steps; above 0, tokens were forgotten again, and stopping early would have been better.",
    headline=_headlines("*", "error that the last steps added", 1),
)  # fmt: skip
MARGIN = Group(
    "margin", "Margins", "The score of the right value minus the best other one: above 0, the token is right.",
    variants=("token",),
    headline=(),
    meanings=(
        ("*/token*", "Margin of this token at the last step, tokens counted from the most frequent; theory is the "
         "exact law where there is one."),
        ("smallest*", "Smallest margin of all tokens at the last step; above 0 if all are right."),
        ("lowest*", "Smallest margin of all tokens and steps; how far a token was pushed to the wrong side."),
    ),
)  # fmt: skip
EDGE = Group(
    "edge", "Sharpness over the edge of stability, η λ / 2", "Step size times sharpness over 2 at the last step; "
    "below 1 training is stable, above 1 a step overshoots along the sharpest direction.",
    headline=_headlines("start_*", "sharpness over the edge of stability at the start", 1),
    meanings=(
        ("start*", "Step size times sharpness over 2 at the start; above 1 the first steps overshoot."),
        ("minimum*", "Step size times sharpness over 2 where the cross-entropy is lowest; above 1 training cannot "
         "settle there."),
    ),
)  # fmt: skip
SPIKES = Group(
    "spikes", "Spikes of the loss", "Spikes: steps in a row whose loss is more than a tenth above the best before "
    "them; 0 for small steps.", format="whole",
    headline=(*_headlines("benign*", "spikes that were made good", 2), *_headlines("[!i]*", "spikes of the loss", 1)),
    meanings=(
        ("benign*", "Spikes after which the loss came below its best before them; all of them where tokens are "
         "separable."),
        ("increases*", "Steps in which the loss rose; 0 for small step sizes."),
    ),
)  # fmt: skip
TIME = Group(
    "time", "Steps until all tokens are right", "Time goes like one over the step size, until oscillation sets in.",
    format="whole",
    headline=(*_headlines("first*", "first step without an error", 1), *_headlines("last*", "last step with an error")),
    meanings=(
        ("first_right*", "First step at which all tokens are right; missing if there is none."),
        ("last_error*", "Last step at which some token is wrong; the number of steps if that never ends."),
    ),
)  # fmt: skip
SIGNS = Group(
    "sign_changes", "How often margins changed their sign", "How often margins went from one side of 0 to the other, "
    "over all tokens; one for each if all are learned for good at once.", format="whole", headline=(),
)  # fmt: skip
GROWTH = Group(
    "growth", "Growth of margins with the logarithm of time, dm / d log t", "By theory 1 with orthonormal vectors.",
    headline=_headlines("slowest*", "growth of the slowest margin with log t"),
    meanings=(
        ("slowest*", "Growth of the slowest margin, dm / d log t over the last decade of steps; by theory 1."),
        ("fastest*", "Growth of the fastest margin, dm / d log t over the last decade of steps; by theory 1."),
    ),
)  # fmt: skip
LAW = Group(
    "loss_law", "Loss over N (M − 1) / (M η t)", "Loss over N (M − 1) / (M η t), its law for orthonormal vectors and "
    "many steps; by theory 1.", headline=_headlines("*", "loss over its law"),
)  # fmt: skip
EXCESS = Group(
    "excess", "What the lowest cross-entropy costs in errors", "Error where the cross-entropy is lowest minus that of "
    "the best direction; 0 if all tokens can be right, else mostly above 0.",
    headline=(
        Headline("minimiser*", "error where the cross-entropy is lowest"),
        Headline("best*", "error of the best direction"),
        Headline("[!l]*", "what the lowest cross-entropy adds to that error"),
    ),
    meanings=(
        ("minimiser*", "Error where the cross-entropy is lowest; 0 if all tokens can be right."),
        ("best*", "Error of the best direction of all; 0 if all tokens can be right."),
        ("large*", "How often the lowest cross-entropy costs more than 0.01 in errors: 1 or 0 in a seed, a fraction "
         "over seeds."),
    ),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class OfSeed:
    """What a system gave in one seed, with every step size."""

    config: DynamicsConfig
    system: System
    found: Trajectory
    seed: int
    """Which seed of the trajectory it is."""
    p: Float[np.ndarray, "n"]
    """The frequencies of the tokens."""
    law: Float[np.ndarray, "L n"] | None
    """Margins after the last step by the exact law."""
    plane: Plane | None
    """What is possible, for tokens in a plane."""
    least_sharpness: float | None
    """The sharpness where the cross-entropy is lowest; None if that is nowhere, or not known."""

    def at_step(self, row: int) -> Iterator[Measurement]:
        """Curves at one of the steps that have rows, beside what is lowest of any matrix, if it is known."""
        config, found, step, plane = self.config, self.found, self.found.recorded[row], self.plane
        lowest = best = 0.0 if config.is_orthonormal else None
        if plane is not None:
            lowest, best = plane.lowest_loss, plane.best_error
        others = config.system.n_outputs - 1 if isinstance(config.system, RandomConfig) else 1
        for i, lr in enumerate(config.learning_rates):
            at, by_law = (self.seed, i), None
            if self.law is not None:  # all other scores being equal: Σ p log(1 + (M − 1) e^−m)
                by_law = float(self.p @ np.logaddexp(0, np.log(others) - self.law[i]))
            yield LOSS.measurement(found.loss[step][at], lr=lr, theory=by_law, ideal=lowest)
            yield ERROR.measurement(found.error[step][at], lr=lr, ideal=best)
            yield MARGIN.measurement(found.smallest[step][at], "smallest", lr=lr)
            yield EDGE.measurement(found.edge[row][at], lr=lr)

    def at_end(self) -> Iterator[Measurement]:
        """What the whole curves say. A step that never came has no number."""
        found = self.found
        for i, lr in enumerate(self.config.learning_rates):
            losses, error = found.loss[:, self.seed, i].tolist(), found.error[:, self.seed, i]
            events = spikes(losses)
            yield SPIKES.measurement(len(events), lr=lr)
            yield SPIKES.measurement(sum(event.benign for event in events), "benign", lr=lr)
            yield SPIKES.measurement(increases(losses), "increases", lr=lr)
            right, wrong = np.flatnonzero(error == 0), np.flatnonzero(error > 0)
            yield TIME.measurement(right[0] if len(right) else None, "first_right", lr=lr)
            yield TIME.measurement(wrong[-1] if len(wrong) else None, "last_error", lr=lr)
            yield ERROR.measurement(error.min(), "best", lr=lr)
            yield FORGOTTEN.measurement(error[-1] - error.min(), lr=lr)
            yield from self._margins(i, lr)
            predicted, system = None, self.config.system
            if isinstance(system, TwoParticlesConfig) and not any(system.start):
                predicted = lr * theory.pair_sharpness(self.system.correlation or 0.0, self.system.p or 0.0) / 2
            yield EDGE.measurement(found.edge[0, self.seed, i], "start", lr=lr, theory=predicted)
            if self.least_sharpness is not None:
                yield EDGE.measurement(lr * self.least_sharpness / 2, "minimum", lr=lr)
            for step in self.config.report_at:
                yield LOSS.measurement(found.loss[step, self.seed, i], lr=lr, at=step)
                yield ERROR.measurement(found.error[step, self.seed, i], lr=lr, at=step)
        if self.plane is not None and isinstance(self.config.system, PlaneConfig):
            yield EXCESS.measurement(self.plane.excess)
            yield EXCESS.measurement(self.plane.minimiser_error, "minimiser")
            yield EXCESS.measurement(self.plane.best_error, "best")
            yield EXCESS.measurement(float(self.plane.excess > LARGE), "large")

    def _margins(self, i: int, lr: float) -> Iterator[Measurement]:
        config, found, at = self.config, self.found, (self.seed, i)
        yield MARGIN.measurement(found.smallest[:, self.seed, i].min(), "lowest", lr=lr)
        yield SIGNS.measurement(found.sign_changes[at], lr=lr)
        for token, margin in enumerate(found.last[at][:TOKENS]):
            predicted = None if self.law is None else self.law[i, token]
            yield MARGIN.measurement(margin, lr=lr, token=token + 1, theory=predicted)
        if isinstance(config.system, RandomConfig) and config.system.embedding == "orthonormal":
            sizes = config.system.n_inputs, config.system.n_outputs
            over = found.loss[-1][at] / theory.loss_law(*sizes, lr, config.steps)
            yield LAW.measurement(over, lr=lr, theory=1.0)
            if config.steps > 1:
                slopes = (found.last[at] - found.decade[at]) / np.log(config.steps / tenth(config.steps))
                yield GROWTH.measurement(slopes.min(), "slowest", lr=lr, theory=1.0)
                yield GROWTH.measurement(slopes.max(), "fastest", lr=lr, theory=1.0)
