"""A learned matrix in the coordinates of its memory, beside the ideal one.

    learned[z, y] = u_yᵀ Ŵ e_z      W_E W_OV W_U, W_E W_KQ W_Eᵀ, positions, or hidden units asked with pairs
    ideal[z, y]   = u_yᵀ W* e_z     W* = Σ_z u_{f(z)} e_zᵀ

Both in units in which the largest score is 1. Rows are the different keys; where each has one right value they are in
the order of those, so that right values are on the diagonal. Where a distribution p(y|z) should be stored, learned is
softmax_y of the scores, and ideal the distribution itself, both as they are.
"""

import math
from dataclasses import dataclass
from html import escape
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from toytf.holder import Holder, by_name, is_finite, memories
from toytf.memory import Association, hebbian
from toytf.memory.association import right_and_rivals
from toytf.memory.measures import score_unit, singular_values
from toytf.models.transformer import ToyTransformer
from toytf.sharing import sharing
from toytf.task import Task
from toytf.views.blocks import block_names, block_size, block_sums

if TYPE_CHECKING:
    import plotly.graph_objects as go

SHOWN = 256
"""Rows and columns that a picture has at most; of more, neighbours are averaged."""
SMALL = 2**14
"""Scores of a head, pairs times values, up to which it has a view of its own beside that of all heads together."""


@dataclass(frozen=True)
class Pair:
    """One pair of a memory, and by how much its right value outscores the best rival."""

    key: str
    right: str
    rival: str
    """The best of the other values; the answer, if the pair is not recalled."""
    margin: float
    """In standard deviations of a score; infinite of a pair without a rival, which is recalled whatever is learned."""

    @property
    def recalled(self) -> bool:
        """Does the right value win?"""
        return self.margin > 0

    def __str__(self) -> str:
        ahead = "ahead of" if self.recalled else "behind"
        return f"{self.key} → {self.right}: " + (
            f"margin {self.margin:.2f} {ahead} {self.rival}" if math.isfinite(self.margin) else "without a rival"
        )


@dataclass(frozen=True, eq=False)
class MemoryView:
    """What a part of a model holds, in the coordinates of what it should hold."""

    name: str
    job: str
    """What it is for, in a phrase."""
    keys: tuple[str, ...]
    """The rows."""
    values: tuple[str, ...]
    """The columns."""
    learned: Float[np.ndarray, "row column"]
    ideal: Float[np.ndarray, "row column"]
    """Not a number where a value may not compete for a key."""
    right: Bool[np.ndarray, "row column"]
    pair_keys: tuple[str, ...]
    """What the pairs are asked with; a distribution has no pairs."""
    targets: Int[np.ndarray, "pair"]
    rivals: Int[np.ndarray, "pair"]
    margins: Float[np.ndarray, "pair"]
    """How far the right value is ahead of the best rival, in standard deviations of a score."""
    value_names: tuple[str, ...]
    singular: Float[np.ndarray, "k"]
    """The singular values of √k W / ‖W‖, if it is a matrix."""
    averaged: tuple[int, int] = (1, 1)
    """How many keys and values are averaged in a cell."""

    @property
    def is_distribution(self) -> bool:
        """Is p(y|z) to be stored, rather than one answer for each key?"""
        return not len(self.margins)

    @property
    def recalled(self) -> int:
        """The number of pairs whose right value wins."""
        return int((self.margins > 0).sum())

    def worst(self, limit: int = 10) -> list[Pair]:
        """The pairs of smallest margin."""
        return [
            Pair(
                self.pair_keys[z],
                self.value_names[self.targets[z]],
                self.value_names[self.rivals[z]],
                float(self.margins[z]),
            )
            for z in np.argsort(self.margins, kind="stable")[:limit]
        ]

    def figure(self) -> "go.Figure":
        """Learned beside ideal."""
        from toytf.figures import heat_maps

        beside = "to be stored" if self.is_distribution else "Hebbian: the plain sum"
        panels = {"learned": (self.learned, self.keys, self.values), beside: (self.ideal, self.keys, self.values)}
        return heat_maps(panels, self.title, x=self.columns, y=self.rows)

    @property
    def title(self) -> str:
        """Its name and what it is for."""
        return f"{self.name}: {self.job}" if self.job else self.name

    @property
    def rows(self) -> str:
        """What a row is."""
        return "key" if self.averaged[0] == 1 else f"key (mean of {self.averaged[0]})"

    @property
    def columns(self) -> str:
        """What a column is."""
        return "value" if self.averaged[1] == 1 else f"value (mean of {self.averaged[1]})"

    def _repr_html_(self) -> str:
        if self.is_distribution:
            return f"<p><b>{escape(self.title)}</b></p>"
        worst = "".join(f"<li>{escape(str(pair))}</li>" for pair in self.worst(5))
        return (
            f"<p><b>{escape(self.title)}</b>: {self.recalled} of {len(self.margins)} pairs recalled. "
            f"Smallest margins:</p><ul>{worst}</ul>"
        )


