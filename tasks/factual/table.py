"""Fact tables: which attribute a subject has under a relation, drawn at random, by a rule, or read from a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from tasks.factual.config import Fact
from toytf.errors import UserError, nearest, shortened

UNKNOWN = -1
"""The entry of a pair about which nothing is said."""

Distribution = Float[np.ndarray, "_"]
"""The probability of each subject, or of each relation."""


@dataclass(frozen=True, eq=False)
class FactTable:
    """a*(s, r), and the answer set A_r of each relation.

    answers[s, r]: the number of the answer, −1 where a file says nothing; sets[r, a]: does a belong to A_r? p(s) and
    p(r) are uniform if not given; pairs that are unknown have no mass.
    """

    answers: Int[np.ndarray, "S R"]
    sets: Bool[np.ndarray, "R A"]
    subject_names: tuple[str, ...]
    relation_names: tuple[str, ...]
    answer_names: tuple[str, ...]

    @property
    def n_subjects(self) -> int:
        """S."""
        return len(self.subject_names)

    @property
    def n_relations(self) -> int:
        """R."""
        return len(self.relation_names)

    @property
    def n_answers(self) -> int:
        """|A|, over all relations."""
        return len(self.answer_names)

    @cached_property
    def known(self) -> Bool[np.ndarray, "S R"]:
        """Which pairs have an answer."""
        known: Bool[np.ndarray, "S R"] = self.answers != UNKNOWN
        return known

    @cached_property
    def pairs(self) -> Int[np.ndarray, "fact 2"]:
        """Subject and relation of every fact, subject by subject."""
        return np.argwhere(self.known)

    def pair_distribution(
        self, subject_distribution: Distribution | None = None, relation_distribution: Distribution | None = None
    ) -> Float[np.ndarray, "S R"]:
        """p(s, r) ∝ p(s) p(r) over the known pairs."""
        p_s = np.ones(self.n_subjects) if subject_distribution is None else subject_distribution
        p_r = np.ones(self.n_relations) if relation_distribution is None else relation_distribution
        mass = np.outer(p_s, p_r) * self.known
        p: Float[np.ndarray, "S R"] = mass / mass.sum()
        return p

    # p and H of answers, by the p(s) and p(r) that `pair_distribution` takes

    def answer_distribution(self, *given: Distribution) -> Float[np.ndarray, "A"]:
        """p(a)."""
        p: Float[np.ndarray, "A"] = self._joint(1, *given).sum(0)
        return p

    def answers_given_relation(self, *given: Distribution) -> Float[np.ndarray, "R A"]:
        """p(a|r)."""
        return _normalised(self._joint(1, *given))

    def answers_given_subject(self, *given: Distribution) -> Float[np.ndarray, "S A"]:
        """p(a|s)."""
        return _normalised(self._joint(0, *given))

    def entropy(self, *given: Distribution) -> float:
        """H(a) = −Σ_a p(a) ln p(a): the loss of a model that knows only how often each answer comes."""
        return _entropy(self.answer_distribution(*given))

    def conditional_entropy(self, *given: Distribution) -> float:
        """H(a|r) = H(a, r) − H(r): the loss of a model that knows the relation but not the subject."""
        joint = self._joint(1, *given)
        return _entropy(joint) - _entropy(joint.sum(1))

    def _joint(self, axis: int, *given: Distribution) -> Float[np.ndarray, "n A"]:
        """p(s, a) for axis 0, p(r, a) for axis 1."""
        mass = np.zeros((self.answers.shape[axis], self.n_answers))
        np.add.at(mass, (self.pairs[:, axis], self.answers[self.known]), self.pair_distribution(*given)[self.known])
        return mass

    def restricted(self, subjects: Sequence[str] = (), relations: Sequence[str] = ()) -> "FactTable":
        """The facts about some subjects and relations only, in the given order; the answers they do not use go."""
        named = {"subject": (self.subject_names, subjects), "relation": (self.relation_names, relations)}
        kept: dict[str, list[int]] = {}
        for what, (names, chosen) in named.items():
            number = {name: i for i, name in enumerate(names)}
            for name in chosen:
                if name not in number:
                    raise UserError(
                        f'task.{what}s: no {what} of the file is called "{shortened(name)}": {nearest(name, names)}'
                    )
            kept[what] = [number[name] for name in chosen or names]
        rows, columns = kept.values()
        answers = self.answers[np.ix_(rows, columns)]
        known = answers != UNKNOWN
        for what, has_facts in (("subject", known.any(1)), ("relation", known.any(0))):
            if not has_facts.all():
                alone = named[what][0][kept[what][int(has_facts.argmin())]]
                raise UserError(f'task.{what}s: none of the chosen facts is about "{shortened(alone)}"')
        used = np.unique(answers[known])
        renumbered = np.where(known, np.searchsorted(used, answers), UNKNOWN)
        sets = np.zeros((len(columns), len(used)), dtype=bool)
        sets[np.argwhere(known)[:, 1], renumbered[known]] = True
        return FactTable(
            renumbered,
            sets,
            tuple(self.subject_names[s] for s in rows),
            tuple(self.relation_names[r] for r in columns),
            tuple(self.answer_names[a] for a in used),
        )


def random_table(n_subjects: int, n_relations: int, n_answers: int, seed: int, *, shared: bool = False) -> FactTable:
    """a*(s, r) uniform in A_r, independently for every pair; each A_r has n_answers, its own or the same for all."""
    random = np.random.default_rng([seed, n_subjects, n_relations, n_answers])
    return _numbered(random.integers(n_answers, size=(n_subjects, n_relations)), n_answers, shared=shared)


def structured_table(n_subjects: int, n_relations: int, n_answers: int, *, shared: bool = False) -> FactTable:
    """a*(s, r) = the ⌊s D / S⌋-th answer of A_r, D = n_answers: subjects in D groups, of equal size if D divides S."""
    within = np.arange(n_subjects) * n_answers // n_subjects
    return _numbered(np.tile(within[:, None], n_relations), n_answers, shared=shared)


def table_of(facts: Sequence[Fact]) -> FactTable:
    """A table of named facts; A_r has the attributes that occur with r."""
    subjects, relations, attributes = (
        {name: i for i, name in enumerate(dict.fromkeys(column))} for column in zip(*facts, strict=True)
    )
    answers = np.full((len(subjects), len(relations)), UNKNOWN)
    sets = np.zeros((len(relations), len(attributes)), dtype=bool)
    for subject, relation, attribute in facts:
        answers[subjects[subject], relations[relation]] = attributes[attribute]
        sets[relations[relation], attributes[attribute]] = True
    return FactTable(answers, sets, tuple(subjects), tuple(relations), tuple(attributes))


def _numbered(within: Int[np.ndarray, "S R"], n_answers: int, *, shared: bool) -> FactTable:
    """A table of facts without names, from the number of each answer within its set."""
    S, R = within.shape
    offset = np.zeros(R, dtype=np.int64) if shared else np.arange(R) * n_answers
    n_all = n_answers if shared else R * n_answers
    sets = (np.arange(n_all) >= offset[:, None]) & (np.arange(n_all) < offset[:, None] + n_answers)
    if shared:
        answer_names = tuple(f"a{i}" for i in range(1, n_answers + 1))
    else:
        answer_names = tuple(f"r{r}a{i}" for r in range(1, R + 1) for i in range(1, n_answers + 1))
    subjects, relations = (tuple(f"{letter}{i}" for i in range(1, n + 1)) for letter, n in (("s", S), ("r", R)))
    return FactTable(within + offset, sets, subjects, relations, answer_names)


def _normalised(mass: Float[np.ndarray, "n A"]) -> Float[np.ndarray, "n A"]:
    p: Float[np.ndarray, "n A"] = mass / mass.sum(1, keepdims=True)
    return p


def _entropy(p: Float[np.ndarray, "..."]) -> float:
    positive = p[p > 0]
    return float(-(positive * np.log(positive)).sum())
