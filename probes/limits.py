"""The learned matrices beside what is ideal and what is possible.

    learned    #{z: f(z) = argmax_y u_yᵀ Ŵ e_z}, the pairs that the learned matrix recalls
    ideal      the most that a matrix of `best_matrices` recalls on the same vectors at the same rank: all pairs, as
               long as these can be stored
    limit      p_c, how many pairs of random vectors some matrix of this shape and rank recalls without an error
               (Giorlandino, Goldt, Maillard 2026; derived)

Learned vectors are not random, and p_c is about recalling all pairs: of more pairs than that a matrix may recall more
than p_c, with errors among the others.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from probes.config import LimitsProbeConfig
from probes.matrices import worst_pairs
from toytf.holder import Holder
from toytf.measurement import Group, Headline, Measurement
from toytf.memory import exact
from toytf.memory.limits import Limits, best_matrices, competing, matrix_limits
from toytf.memory.measures import (
    UTILISATION,
    compared_spectra,
    measure_lost,
    measure_margins,
    measure_scores,
    measure_spectrum,
    score_levels,
    score_samples,
    score_unit,
)
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult, shared
from toytf.task import Batch, Task

PAIRS = Group(
    "pairs", "Pairs recalled, and how many fit", "How many pairs the learned matrix recalls, beside the best and the "
    "Hebbian matrix for the same vectors. The limit is how many fit into a matrix of this shape and rank.",
    format="whole", curve=False, variants=("rule", "head"),
)  # fmt: skip
BITS = Group(
    "bits", "Bits per parameter", "What the recalled pairs tell, in bits per weight: each is one of the values that "
    "compete. The limit is that of a full matrix.", curve=False, headline=(),
)  # fmt: skip

GLANCE = {"margin": ("min", "median", "negative"), "spectrum": ("effective_rank",)}
"""What is measured of margins and spectra before the last evaluation."""

MANY = 2**17
"""Scores of a head, pairs times values, above which it is not compared with rules."""


class LimitsProbe(Probe):
    """What every part of a model that should hold a memory does hold, and could.

    `pairs/<memory>`                           pairs that it recalls; ideal, hebbian and limit beside it
    `pairs/<memory>/least_squares`             pairs that least squares recalls on the same vectors
    `pairs/<memory>/head0`                     the same of one head
    `utilisation/<memory>`                     pairs recalled / p_c; ideal: the load, all pairs / p_c
    `utilisation/<memory>/capacity`            p_c if as many values compete as now
    `utilisation/<memory>/capacity_own_values` p_c if every pair had a value of its own
    `bits/<memory>`                            pairs recalled · log₂(values that compete) / parameters
    `lost/…`, `margin/…`, `scores/…`, `spectrum/…` as in `toytf.memory.measures`

    Before the last evaluation no other matrix is built: pairs, utilisation, margins and effective rank only.
    """

    config: LimitsProbeConfig

    @torch.no_grad()
    def glance(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """What costs little; the batch is not used."""
        found: list[Measurement] = []
        for part in parts(model, task):
            found += part.measurements(part.total([count(holder) for holder in part.counted]))
            if part.whole is not None:
                inside = [*_margins(part.whole), *_spectrum(part.whole)]
                found += part.named(one for one in inside if _is_cheap(one))
        return ProbeResult(found)

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Compare every part with what the rules make of the same vectors; the batch is not used."""
        found: list[Measurement] = []
        failures: dict[str, list[str]] = {}
        totals: dict[str, Counts] = {}
        figures = _Figures()
        for part in parts(model, task):
            heads = [count(head, _of_head(head)) for head in part.heads]
            best = {} if part.whole is None else best_matrices(part.whole.association, part.whole.rank)
            total = heads if part.whole is None else [count(part.whole, best)]
            totals[part.name] = part.total(total)
            found += part.measurements(totals[part.name])
            for holder, counts in zip(part.heads, heads, strict=True):
                found += part.measurements(counts, head=holder.head)
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
                        figures.add(part.whole, unit, smallest.reference.theory)

        def draw() -> object:
            from toytf.figures import filled_bars

            return filled_bars({name: counts.bar() for name, counts in totals.items()})

        return ProbeResult(found, failures, draw if totals else None, figures.details)


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
    limits: Limits | None
    bits: float
    """What the learned pairs tell."""
    bits_of_limit: float
    n_parameters: int

    def __add__(self, other: "Counts") -> "Counts":
        limits = None
        if self.limits is not None and other.limits is not None:
            limits = Limits(*(a + b for a, b in zip(self.limits, other.limits, strict=True)))
        rules = {rule: n + other.rules[rule] for rule, n in self.rules.items() if rule in other.rules}
        return Counts(
            self.pairs + other.pairs, self.guessed + other.guessed, self.learned + other.learned, rules, limits,
            self.bits + other.bits, self.bits_of_limit + other.bits_of_limit, self.n_parameters + other.n_parameters,
        )  # fmt: skip

    @property
    def ideal(self) -> float | None:
        """The most that a rule recalls."""
        return max(self.rules.values(), default=None)

    def bar(self) -> dict[str, float]:
        """What the figure shows: pairs to hold, learned, ideal, Hebbian, and the limit if there is one."""
        limit = {} if self.limits is None else {"limit": self.limits.at_values}
        return {"pairs": self.pairs, "learned": self.learned, "ideal": self.ideal or 0.0, **self.rules, **limit}


