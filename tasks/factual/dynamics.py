"""The experiment `fact_dynamics`: linear attention learns a fact table in stages.

With small initial weights it learns which answers belong to a relation long before it learns the facts. In between it
answers with any answer of the relation: a plateau at the loss H(a|r), on which it makes facts up (Nichani, Lee, Bietti
2024).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from tasks.factual.dynamics_config import FactDynamicsConfig
from tasks.factual.dynamics_measures import Laws, evaluate, floors, stages
from tasks.factual.dynamics_model import (
    Facts,
    Weights,
    constant_weights,
    fact_counts,
    negative_gradients,
    predict,
    sample,
    with_noise,
)
from tasks.factual.table import FactTable, random_table, structured_table
from toytf.errors import Interrupted, RunFailed
from toytf.experiments.jobs import Rows, run_jobs
from toytf.experiments.process import cpu_threads
from toytf.randomness import generator
from toytf.runs import Run

EVALUATED = 2048
"""Sequences of an evaluation of sgd: every fact equally often, at least once, each time with other noise."""


def run_fact_dynamics(config: FactDynamicsConfig, run: Run) -> None:
    """Train from every initial scale and every seed."""
    jobs = {f"weights/relation{config.suffix(alpha)}": partial(_measure, config, alpha) for alpha in config.alphas}
    run_jobs(config, run, jobs)


def fact_table(config: FactDynamicsConfig, seed: int) -> FactTable:
    """The table of a seed."""
    sizes = config.n_subjects, config.n_relations, config.n_answers
    return structured_table(*sizes) if config.table == "structured" else random_table(*sizes, seed)


def trajectory(
    config: FactDynamicsConfig, alpha: float, seed: int, table: FactTable
) -> Iterator[tuple[int, Weights, Facts]]:
    """Step, weights, and sequences to evaluate them on, at every evaluation: the start, on the way, and the end.

    A flow is small and needs float64, which not every device has: it stays on the CPU.
    """
    flow = config.method == "flow"
    device = "cpu" if flow else config.device
    answers = torch.as_tensor(table.answers, device=device)
    draws = max(1, EVALUATED // len(table.pairs))
    pairs = torch.as_tensor(table.pairs, device=device).repeat(draws, 1)
    noise = config.n_noise, config.seq_len
    all_facts = fact_counts(table, *noise)

    def batch(step: int) -> Facts:
        if flow:
            return all_facts
        assert config.batch_size is not None
        return sample(answers, config.batch_size, *noise, generator(seed, "train", step, device=device))

    def held_out(step: int) -> Facts:
        random = generator(seed, "evaluation", step, device=device)
        return all_facts if flow else with_noise(pairs, answers, *noise, random)

    evaluated = held_out(0)
    weights = constant_weights(evaluated, table.n_answers, attention=config.initial_attention(alpha), value=alpha)
    yield 0, weights, evaluated
    for start in range(0, config.steps, config.evaluate_every):
        end = min(start + config.evaluate_every, config.steps)
        with cpu_threads(config.threads):
            for step in range(start, end):
                weights = weights.stepped(config.lr, negative_gradients(weights, batch(step)))
        yield end, weights, held_out(end)


def _measure(config: FactDynamicsConfig, alpha: float, seeds: Sequence[int], stopping: Callable[[], bool]) -> Rows:
    for seed in seeds:
        table = fact_table(config, seed)
        curve: list[dict[str, float]] = []
        laws, start = None, None
        for step, weights, facts in trajectory(config, alpha, seed, table):
            if stopping():
                raise Interrupted("stopped")
            laws, start = laws or Laws.of(table, facts), start or weights
            with cpu_threads(config.threads):
                row = _evaluated(config, weights, facts, laws)
            if not all(map(math.isfinite, row.values())):
                raise RunFailed(f"the loss is not finite at step {step}: lr = {config.lr:g} is too large")
            curve.append({"step": step, **row})
            if step == config.steps:
                columns = {name: np.array([each[name] for each in curve], dtype=float) for name in curve[0]}
                row |= stages(config, alpha, table, columns) | _weights(config, start, weights) | _references(config)
                if alpha == min(config.alphas):
                    row |= floors(table)  # the same for all
            yield seed, {"step": step, **{f"{name}{config.suffix(alpha)}": value for name, value in row.items()}}


def _evaluated(config: FactDynamicsConfig, weights: Weights, facts: Facts, laws: Laws) -> dict[str, float]:
    """One evaluation; no accuracy of a flow, which breaks the ties of the plateau rightly from the first step on."""
    log_p = predict(weights, facts.counts)
    row = evaluate(log_p, facts.answers, laws)
    if config.method == "sgd":
        row["eval/fact_accuracy"] = float((log_p.argmax(1) == facts.answers).float().mean())
    return row


def _weights(config: FactDynamicsConfig, start: Weights, end: Weights) -> dict[str, float]:
    """Mean w of each kind of token in the end, and how far the steps have moved what a flow conserves."""
    S, R = config.n_subjects, config.n_relations
    kinds = {"subject": end.w[:S], "relation": end.w[S : S + R], "noise": end.w[S + R : -1], "end": end.w[-1:]}
    row = {f"weights/{kind}": float(w.mean()) for kind, w in kinds.items() if len(w)}
    drift = float((end.invariant - start.invariant).abs().max())
    return row | {"conserved/drift": drift, "ideal/conserved/drift": 0.0}


def _references(config: FactDynamicsConfig) -> dict[str, float]:
    """What losses and probabilities are for the best model, and for a uniform guess."""
    R, D = config.n_relations, config.n_answers
    row = {f"ideal/eval/{part}_loss": 0.0 for part in ("fact", "relation", "subject")}
    row |= {"chance/eval/fact_loss": math.log(R * D), "chance/eval/relation_loss": math.log(R)}
    row |= {"chance/eval/subject_loss": math.log(D), "chance/probability/right": 1 / (R * D)}
    row |= {"ideal/probability/right": 1.0, "chance/probability/same_relation": (D - 1) / (R * D)}
    row |= {"chance/probability/same_subject": (R - 1) / (R * D)}
    if config.method == "sgd":
        row |= {"chance/eval/fact_accuracy": 1 / (R * D), "ideal/eval/fact_accuracy": 1.0}
    return row
