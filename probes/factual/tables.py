"""What the probes of facts share: what they refuse, how often answers are right, and the names of wrong ones.

Probes of one evaluation share tables (`tasks.factual.tables`) and streams (`tasks.factual.streams`).
"""

from abc import abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.factual.config import MANY_FACTS
from tasks.factual.streams import answers, facts_answered
from tasks.factual.tables import why_no_tables
from tasks.factual.task import FactualTask
from toytf.errors import UserError
from toytf.models.transformer import FeedForward, ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task
from toytf.views.facts import WrongFact


def factual(kind: str, task: Task) -> FactualTask:
    """The task, if it has facts."""
    if not isinstance(task, FactualTask):
        raise UserError(f'probe "{kind}" measures facts: it needs task.kind = factual, got {task.config.kind}')
    return task


class FactProbe(Probe):
    """A probe of facts: it asks for every fact among fresh noise, and uses no batch."""

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure every fact; the batch is not used."""
        return self.measure(model, factual(self.config.kind, task))

    @abstractmethod
    def measure(self, model: ToyTransformer, task: FactualTask) -> ProbeResult:
        """Measure the model on every fact of the task."""

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a task without facts."""
        factual(self.config.kind, task)

    def at_every_evaluation(self, task: Task) -> bool:
        """With `when: auto`: unless there are many facts."""
        if self.config.when == "auto":
            return len(factual(self.config.kind, task).pairs) <= MANY_FACTS
        return super().at_every_evaluation(task)


class TableProbe(FactProbe):
    """A probe of what attention does with facts."""

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a task without facts, and a model whose attention is no table over tokens."""
        super().check(model, task)
        reason = why_no_tables(model)
        if reason:
            raise UserError(
                f'probe "{self.config.kind}" reads attention as tables over tokens: it needs one layer of softmax '
                f"attention without positions and LayerNorm, but this model has {reason}"
            )


def feed_forward(kind: str, model: ToyTransformer) -> FeedForward | None:
    """The feed-forward part, if there is one; one that does not read what attention gives is refused."""
    part = model.feed_forward(0)
    if part is not None and model.config.feed_forward.reads != "attention":
        raise UserError(
            f'probe "{kind}" needs a feed-forward part that reads what attention gives: feed_forward.reads = attention'
        )
    return part


# Answers


def accuracy(x: Float[Tensor, "fact *draw d"], task: FactualTask, U: Float[Tensor, "d answer"]) -> float:
    """How often the likeliest answer is right, over facts and draws."""
    return fraction(facts_answered(x, task, U))


def fraction(right: Bool[Tensor, "..."]) -> float:
    """How often it is so."""
    return float(right.sum() / right.numel())


def missed(
    x: Float[Tensor, "fact d"], task: FactualTask, limit: int, U: Float[Tensor, "d answer"] | None = None
) -> list[str]:
    """Facts that are answered wrongly, as "s3, r5: says r5a2, is r5a7"; without U, x are the logits themselves."""
    return wrong_facts(answers(x, U), task, limit)


def wrong_facts(predicted: Int[Tensor, "fact"], task: FactualTask, limit: int) -> list[str]:
    """The first facts that are answered wrongly, in words."""
    table, found = task.table, []
    for fact in (predicted != task.targets).nonzero()[:limit, 0].tolist():
        s, r = task.pairs[fact].tolist()
        right, said = (table.answer_names[int(answer[fact])] for answer in (task.targets, predicted))
        found.append(str(WrongFact(table.subject_names[s], table.relation_names[r], right, said)))
    return found


def ideal_of_sums(model: ToyTransformer) -> float | None:
    """How much of the facts subject and relation know as a sum: 1 with attention only; else pairs may be stored."""
    return 1.0 if model.feed_forward(0) is None else None
