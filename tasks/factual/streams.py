"""The stream that is read out for every fact, and the answers that it gives.

    logits = xᵀ U,   x = the stream at the last position, after all layers

With thousands of facts and answers, logits of all answers are never held for all sequences.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from tasks.factual.tables import at_the_end, fact_tables, in_chunks, why_no_tables, width_of
from tasks.factual.task import FactualTask
from toytf.memory.association import margins_of
from toytf.models.transformer import Block, FeedForward, ToyTransformer, no_hook
from toytf.sharing import shared


@shared
@torch.no_grad()
def final_streams(model: ToyTransformer, task: FactualTask, draws: int) -> Float[Tensor, "fact draw d"]:
    """x for every fact, for any model."""
    tokens = task.facts_among_noise(draws).tokens
    if why_no_tables(model) is None:
        block: Block = model.blocks[0]  # type: ignore[assignment]
        attended = fact_tables(model, task, draws).attended.flatten(0, 1)
        x = in_chunks(block.finish, width_of(model), model.embed.W_E[tokens[:, -1]], attended)
    else:
        name = f"blocks.{model.config.n_layers - 1}.hook_resid_post"
        x = at_the_end(model, name, tokens)
        x = x if model.ln_final is None else model.ln_final(x, no_hook)
    return rearrange(x, "(fact draw) d -> fact draw d", draw=draws)


@dataclass(frozen=True, eq=False)
class Replies:
    """What a model says when it is asked for every fact, in so many draws of the noise."""

    said: Int[Tensor, "fact draw"]
    right: Bool[Tensor, "fact draw"]
    margin: Float[Tensor, "fact draw"]


@torch.no_grad()
def replies(model: ToyTransformer, task: FactualTask, draws: int) -> Replies:
    """Ask a model for every fact."""
    U, x = model.unembed.W_U, final_streams(model, task, draws).flatten(0, 1)
    said = task.targets.repeat_interleave(draws)
    margin = margins(x, U, said)
    right = are_answered(margin, x, U, said)
    said[~right] = answers(x[~right], U)
    return Replies(*(of_all.view(-1, draws) for of_all in (said, right, margin)))


# Answers


def answers(x: Float[Tensor, "*n d"], U: Float[Tensor, "d answer"] | None = None) -> Int[Tensor, "*n"]:
    """argmax_a xᵀ u_a; without U, x are the logits themselves."""
    if U is None:
        return x.argmax(-1)
    return in_chunks(lambda part: (part @ U).argmax(1), U.shape[1], x.flatten(0, -2)).view(x.shape[:-1])


def margins(x: Float[Tensor, "n d"], U: Float[Tensor, "d answer"], targets: Int[Tensor, "n"]) -> Float[Tensor, "n"]:
    """xᵀ u_{a*} − max_{a ≠ a*} xᵀ u_a."""
    return in_chunks(lambda part, target: margins_of(part @ U, target), U.shape[1], x, targets)


def are_answered(
    margin: Float[Tensor, "n"], x: Float[Tensor, "n d"], U: Float[Tensor, "d answer"], targets: Int[Tensor, "n"]
) -> Bool[Tensor, "n"]:
    """answers(x, U) == targets, from the margins: of equal logits the first counts."""
    right, equal = margin > 0, margin == 0
    right[equal] = answers(x[equal], U) == targets[equal]
    return right


def answered(
    x: Float[Tensor, "n d"], U: Float[Tensor, "d answer"], targets: Int[Tensor, "n"], few: int = 256
) -> Bool[Tensor, "n"]:
    """Where argmax_a xᵀ u_a is the target.

    With many answers, those that lose already against few are wrong, and only the others are compared with all. To lose
    is to be below by more than 2 d ε |x| |u|, so that it does not depend on rounding.
    """
    every = U.shape[1] // few
    if every <= 2:
        return are_answered(margins(x, U, targets), x, U, targets)
    level = (x * U.T[targets]).sum(1) + 2 * len(U) * torch.finfo(x.dtype).eps * x.norm(dim=1) * U.norm(dim=0).max()
    right: Bool[Tensor, "n"] = ~(in_chunks(lambda part: (part @ U[:, ::every]).amax(1), few, x) > level)
    x, targets = x[right], targets[right]
    right[right.clone()] = are_answered(margins(x, U, targets), x, U, targets)
    return right


def facts_answered(
    x: Float[Tensor, "fact *draw d"], task: FactualTask, U: Float[Tensor, "d answer"]
) -> Bool[Tensor, "fact *draw"]:
    """Where the likeliest answer is right, over facts and draws."""
    targets = task.targets.reshape(-1, *(1,) * (x.ndim - 2)).expand(x.shape[:-1])
    return answered(x.flatten(0, -2), U, targets.flatten()).view(x.shape[:-1])


def by_pair(
    values: Shaped[Tensor, "fact *answer"], task: FactualTask, gap: int | float = torch.nan
) -> Shaped[Tensor, "S R *answer"]:
    """Facts as a table of subjects and relations; `gap`, by default not a number, where nothing is known."""
    s, r = task.pairs.unbind(1)
    table = values.new_full((len(task.subjects), len(task.relations), *values.shape[1:]), gap)
    table[s, r] = values
    return table


# The direct path, and the one through the feed-forward part


@dataclass(frozen=True, eq=False)
class Paths:
    """What the two paths from attention to the logits give for every fact, in so many draws of the noise.

    L = L_direct + L_FF,   L_direct = aᵀ U,   L_FF = FF(a)ᵀ U,   a = the stream after attention

    A path is removed by putting its mean over all facts in its place.
    """

    part: FeedForward
    """It reads what attention gives."""
    attended: Float[Tensor, "fact draw d"]
    """a."""

    @property
    def direct(self) -> Float[Tensor, "fact draw d"] | None:
        """a, if it goes past the feed-forward part."""
        return self.part.skip(self.attended)

    @cached_property
    def through(self) -> Float[Tensor, "fact draw d"]:
        """FF(a)."""
        a = self.attended
        return in_chunks(self.part, max(self.part.W_in.shape), a.flatten(0, 1)).view_as(a)

    def right_without(self, task: FactualTask, U: Float[Tensor, "d answer"]) -> dict[str, Bool[Tensor, "fact draw"]]:
        """Which facts are right without `feed_forward` and, if there is a direct path, without `direct`."""
        constant = self.through.mean((0, 1)).expand_as(self.through)
        streams = {"feed_forward": self.part.add(self.attended, constant)}
        if self.direct is not None:
            streams["direct"] = self.part.add(self.attended.mean((0, 1)), self.through)
        return {path: facts_answered(x, task, U) for path, x in streams.items()}
