"""What the loop trains: it gives gradients and measures itself.

The loop knows only these methods. `SeedLearner` is one model; `StackedLearner` is several of one shape, which are
trained as one tensor program: its parameters have an axis of members in front, and there is one loss for each.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from toytf.errors import UserError
from toytf.evaluation import Forward, checked, measure, plain_forward
from toytf.measurement import Group, Measurement, as_row
from toytf.models.config import ModelConfig
from toytf.models.stack import Stack
from toytf.models.tables import fast_forward
from toytf.models.transformer import ToyTransformer
from toytf.optimizers import SGD, AdamW, Moments, Muon, Optimizer, Several
from toytf.probe import Course, CourseProbe, Probe, ProbeResult, losses_of
from toytf.randomness import generator
from toytf.task import Batch, Task
from toytf.timing import spent_on
from toytf.training.compiling import compiled_forward
from toytf.training.config import AdamWConfig, SgdConfig, TrainConfig
from toytf.training.gradients import accumulate_gradients, accumulate_stacked_gradients

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
    members: "Sequence[SeedLearner]"
    """The trainings, each with parameters of its own."""

    @abstractmethod
    def backward(self, step: int) -> Float[Tensor, "member"]:
        """Accumulate the gradients of a step, and return the loss of every member; nothing here waits for the device.

        The sum of the losses is what is minimised, since no member's loss depends on another's weights.
        """

    @abstractmethod
    def moments(self, optimizer: Optimizer, member: int) -> dict[str, Moments]:
        """What the optimiser remembers of a member's parameters, by name."""

    @abstractmethod
    def remember(self, optimizer: Optimizer, moments: Sequence[Mapping[str, Moments]]) -> None:
        """Let the optimiser remember this of every member."""

    @abstractmethod
    def look(self) -> None:
        """Let members see their gradients, which they measure."""


class SeedLearner(Learner):
    """One model of one seed on one task."""

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
        self.members = [self]

    def stream(self, step: int) -> torch.Generator:
        """The random numbers of a step: a stream of its own, so that it needs no state."""
        return generator(self.seed, "train", step, device=self.task.device)

    def sample(self, step: int) -> Batch:
        """The training batch of a step."""
        return self.task.sample(self.config.batch_size, self.stream(step))

    def backward(self, step: int) -> Float[Tensor, "member"]:
        """Mean cross-entropy over the positions of the chosen role."""
        return accumulate_gradients(self.model, self.task, self.sample(step), self.config, self.compiled)[None]

    def moments(self, optimizer: Optimizer, member: int) -> dict[str, Moments]:
        """What the optimiser remembers, by parameter."""
        return {name: optimizer.state[p] for name, p in self.parameters.items() if p in optimizer.state}

    def remember(self, optimizer: Optimizer, moments: Sequence[Mapping[str, Moments]]) -> None:
        """Let the optimiser remember this."""
        for name, known in moments[0].items():
            optimizer.state[self.parameters[name]] = dict(known)

    def look(self) -> None:
        """It has them."""

    def evaluate(self, step: int) -> Evaluation:
        """Loss and accuracy by role and the probes that are due, also on `evaluate_on`; norms of what is trained."""
        last, of_models = step == self.config.steps, [one for one in self.probes if not isinstance(one, CourseProbe)]
        due = [probe for probe in of_models if last or probe.at_every_evaluation(self.task)]
        references = step in (0, self.config.steps)
        measured, results = self._measure(self.task, due, step, floors=references)
        found = {(kind, ""): result for kind, result in results.items()}
        reading = [probe for probe in due if probe.config.reads_batch]
        for on, task in self.evaluate_on.items():
            measured_there, results = self._measure(task, reading, step, floors=references)
            measured += [one.evaluated_on(on) for one in measured_there]
            found |= {(kind, on): result for kind, result in results.items()}
        return Evaluation(self.seed, [*measured, *self._norms()], references, found)

    @spent_on("probes")
    def look_back(self, last: Evaluation, past: Course) -> Evaluation:
        """The last evaluation, with what probes of the whole training find in the past and in the model as it is."""
        step = self.config.steps
        losses = losses_of(self.config.loss, [{"step": step, **as_row(last.measurements, references=False)}])
        course = past.then(step, self.model, losses)
        found = {
            (probe.config.kind, ""): checked(probe, partial(probe.over, course, self.task))
            for probe in self.probes
            if isinstance(probe, CourseProbe)
        }
        measured = [one for result in found.values() for one in result.measurements]
        return replace(last, measurements=[*last.measurements, *measured], results={**last.results, **found})

    def _measure(
        self, task: Task, probes: Iterable[Probe], step: int, *, floors: bool
    ) -> tuple[list[Measurement], dict[str, ProbeResult]]:
        stream = generator(self.seed, "evaluation", step, device=task.device)
        batch = task.sample(self.config.evaluation.sequences, stream)
        task.check_batch(batch, self.config.evaluation.sequences)
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


