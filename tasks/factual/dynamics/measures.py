"""What `fact_dynamics` measures: losses of the parts of a fact over time, and the stages that they show."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.special import entr
from torch import Tensor

from tasks.factual.dynamics.config import FactDynamicsConfig
from tasks.factual.dynamics.model import FactBatch, LinearAttentionWeights
from tasks.factual.table import FactTable
from toytf import theory
from toytf.fits import log_slope
from toytf.measurement import Group, Headline, Measurement
from toytf.task import EVAL, FLOOR

LOSS = replace(
    EVAL,
    variants=("alpha",),
    headline=(Headline("fact_accuracy", "accuracy on facts"), Headline("fact_loss", "loss on facts (nats)")),
    meanings=(
        ("fact_accuracy*", "Accuracy on facts, each asked equally often; 1 if the model knows all."),
        ("fact_loss*", "Loss on facts, each asked equally often, in nats; 0 if the model knows all."),
        ("relation_loss*", "Loss on relations, where any answer of the right relation counts, in nats; 0 once "
         "relations are known."),
        ("subject_loss*", "Loss on subjects, where any answer counts that has the place of the right one in its own "
         "relation, in nats; 0 once subjects are known."),
    ),
)  # fmt: skip
KNOWING = replace(
    FLOOR, headline=(Headline("fact_loss/relation_only", "loss of knowing the relation only (nats)", 1),),
    meanings=(
        ("*/marginal*", "Loss of knowing only how often answers come, H(a) in nats; a model that knows anything else "
         "is below."),
        ("*/relation_only*", "Loss of knowing the relation but not the subject, H(a|r) in nats: the height of the "
         "plateau; in the end the model is below."),
        ("*/subject_only*", "Loss of knowing the subject but not the relation, H(a|s) in nats; in the end the model is "
         "below."),
    ),
)  # fmt: skip
PROBABILITY = Group(
    "probability", "Which answers get the probability",
    "On the plateau most of it goes to wrong answers of the right relation: the model makes facts up.",
    variants=("alpha",),
    headline=(),
    meanings=(
        ("right*", "Mean probability of the right answer; 1 once all facts are learned."),
        ("same_relation*", "Mean probability of wrong answers of the right relation; large on the plateau, where "
         "answers are made up, and 0 in the end."),
        ("same_subject*", "Mean probability of answers that the subject has under other relations; 0 in the end."),
        ("elsewhere*", "Mean probability of answers that fit neither the relation nor the subject; 0 as soon as one of "
         "the two is known."),
    ),
)  # fmt: skip
DISTANCE = Group(
    "tv", "Distance of the answers from p(a|r), p(a|s), p(a)",
    "If it is near 0 for p(a|r), the model knows the relation and nothing about the subject.",
    unit="total variation", variants=("alpha",),
    headline=(),
    meanings=(
        ("relation*", "Distance of the predictions from p(a|r), what the relation alone tells; near 0 on the plateau, "
         "where only relations are known."),
        ("subject*", "Distance of the predictions from p(a|s), what the subject alone tells; near 0 while only "
         "subjects are known."),
        ("marginal*", "Distance of the predictions from p(a), how often answers come; near 0 while neither subjects "
         "nor relations are known."),
    ),
)  # fmt: skip
STAGE = Group(
    "stage", "Step at which a part of the facts is learned",
    "The first evaluation at which half of its loss is gone.",
    format="whole", variants=("alpha",),
    headline=(
        Headline("relation", "step at which relations are half learned"),
        Headline("subject", "step at which subjects are half learned"),
        Headline("within_set", "step at which facts are half learned, given the relation"),
    ),
    meanings=(
        ("relation*", "Step of the first evaluation at which relations are half learned: their loss is below half of a "
         "guess's; close to theory."),
        ("subject*", "Step of the first evaluation at which subjects are half learned: their loss is below half of a "
         "guess's; close to theory."),
        ("within_set*", "Step of the first evaluation at which facts are half learned, given the relation: half of "
         "H(a|r) is gone; close to theory."),
        ("marginal*", "Step of the first evaluation at which it is half learned how often answers come; close to "
         "theory."),
    ),
)  # fmt: skip
OVER_THEORY = Group(
    "over_theory", "Measured / theory", "Step at which this stage came over the one that theory predicts; 1 if theory "
    "is exact.", variants=("alpha",), headline=(),
)  # fmt: skip
PLATEAU = Group(
    "plateau", "The plateau at H(a|r), where answers are made up",
    "Relations are known and subjects are not: the loss stays at H(a|r), and answers are plausible but mostly wrong.",
    variants=("alpha",),
    headline=(
        Headline("length", "length of the plateau between relations and facts, in steps"),
        Headline("loss", "loss on the plateau, where answers are made up"),
        Headline("accuracy", "accuracy on the plateau"),
    ),
    meanings=(
        ("start*", "Step of the first evaluation on the plateau, where the model knows relations and makes answers "
         "up."),
        ("end*", "Step of the last evaluation on the plateau; after it the model begins to know facts."),
        ("length*", "Steps between relations and facts being half learned, in which answers are made up; close to "
         "theory, and short is good."),
        ("loss*", "Loss on the plateau in nats; by theory H(a|r), that of knowing the relation and nothing else."),
        ("accuracy*", "Accuracy on the plateau; by theory that of always naming the likeliest answer of the relation."),
        ("tv*", "Distance of the predictions from p(a|r) on the plateau; near 0 if the model knows relations and "
         "nothing else."),
    ),
)  # fmt: skip
CLOSEST = Group(
    "closest", "Smallest distance of the answers from what one part predicts",
    "Near 0 if at some time the model knew that part and nothing else.",
    unit="total variation", variants=("alpha",),
    headline=(),
    meanings=(
        ("relation*", "Smallest distance of the predictions from p(a|r) in the whole run; near 0 if at some time only "
         "relations were known."),
        ("subject*", "Smallest distance of the predictions from p(a|s) in the whole run; near 0 if at some time only "
         "subjects were known."),
        ("marginal*", "Smallest distance of the predictions from p(a) in the whole run; near 0 if at some time only "
         "frequencies were known."),
    ),
)  # fmt: skip
TAIL = Group(
    "tail", "Exponent b in the final decay of the loss, loss ∝ t^−b", "About 1 once the facts are learned.",
    variants=("alpha", "error"),
    headline=(),
    meanings=(
        ("exponent*/error*", "Standard error of this exponent; the smaller, the better the power law fits."),
        ("exponent*", "Exponent b in loss ∝ t^−b over the last half of the steps; about 1 once the facts are learned."),
    ),
)  # fmt: skip
WEIGHTS = Group(
    "weights", "Attention w by kind of token", "Subjects and relations gain weight; noise keeps its initial weight.",
    variants=("alpha",),
    headline=(),
    meanings=(
        ("subject*", "Mean attention w on subjects at the end; large once the model uses subjects."),
        ("relation*", "Mean attention w on relations at the end; large once the model uses relations."),
        ("noise*", "Mean attention w on noise tokens at the end; small, since noise tells nothing about the answer."),
        ("end*", "Attention w on the end token at the end; it grows only if some answers come more often than others."),
    ),
)  # fmt: skip
CONSERVED = Group(
    "conserved", "Drift of w² − ΣW²", "A gradient flow keeps w² − ΣW² constant; steps of finite size nearly do.",
    variants=("alpha",),
    headline=(),
    meanings=(
        ("drift*", "Largest change of w² − ΣW² over the run; 0 for a gradient flow, and small for small steps."),
    ),
)  # fmt: skip

CLOSE = 0.05
"""How near loss, relation loss (nats) and total variation must be to those of p(a|r) on the plateau."""

SHORTEST = 0.05
"""The fraction of all steps that a plateau lasts at least."""

UNEVEN = 0.01
"""ln|A| − H(a) from which on there is something to learn from how often answers come (nats)."""


@dataclass(frozen=True, eq=False)
class FactEvaluation:
    """Means over sequences, at one step."""

    loss: Mapping[str, float]
    """Of the fact, and of its parts relation and subject."""
    probability: Mapping[str, float]
    """That of the right answer, of others of its relation or of its subject, and of all others."""
    distance: Mapping[str, float]
    """From p(a|r), p(a|s) and p(a), by which part tells them: relation, subject or marginal."""
    accuracy: float | None

    @property
    def is_finite(self) -> bool:
        """Is every number finite?"""
        values = (*self.loss.values(), *self.probability.values(), *self.distance.values())
        return all(map(math.isfinite, values))

    def measurements(self, config: FactDynamicsConfig) -> Iterator[Measurement]:
        """Beside the best model and a uniform guess."""
        R, D = config.n_relations, config.n_answers
        candidates = {"fact": R * D, "relation": R, "subject": D}
        for role, loss in self.loss.items():
            yield LOSS.measurement(loss, role=role, quantity="loss", ideal=0.0, chance=math.log(candidates[role]))
        if self.accuracy is not None:
            yield LOSS.measurement(self.accuracy, role="fact", quantity="accuracy", ideal=1.0, chance=1 / (R * D))
        guessed = {"right": 1 / (R * D), "same_relation": (D - 1) / (R * D), "same_subject": (R - 1) / (R * D)}
        for place, p in self.probability.items():
            ideal = 1.0 if place == "right" else None
            yield PROBABILITY.measurement(p, place=place, ideal=ideal, chance=guessed.get(place))
        for part, distance in self.distance.items():
            yield DISTANCE.measurement(distance, part=part)


@dataclass(frozen=True, eq=False)
class Curve:
    """What was evaluated over the steps; distances and accuracy as in `FactEvaluation`."""

    step: Float[np.ndarray, "evaluation"]
    loss: Mapping[str, Float[np.ndarray, "evaluation"]]
    distance: Mapping[str, Float[np.ndarray, "evaluation"]]
    accuracy: Float[np.ndarray, "evaluation"] | None

    @classmethod
    def of(cls, by_step: Mapping[int, FactEvaluation]) -> "Curve":
        """The evaluations, by step."""
        found = [*by_step.values()]
        accuracies = [one.accuracy for one in found if one.accuracy is not None]
        return cls(
            np.array([*by_step], dtype=float),
            {role: np.array([one.loss[role] for one in found]) for role in found[0].loss},
            {part: np.array([one.distance[part] for one in found]) for part in found[0].distance},
            np.array(accuracies) if accuracies else None,
        )


@dataclass(frozen=True, eq=False)
class Comparisons:
    """What the answers to some sequences can be compared with: sets of answers, and what models that know less say."""

    relation_set: Bool[Tensor, "n A"]
    """A_r."""
    subject_set: Bool[Tensor, "n A"]
    """The answers of s under any relation."""
    same_place: Bool[Tensor, "n A"]
    """The answers that have the place of a* in their own sets."""
    given_relation: Float[Tensor, "n A"]
    """p(a|r)."""
    given_subject: Float[Tensor, "n A"]
    """p(a|s)."""
    marginal: Float[Tensor, "A"]
    """p(a)."""

    @classmethod
    def of(cls, table: FactTable, facts: FactBatch) -> "Comparisons":
        """In the order of `FactTable.pairs`, as often as there are draws, on the device of the sequences."""
        place = (table.sets.cumsum(1) - 1)[table.sets.argmax(0), np.arange(table.n_answers)]
        s, r = table.pairs.T
        p_s, p_r = table.answers_given_subject(), table.answers_given_relation()
        draws = len(facts.answers) // len(s)

        def rows(array: np.ndarray) -> Tensor:
            values = torch.as_tensor(array).repeat(draws, 1)
            if values.dtype != torch.bool:
                values = values.to(facts.counts.dtype)  # before it is moved: not every device has float64
            return values.to(facts.counts.device)

        return cls(
            rows(table.sets[r]),
            rows(p_s[s] > 0),
            rows(place[None] == place[table.answers[s, r]][:, None]),
            rows(p_r[r]),
            rows(p_s[s]),
            rows(table.answer_distribution()[None])[0],
        )


def evaluate(
    log_p: Float[Tensor, "n A"], answers: Int[Tensor, "n"], comparisons: Comparisons, *, accuracy: bool
) -> FactEvaluation:
    """Losses of the fact and of its parts, where the probability lies, and how far p̂ is from p(a|…): means.

    fact: −ln p̂(a*);   relation: −ln p̂(A_r);   subject: −ln p̂({a: a has in its set the place that a* has in A_r})
    distance: ½ Σ_a |p̂(a) − p(a|…)|
    """
    p, right = log_p.exp(), log_p.gather(1, answers[:, None])[:, 0]
    on_right = right.exp()
    on_relation, on_subject = ((p * members).sum(1) for members in (comparisons.relation_set, comparisons.subject_set))
    loss = {
        "fact": -right,
        "relation": -log_p.masked_fill(~comparisons.relation_set, -torch.inf).logsumexp(1),
        "subject": -log_p.masked_fill(~comparisons.same_place, -torch.inf).logsumexp(1),
    }
    probability = {
        "right": on_right,
        "same_relation": on_relation - on_right,
        "same_subject": on_subject - on_right,
        "elsewhere": 1 - on_relation - on_subject + on_right,
    }
    known = {
        "relation": comparisons.given_relation,
        "subject": comparisons.given_subject,
        "marginal": comparisons.marginal,
    }
    distance = {part: (p - q).abs().sum(1) / 2 for part, q in known.items()}
    groups = (loss, probability, distance)
    means = iter(torch.stack([values.mean() for group in groups for values in group.values()]).tolist())  # one wait
    by_role, by_place, by_part = ({name: next(means) for name in group} for group in groups)
    is_right = float((log_p.argmax(1) == answers).float().mean()) if accuracy else None
    return FactEvaluation(by_role, by_place, by_part, is_right)


def stages(config: FactDynamicsConfig, alpha: float, table: FactTable, curve: Curve) -> Iterator[Measurement]:
    """When each part was learned, what the plateau was like, and how the loss falls in the end, beside theory.

    A stage that did not come, or a plateau that did not last, has no number.
    """
    loss, attention = curve.loss["fact"], config.initial_attention(alpha)
    levels = {
        "relation": (curve.loss["relation"], math.log(config.n_relations) / 2),
        "subject": (curve.loss["subject"], math.log(config.n_answers) / 2),
        "within_set": (loss - curve.loss["relation"], table.conditional_entropy() / 2),
    }
    if math.log(table.n_answers) - table.entropy() > UNEVEN:
        levels["marginal"] = (loss, (math.log(table.n_answers) + table.entropy()) / 2)
    rates = rates_of(config, table)
    came: dict[str, float] = {}
    for part, (values, level) in levels.items():
        predicted = theory.stage_time(rates[part], attention, config.lr)
        if (values < level).any():
            came[part] = float(curve.step[np.argmax(values < level)])
            yield OVER_THEORY.measurement(came[part] / predicted, part=part)
        yield STAGE.measurement(came.get(part), part=part, theory=predicted)
    for part, distances in curve.distance.items():
        if part in levels:
            yield CLOSEST.measurement(distances.min(), part=part)
    span = plateau_span(config, table, curve)
    yield from plateau(table, curve, span)
    length, predicted_length = None, None
    if span is not None and "within_set" in came:
        length = came["within_set"] - came["relation"]
    if rates["relation"] > rates["subject"]:
        predicted_length = theory.plateau_length(rates["relation"], rates["subject"], attention, config.lr)
    yield PLATEAU.measurement(length, "length", theory=predicted_length)
    if max(came.get(part, math.inf) for part in ("relation", "within_set")) < config.steps / 2:
        late = (curve.step >= config.steps / 2) & (loss > 0)
        slope = log_slope(curve.step[late].tolist(), loss[late].tolist())
        if slope is not None:
            yield TAIL.measurement(-slope.value, "exponent")
            yield TAIL.measurement(slope.error, "exponent", error=True)


def floors(table: FactTable) -> Iterator[Measurement]:
    """The loss of knowing only how often answers come, or the relation, or the subject: H(a), H(a|r), H(a|s)."""
    entropies = {
        "marginal": table.entropy(),
        "relation_only": table.conditional_entropy(),
        "subject_only": float(entr(table.answers_given_subject()).sum(1).mean()),
    }
    for known, entropy in entropies.items():
        yield KNOWING.measurement(entropy, role="fact", quantity="loss", heuristic=known)


def attention_weights(
    config: FactDynamicsConfig, start: LinearAttentionWeights, end: LinearAttentionWeights
) -> Iterator[Measurement]:
    """Mean w of each kind of token in the end, and how far the steps have moved what a flow conserves."""
    S, R = config.n_subjects, config.n_relations
    kinds = {"subject": end.w[:S], "relation": end.w[S : S + R], "noise": end.w[S + R : -1], "end": end.w[-1:]}
    for kind, w in kinds.items():
        if len(w):
            yield WEIGHTS.measurement(float(w.mean()), token=kind)
    yield CONSERVED.measurement(float((end.invariant - start.invariant).abs().max()), "drift", ideal=0.0)


def rates_of(config: FactDynamicsConfig, table: FactTable) -> dict[str, float]:
    """The growth rate λ behind each stage: mean of the subjects, mean of the relations, largest of all other tokens."""
    common = max(1.0, (config.seq_len - 3) / max(config.n_noise, 1))  # the end token, or each noise token
    subjects = [theory.token_rate(1 / table.n_subjects, p) for p in table.answers_given_subject()]
    relations = [theory.token_rate(1 / table.n_relations, p) for p in table.answers_given_relation()]
    subject = float(np.mean(subjects))
    return {
        "relation": float(np.mean(relations)),
        "subject": subject,
        "within_set": subject,
        "marginal": theory.token_rate(common, table.answer_distribution()),
    }


def plateau_span(config: FactDynamicsConfig, table: FactTable, curve: Curve) -> tuple[int, int] | None:
    """The first and the last evaluation of the longest time in which the model answers like p(a|r), if long enough."""
    near_level = abs(curve.loss["fact"] - table.conditional_entropy()) < CLOSE
    on = near_level & (curve.loss["relation"] < CLOSE) & (curve.distance["relation"] < CLOSE)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], on, [False]]))).tolist()
    spans = list(zip(edges[::2], (edge - 1 for edge in edges[1::2]), strict=True))

    def lasts(span: tuple[int, int]) -> float:
        return float(curve.step[span[1]] - curve.step[span[0]])

    longest = max(spans, key=lasts, default=None)
    return longest if longest is not None and lasts(longest) >= SHORTEST * config.steps else None


def plateau(table: FactTable, curve: Curve, span: tuple[int, int] | None) -> Iterator[Measurement]:
    """Loss, distance and accuracy on the plateau, beside theory; span: its first and last evaluation, if there is one.

    They are means over the evaluations of its middle half: a single one is noisy, and in the last quarter ties between
    the answers of a relation begin to break rightly. By theory the loss is H(a|r), and the accuracy that of the
    likeliest answer, Σ_r p(r) max_a p(a|r).
    """
    loss = accuracy = None
    if span is not None:
        first, last = span
        quarter = (last - first + 1) // 4
        middle = slice(first + quarter, last + 1 - quarter)
        loss = curve.loss["fact"][middle].mean()
        accuracy = None if curve.accuracy is None else curve.accuracy[middle].mean()
        yield PLATEAU.measurement(curve.step[first], "start")
        yield PLATEAU.measurement(curve.step[last], "end")
        yield PLATEAU.measurement(curve.distance["relation"][middle].mean(), "tv", ideal=0.0)
    yield PLATEAU.measurement(loss, "loss", theory=table.conditional_entropy())
    if curve.accuracy is not None:
        likeliest = float(table.answers_given_relation().max(1).mean())
        yield PLATEAU.measurement(accuracy, "accuracy", theory=likeliest)
