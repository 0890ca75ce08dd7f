"""The learned matrices beside what is ideal and what is possible.

    learned    #{z: f(z) = argmax_y u_yᵀ Ŵ e_z}, the pairs that the learned matrix recalls
    ideal      the most that a matrix of `best_matrices` recalls on the same vectors at the same rank: all pairs, as
               long as these can be stored
    limit      p_c, how many pairs of random vectors some matrix of this shape and rank recalls without an error
               (Giorlandino, Goldt, Maillard 2026; derived): each with a value of its own where the pairs of the memory
               have one, else among its values; none where any number fits (`Memory.unlimited`)

Learned vectors are not random, and p_c is about recalling all pairs: of more pairs than that a matrix may recall more
than p_c, with errors among the others.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from probes.config import LimitsProbeConfig
from probes.limits_figures import Details, filled_bars
from probes.matrices import worst_pairs
from toytf.holder import Holder, by_name, is_finite
from toytf.measurement import Group, Headline, Measurement
from toytf.memory.limits import Limits, best_matrices, competing, is_injective, matrix_limits
from toytf.memory.measures import (
    UTILISATION,
    measure_lost,
    measure_margins,
    measure_scores,
    measure_spectrum,
    score_unit,
)
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult, shared
from toytf.task import Batch, Task
from toytf.theory import bits_to_store

PAIRS = Group(
    "pairs", "Pairs recalled, and how many fit", "How many pairs the learned matrix recalls, beside the best and the "
    "Hebbian matrix for the same vectors. The limit is how many fit into a matrix of this shape and rank: with "
    "values of their own if these pairs have them, else among the same values.",
    format="whole", curve=False, variants=("rule", "head"), section="memories",
    meanings=(
        ("*/least_squares", "Pairs that a least-squares matrix recalls on the same vectors; a learned matrix that "
         "recalls more is better than this simple rule."),
        ("*/head*", "Pairs that this head alone recalls of those that it should hold; the ideal is what the best "
         "matrix recalls on the same vectors."),
        ("*", "Pairs that the learned part recalls; the ideal is what the best matrix recalls on the same vectors, and "
         "the limit, if there is one, is how many fit."),
    ),
)  # fmt: skip
BITS = Group(
    "bits", "Bits per parameter", "What the answers tell of the pairs, in bits per degree of freedom that is trained: "
    "0 for a guess (Fano). The limit is that of a matrix filled to its capacity.", curve=False, headline=(),
    meanings=(
        ("*", "Bits that the answers tell of the pairs, per trained degree of freedom; 0 for a guess, at the limit the "
         "part is filled to its capacity."),
    ),
)  # fmt: skip

GLANCE = {"margin": ("min", "median", "negative"), "spectrum": ("effective_rank",)}
"""What is measured of margins and spectra before the last evaluation."""

IN_SHORT_TABLE = ("pairs", "margin")
"""Groups with rows in the short table at the end of a run."""

MANY = 2**17
"""Scores of a head, pairs times values, above which it is not compared with rules: that would take seconds."""


class LimitsProbe(Probe):
    """What every part of a model that should hold a memory does hold, and could.

    `pairs/<memory>`                           pairs that it recalls; ideal, hebbian and limit beside it
    `pairs/<memory>/least_squares`             pairs that least squares recalls on the same vectors
    `pairs/<memory>/head0`                     the same of one head
    `utilisation/<memory>`                     pairs recalled / capacity: the share of the weights that they use up
    `utilisation/<memory>/load`                all pairs / capacity
    `utilisation/<memory>/capacity`            p_c if as many values compete as now
    `utilisation/<memory>/capacity_own_values` p_c if every pair had a value of its own
    `bits/<memory>`                            n [log₂ V − h₂(ε) − ε log₂(V − 1)] / trained degrees of freedom
    `lost/…`, `margin/…`, `scores/…`, `spectrum/…` as in `toytf.memory.measures`

    Before the last evaluation no other matrix is built: pairs, utilisation, margins and effective rank only.
    """

    config: LimitsProbeConfig

    @torch.no_grad()
    def glance(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """What costs little; the batch is not used."""
        found: list[Measurement] = []
        for part in parts(model, task):
            found += part.measurements(reduce(add, [count(holder) for holder in part.counted]))
            if part.whole is not None:
                inside = [*_margins(part.whole), *_spectrum(part.whole)]
                about = [(one, one.quantity) for one in inside]
                cheap = [one for one, of in about if of.at.get("measure") in GLANCE.get(of.group.name, ())]
                found += part.named(cheap)
        return ProbeResult(found)

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Compare every part with what the rules make of the same vectors; the batch is not used."""
        found: list[Measurement] = []
        failures: dict[str, list[str]] = {}
        totals: dict[str, Counts] = {}
        unlimited: dict[str, str] = {}
        details = Details()
        for part in parts(model, task):
            heads = []
            for head in part.heads:
                small = 0 < len(head.association.keys) * len(head.association.values) <= MANY
                heads.append(count(head, best_matrices(head.association, head.rank, quick=True) if small else {}))
            best = {} if part.whole is None else best_matrices(part.whole.association, part.whole.rank)
            total = heads if part.whole is None else [count(part.whole, best)]
            totals[part.name], unlimited[part.name] = reduce(add, total), part.counted[0].unlimited
            found += part.measurements(totals[part.name])
            for holder, counts in zip(part.heads, heads, strict=True):
                found += part.measurements(counts, head=holder.head) if counts.pairs else []
            if part.whole is not None:
                stored, memory = part.whole.association, part.whole.memory
                margins = part.named(_margins(part.whole, best["max_margin"]))
                inside = [*measure_scores(stored, memory), *_spectrum(part.whole), *measure_lost(stored, memory)]
                found += [*margins, *part.named(inside)]
                unit = score_unit(stored, memory)
                if 0 < unit < math.inf:
                    smallest = {one.quantity.at["measure"]: one for one in margins}.get("min")
                    if smallest is not None:
                        failures[smallest.flat] = worst_pairs(stored, memory, unit, self.config.worst)
                        details.add(part.whole, unit, smallest.reference.theory)

        def draw() -> object:
            return filled_bars({name: counts.bar() for name, counts in totals.items()}, unlimited)

        return ProbeResult(found, failures, draw if totals else None, details.figures)


