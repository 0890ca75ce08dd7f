"""What the loop trains: it samples, gives a loss, measures itself, and can be saved.

The loop knows only these methods. `SeedLearner` is one seed; several seeds stacked into one
tensor program can stand in its place: parameters with a leading seed axis, one loss and one row per seed.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from toytf.models.config import ModelConfig
from toytf.models.tables import fast_forward
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe
from toytf.randomness import generator
from toytf.rows import Row
from toytf.summary import on_test
from toytf.task import Batch, Task
from toytf.training.chunks import chunk_size, chunks, sum_over
from toytf.training.config import SgdConfig, TrainConfig
from toytf.training.evaluate import Forward, measure, plain_forward, reference_metrics, token_loss


class Learner(ABC):
    """What the loop needs of the thing it trains."""

    model_config: ModelConfig
    parameters: Mapping[str, nn.Parameter]
    """All parameters by name, frozen ones included."""
    n_seeds: int

    @abstractmethod
    def sample(self, step: int) -> Batch:
        """The training batch of a step."""

    @abstractmethod
    def loss(self, batch: Batch) -> Float[Tensor, "seed"]:
        """The loss of every seed; their sum is what is minimised, since no seed's loss depends on another's weights."""

    @abstractmethod
    def evaluate(self, step: int) -> list[Row]:
        """One row of metrics per seed, on fresh held-out sequences; the first and last hold the references too."""


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
        tests: Mapping[str, Task] | None = None,
    ) -> None:
        self.model, self.task, self.probes, self.config, self.seed = model, task, tuple(probes), config, seed
        self.tests = tests or {}
        self.model_config = model.config
        self.parameters = dict(model.named_parameters())
        self.forward: Forward = fast_forward if config.forward == "fast" else plain_forward

    def sample(self, step: int) -> Batch:
        """The training batch of a step: a stream of its own, so that it needs no state."""
        return self.task.sample(self.config.batch_size, generator(self.seed, "train", step, device=self.task.device))

    def loss(self, batch: Batch) -> Float[Tensor, "seed"]:
        """Mean cross-entropy over the positions of the chosen role."""
        n = batch.roles[self.config.loss].sum().clamp(min=1)

        def share(part: Batch) -> Float[Tensor, ""]:
            answers = self.task.answers(self.config.loss, part)
            losses = token_loss(self.forward(self.model, part.tokens, part.last), part, answers)
            return (losses * part.roles[self.config.loss]).sum() / n

        trained = [parameter for parameter in self.parameters.values() if parameter.requires_grad]
        size = self.config.chunk or chunk_size(self.model, batch.last)
        return sum_over(list(chunks(batch, size)), share, trained)[None]

    def evaluate(self, step: int) -> list[Row]:
        """Loss and accuracy by role, every probe that is due, the same on every test, and norms of what is trained."""
        due = [probe for probe in self.probes if step == self.config.steps or probe.at_every_evaluation(self.task)]
        references = step in (0, self.config.steps)
        metrics = self._measure(self.task, due, step, references=references)
        reading = [probe for probe in due if probe.config.reads_batch]
        for test, task in self.tests.items():
            found = self._measure(task, reading, step, references=references)
            metrics |= {on_test(name, test): value for name, value in found.items()}
        return [{"seed": self.seed, "step": step, **metrics, **self._norms()}]

    def _measure(self, task: Task, probes: Iterable[Probe], step: int, *, references: bool) -> dict[str, float]:
        stream = generator(self.seed, "evaluation", step, device=task.device)
        batch = task.sample(self.config.evaluation.sequences, stream)
        metrics, levels = measure(self.model, task, probes, batch, self.forward)
        if references:
            metrics |= reference_metrics(levels, list(metrics))
            metrics |= {f"floor/{name}": value for name, value in task.floors().items()}
        return metrics

    @torch.no_grad()
    def _norms(self) -> dict[str, float]:
        """Frobenius norms of the trained parameters and of their last gradient."""
        found: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            if parameter.requires_grad:
                found[f"norm/{name}"] = parameter.norm()
                if parameter.grad is not None:
                    found[f"grad_norm/{name}"] = parameter.grad.norm()
        return dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True)) if found else {}


def build_optimizer(config: TrainConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The configured optimiser; parameters without a gradient are left alone, weight decay included."""
    chosen = config.optimizer
    if isinstance(chosen, SgdConfig):
        return torch.optim.SGD(parameters, lr=chosen.lr, momentum=chosen.momentum, weight_decay=chosen.weight_decay)
    return torch.optim.AdamW(
        parameters, lr=chosen.lr, betas=chosen.betas, eps=chosen.eps, weight_decay=chosen.weight_decay
    )
