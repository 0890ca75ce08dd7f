"""Draw many Markov chains with triggers at once, on the device, by alias tables."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks.alias import AliasTable
from toytf.randomness import drawn


def draw_without_replacement(
    p: Float[Tensor, "n"], rows: int, k: int, generators: Sequence[torch.Generator]
) -> Int[Tensor, "batch k"]:
    """k successive draws without replacement per row (as the largest k of log p + Gumbel noise are distributed).

    rows: how many each generator draws.
    """
    exponential = drawn(
        lambda random: torch.empty(rows, len(p), device=p.device).exponential_(generator=random), generators
    )
    return (p.log() - exponential.log()).topk(k).indices


def draw_chains(
    first: AliasTable,
    transition: AliasTable,
    output_of: Int[Tensor, "batch token"],
    length: int,
    generators: Sequence[torch.Generator],
    *,
    noise: tuple[float, int] | None = None,
) -> Int[Tensor, "batch length"]:
    """z_1 ~ first; z_{t+1} = output_of[b, z_t] where that is ≥ 0 (a trigger), else ~ transition(·|z_t).

    noise = (α, τ): with probability α, a trigger is followed by τ instead. Each generator draws for its share of the
    batch, in its order.
    """
    batch, n = output_of.shape
    share = batch // len(generators)

    def numbers() -> Float[Tensor, "length batch"]:
        return drawn(
            lambda random: torch.rand(length, share, generator=random, device=output_of.device), generators, dim=1
        )

    uniform = numbers()
    start_of_row = torch.arange(batch, device=output_of.device) * n
    token = first.draw(torch.zeros_like(start_of_row), uniform[0])
    # The loop is `transition.draw` spelled out: per step only what depends on the last token, on flat tables.
    columns, heights = (part.unbind() for part in transition.split(uniform))
    keep, other, outputs = transition.keep.flatten(), transition.other.flatten(), output_of.flatten()
    chain = [token]
    alpha, noise_token = noise or (0.0, -1)
    replaced = numbers() < alpha if alpha else None
    for t, (column, height) in enumerate(zip(columns[1:], heights[1:], strict=True)):
        cell = torch.add(column, token, alpha=n)
        follows = torch.where(height < keep.index_select(0, cell), column, other.index_select(0, cell))
        forced = outputs.index_select(0, start_of_row + token)
        if replaced is not None:
            forced = forced.masked_fill((forced >= 0) & replaced[t], noise_token)
        token = torch.where(forced < 0, follows, forced)
        chain.append(token)
    return torch.stack(chain, dim=1)