@torch.no_grad()
def memory_views(model: ToyTransformer, task: Task) -> dict[str, MemoryView]:
    """Every part of a model that should hold a memory: the whole, and single heads where these are small.

    Nothing of a part with a vector or weight that is not a number.
    """
    with sharing():
        holders, wanted = by_name(task.holders(model)), memories(model, task)
    found = {}
    for wholes, heads in holders.values():
        sizes = [(head, len(head.association.keys) * len(head.association.values)) for head in heads]
        for holder in wholes if wholes == heads else [*wholes, *(head for head, size in sizes if size <= SMALL)]:
            name = holder.name if holder.head is None else f"{holder.name}, head {holder.head}"
            if len(holder.association.keys) and is_finite(holder):
                found[name] = _of_holder(name, holder)
    for name, memory in wanted.items():
        if memory.conditional is not None:
            stored, slot = memory.association, memory.slot
            p = stored.scores(lambda keys, slot=slot: model.read(slot, keys)).softmax(1)  # type: ignore[misc]
            table, values = _Table(stored), tuple(stored.value_name(y) for y in range(len(stored.values)))
            learned, ideal = (table.picture(one)[0] for one in (p, memory.conditional))
            none, nothing = np.zeros(0, dtype=np.int64), np.zeros(0)  # there are no pairs
            found[name] = MemoryView(
                name, memory.job, *table.names, learned, ideal, table.right, (), none, none, nothing, values, nothing,
                table.blocks,
            )  # fmt: skip
    return found


def _of_holder(name: str, holder: Holder) -> MemoryView:
    stored, memory = holder.association, holder.memory
    learned = stored.scores(memory)
    own, rivals = right_and_rivals(learned, stored.targets)
    best = rivals.max(1)
    margins = ((own - best.values) / (score_unit(stored, memory) or 1.0)).nan_to_num(posinf=torch.inf)
    table = _Table(stored)
    return MemoryView(
        name,
        holder.job,
        *table.names,
        _largest_is_one(*table.picture(learned)),
        _largest_is_one(*table.picture(stored.scores(hebbian(stored)))),
        table.right,
        tuple(stored.key_name(z) for z in range(len(stored.keys))),
        stored.targets.cpu().numpy(),
        best.indices.cpu().numpy(),
        margins.cpu().double().numpy(),
        tuple(stored.value_name(y) for y in range(len(stored.values))),
        singular_values(memory) if isinstance(memory, Tensor) and min(memory.shape) > 1 else np.zeros(0),
        table.blocks,
    )


class _Table:
    """Which row of a picture each key is in: equal keys are one row, and neighbours are averaged if there are many."""

    def __init__(self, stored: Association) -> None:
        numbers: dict[bytes, int] = {}
        of_pair = [numbers.setdefault(row.tobytes(), len(numbers)) for row in stored.keys.detach().cpu().numpy()]
        self.of_pair: Int[np.ndarray, "n"] = np.array(of_pair)
        names: list[list[str]] = [[] for _ in numbers]
        for z, number in enumerate(of_pair):
            names[number].append(stored.key_name(z))
        # Pairs of one key are called what their names begin with, part by part: `s1` of `s1, r1` and `s1, r2`.
        alike = [zip(*(name.split(", ") for name in own), strict=False) for own in names]
        common = [takewhile(lambda part: len({*part}) == 1, parts) for parts in alike]
        row_names = [", ".join(part[0] for part in parts) or "all pairs" for parts in common]
        n, m, targets = len(row_names), len(stored.values), stored.targets.cpu().numpy()
        first = np.full(n, m)
        np.minimum.at(first, self.of_pair, targets)
        one_each = len(np.unique(np.stack([self.of_pair, targets]), axis=1).T) == n
        self.order = np.argsort(first, kind="stable") if one_each else np.arange(n)
        self.blocks = rows, columns = block_size(n, SHOWN), block_size(m, SHOWN)
        values = [stored.value_name(y) for y in range(m)]
        self.names = block_names([row_names[z] for z in self.order.tolist()], rows), block_names(values, columns)
        place = np.empty(n, dtype=np.int64)
        place[self.order] = np.arange(n)
        self.right = np.zeros((len(self.names[0]), len(self.names[1])), dtype=bool)
        self.right[place[self.of_pair] // rows, targets // columns] = True

    def picture(self, scores: Float[Tensor, "n m"]) -> tuple[Float[np.ndarray, "row column"], float]:
        """Means over the blocks, of what competes, and the largest score.

        Pairs of one key ask the same, and differ only in what may compete: the largest is what competes for any.
        """
        n = len(self.order)
        if n < len(scores):
            index = torch.from_numpy(self.of_pair).to(scores.device)[:, None].expand_as(scores)
            scores = scores.new_full((n, scores.shape[1]), -torch.inf).scatter_reduce(0, index, scores, "amax")
        values = scores.cpu().numpy()[self.order]
        there = np.isfinite(values)
        values[~there] = 0
        counts = block_sums(there, *self.blocks)
        means = block_sums(values, *self.blocks) / np.maximum(counts, 1)
        return np.where(counts > 0, means, np.nan), float(np.abs(values).max(initial=0.0))


def _largest_is_one(values: Float[np.ndarray, "a b"], largest: float) -> Float[np.ndarray, "a b"]:
    return values / largest if largest > 0 else values