# What is counted


@dataclass(frozen=True)
class Counts:
    """Numbers of pairs of a part, or of several heads together."""

    pairs: float
    """Those that it should hold."""
    guessed: float
    """Those that a guess recalls."""
    learned: float
    rules: Mapping[str, float]
    """Those that the matrix of each rule recalls."""
    ideal: float | None
    """The most that a rule recalls."""
    limits: Limits | None
    fits: float | None
    """How many pairs fit, of those limits the one that applies."""
    bits: Mapping[str, float]
    """What the learned part tells of the pairs, and what one filled to its limit would."""
    n_parameters: int

    def __add__(self, other: "Counts") -> "Counts":
        def total(one: Any, another: Any) -> Any:
            if one is None or another is None:
                return None
            if isinstance(one, Limits):
                return Limits(*map(add, one, another))
            if isinstance(one, Mapping):  # of what both have
                return {name: value + another[name] for name, value in one.items() if name in another}
            return one + another

        return Counts(*(total(getattr(self, part.name), getattr(other, part.name)) for part in fields(self)))

    def bar(self) -> dict[str, float]:
        """What the figure shows: pairs to hold, learned, and what is known of ideal, Hebbian and limit."""
        known = {"ideal": self.ideal, "hebbian": self.rules.get("hebbian"), "limit": self.fits}
        return {"pairs": self.pairs, "learned": self.learned} | {k: v for k, v in known.items() if v is not None}


def count(holder: Holder, rules: Mapping[str, Tensor] | None = None) -> Counts:
    """The pairs that a holder recalls, and those that the matrices of rules recall; a head may have none."""
    stored, n = holder.association, len(holder.association.keys)
    limits = None if holder.unlimited else holder.limits or matrix_limits(stored, holder.rank)
    if limits is not None and not math.isfinite(limits.at_values):
        limits = None  # so few rivals that any number fits
    guessed, learned = n * stored.chance if n else 0.0, float(stored.recalled(holder.memory).sum()) if n else 0.0
    by_rule = {rule: float(stored.recalled(W).sum()) for rule, W in (rules or {}).items()}
    n_values = max(competing(stored), 1) if n else 1
    fits = None if limits is None else limits.of(stored)
    full = 0.0 if fits is None else fits * math.log2(max(fits, 1) if is_injective(stored) else n_values)
    bits = {"learned": bits_to_store(n, n_values, error=1 - learned / n) if n else 0.0, "limit": full}
    ideal = max(by_rule.values(), default=None if n else 0.0)
    if not n:
        by_rule = dict.fromkeys(("hebbian", "least_squares"), 0.0)
    return Counts(float(n), guessed, learned, by_rule, ideal, limits, fits, bits, holder.n_parameters)


