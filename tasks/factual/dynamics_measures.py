"""What `fact_dynamics` measures: losses of the parts of a fact over time, and the stages that they show."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.special import entr
from torch import Tensor

from tasks.factual.dynamics_config import FactDynamicsConfig
from tasks.factual.dynamics_model import Facts
from tasks.factual.table import FactTable
from toytf import theory

CLOSE = 0.05
"""How near loss, relation loss (nats) and total variation must be to those of p(a|r) on the plateau."""

SHORTEST = 0.05
"""The fraction of all steps that a plateau lasts at least."""

UNEVEN = 0.01
"""ln|A| − H(a) from which on there is something to learn from how often answers come (nats)."""

Curve = dict[str, Float[np.ndarray, "evaluation"]]
"""Metrics over the evaluations, and `step`."""


@dataclass(frozen=True, eq=False)
class Laws:
    """What the answers to some sequences can be compared with: sets of answers, and laws of who knows less."""

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
    def of(cls, table: FactTable, facts: Facts) -> "Laws":
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
            rows(table.answer_law()[None])[0],
        )


def evaluate(log_p: Float[Tensor, "n A"], answers: Int[Tensor, "n"], laws: Laws) -> dict[str, float]:
    """Losses of the fact and of its parts, where the probability lies, and distances from laws; means over sequences.

    fact: −ln p̂(a*);   relation: −ln p̂(A_r);   subject: −ln p̂({a: a has in its set the place that a* has in A_r})
    tv: ½ Σ_a |p̂(a) − p(a|…)|
    """
    p, right = log_p.exp(), log_p.gather(1, answers[:, None])[:, 0]
    on_right = right.exp()
    on_relation, on_subject = ((p * members).sum(1) for members in (laws.relation_set, laws.subject_set))
    found = {
        "eval/fact_loss": -right,
        "eval/relation_loss": -log_p.masked_fill(~laws.relation_set, -torch.inf).logsumexp(1),
        "eval/subject_loss": -log_p.masked_fill(~laws.same_place, -torch.inf).logsumexp(1),
        "probability/right": on_right,
        "probability/same_relation": on_relation - on_right,
        "probability/same_subject": on_subject - on_right,
        "probability/elsewhere": 1 - on_relation - on_subject + on_right,
        "tv/relation": (p - laws.given_relation).abs().sum(1) / 2,
        "tv/subject": (p - laws.given_subject).abs().sum(1) / 2,
        "tv/marginal": (p - laws.marginal).abs().sum(1) / 2,
    }
    means = torch.stack([values.mean() for values in found.values()]).tolist()
    return dict(zip(found, means, strict=True))


def stages(config: FactDynamicsConfig, alpha: float, table: FactTable, curve: Curve) -> dict[str, float]:
    """When each part was learned, what the plateau was like, and how the loss falls in the end, beside theory.

    A stage that did not come, or a plateau that did not last, has no number.
    """
    loss, relation = curve["eval/fact_loss"], curve["eval/relation_loss"]
    levels = {
        "relation": (relation, math.log(config.n_relations) / 2),
        "subject": (curve["eval/subject_loss"], math.log(config.n_answers) / 2),
        "within_set": (loss - relation, table.conditional_entropy() / 2),
    }
    if math.log(table.n_answers) - table.entropy() > UNEVEN:
        levels["marginal"] = (loss, (math.log(table.n_answers) + table.entropy()) / 2)
    rates = rates_of(config, table)
    row: dict[str, float] = {}
    for name, (values, level) in levels.items():
        predicted = theory.stage_time(rates[name], config.initial_attention(alpha), config.lr)
        row[f"theory/stage/{name}"] = predicted
        if (values < level).any():
            row[f"stage/{name}"] = float(curve["step"][np.argmax(values < level)])
            row[f"over_theory/{name}"] = row[f"stage/{name}"] / predicted
    laws = [name for name in ("relation", "subject", "marginal") if name in levels]
    row |= {f"closest/{name}": float(curve[f"tv/{name}"].min()) for name in laws}
    row |= _plateau(config, table, curve)
    if "plateau/loss" in row and "stage/within_set" in row:
        row["plateau/length"] = row["stage/within_set"] - row["stage/relation"]
    if rates["relation"] > rates["subject"]:
        row["theory/plateau/length"] = theory.plateau_length(
            rates["relation"], rates["subject"], config.initial_attention(alpha), config.lr
        )
    late = (curve["step"] >= config.steps / 2) & (loss > 0)
    learned = max(row.get(f"stage/{part}", np.inf) for part in ("relation", "within_set"))
    if late.sum() > 1 and learned < config.steps / 2:
        row["tail/exponent"] = -float(np.polyfit(np.log(curve["step"][late]), np.log(loss[late]), 1)[0])
    return row


def floors(table: FactTable) -> dict[str, float]:
    """The loss of who knows only how often answers come, or the relation, or the subject: H(a), H(a|r), H(a|s)."""
    given_subject = float(entr(table.answers_given_subject()).sum(1).mean())
    entropies = {
        "marginal": table.entropy(),
        "relation_only": table.conditional_entropy(),
        "subject_only": given_subject,
    }
    return {f"floor/fact_loss/{known}": value for known, value in entropies.items()}


def rates_of(config: FactDynamicsConfig, table: FactTable) -> dict[str, float]:
    """The growth rate λ behind each stage: mean of the subjects, mean of the relations, largest of all other tokens."""
    common = max(1.0, (config.seq_len - 3) / max(config.n_noise, 1))  # the end token, or each noise token
    subjects = [theory.token_rate(1 / table.n_subjects, law) for law in table.answers_given_subject()]
    relations = [theory.token_rate(1 / table.n_relations, law) for law in table.answers_given_relation()]
    subject = float(np.mean(subjects))
    return {
        "relation": float(np.mean(relations)),
        "subject": subject,
        "within_set": subject,
        "marginal": theory.token_rate(common, table.answer_law()),
    }


def _plateau(config: FactDynamicsConfig, table: FactTable, curve: Curve) -> dict[str, float]:
    """The longest time in which the model answers like p(a|r), if it is long enough.

    Loss, distance and accuracy are means over the evaluations of its middle half: a single one is noisy, and in the
    last quarter ties between the answers of a relation begin to break rightly. By theory the loss is H(a|r), and the
    accuracy that of the likeliest answer, Σ_r p(r) max_a p(a|r).
    """
    level = table.conditional_entropy()
    row = {"theory/plateau/loss": level}
    if "eval/fact_accuracy" in curve:
        row["theory/plateau/accuracy"] = float(table.answers_given_relation().max(1).mean())
    loss, step = curve["eval/fact_loss"], curve["step"]
    on = (abs(loss - level) < CLOSE) & (curve["eval/relation_loss"] < CLOSE) & (curve["tv/relation"] < CLOSE)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], on, [False]])))
    spans = list(zip(edges[::2], edges[1::2] - 1, strict=True))
    if spans:
        first, last = max(spans, key=lambda span: step[span[1]] - step[span[0]])
        if step[last] - step[first] >= SHORTEST * config.steps:
            quarter = (last - first + 1) // 4
            middle = slice(first + quarter, last + 1 - quarter)
            row |= {"plateau/start": float(step[first]), "plateau/end": float(step[last])}
            names = {"loss": "eval/fact_loss", "tv": "tv/relation", "accuracy": "eval/fact_accuracy"}
            row |= {f"plateau/{it}": float(curve[name][middle].mean()) for it, name in names.items() if name in curve}
            row["ideal/plateau/tv"] = 0.0
    return row
