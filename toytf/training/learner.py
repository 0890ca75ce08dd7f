"""What the loop trains: it gives gradients, measures itself, and can be saved.

The loop knows only these methods. `SeedLearner` is one seed; several seeds stacked into one
tensor program can stand in its place: parameters with a leading seed axis, one loss and one row per seed.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from toytf.evaluation import Forward, measure, plain_forward
from toytf.measurement import Group, Measurement
from toytf.models.config import ModelConfig
from toytf.models.tables import fast_forward
from toytf.models.transformer import ToyTransformer
from toytf.optimizers import SGD, AdamW, Optimizer
from toytf.probe import Probe, ProbeResult
from toytf.randomness import generator
from toytf.task import Batch, Task
from toytf.training.compiling import compiled_forward
from toytf.training.config import SgdConfig, TrainConfig
from toytf.training.gradients import accumulate_gradients

NORM = Group(
    "norm", "Frobenius norms of the weights", place="log",
    meanings=(("*", "Frobenius norm of this trained weight; it changes little once training has settled."),),
)  # fmt: skip
GRAD_NORM = Group(
    "grad_norm", "Frobenius norms of the gradients", place="log",
    meanings=(("*", "Frobenius norm of the last gradient of this weight; it falls as training settles."),),
)  # fmt: skip


@dataclass(frozen=True)
class Evaluation:
    """What was measured of one seed, whether what it can be read against is written with it, and what probes found."""

    seed: int
    measurements: Sequence[Measurement]
    references: bool
    results: Mapping[tuple[str, str], ProbeResult]
    """By the kind of the probe and the entry of `evaluate_on`, empty for the task itself."""


class Learner(ABC):
    """What the loop needs of the thing it trains."""

    model_config: ModelConfig
    parameters: Mapping[str, nn.Parameter]
    """All parameters by name, frozen ones included."""
    n_seeds: int

    @abstractmethod
    def backward(self, step: int) -> Float[Tensor, "seed"]:
        """Accumulate the gradients of a step, and return the loss of every seed; nothing here waits for the device.

        The sum of the losses is what is minimised, since no seed's loss depends on another's weights.
        """

    @abstractmethod
    def evaluate(self, step: int) -> list[Evaluation]:
        """One evaluation per seed, on fresh held-out sequences."""


class SeedLearner(Learner):
    """One model of one seed on one task."""

    n_seeds = 1

    def __init__(
        self,
        model: ToyTransformer,
        task: Task,
        probes: Iterable[Probe],
        config: TrainConfig,
        seed: int,
        *,
        evaluate_on: Mapping[str, Task] | None = None,
    ) -> None:
        self.model, self.task, self.probes, self.config, self.seed = model, task, tuple(probes), config, seed
        self.evaluate_on = evaluate_on or {}
        self.model_config = model.config
        self.parameters = dict(model.named_parameters())
        self.forward: Forward = fast_forward if config.forward == "fast" else plain_forward
        self.compiled = compiled_forward(self.forward, task.device) if config.compile else None

    def sample(self, step: int) -> Batch:
        """The training batch of a step: a stream of its own, so that it needs no state."""
        return self.task.sample(self.config.batch_size, generator(self.seed, "train", step, device=self.task.device))

    def backward(self, step: int) -> Float[Tensor, "seed"]:
        """Mean cross-entropy over the positions of the chosen role."""
        return accumulate_gradients(self.model, self.task, self.sample(step), self.config, self.compiled)[None]

    def evaluate(self, step: int) -> list[Evaluation]:
        """Loss and accuracy by role and the probes that are due, also on `evaluate_on`; norms of what is trained."""
        due = [probe for probe in self.probes if step == self.config.steps or probe.at_every_evaluation(self.task)]
        references = step in (0, self.config.steps)
        measured, results = self._measure(self.task, due, step, floors=references)
        found = {(kind, ""): result for kind, result in results.items()}
        reading = [probe for probe in due if probe.config.reads_batch]
        for on, task in self.evaluate_on.items():
            measured_there, results = self._measure(task, reading, step, floors=references)
            measured += [one.evaluated_on(on) for one in measured_there]
            found |= {(kind, on): result for kind, result in results.items()}
        return [Evaluation(self.seed, [*measured, *self._norms()], references, found)]

    def _measure(
        self, task: Task, probes: Iterable[Probe], step: int, *, floors: bool
    ) -> tuple[list[Measurement], dict[str, ProbeResult]]:
        stream = generator(self.seed, "evaluation", step, device=task.device)
        batch = task.sample(self.config.evaluation.sequences, stream)
        glance = step != self.config.steps
        measured, results = measure(self.model, task, probes, batch, self.forward, glance=glance)
        return [*measured, *(task.floors() if floors else ())], results

    @torch.no_grad()
    def _norms(self) -> list[Measurement]:
        """Frobenius norms of the trained parameters and of their last gradient."""
        found: list[tuple[Group, str, Tensor]] = []
        for name, parameter in self.parameters.items():
            if parameter.requires_grad:
                found.append((NORM, name, parameter.norm()))
                if parameter.grad is not None:
                    found.append((GRAD_NORM, name, parameter.grad.norm()))
        values = torch.stack([norm for _, _, norm in found]).tolist() if found else []
        return [group.measurement(norm, name) for (group, name, _), norm in zip(found, values, strict=True)]


def build_optimizer(config: TrainConfig, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The configured optimiser; parameters without a gradient are left alone, weight decay included."""
    chosen = config.optimizer
    if isinstance(chosen, SgdConfig):
        return SGD(parameters, chosen.lr, momentum=chosen.momentum, weight_decay=chosen.weight_decay)
    return AdamW(parameters, chosen.lr, betas=chosen.betas, eps=chosen.eps, weight_decay=chosen.weight_decay)
