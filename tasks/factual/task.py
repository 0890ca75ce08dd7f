"""Factual recall (Nichani, Lee, Bietti 2024): answer with the attribute that a subject has under a relation.

One sequence of T = 8 tokens, where n1 … n4 are noise and the fact table has (s2, r1) → r1a3:

    position    1  2  3  4  5  6  7  8
    token       n3 r1 n1 n1 s2 n4 n2 ⟨eos⟩
    answer      –  –  –  –  –  –  –  r1a3

Subject and relation are at random places; only which they are matters. Only the last position is asked.
Answers have names and numbers of their own: A_r is the set of answers of relation r. Three roles look at the same
position:

    fact         is the answer right?                               loss −ln p(a)
    relation     is it one of A_r, whatever the subject?            loss −ln p(A_r)
    within_set   would it be right if only A_r could be chosen?     loss −ln p(a) / p(A_r), so that the first is a sum

A model that knows relations but no subjects answers p(a|r) at best, with loss H(a|r): plausible and mostly wrong.
With `last: relation` there is no end token, and the relation is at the last position.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tasks.alias import AliasTable
from tasks.factual.config import SIZES, FactualConfig
from tasks.factual.ideal import write_ideal
from tasks.factual.memories import factual_memories
from tasks.factual.table import Distribution, random_table, structured_table, table_of
from toytf.grafts import Graft
from toytf.measurement import Headline, Measurement, Reference
from toytf.models.transformer import ToyTransformer
from toytf.randomness import drawn, generator
from toytf.task import FLOOR, Annotation, Answers, Batch, Memory, Task
from toytf.theory import zipf
from toytf.words import counted

if TYPE_CHECKING:
    from toytf.holder import Holder
    from toytf.views.facts import FactSheet

END = "⟨eos⟩"
HEURISTIC = replace(
    FLOOR, headline=(Headline("fact_accuracy/relation_only", "to beat: know the relation, not the subject", 1),),
    meanings=(
        ("*_accuracy/marginal", "Accuracy of always naming the most frequent answer; a model that knows anything is "
         "above."),
        ("*_accuracy/relation_only", "Accuracy of naming the likeliest answer of the relation; a model that knows "
         "facts is above."),
        ("*_loss/marginal", "Loss of knowing only how often answers come, H(a) in nats; a model that knows relations "
         "is below."),
        ("*_loss/relation_only", "Loss of knowing the relation but not the subject, H(a|r) in nats; a model that knows "
         "facts is below."),
    ),
)  # fmt: skip


class FactualTask(Task):
    """Facts among noise; see the module for one sequence drawn out.

    Tokens are numbered subjects, relations, noise, end token.
    """

    config: FactualConfig
    goal = "fact"
    graft_rules = ("hebbian", "least_squares", "construction")
    role_phrases: Mapping[str, str] = {"fact": "facts", "relation": "relations: any answer of the right relation"}
    role_texts: Mapping[str, str] = {
        "fact": "facts, each asked as often as it comes",
        "relation": "relations, where any answer of the right relation counts",
        "within_set": "facts, where only answers of the right relation may be chosen",
    }

    def __init__(self, config: FactualConfig, device: torch.device) -> None:
        super().__init__(config, device)
        S, R, D = (config.size(name) for name in SIZES)
        if config.facts is not None:
            table = table_of(config.facts).restricted(config.subjects, config.relations)
        elif config.table == "structured":
            table = structured_table(S, R, D, shared=config.pools == "shared")
        else:
            table = random_table(S, R, D, config.table_seed, shared=config.pools == "shared")
        self.table = table
        S, R = table.n_subjects, table.n_relations
        n_noise = S + R if config.n_noise is None else config.n_noise
        self.subjects, self.relations, self.noise = range(S), range(S, S + R), range(S + R, S + R + n_noise)
        self.end = S + R + n_noise if config.last == "eos" else None
        """The end token; None if the relation comes last."""
        noise = tuple(f"n{i}" for i in range(1, n_noise + 1))
        ends = (END,) if config.last == "eos" else ()
        self.token_names = (*table.subject_names, *table.relation_names, *noise, *ends)
        self.output_names = table.answer_names
        self.n_positions = config.seq_len
        self.subject_distribution = zipf(S, config.subject_exponent)
        self.relation_distribution = zipf(R, config.relation_exponent)
        self.pairs = torch.tensor(table.pairs, device=device)
        """Subject and relation of every fact, [fact 2]."""
        self._fact = AliasTable.build(self._pair_distribution[None], device)
        self.targets: Int[Tensor, "fact"] = torch.tensor(table.answers[table.known], device=device)
        """The answer of every fact, in the order of `pairs`."""
        self.sets: Bool[Tensor, "R A"] = torch.tensor(table.sets, device=device)
        """Which answers belong to each relation."""
        self._among_noise: dict[int, Batch] = {}

    @cached_property
    def _pair_distribution(self) -> Distribution:
        everywhere = self.table.pair_distribution(self.subject_distribution, self.relation_distribution)
        p: Distribution = everywhere[self.table.known]
        return p

    def sample(self, n: int, generator: torch.Generator) -> Batch:
        """Draw n sequences, each about a fact drawn by p(s) p(r)."""
        return self.sample_each(n, [generator])

    def sample_each(self, n: int, generators: Sequence[torch.Generator]) -> Batch:
        """All at once: only the random numbers are drawn by each generator."""
        uniform = drawn(lambda random: torch.rand(n, generator=random, device=self.device), generators)
        return self._ask(self._fact.draw(torch.zeros_like(uniform, dtype=torch.long), uniform), generators)

    def facts_among_noise(self, draws: int) -> Batch:
        """Every fact in `draws` sequences, fact by fact; the same noise whenever it is asked for."""
        if draws not in self._among_noise:
            random = generator(0, "noise of every fact", device=self.device)
            self._among_noise[draws] = self.every_fact(draws, random)
        return self._among_noise[draws]

    def every_fact(self, draws: int, generator: torch.Generator) -> Batch:
        """Every fact in `draws` sequences, fact by fact."""
        return self.ask(torch.arange(len(self.pairs), device=self.device).repeat_interleave(draws), generator)

    def ask(self, facts: Int[Tensor, "n"], generator: torch.Generator) -> Batch:
        """One sequence about each of these facts, with fresh noise and places."""
        return self._ask(facts, [generator])

    def _ask(self, facts: Int[Tensor, "n"], generators: Sequence[torch.Generator]) -> Batch:
        """The same; each generator draws for its share of the facts, in their order."""
        n, T, free = len(facts), self.n_positions, self.n_positions - 1
        subject, relation = self.pairs[facts].unbind(1)
        share = n // len(generators)

        def draw(low: int, high: int, m: int) -> Tensor:
            return drawn(
                lambda random: torch.randint(low, high, (share, m), generator=random, device=self.device), generators
            )

        first = len(self.subjects) + len(self.relations)
        tokens = draw(first, first + max(1, len(self.noise)), T)
        at = draw(0, free, 1)
        tokens.scatter_(1, at, subject[:, None])
        if self.end is None:
            tokens[:, -1] = relation + len(self.subjects)
        else:
            other = draw(0, free - 1, 1)
            other += other >= at
            tokens.scatter_(1, other, relation[:, None] + len(self.subjects))
            tokens[:, -1] = self.end
        everywhere = torch.ones(n, 1, dtype=torch.bool, device=self.device)
        latents = {"fact": facts, "subject": subject, "relation": relation}
        return Batch(tokens, self.targets[facts, None], dict.fromkeys(self.config.roles, everywhere), latents)

    def answers(self, role: str, batch: Batch) -> Answers | None:
        """The set of the relation: as right answers in `relation`, as candidates in `within_set`."""
        if role == "fact":
            return None
        in_set = self.sets[batch.latents["relation"]][:, None]
        return Answers(right=in_set) if role == "relation" else Answers(candidates=in_set)

    @property
    def about(self) -> str:
        """How many facts there are, and how they are asked."""
        S, R, n = self.table.n_subjects, self.table.n_relations, len(self.pairs)
        asked = f", and {END} asks for the answer" if self.end is not None else ", the relation last"
        return (
            f"The model learns {counted(n, 'fact')} about {counted(S, 'subject')} and {counted(R, 'relation')}. "
            f"A sequence has one subject and one relation among noise tokens{asked}: the attribute that this subject "
            "has under this relation."
        )

    def annotate(self, batch: Batch) -> Annotation:
        """Subject, relation and end token; heads should attend to the first two."""
        z = batch.tokens
        subject, relation = ((z >= kind.start) & (z < kind.stop) for kind in (self.subjects, self.relations))
        parts = {"subject": subject, "relation": relation}
        if self.end is not None:
            parts["end token: asks for the answer"] = z == self.end
        return Annotation(parts, {0: (subject | relation)[:, None]})

    def references(self) -> Mapping[tuple[str, str], Reference]:
        """A model that knows every fact, and a uniform guess."""
        n = self.table.n_answers
        in_set = self.table.sets.sum(1)[self.table.pairs[:, 1]]
        chance = {
            "fact": (1 / n, float(np.log(n))),
            "relation": (self._mean(in_set / n), self._mean(np.log(n / in_set))),
            "within_set": (self._mean(1 / in_set), self._mean(np.log(in_set))),
        }
        found = {}
        for role, (accuracy, loss) in chance.items():
            found[role, "accuracy"] = Reference(1.0, accuracy)
            found[role, "loss"] = Reference(0.0, loss)
        return found

    def _mean(self, values: np.ndarray) -> float:
        """Over facts, by how often they are asked."""
        return float(self._pair_distribution @ values)

    def floors(self) -> Sequence[Measurement]:
        """The best guess that ignores the sequence, or looks at the relation only: accuracy, and loss H(a), H(a|r)."""
        table, p = self.table, (self.subject_distribution, self.relation_distribution)
        given_relation, marginal = table.answers_given_relation(*p), table.answer_distribution(*p)
        p_relation = table.pair_distribution(*p).sum(0)
        reached = {
            "accuracy": {"marginal": float(marginal.max()), "relation_only": float(p_relation @ given_relation.max(1))},
            "loss": {"marginal": table.entropy(*p), "relation_only": table.conditional_entropy(*p)},
        }
        return [
            HEURISTIC.measurement(value, role="fact", quantity=quantity, heuristic=heuristic)
            for quantity, by_heuristic in reached.items()
            for heuristic, value in by_heuristic.items()
        ]

    def memories(self, model: ToyTransformer) -> Mapping[str, Memory]:
        """FF1: the pairs that a feed-forward part should store, by what attention makes of them."""
        return factual_memories(self, model)

    def holders(self, model: ToyTransformer) -> "Sequence[Holder]":
        """FF1; in models of one layer also what each head selects, and what its values say of the answers."""
        from tasks.factual.holders import factual_holders  # the theory of limits brings scipy

        return factual_holders(self, model)

    def facts(self, model: ToyTransformer) -> "FactSheet":
        """What the model says to every fact, each asked in eight draws of the noise, and where the fact is stored."""
        from tasks.factual.sheet import fact_sheet

        return fact_sheet(self, model)

    def ideal(self, model: ToyTransformer, beta: Mapping[str, float], only: Collection[str] | None = None) -> None:
        """Write a construction that knows every fact, as `construction` describes it, into a one-layer model.

        With `only`, these of its parts W_KQ1, W_OV1 and FF1 are written and nothing else is touched.
        """
        write_ideal(self, model, beta, only)

    def grafts(self, model: ToyTransformer, rule: str, strength: float = 1.0) -> Sequence[Graft]:
        """W_KQ1, W_OV1 and FF1 in the vectors that were learned or, by the rule `construction`, in those of its own."""
        from tasks.factual.grafts import factual_grafts

        return factual_grafts(self, model, rule, strength)
