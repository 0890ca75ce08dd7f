"""What a model answers to every input: exact errors and losses of the population, instead of those of a sample.

    margin(z) = ℓ_{f(z)}(z) − max_{y ≠ f(z)} ℓ_y(z)         logits ℓ(z)
    error     = Σ_z p(z) 1{margin(z) ≤ 0}                    a tie is an error
    loss      = −Σ_z p(z) ln softmax_{f(z)} ℓ(z)

A sample would not do: an error of 10⁻⁴ that is made of a thousand rare inputs needs 10⁶ draws. Sums are in float64.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from tasks.association.task import AssociationTask
from toytf.chunks import chunk_size, chunks
from toytf.memory.association import margins_of
from toytf.models.tables import fast_forward
from toytf.models.transformer import ToyTransformer
from toytf.sharing import shared

LOGITS = 2**20
"""Logits that are worked on at once."""


@dataclass(frozen=True, eq=False)
class Population:
    """Margin, loss and frequency of every input."""

    frequencies: Float[np.ndarray, "input"]
    margins: Float[np.ndarray, "input"]
    """Infinite if there is no other output."""
    losses: Float[np.ndarray, "input"]
    answers: Int[np.ndarray, "input"]
    """The likeliest output."""

    @cached_property
    def wrong(self) -> Bool[np.ndarray, "input"]:
        """Which inputs are not answered right."""
        wrong: Bool[np.ndarray, "input"] = ~(self.margins > 0)
        return wrong

    @property
    def error(self) -> float:
        """Σ_z p(z) 1{wrong}."""
        return self.error_of(np.ones_like(self.wrong))

    def error_of(self, some: Bool[np.ndarray, "input"]) -> float:
        """What some inputs contribute to the error."""
        return float(self.frequencies[self.wrong & some].sum())

    @property
    def loss(self) -> float:
        """Σ_z p(z) (−ln p̂(f(z)|z)), in nats."""
        return float(self.frequencies @ self.losses)

    def head(self, size: int) -> Bool[np.ndarray, "input"]:
        """The most frequent inputs, so many of them; of equally frequent ones the first."""
        first = np.zeros_like(self.wrong)
        first[np.argsort(-self.frequencies, kind="stable")[:size]] = True
        return first


@shared
@torch.no_grad()
def population(model: ToyTransformer, task: AssociationTask) -> Population:
    """Ask a model for every input, by its own forward, some at a time."""
    M, size = len(task.output_names), chunk_size(model, 1)
    size = max(1, LOGITS // M) if size is None else max(1, min(size, LOGITS // M))
    margins, losses, answers = [], [], []
    for part in chunks(task.ask(task.inputs), size):
        logits, right = fast_forward(model, part.tokens, 1)[:, 0], part.targets
        margins.append(margins_of(logits, right[:, 0]).cpu())
        answers.append(logits.argmax(1).cpu())
        exact = logits.cpu().double()
        losses.append(exact.logsumexp(1) - exact.gather(1, right.cpu())[:, 0])
    margin, loss = (torch.cat(parts).double().numpy() for parts in (margins, losses))
    return Population(task.frequencies, margin, loss, torch.cat(answers).numpy())