class StackedLearner(Learner):
    """Several models of one shape, each with a seed, and maybe a learning rate and a weight decay, of its own.

    Their models become views of stacked parameters.
    """

    def __init__(self, members: Sequence[SeedLearner]) -> None:
        self.members = [*members]
        self.stack = Stack([member.model for member in members])
        self.model_config, self.parameters = members[0].model_config, self.stack.parameters
        self._task = members[0].task
        self._one_task = all(member.task is self._task for member in members)

    def sample(self, step: int) -> Batch:
        """The training batches of a step, one member's after the other's; each is the one that it has alone."""
        if not self._one_task:
            return Batch.joined([member.sample(step) for member in self.members])
        size = self.members[0].config.batch_size
        return self._task.sample_each(size, [member.stream(step) for member in self.members])

    def backward(self, step: int) -> Float[Tensor, "member"]:
        """Mean cross-entropy of every member over the positions of the chosen role."""
        return accumulate_stacked_gradients(self.stack, self._task, self.sample(step), self.members[0].config)

    def moments(self, optimizer: Optimizer, member: int) -> dict[str, Moments]:
        """The part of a member of what the optimiser remembers; the number of steps is the same for all."""
        return {
            name: {field: value[member] if value.ndim else value for field, value in optimizer.state[p].items()}
            for name, p in self.parameters.items()
            if p in optimizer.state
        }

    def remember(self, optimizer: Optimizer, moments: Sequence[Mapping[str, Moments]]) -> None:
        """Stack what is to be remembered of each member."""
        for name, known in moments[0].items():
            optimizer.state[self.parameters[name]] = {
                field: torch.stack([of[name][field] for of in moments]) if value.ndim else value.clone()
                for field, value in known.items()
            }

    def look(self) -> None:
        """Each sees its part."""
        self.stack.share_gradients()


MATRICES = "blocks.*.W_*"
"""The parameters that are matrices between one stream and the next, as W_E, W_pos and W_U are not, by name."""


def build_optimizer(learner: Learner, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The configured optimiser; parameters without a gradient are left alone, weight decay included.

    Muon is for the matrices among the parameters; the others have AdamW.
    """
    chosen = [member.config.optimizer for member in learner.members]
    one, stacked = chosen[0], isinstance(learner, StackedLearner)
    lr = [of.lr for of in chosen] if stacked else one.lr
    weight_decay = [of.weight_decay for of in chosen] if stacked else one.weight_decay
    if isinstance(one, SgdConfig):
        return SGD(parameters, lr, momentum=one.momentum, weight_decay=weight_decay)
    if isinstance(one, AdamWConfig):
        return AdamW(parameters, lr, betas=one.betas, eps=one.eps, weight_decay=weight_decay)
    trained, matrices, others = {*parameters}, list[nn.Parameter](), list[nn.Parameter]()
    for name, parameter in learner.parameters.items():
        if parameter in trained:
            (matrices if fnmatchcase(name, MATRICES) else others).append(parameter)
    if not matrices:
        raise UserError(
            "train.optimizer.kind = muon is for weight matrices of attention and feed-forward parts, but model.freeze "
            "leaves none of them to train: choose adamw"
        )
    muon = Muon(
        matrices, lr, momentum=one.momentum, nesterov=one.nesterov, weight_decay=weight_decay,
        newton_schulz_steps=one.newton_schulz_steps,
    )  # fmt: skip
    rest = one.rest
    return Several(muon, AdamW(others, rest.lr, betas=rest.betas, eps=rest.eps, weight_decay=rest.weight_decay))
