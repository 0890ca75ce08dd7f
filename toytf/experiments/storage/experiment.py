"""The experiment `storage`: the same associations stored by several rules, and what each makes of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from toytf.experiments.pairs import sides
from toytf.experiments.storage.config import PairsConfig, StorageConfig
from toytf.experiments.study import Drawn, Study
from toytf.figures import histograms, ranked
from toytf.measurement import Group, Headline, Measurement, Quantity, Reference, Scalar, flat
from toytf.memory import measures
from toytf.memory.association import Association, Readable, exact
from toytf.memory.builders import AdamOptions, RuleInputs
from toytf.memory.decoupled import DecoupledAssociation
from toytf.memory.rules import RULES, Rule
from toytf.memory.stream import AssociationStream
from toytf.randomness import generator
from toytf.report.story import amount, percent
from toytf.runs import Run
from toytf.stopping import check_stop
from toytf.theory import fourth_moment_hebbian, hebbian_scores, maximal_margin, optimum_scores

RECALL = Group(
    "recall", "Recall, as a fraction of the pairs", "Fraction of the pairs that the memory of this rule recalls, the "
    "right value scoring above all others; 1 is all.", headline=(Headline("*", "pairs recalled by {rule}"),),
)  # fmt: skip
LEMMA = Group(
    "lemma", "Largest difference from autograd", "Largest difference between the formula of a gradient step and "
    "autograd; near 0, as only rounding errors should be left.",
    headline=(Headline("*", "largest difference from autograd, {rule}"),),
)  # fmt: skip

SCORES_OF, SPECTRUM_OF = "scores_{}", "spectrum_{}"
"""The names of the figures of a rule."""


@dataclass(frozen=True)
class StorageCase:
    """One rule."""

    rule: str


class Storage(Study[StorageCase]):
    """Builds and measures the memory of every rule."""

    config: StorageConfig

    def cases(self) -> list[StorageCase]:
        """The rules."""
        return [StorageCase(rule) for rule in self.config.rules]

    def measure(self, case: StorageCase, seed: int) -> Iterator[Measurement | Drawn]:
        """Recall, margins and scores of a memory; how full and how broad it is, if it is a matrix."""
        check_stop()
        rule, inputs = RULES[case.rule], rule_inputs(self.config, seed, case.rule)
        association, memory = inputs.association, rule.build(inputs)
        yield RECALL.measurement(float(association.recall(memory)), ideal=1.0, chance=association.chance)
        found = [*measures.measure_margins(association, memory), *measures.measure_scores(association, memory)]
        if isinstance(memory, Tensor):
            found += measures.measure_spectrum(memory, len(association.keys))
            found += measures.measure_utilisation(
                association, memory, self.config.width if rule.width == "rank" else None
            )
        for measured in found:
            yield replace(measured, reference=Reference(theory=self._theory(rule, association, measured)))
        if rule.step:
            yield LEMMA.measurement(_autograd_difference(rule, association, seed))
        yield from _drawn(rule.name, association, memory)

    def _theory(self, rule: Rule, association: Association, measured: Measurement) -> float | None:
        """What theory predicts for a measure of a rule; it is about independent pairs."""
        if self.config.noise_vectors is not None or self.config.pairs is not None:
            return None
        at = measured.quantity.group, measured.quantity.at.get("measure", "")
        if rule.theory == "best_weights":
            narrow = _rank_predictions(association, self.config.width or 1) if rule.width == "rank" else {}
            return narrow.get(at, measured.reference.theory)
        return _hebbian_predictions(association).get(at) if rule.theory == "hebbian" else None

    def findings(self, run: Run) -> Iterator[str]:
        """How much of the pairs each rule recalls."""
        config, summary = self.config, run.summary
        pairs = config.pairs
        n = pairs.first * pairs.second if pairs is not None else (config.n or 0) * (config.noise_vectors or 1)
        metrics = {rule: flat(Quantity(RECALL, at={"rule": rule})) for rule in config.rules}
        by_rule = (f"{rule} {amount(summary, name, percent)}" for rule, name in metrics.items() if name in summary)
        yield f"Of the same {n} pairs, this much is recalled: {', '.join(by_rule)}."

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Scores of right values and rivals, and singular values, rule by rule, as kept for the first seed."""
        names = [of_rule.format(rule) for of_rule in (SCORES_OF, SPECTRUM_OF) for rule in self.config.rules]
        yield from ((name, figure) for name in names if (figure := run.kept_figure(name)) is not None)


def rule_inputs(config: StorageConfig, seed: int, rule: str) -> RuleInputs:
    """The associations of a seed, the same for all rules (but for rivals of its own), and random numbers for a rule."""
    association: Association
    parts = None
    if config.pairs is not None:
        association, parts = _pairs(config, config.pairs, seed)
    elif RULES[rule].decoupled:
        association = _stream(config, seed, "keys").decoupled(config.n or 0)
    else:
        association = _stream(config, seed, "keys").prefix(config.n or 0)
        if config.noise_vectors is not None:  # every key together with each of them
            noise = _stream(config, seed, "noise").prefix(config.noise_vectors).keys
            keys = (association.keys[:, None] + noise).flatten(0, 1)
            targets = association.targets.repeat_interleave(config.noise_vectors)
            association = Association(keys, association.values, targets)
    adam = AdamOptions(config.trained.lr, config.trained.steps)
    return RuleInputs(
        association, generator(seed, "rule", rule), config.width or 0, parts, config.iterations, adam=adam
    )


