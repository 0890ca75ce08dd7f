"""What the probes of facts share: what they refuse, the stream that is read out for every fact, and its answers.

Probes of one evaluation share streams and tables (`tasks.factual.tables`). What they look at beyond is taken in chunks:
with thousands of facts, logits of all answers are never held for all sequences.
"""

from abc import abstractmethod

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.factual.config import MANY_FACTS
from tasks.factual.tables import fact_tables, in_chunks, why_no_tables
from tasks.factual.task import FactualTask
from toytf.errors import UserError
from toytf.models.transformer import Block, FeedForward, ToyTransformer, no_hook
from toytf.probe import Probe, ProbeResult, shared
from toytf.task import Batch, Task


def factual(kind: str, task: Task) -> FactualTask:
    """The task, if it has facts."""
    if not isinstance(task, FactualTask):
        raise UserError(f'probe "{kind}" measures facts: it needs task.kind = factual, got {task.config.kind}')
    return task


def require_tables(kind: str, model: ToyTransformer) -> None:
    """Refuse a model whose attention is not a function of tokens alone."""
    reason = why_no_tables(model)
    if reason:
        raise UserError(
            f'probe "{kind}" reads attention as tables over tokens: it needs one layer of softmax attention without '
            f"positions and LayerNorm, but this model has {reason}"
        )


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
        require_tables(self.config.kind, model)


def feed_forward(kind: str, model: ToyTransformer) -> FeedForward | None:
    """The feed-forward part, if there is one; one that does not read what attention gives is refused."""
    part = model.feed_forward(0)
    if part is not None and model.config.feed_forward.reads != "attention":
        raise UserError(
            f'probe "{kind}" needs a feed-forward part that reads what attention gives: feed_forward.reads = attention'
        )
    return part


# Streams


@shared
@torch.no_grad()
def final_streams(model: ToyTransformer, task: FactualTask, draws: int) -> Float[Tensor, "fact draw d"]:
    """x at the last position for every fact, whose logits are x U; for any model."""
    tokens = task.facts_among_noise(draws).tokens
    if why_no_tables(model) is None:
        block: Block = model.blocks[0]  # type: ignore[assignment]
        attended = fact_tables(model, task, draws).attended.flatten(0, 1)
        x = in_chunks(block.finish, width_of(model), model.embed.W_E[tokens[:, -1]], attended)
    else:
        name = f"blocks.{model.config.n_layers - 1}.hook_resid_post"
        width = tokens.shape[1] * width_of(model)
        x = in_chunks(lambda part: model.observe(part, name, last=1)[1][name][:, -1], width, tokens)
        x = x if model.ln_final is None else model.ln_final(x, no_hook)
    return rearrange(x, "(fact draw) d -> fact draw d", draw=draws)


def width_of(model: ToyTransformer) -> int:
    """The floats of a vector in the first layer where there are most: hidden units, or the stream."""
    part = model.feed_forward(0)
    return model.config.d_model if part is None else max(part.W_in.shape)


# Answers


def answers(x: Float[Tensor, "*n d"], U: Float[Tensor, "d answer"] | None = None) -> Int[Tensor, "*n"]:
    """argmax_a xᵀ u_a; without U, x are the logits themselves."""
    if U is None:
        return x.argmax(-1)
    return in_chunks(lambda part: (part @ U).argmax(1), U.shape[1], x.flatten(0, -2)).view(x.shape[:-1])


def margins(x: Float[Tensor, "n d"], U: Float[Tensor, "d answer"], targets: Int[Tensor, "n"]) -> Float[Tensor, "n"]:
    """xᵀ u_{a*} − max_{a ≠ a*} xᵀ u_a."""

    def above(part: Float[Tensor, "some d"], target: Int[Tensor, "some"]) -> Float[Tensor, "some"]:
        logits, at = part @ U, target[:, None]
        own = logits.gather(1, at)[:, 0]
        return own - logits.scatter_(1, at, -torch.inf).amax(1)

    return in_chunks(above, U.shape[1], x, targets)


def are_answered(
    margin: Float[Tensor, "n"], x: Float[Tensor, "n d"], U: Float[Tensor, "d answer"], targets: Int[Tensor, "n"]
) -> Bool[Tensor, "n"]:
    """answers(x, U) == targets, from the margins: of equal logits the first counts."""
    right, equal = margin > 0, margin == 0
    right[equal] = answers(x[equal], U) == targets[equal]
    return right


def accuracy(x: Float[Tensor, "fact *draw d"], task: FactualTask, U: Float[Tensor, "d answer"]) -> float:
    """How often the likeliest answer is right, over facts and draws."""
    targets = task.targets.reshape(-1, *(1,) * (x.ndim - 2)).expand(x.shape[:-1])
    return fraction_answered(x.flatten(0, -2), U, targets.flatten())


def fraction_answered(
    x: Float[Tensor, "n d"], U: Float[Tensor, "d answer"], targets: Int[Tensor, "n"], few: int = 256
) -> float:
    """How often argmax_a xᵀ u_a is the target.

    With many answers, those that lose already against few are wrong, and only the others are compared with all. To lose
    is to be below by more than 2 d ε |x| |u|, so that it does not depend on rounding.
    """
    n, every = len(x), U.shape[1] // few
    if every > 2:
        level = (x * U.T[targets]).sum(1) + 2 * len(U) * torch.finfo(x.dtype).eps * x.norm(dim=1) * U.norm(dim=0).max()
        contested = ~(in_chunks(lambda part: (part @ U[:, ::every]).amax(1), few, x) > level)
        x, targets = x[contested], targets[contested]
    return float(are_answered(margins(x, U, targets), x, U, targets).sum() / n)


def missed(
    x: Float[Tensor, "fact d"], task: FactualTask, limit: int, U: Float[Tensor, "d answer"] | None = None
) -> list[str]:
    """Facts that are answered wrongly, as "s3, r5: says r5a2, is r5a7"; without U, x are the logits themselves."""
    return wrong_facts(answers(x, U), task, limit)


def wrong_facts(predicted: Int[Tensor, "fact"], task: FactualTask, limit: int) -> list[str]:
    """The first facts that are answered wrongly, in words."""
    return [wrong_fact(task, i, int(predicted[i])) for i in (predicted != task.targets).nonzero()[:limit, 0].tolist()]


def wrong_fact(task: FactualTask, fact: int, predicted: int) -> str:
    """A fact that is answered wrongly, in words."""
    (s, r), names = task.pairs[fact].tolist(), task.table.answer_names
    pair = f"{task.table.subject_names[s]}, {task.table.relation_names[r]}"
    return f"{pair}: says {names[predicted]}, is {names[int(task.targets[fact])]}"


def ideal_of_sums(model: ToyTransformer) -> float | None:
    """How much of the facts subject and relation know as a sum: 1 with attention only; else pairs may be stored."""
    return 1.0 if model.feed_forward(0) is None else None


def by_pair(values: Float[Tensor, "fact *answer"], task: FactualTask) -> Float[Tensor, "S R *answer"]:
    """Facts as a table of subjects and relations; not a number where nothing is known."""
    s, r = task.pairs.unbind(1)
    table = values.new_full((len(task.subjects), len(task.relations), *values.shape[1:]), torch.nan)
    table[s, r] = values
    return table