def count(holder: Holder, rules: Mapping[str, Tensor] | None = None) -> Counts:
    """The pairs that a holder recalls, and those that the matrices of rules recall."""
    stored = holder.association
    limits = holder.limits or matrix_limits(stored, holder.rank)
    if limits is not None and not math.isfinite(limits.at_values):
        limits = None  # so few rivals that any number fits
    learned, each = float(stored.recalled(holder.memory).sum()), math.log2(max(competing(stored), 1))
    return Counts(
        float(len(stored.keys)),
        len(stored.keys) * stored.chance,
        learned,
        {rule: float(stored.recalled(W).sum()) for rule, W in (rules or {}).items()},
        limits,
        learned * each,
        0.0 if limits is None else limits.at_values * each,
        holder.n_parameters,
    )


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

    @staticmethod
    def total(counts: Sequence[Counts]) -> Counts:
        """Several heads as one."""
        return sum(counts[1:], start=counts[0])

    def named(self, measured: Iterable[Measurement]) -> list[Measurement]:
        """Measurements as those of this part."""
        return [one.placed({"memory": self.name}) for one in measured]

    def measurements(self, counts: Counts, head: int | None = None) -> list[Measurement]:
        """The pairs, and if not of one head only, how full the part is and how many bits it holds."""
        limits, ideal, hebbian = counts.limits, counts.ideal, counts.rules.get("hebbian")
        p_c = None if limits is None else limits.at_values
        found = [
            self.group.measurement(
                counts.learned, ideal=ideal, hebbian=hebbian, limit=p_c, chance=counts.guessed, head=head
            )
        ]
        if head is not None:
            return self.named(found)
        if "least_squares" in counts.rules:
            found.append(self.group.measurement(counts.rules["least_squares"], rule="least_squares"))
        bits = counts.bits / counts.n_parameters
        found.append(BITS.measurement(bits, limit=counts.bits_of_limit / counts.n_parameters if p_c else None))
        if limits is not None and p_c:
            load, guessed = counts.pairs / p_c, counts.guessed / p_c
            found.append(UTILISATION.measurement(counts.learned / p_c, ideal=load, chance=guessed))
            found.append(UTILISATION.measurement(p_c, measure="capacity"))
            found.append(UTILISATION.measurement(limits.own_values, measure="capacity_own_values"))
        return self.named(found)


@shared
@torch.no_grad()
def parts(model: ToyTransformer, task: Task) -> list[Part]:
    """The parts of a model that should hold a memory; those with a vector or weight that is not a number left out."""
    by_name: dict[str, list[Holder]] = {}
    for holder in task.holders(model):
        if len(holder.association.keys) and _is_finite(holder):
            by_name.setdefault(holder.name, []).append(holder)
    bare = [
        Part(
            name,
            next((one for one in held if one.head is None), None),
            [one for one in held if one.head is not None],
            PAIRS,
        )
        for name, held in by_name.items()
    ]
    group = replace(PAIRS, headline=tuple(_headlines(bare, task)))
    return [replace(part, group=group) for part in bare]


def _headlines(found: Sequence[Part], task: Task) -> Iterator[Headline]:
    """What each part is for and how many pairs it should hold; those that solve the task come first."""
    for part in found:
        n = sum(len(holder.association.keys) for holder in part.counted)
        recalled = f"pairs recalled of {n}"
        job, rank = part.counted[0].job, int(bool(task.solution) and part.name not in task.solution)
        yield Headline(part.name, f"{job}: {recalled}" if job else recalled, rank)


def _of_head(head: Holder) -> dict[str, Tensor]:
    """What the rules make of the pairs of one head; nothing if these are so many that it would take seconds."""
    stored = head.association
    small = len(stored.keys) * len(stored.values) <= MANY
    return best_matrices(stored, head.rank, margin=False) if small else {}


def _is_finite(holder: Holder) -> bool:
    stored, memory = holder.association, holder.memory
    answers = memory if isinstance(memory, Tensor) else memory(stored.keys)
    return all(bool(x.isfinite().all()) for x in (stored.keys, stored.values, answers))


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


def _is_cheap(measured: Measurement) -> bool:
    return measured.quantity.at.get("measure") in GLANCE.get(measured.quantity.group.name, ())


@dataclass(eq=False)
class _Figures:
    """What the further figures show, a panel for each part."""

    margins: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    largest: dict[str, dict[str, float]] = field(default_factory=dict)
    scores: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    levels: dict[str, dict[str, float]] = field(default_factory=dict)
    spectra: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def add(self, holder: Holder, unit: float, possible: float | None) -> None:
        """A panel in each figure."""
        name, stored, memory = holder.name, holder.association, holder.memory
        margins = exact(stored.margins(memory)) / unit
        self.margins[name] = {"margin": margins[margins.isfinite()].numpy()}
        self.largest[name] = {"not recalled below": 0.0}
        if possible:
            self.largest[name]["largest possible minimum (theory)"] = possible
        self.scores[name] = score_samples(stored, memory)
        self.levels[name] = score_levels(stored) if isinstance(memory, Tensor) else {}
        spectra = compared_spectra(memory, len(stored.keys)) if isinstance(memory, Tensor) else {}
        if spectra:
            self.spectra[name] = spectra

    @property
    def details(self) -> dict[str, Callable[[], object]]:
        """The figures by name, each drawn from what is here."""
        unit = "in standard deviations of a score"

        def margins() -> object:
            from toytf.figures import histograms

            return histograms(self.margins, "Margins", lines=self.largest, x=f"margin, {unit}")

        def scores() -> object:
            from toytf.figures import histograms

            return histograms(self.scores, "Scores", lines=self.levels, x=f"score, {unit}")

        def spectrum() -> object:
            from toytf.figures import ranked

            return ranked(self.spectra, "Singular values of √d W / ‖W‖", measured="measured", y="singular value")

        drawn = {
            "margins": (self.margins, margins),
            "scores": (self.scores, scores),
            "spectrum": (self.spectra, spectrum),
        }
        return {name: draw for name, (content, draw) in drawn.items() if content}
