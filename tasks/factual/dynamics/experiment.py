"""The experiment `fact_dynamics`: linear attention learns a fact table in stages.

With small initial weights it learns which answers belong to a relation long before it learns the facts. In between it
answers with any answer of the relation: a plateau at the loss H(a|r), on which it makes facts up (Nichani, Lee, Bietti
2024).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tasks.factual.dynamics import measures, model
from tasks.factual.dynamics.config import FactDynamicsConfig
from tasks.factual.table import FactTable, random_table, structured_table
from toytf.errors import RunFailed
from toytf.experiments.study import Study
from toytf.measurement import Measurement, Quantity, flat, reference_name
from toytf.randomness import generator
from toytf.report.story import amount, told
from toytf.runs import Run
from toytf.stopping import check_stop

EVALUATED = 2048
"""Sequences of an evaluation of sgd: every fact equally often, at least once, each time with other noise."""


def fact_table(config: FactDynamicsConfig, seed: int) -> FactTable:
    """The table of a seed."""
    sizes = config.n_subjects, config.n_relations, config.n_answers
    return structured_table(*sizes) if config.table == "structured" else random_table(*sizes, seed)


def trajectory(
    config: FactDynamicsConfig, alpha: float, seed: int, table: FactTable
) -> Iterator[tuple[int, model.LinearAttentionWeights, model.FactBatch]]:
    """Step, weights, and sequences to evaluate them on, at every evaluation: the start, on the way, and the end.

    A flow is small and needs float64, which not every device has: it stays on the CPU.
    """
    flow = config.method == "flow"
    device = "cpu" if flow else config.device
    answers = torch.as_tensor(table.answers, device=device)
    draws = max(1, EVALUATED // len(table.pairs))
    pairs = torch.as_tensor(table.pairs, device=device).repeat(draws, 1)
    noise = config.n_noise, config.seq_len
    all_facts = model.fact_counts(table, *noise)

    def batch(step: int) -> model.FactBatch:
        if flow:
            return all_facts
        assert config.batch_size is not None
        return model.sample_facts(answers, config.batch_size, *noise, generator(seed, "train", step, device=device))

    def held_out(step: int) -> model.FactBatch:
        random = generator(seed, "evaluation", step, device=device)
        return all_facts if flow else model.with_noise(pairs, answers, *noise, random)

    evaluated = held_out(0)
    n_tokens, full = evaluated.counts.shape[1], evaluated.counts.new_full
    w, W = full((n_tokens,), config.initial_attention(alpha)), full((n_tokens, table.n_answers), alpha)
    weights = model.LinearAttentionWeights(w, W)
    yield 0, weights, evaluated
    for start in range(0, config.steps, config.evaluate_every):
        end = min(start + config.evaluate_every, config.steps)
        for step in range(start, end):
            weights = weights.stepped(config.lr, model.negative_gradients(weights, batch(step)))
        yield end, weights, held_out(end)


@dataclass(frozen=True)
class InitScale:
    """The initial weights α."""

    alpha: float


class FactDynamics(Study[InitScale]):
    """Train from every initial scale, and date the stages."""

    config: FactDynamicsConfig

    def __init__(self, config: FactDynamicsConfig) -> None:
        super().__init__(config)
        self.last_step = config.steps

    @property
    def plain(self) -> dict[str, float]:
        """The smallest scale, which is nearest to the theory."""
        return {"alpha": min(self.config.init_scales)}

    def cases(self) -> Sequence[InitScale]:
        """Every scale."""
        return [InitScale(alpha) for alpha in self.config.init_scales]

    def measure(self, case: InitScale, seed: int) -> list[Measurement]:
        """What there is at the last step."""
        *_, (_, found) = self.steps(case, seed)
        return found

    def steps(self, case: InitScale, seed: int) -> Iterator[tuple[int, list[Measurement]]]:
        """Every evaluation, and with the last what the whole curve says."""
        config, alpha, table = self.config, case.alpha, fact_table(self.config, seed)
        evaluations: dict[int, measures.FactEvaluation] = {}
        comparisons, start = None, None
        for step, weights, facts in trajectory(config, alpha, seed, table):
            check_stop()
            comparisons, start = comparisons or measures.Comparisons.of(table, facts), start or weights
            # A flow has no accuracy: it breaks the ties of the plateau rightly from the first step on.
            log_p = model.predict(weights, facts.counts)
            seen = measures.evaluate(log_p, facts.answers, comparisons, accuracy=config.method == "sgd")
            if not seen.is_finite:
                raise RunFailed(f"the loss is not finite at step {step}: lr = {config.lr:g} is too large")
            evaluations[step] = seen
            found = [*seen.measurements(config)]
            if step == config.steps:
                found += measures.stages(config, alpha, table, measures.Curve.of(evaluations))
                found += measures.attention_weights(config, start, weights)
                if alpha == min(config.init_scales):
                    found += measures.floors(table)  # the same for all
            yield step, found

    def findings(self, run: Run) -> Iterator[str]:
        """When relations, subjects and facts were learned from the smallest initial scale, and what the plateau was."""
        summary = run.summary
        parts = {"relation": "relations", "subject": "subjects", "within_set": "facts given the relation"}
        stages = {flat(Quantity(measures.STAGE, at={"part": part})): called for part, called in parts.items()}
        came = sorted((name for name in stages if name in summary), key=lambda name: summary[name])
        if came:
            steps = (f"{stages[name]} by step {told(summary, name)}" for name in came)
            yield f"Half of the loss was gone in this order: {', '.join(steps)}."
        n_came = {name: int(run.seeds[name].count()) if name in run.seeds else 0 for name in stages}
        n_seeds, steps_taken = len(run.seeds), self.config.steps
        some = [f"{stages[name]} in {n} of {n_seeds} seeds" for name, n in n_came.items() if 0 < n < n_seeds]
        if some:
            yield f"Within {steps_taken} steps, half of the loss was gone for {', '.join(some)}."
        never = [called for name, called in stages.items() if not n_came[name]]
        if never:
            yield f"Not learned in {steps_taken} steps: {', '.join(never)}."
        start, end, loss = (flat(Quantity(measures.PLATEAU, name)) for name in ("start", "end", "loss"))
        if {start, end, loss} <= summary.keys():
            steps_of = f"From step {amount(summary, start)} to {amount(summary, end)}"
            yield f"{steps_of} the model makes answers up: the loss stays at {told(summary, loss)}."
        else:
            lacking = int(run.seeds.reindex(columns=[start, end, loss]).isna().any(axis=1).sum())
            where = f" in {lacking} of {n_seeds} seeds" if lacking < n_seeds else ""
            yield f"There was no plateau on which the model makes answers up{where}."

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Losses with their levels and stages, distances, where the probability lies, and stages against α."""
        from tasks.factual.dynamics.figures import STAGES, by_scale, distances, losses, probabilities

        config, table, summary = self.config, run.table, run.summary
        of_smallest = table[table["alpha"] == min(config.init_scales)]
        names = {part: reference_name("theory", flat(Quantity(measures.STAGE, at={"part": part}))) for part in STAGES}
        expected = {part: summary[name] for part, name in names.items() if summary.get(name, math.inf) <= config.steps}
        yield "losses", losses(config, of_smallest, expected)
        yield "distances", distances(config, of_smallest, expected)
        yield "probabilities", probabilities(of_smallest)
        if len(config.init_scales) > 1:
            yield "stages", by_scale(table)
