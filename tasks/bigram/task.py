"""Bigram induction (Bietti et al. 2023): learn the bigrams of a text, and copy what followed a trigger before.

One sequence with the fixed triggers `e` and `t`, which drew the outputs `k` and `e`:

    position    1  2  3  4  5  6  7  8  9 10 11
    token       h  e  k  a  t  e  k  ␣  t  e  k
    counter     0  1  0  0  1  2  0  0  2  3  0     how often this trigger has been seen, itself included
    role        g  f  g  g  f  c  g  g  c  c  g     global, first_seen (output not yet known), in_context (copy it)

A trigger whose outputs lead through triggers only, such as `a → a`, never lets the chain go: such sequences are
*trapped*, and a model that merely repeats gets them right. `untrapped` is in_context without them; `clean_start` is
in_context on sequences whose first token is no trigger (the ideal construction has no previous token there).

With noise (Chen, Bruna, Bietti 2024), a trigger is followed by the noise token τ instead of its output with probability
α, in the context as at the positions that are scored:

    token       h  e  k  a  e  τ  l  e  k  e  τ
    counter     0  1  0  0  2  0  0  3  0  4  0

There, *trapped* means only that the outputs close a circle: noise leaves it now and then.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from tasks.alias import AliasTable
from tasks.bigram.config import EXTRA, SHAKESPEARE, BigramConfig
from tasks.bigram.corpus import BigramTable, load_table
from tasks.bigram.floors import heuristic_floors, optimal_levels, to_beat
from tasks.bigram.memories import bigram_memories
from tasks.bigram.sampler import draw_chains, draw_without_replacement
from toytf.errors import UserError
from toytf.measurement import Measurement, Reference
from toytf.models.transformer import ToyTransformer
from toytf.randomness import drawn
from toytf.randomness import generator as stream
from toytf.task import DATA, FLOOR, Annotation, Batch, Memory, Task

_VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥"}

STATISTIC = replace(
    DATA,
    meanings=(
        ("repeat_fraction", "Fraction of the triggers that are followed by themselves; there, repeating a token is "
         "enough."),
        ("in_context_fraction", "Fraction of the positions at which the context determines the answer; only there "
         "induction can show."),
        ("trapped_fraction", "Fraction of the sequences that are caught in a loop of triggers (a → e → a); there, "
         "answers can be guessed without induction."),
    ),
)  # fmt: skip
UNTRAPPED = ", in sequences without a loop (a → e → a)"


def tokens_before(batch: Batch) -> Int[Tensor, "b t"]:
    """z_{t−1}; −1 before the first position, and for what the task merely shows in front: it is no occurrence."""
    return torch.nn.functional.pad(batch.tokens.masked_fill(~batch.roles["all"], -1)[:, :-1], (1, 0), value=-1)


def followed(batch: Batch) -> Bool[Tensor, "b t t"]:
    """[b, t, s]: does s ≤ t come right after a token z_t?"""
    return (tokens_before(batch)[:, None, :] == batch.tokens[:, :, None]).tril()


class BigramTask(Task):
    """Bigram text with triggers; see the module for one sequence drawn out."""

    config: BigramConfig
    solution = ("W_KQ1", "W_KQ2", "W_OV2")
    goal = "in_context"
    role_phrases: Mapping[str, str] = {
        "in_context": "answers that the context determines",
        "untrapped": f"answers that the context determines{UNTRAPPED}",
    }

    role_texts: Mapping[str, str] = {
        "all": "all positions that are scored",
        "in_context": "positions at a trigger that was seen before, so that the context determines the answer",
        "untrapped": "positions at a trigger that was seen before, in sequences without a loop of triggers (a → e → a)",
        "clean_start": "positions at a trigger that was seen before, in sequences whose first token is no trigger",
        "first_seen": "positions at a trigger that comes for the first time, so that the answer is not known yet",
        "trigger": "positions at a trigger, whether it was seen before or not",
        "global": "positions at other tokens than triggers, where the bigrams of the text decide",
    }

    def __init__(self, config: BigramConfig, device: torch.device) -> None:
        super().__init__(config, device)
        table = load_table(config.corpus, config.n_tokens)
        n = len(table.characters)
        if config.n_triggers + config.trigger_offset > n:
            raise UserError(
                f"task.n_triggers + task.trigger_offset = {config.n_triggers + config.trigger_offset}, "
                f"but the corpus has only {n} characters"
            )
        self.n_positions = config.seq_len
        self.ideal_rule = config.construction.rule
        self.noise = None if config.noise is None else (config.noise.probability, _noise_token(config, table))
        if self.noise is not None and self.noise[0] > 0:
            seen_before = "answers after a trigger seen before"
            self.role_phrases = {"in_context": seen_before, "untrapped": seen_before + UNTRAPPED}
        output = np.full((n, n), 1 / n) if config.outputs == "uniform" else table.bigram.copy()
        if config.no_repeat:
            np.fill_diagonal(output, 0)
            alone = output.sum(1) == 0
            output[alone] = 1 - np.eye(n)[alone]
            output /= output.sum(1, keepdims=True)
        names, unigram, bigram = table.characters, table.unigram, table.bigram
        if config.noise is not None and config.noise.token == EXTRA:
            names = (*names, "τ")
            bigram = np.pad(np.vstack([bigram, unigram]), ((0, 0), (0, 1)))  # unigrams follow τ, and it follows nothing
            output = np.pad(np.vstack([output, np.full(n, 1 / n)]), ((0, 0), (0, 1)))
            unigram = np.append(unigram, 0.0)
        self.token_names = self.output_names = tuple(_VISIBLE.get(name, name) for name in names)
        self.unigram = self._tensor(unigram)
        self.bigram = self._tensor(bigram)
        self.output_distribution = self._tensor(output)
        self._first = AliasTable.build(unigram[None], device)
        self._transition = AliasTable.build(bigram, device)
        self._output = AliasTable.build(output, device)

    def _tensor(self, values: NDArray[np.float64]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.device)

    @property
    def fixed_triggers(self) -> Int[Tensor, "trigger"] | None:
        """The triggers that every sequence has, if they are fixed; tokens are numbered by frequency."""
        if self.config.triggers == "random":
            return None
        first = self.config.trigger_offset
        return torch.arange(first, first + self.config.n_triggers, device=self.device)

    @property
    def trigger_frequency(self) -> Float[Tensor, "token"]:
        """How often each token is a trigger that occurs, up to scale: π_u, on the triggers if they are fixed."""
        if self.fixed_triggers is None:
            return self.unigram
        return torch.zeros_like(self.unigram).index_copy(0, self.fixed_triggers, self.unigram[self.fixed_triggers])

    def sample(self, n: int, generator: torch.Generator) -> Batch:
        """Draw n sequences, all at once, on the generator's device."""
        return self.sample_each(n, [generator])

    def sample_each(self, n: int, generators: Sequence[torch.Generator]) -> Batch:
        """All at once: only the random numbers are drawn by each generator."""
        config, k, in_all = self.config, self.config.n_triggers, n * len(generators)
        if self.fixed_triggers is None:
            triggers = draw_without_replacement(self.unigram, n, k, generators)
        else:
            triggers = self.fixed_triggers.expand(in_all, k)
        uniform = drawn(lambda random: torch.rand(n, k, generator=random, device=self.device), generators)
        outputs = self._output.draw(triggers, uniform)
        output_of = torch.full((in_all, len(self.token_names)), -1, device=self.device).scatter(1, triggers, outputs)

        shown = k if config.show_latents else 0
        length = config.seq_len + 1 - shown
        chain = draw_chains(self._first, self._transition, output_of, length, generators, noise=self.noise)
        z = torch.cat([triggers, chain], dim=1) if shown else chain
        tokens, targets = z[:, :-1], z[:, 1:]

        counter = count_triggers(tokens[:, shown:], triggers)
        trapped = contains_trapped(tokens[:, shown:], triggers, output_of)
        clean_start = output_of.gather(1, chain[:, :1]) < 0
        if shown:
            not_scored = torch.full_like(triggers, -1, dtype=counter.dtype)
            counter = torch.cat([not_scored, counter], dim=1)
        in_context = counter >= 2
        roles = {
            "all": counter >= 0,
            "in_context": in_context,
            "untrapped": in_context & ~trapped[:, None],
            "clean_start": in_context & clean_start,
            "first_seen": counter == 1,
            "trigger": counter >= 1,
            "global": counter == 0,
        }
        latents = {"triggers": triggers, "outputs": outputs, "counter": counter, "trapped": trapped}
        return Batch(tokens, targets, roles, latents)

    @cached_property
    def survey(self) -> Batch:
        """1024 sequences from a stream of their own, for the levels that have no closed form."""
        return self.sample(1024, stream(0, "survey", device=self.device))

    @cached_property
    def _levels(self) -> Mapping[tuple[str, str], Reference]:
        return optimal_levels(self.survey, self.bigram, self.output_distribution, self.noise)

    @property
    def about(self) -> str:
        """The text, the triggers, and what is asked."""
        config, k = self.config, self.config.n_triggers
        if self.fixed_triggers is None:
            drawn = "one character drawn by frequency is a trigger"
            which = f"In every sequence, {drawn if k == 1 else f'{k} characters drawn by frequency are triggers'}"
        else:
            named = " ".join(self.token_names[token] for token in self.fixed_triggers.tolist()[:8])
            are = "One character is a trigger" if k == 1 else f"{k} characters are triggers"
            which = f"{are} ({named}{' …' * (k > 8)})"
        noise = ""
        if self.noise is not None and self.noise[0] > 0:
            noise = f" With probability {self.noise[0]:g}, {self.token_names[self.noise[1]]} follows instead, as noise."
        text = "Shakespeare" if config.corpus == SHAKESPEARE else "a text"
        return (
            f"The text is drawn from the character bigrams of {text}. {which}: each sequence draws an output for "
            f"{'it' if k == 1 else 'each'}, which then always follows.{noise} Where a trigger comes again, the model "
            "should say its output, which only the context tells."
        )

    def annotate(self, batch: Batch) -> Annotation:
        """Triggers and outputs; layer 1 should look from an output at its trigger, layer 2 at earlier outputs."""
        z, positions = batch.tokens, torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        in_context, holds_output = batch.roles["in_context"], z[:, None, :] == batch.targets[:, :, None]
        after_trigger = torch.nn.functional.pad(batch.roles["trigger"][:, :-1], (1, 0))
        previous = (positions[:, None] - 1 == positions) & after_trigger[:, :, None]
        parts = {
            "trigger seen before: its output is asked": in_context,
            "trigger, first time": batch.roles["first_seen"],
            "output of the trigger before it": after_trigger,
        }
        return Annotation(parts, {0: previous, 1: followed(batch) & holds_output & in_context[:, :, None]})

    def references(self) -> Mapping[tuple[str, str], Reference]:
        """Optimal and chance accuracy and loss by role."""
        return self._levels

    def floors(self) -> list[Measurement]:
        """Accuracy of repeating, of the most frequent token so far and of the noise; entropy of bigrams elsewhere."""
        floors = heuristic_floors(self.survey, len(self.token_names), self.noise)
        best = self._levels.get(("global", "loss"), Reference()).ideal
        if best is not None:
            floors.append(FLOOR.measurement(best, role="global", quantity="loss", heuristic="bigram_entropy"))
        return to_beat(floors)

    def statistics(self, batch: Batch) -> list[Measurement]:
        """How often a trigger is followed by itself, which positions are scored, and which sequences are trapped."""
        trigger = batch.roles["trigger"]
        repeats = (batch.tokens == batch.targets) & trigger
        return [
            STATISTIC.measurement(float(repeats.sum() / trigger.sum().clamp(min=1)), "repeat_fraction"),
            STATISTIC.measurement(float(batch.roles["in_context"].float().mean()), "in_context_fraction"),
            STATISTIC.measurement(float(batch.latents["trapped"].float().mean()), "trapped_fraction"),
        ]

    def rivals(self, batch: Batch) -> Mapping[str, Int[Tensor, "batch position"]]:
        """The noise token, if there is one."""
        return {} if self.noise is None else {"noise": torch.full_like(batch.targets, self.noise[1])}

    def memories(self, model: ToyTransformer) -> Mapping[str, Memory]:
        """W_KQ1, W_KQ2, W_OV2 of the induction head; in the feed-forward part of layer 2, the bigrams and the noise."""
        return bigram_memories(self, model)

    def graft_accuracy(
        self, model: ToyTransformer, batch: Batch, rule: str, ideal: Collection[str], strength: float = 1.0
    ) -> float | None:
        """The accuracy that the crosstalk of a Hebbian W_KQ2 leaves, if it is among these."""
        if rule != "hebbian":
            return None
        from tasks.bigram.crosstalk import predicted_accuracy  # the theory brings scipy, which training can do without

        return predicted_accuracy(self, model, batch, ideal, strength)


