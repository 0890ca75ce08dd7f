"""The experiment `storage`: the same associations stored by several rules, and what each makes of them."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from toytf.errors import Interrupted
from toytf.experiments.jobs import Rows, run_jobs
from toytf.experiments.memory_config import NARROW, PairsConfig, StorageConfig, sides
from toytf.experiments.process import cpu_threads
from toytf.memory.association import Association, Readable
from toytf.memory.gradients import gradient_step, noisy_gradient_step
from toytf.memory.measures import (
    Measured,
    measure_margins,
    measure_scores,
    measure_spectrum,
    measure_utilisation,
)
from toytf.memory.rules import BUILDERS, Material, Training
from toytf.memory.stream import AssociationStream
from toytf.randomness import generator
from toytf.runs import Run
from toytf.theory import fourth_moment_hebbian, hebbian_scores

BEST = ("optimum", "max_margin", "low_rank_optimum", "trained_linear", "trained_low_rank")
"""Rules that the theory of the best weights is about."""

LEMMAS: dict[str, Callable[..., Tensor]] = {
    "gradient_step": gradient_step,
    "noisy_gradient_step": noisy_gradient_step,
}
"""Rules whose formula is that of a gradient, and can be compared with autograd."""


def run_storage(config: StorageConfig, run: Run) -> None:
    """Build and measure the memory of every rule, for every seed."""
    jobs = {f"recall/{rule}": partial(_measure, config, rule) for rule in config.rules}
    run_jobs(config, run, jobs)


def material(config: StorageConfig, seed: int, rule: str) -> Material:
    """The associations of a seed, which all rules share, and random numbers for a rule."""
    d_in, d_out = sides(config.dimension)
    width, random = config.width or 0, generator(seed, "rule", rule)
    training = Training(config.trained.lr, config.trained.steps)
    if config.pairs is not None:
        association, parts = _pairs(config, config.pairs, seed)
        return Material(association, random, width, parts, config.iterations, training)
    stream = _stream(config, seed, d_in, d_out, "keys")
    association = stream.prefix(config.n or 0)
    if config.noise is not None:
        noise = _stream(config, seed, d_in, d_out, "noise").prefix(config.noise).keys
        keys = (association.keys[:, None] + noise).flatten(0, 1)
        association = Association(keys, association.values, association.targets.repeat_interleave(config.noise))
    return Material(association, random, width, None, config.iterations, training)


def build(config: StorageConfig, seed: int, rule: str) -> tuple[Association, Readable]:
    """The associations of a seed, and the memory that a rule makes of them."""
    given = material(config, seed, rule)
    return given.association, BUILDERS[rule](given)


def _stream(config: StorageConfig, seed: int, d_in: int, d_out: int, purpose: str) -> AssociationStream:
    data = config.data
    return AssociationStream(
        seed, d_in, d_out, law=data.law, n_answers=data.n_answers, purpose=purpose, device=config.device
    )


def _pairs(config: StorageConfig, pairs: PairsConfig, seed: int) -> tuple[Association, tuple[Tensor, Tensor]]:
    """Facts (s, r) → an answer from the pool of r, for every s and r; keys (e_s + ẽ_r)/√2."""
    d_in, d_out = sides(config.dimension)
    first = _stream(config, seed, d_in, d_out, "first").prefix(pairs.first).keys
    second = _stream(config, seed, d_in, d_out, "second").prefix(pairs.second).keys
    values = _stream(config, seed, d_in, d_out, "answers").prefix(pairs.second * pairs.answers).values
    s = torch.arange(pairs.first).repeat_interleave(pairs.second)
    r = torch.arange(pairs.second).repeat(pairs.first)
    choice = torch.randint(pairs.answers, (len(s),), generator=generator(seed, "facts"))
    targets = (r * pairs.answers + choice).to(values.device)
    parts = first[s], second[r]
    return Association((parts[0] + parts[1]) / math.sqrt(2), values, targets), parts


def _measure(config: StorageConfig, rule: str, seeds: Sequence[int], stopping: Callable[[], bool]) -> Rows:
    for seed in seeds:
        if stopping():
            raise Interrupted("stopped")
        with cpu_threads(config.threads):
            association, memory = build(config, seed, rule)
            row = _metrics(config, rule, association, memory)
            if rule in LEMMAS:
                row[f"lemma/{rule}"] = _autograd_difference(rule, association, seed)
        yield seed, row


def _metrics(config: StorageConfig, rule: str, association: Association, memory: Readable) -> dict[str, float]:
    groups = {"margin": measure_margins(association, memory), "scores": measure_scores(association, memory)}
    if isinstance(memory, Tensor):
        groups["spectrum"] = measure_spectrum(memory, len(association.keys))
        groups["utilisation"] = measure_utilisation(association, memory, config.width if rule in NARROW else None)
    metrics = {f"recall/{rule}": float(association.recall(memory)), f"chance/recall/{rule}": association.chance}
    metrics[f"ideal/recall/{rule}"] = 1.0
    independent = config.noise is None and config.pairs is None
    laws = _hebbian_laws(association) if rule == "hebbian" and independent else {}
    for group, measured in groups.items():
        theory = measured.theory if rule in BEST and independent else laws.get(group, {})
        metrics |= _named(group, rule, Measured(measured.metrics, theory))
    return metrics


def _hebbian_laws(association: Association) -> dict[str, dict[str, float]]:
    """What the theory says of the Hebbian matrix of independent pairs, in place of the best weights."""
    (n, d_in), (m, d_out) = association.keys.shape, association.values.shape
    if n != m:
        return {}
    scores = hebbian_scores(n, d_in, d_out)
    law = {"correct_mean": scores.mean, "correct_spread": scores.spread, "rival_spread": scores.rival_spread}
    spectrum = {"fourth_moment": fourth_moment_hebbian(d_in, n)} if d_in == d_out else {}
    return {"scores": law, "spectrum": spectrum}


def _named(group: str, rule: str, measured: Measured) -> dict[str, float]:
    """Full names, such as `scores/hebbian_correct_mean`; `utilisation/hebbian`, its parts being variants of it."""
    joint = "/" if group == "utilisation" else "_"
    names = {short: f"{group}/{rule}" + ("" if short == group else joint + short) for short in measured.metrics}
    found = {names[short]: value for short, value in measured.metrics.items()}
    return found | {f"theory/{names[short]}": value for short, value in measured.theory.items() if short in names}


def _autograd_difference(rule: str, association: Association, seed: int) -> float:
    """max |formula − autograd| of one gradient step from a random W, in float64."""
    keys, values, targets = (part.cpu() for part in (association.keys, association.values, association.targets))
    exact = Association(keys.double(), values.double(), targets)
    shape = (exact.values.shape[1], exact.keys.shape[1])
    W = torch.randn(shape, generator=generator(seed, "lemma"), dtype=torch.float64)
    W = (W / math.sqrt(shape[0] * shape[1])).requires_grad_()
    loss = torch.nn.functional.cross_entropy(exact.scores(W), exact.targets)
    (gradient,) = torch.autograd.grad(loss, W)
    step = LEMMAS[rule](exact, W.detach()) - W.detach()
    return float((step + gradient).abs().max())
