"""What a model knows, fact by fact: what it says, by how much, and which part of it holds the fact."""

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tasks.factual.streams import Paths, Replies, by_pair, replies
from tasks.factual.table import FactTable
from tasks.factual.tables import fact_tables, why_no_tables
from tasks.factual.task import FactualTask
from toytf.models.transformer import ToyTransformer
from toytf.sharing import sharing
from toytf.views.facts import FactSheet

PLACES = ("attention alone", "feed-forward part alone", "either", "both are needed")
"""Where a fact is stored: the path that answers it in every draw, with the mean of the other in the place of that one.

An answer that a mean already gives is right without either path.
"""


@torch.no_grad()
def fact_sheet(task: FactualTask, model: ToyTransformer, draws: int = 8) -> FactSheet:
    """Ask a model for every fact in so many draws of the noise, and again without each of its paths."""
    with sharing():
        return sheet_of(replies(model, task, draws), task, stored=places(model, task, draws))


def sheet_of(found: Replies, task: FactualTask, *, stored: Int[Tensor, "fact"] | None = None) -> FactSheet:
    """The sheet of what a model has said; stored: by fact, the number of its place, if that is known."""
    table, known = task.table, found.right.float().mean(1)
    in_place = np.full_like(table.answers, -1)
    if stored is not None:
        in_place = by_pair(stored.where(known == 1, -1), task, -1).cpu().numpy()
    return FactSheet(
        table.subject_names,
        table.relation_names,
        table.answer_names,
        table.answers,
        most_often_said(found, table),
        by_pair(known, task).cpu().numpy(),
        by_pair(found.margin.mean(1), task).cpu().numpy(),
        in_place,
        () if stored is None else PLACES,
    )


def places(model: ToyTransformer, task: FactualTask, draws: int) -> Int[Tensor, "fact"] | None:
    """By fact, which of PLACES holds it; None if the model does not have two paths, or they cannot be told apart."""
    part = model.feed_forward(0)
    if part is None or model.config.feed_forward.reads != "attention" or why_no_tables(model) is not None:
        return None
    without = Paths(part, fact_tables(model, task, draws).attended).right_without(task, model.unembed.W_U)
    if "direct" not in without:
        return None
    by_attention, by_feed_forward = (without[path].all(1).long() for path in ("feed_forward", "direct"))
    return (by_attention + 2 * by_feed_forward - 1) % len(PLACES)


def most_often_said(found: Replies, table: FactTable) -> Int[np.ndarray, "S R"]:
    """The right answer if every draw gives it; else the wrong one that most draws give, of several the first."""
    said, right = found.said.cpu().numpy(), found.right.cpu().numpy()
    fact, draw = np.nonzero(~right)
    different, times = np.unique(fact * table.n_answers + said[fact, draw], return_counts=True)
    fact, answer = np.divmod(different, table.n_answers)
    order = np.lexsort((answer, -times, fact))
    wrong, first = np.unique(fact[order], return_index=True)
    most = table.answers.copy()
    most[tuple(table.pairs[wrong].T)] = answer[order][first]
    return most