def _noise_token(config: BigramConfig, table: BigramTable) -> int:
    """The id of the noise token; it must not be one of the fixed triggers."""
    assert config.noise is not None
    token = config.noise.token
    if token == EXTRA:
        return len(table.characters)
    if token not in table.characters:
        raise UserError(
            f"task.noise.token = {token!r} is not a character of the corpus: choose one of "
            f'{"".join("".join(table.characters).split())}, or "{EXTRA}" for a token of its own'
        )
    found = table.characters.index(token)
    if config.triggers == "fixed" and 0 <= found - config.trigger_offset < config.n_triggers:
        raise UserError(f"task.noise.token = {token!r} is one of the fixed triggers: choose another")
    return found


def count_triggers(
    tokens: Int[Tensor, "batch position"], triggers: Int[Tensor, "batch trigger"]
) -> Int[Tensor, "batch position"]:
    """At a trigger, how often it has occurred so far (1 at its first occurrence); elsewhere 0."""
    is_trigger = tokens[:, None, :] == triggers[:, :, None]
    return (is_trigger * is_trigger.cumsum(2, dtype=torch.int32)).sum(1, dtype=torch.int32)  # int32: 8 times as fast


def contains_trapped(
    tokens: Int[Tensor, "batch position"], triggers: Int[Tensor, "batch trigger"], output_of: Int[Tensor, "batch token"]
) -> Bool[Tensor, "batch"]:
    """Does a sequence hold a trigger from which outputs never leave the triggers?

    After as many steps as there are triggers, a path that is still among them must have closed a circle.
    """
    reached, inside = triggers, torch.ones_like(triggers, dtype=torch.bool)
    for _ in range(triggers.shape[1]):
        reached = output_of.gather(1, reached.clamp(min=0))
        inside = inside & (output_of.gather(1, reached.clamp(min=0)) >= 0)
    never_leaves = torch.zeros_like(output_of, dtype=torch.bool).scatter(1, triggers, inside)
    return never_leaves.gather(1, tokens).any(1)