def _pairs(config: StorageConfig, pairs: PairsConfig, seed: int) -> tuple[Association, tuple[Tensor, Tensor]]:
    """Facts (s, r) → an answer from the pool of r, for every s and r; keys (e_s + ẽ_r)/√2."""
    first = _stream(config, seed, "first").prefix(pairs.first).keys
    second = _stream(config, seed, "second").prefix(pairs.second).keys
    values = _stream(config, seed, "answers").prefix(pairs.second * pairs.answers).values
    s = torch.arange(pairs.first).repeat_interleave(pairs.second)
    r = torch.arange(pairs.second).repeat(pairs.first)
    choice = torch.randint(pairs.answers, (len(s),), generator=generator(seed, "facts"))
    targets = (r * pairs.answers + choice).to(values.device)
    parts = first[s], second[r]
    return Association((parts[0] + parts[1]) / math.sqrt(2), values, targets), parts


def _stream(config: StorageConfig, seed: int, purpose: str) -> AssociationStream:
    return AssociationStream(
        seed, *sides(config.dimension), distribution=config.data.distribution, n_answers=config.data.n_answers,
        purpose=purpose, device=config.device,
    )  # fmt: skip


def _hebbian_predictions(association: Association) -> dict[tuple[Group, Scalar], float]:
    """What theory says of the Hebbian matrix of independent pairs, in place of the best weights, by measure."""
    (n, d_in), (m, d_out) = association.keys.shape, association.values.shape
    if n != m:
        return {}
    scores = hebbian_scores(n, d_in, d_out, shared=not isinstance(association, DecoupledAssociation))
    predictions: dict[tuple[Group, Scalar], float] = {
        (measures.SCORES, "correct_mean"): scores.mean,
        (measures.SCORES, "correct_spread"): scores.spread,
        (measures.SCORES, "rival_spread"): scores.rival_spread,
    }
    return predictions | (
        {(measures.SPECTRUM, "fourth_moment"): fourth_moment_hebbian(d_in, n)} if d_in == d_out else {}
    )


def _rank_predictions(association: Association, rank: int) -> dict[tuple[Group, Scalar], float | None]:
    """What theory says of the margin and the scores of the best weights of a rank, in place of full ones, by measure.

    p δ_κ(p) = d_in d_out ω²(rank) gives κ, and then the scores are those of a full matrix with that margin.
    """
    (n, d_in), (m, d_out) = association.keys.shape, association.values.shape
    asked = (
        (measures.MARGIN, "min"),
        (measures.SCORES, "correct_mean"),
        (measures.SCORES, "correct_spread"),
        (measures.SCORES, "rival_spread"),
    )
    if n != m or n <= d_out:
        return dict.fromkeys(asked)
    kappa = maximal_margin(n, d_in, d_out, rank=rank)
    best = optimum_scores(n, kappa)
    return dict(zip(asked, (kappa, best.mean, best.spread, best.rival_spread), strict=True))


def _autograd_difference(rule: Rule, association: Association, seed: int) -> float:
    """max |formula − autograd| of one gradient step from a random W, in float64."""
    pairs = Association(exact(association.keys), exact(association.values), association.targets.cpu())
    shape = (pairs.values.shape[1], pairs.keys.shape[1])
    W = torch.randn(shape, generator=generator(seed, "lemma"), dtype=torch.float64)
    W = (W / math.sqrt(shape[0] * shape[1])).requires_grad_()
    loss = torch.nn.functional.cross_entropy(pairs.scores(W), pairs.targets)
    (gradient,) = torch.autograd.grad(loss, W)
    step = rule.stepped(pairs, W.detach()) - W.detach()
    return float((step + gradient).abs().max())


def _drawn(rule: str, association: Association, memory: Readable) -> Iterator[Drawn]:
    """Histograms of the scores, and the singular values in order, as far as a memory has them."""
    samples, matrix = measures.score_samples(association, memory), memory if isinstance(memory, Tensor) else None
    if samples:
        lines = {rule: measures.score_levels(association)} if matrix is not None else {}
        x = "score, in standard deviations of a score"
        yield Drawn(SCORES_OF.format(rule), lambda: histograms({rule: samples}, "Scores", lines=lines, x=x))
    spectra = {} if matrix is None else measures.compared_spectra(matrix, len(association.keys))
    if spectra:
        title, y = "Singular values of √d W / ‖W‖", "singular value"
        yield Drawn(SPECTRUM_OF.format(rule), lambda: ranked({rule: spectra}, title, measured="measured", y=y))