@dataclass(frozen=True, eq=False)
class Part:
    """All holders of one name: the whole, if one matrix or map is the whole, and the heads."""

    name: str
    whole: Holder | None
    heads: Sequence[Holder]
    group: Group
    """PAIRS with what every part is for."""

    @property
    def counted(self) -> Sequence[Holder]:
        """The holders that together are the whole."""
        return self.heads if self.whole is None else [self.whole]

    def named(self, measured: Iterable[Measurement]) -> list[Measurement]:
        """Measurements as those of this part; the short table shows pairs and margins."""
        found = []
        for one in measured:
            placed = one.placed({"memory": self.name})
            quantity, group = placed.quantity, placed.quantity.group
            silent = replace(placed, quantity=replace(quantity, group=replace(group, headline=())))
            found.append(placed if group.name in IN_SHORT_TABLE else silent)
        return found

    def measurements(self, counts: Counts, head: int | None = None) -> list[Measurement]:
        """The pairs, and if not of one head only, how full the part is and how many bits it holds."""
        limits, ideal, hebbian = counts.limits, counts.ideal, counts.rules.get("hebbian")
        p_c = None if limits is None else limits.at_values
        found = [
            self.group.measurement(
                counts.learned, ideal=ideal, hebbian=hebbian, limit=counts.fits, chance=counts.guessed, head=head
            )
        ]
        if head is not None:
            return self.named(found)
        if "least_squares" in counts.rules:
            found.append(self.group.measurement(counts.rules["least_squares"], rule="least_squares"))
        if counts.n_parameters:
            bits = {name: value / counts.n_parameters for name, value in counts.bits.items()}
            found.append(BITS.measurement(bits["learned"], limit=bits["limit"] if p_c else None, chance=0.0))
        if limits is not None and p_c:
            best = None if ideal is None else ideal / p_c
            found.append(UTILISATION.measurement(counts.learned / p_c, ideal=best, chance=counts.guessed / p_c))
            found.append(UTILISATION.measurement(counts.pairs / p_c, measure="load"))
            found.append(UTILISATION.measurement(p_c, measure="capacity"))
            found.append(UTILISATION.measurement(limits.own_values, measure="capacity_own_values"))
        return self.named(found)


@shared
@torch.no_grad()
def parts(model: ToyTransformer, task: Task) -> list[Part]:
    """The parts of a model that should hold a memory; those with a vector or weight that is not a number left out."""
    bare: list[Part] = []
    headlines: list[Headline] = []  # what each part is for, and how many pairs it should hold
    for name, (wholes, heads) in by_name(filter(is_finite, task.holders(model))).items():
        first = wholes[0]
        part = Part(name, None if wholes == heads else first, heads, PAIRS)
        n = sum(len(holder.association.keys) for holder in part.counted)
        if n:
            bare.append(part)
            recalled = f"pairs recalled of {n}" + (" (no limit)" if first.unlimited else "")
            rank = int(bool(task.solution) and name not in task.solution)  # those that solve the task come first
            headlines.append(Headline(name, f"{first.job}: {recalled}" if first.job else recalled, rank))
    group = replace(PAIRS, headline=tuple(headlines))
    return [replace(part, group=group) for part in bare]


# What it looks like inside


def _margins(holder: Holder, best: Tensor | None = None) -> list[Measurement]:
    """The margins; the ideal of the smallest is that of the best matrix, if that recalls all pairs."""
    stored, memory = holder.association, holder.memory
    measured = measure_margins(stored, memory)
    if best is None or not isinstance(memory, Tensor):
        return measured
    largest = next((one.value for one in measure_margins(stored, best) if one.quantity.at["measure"] == "min"), None)
    ideal = largest if largest is not None and largest > 0 else None
    return [
        replace(one, reference=replace(one.reference, ideal=ideal)) if one.quantity.at["measure"] == "min" else one
        for one in measured
    ]


def _spectrum(holder: Holder) -> list[Measurement]:
    """The singular values, if it is a matrix of more than one column and row."""
    W = holder.memory
    return measure_spectrum(W, len(holder.association.keys)) if isinstance(W, Tensor) and min(W.shape) > 1 else []
