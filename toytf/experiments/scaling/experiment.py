"""The experiment `scaling`: the error of a memory by dimension, samples, and how strongly inputs are stored."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from toytf import theory
from toytf.experiments.scaling.config import ScalingConfig
from toytf.experiments.scaling.figures import scaling_figures
from toytf.experiments.scaling.measures import DIMENSION, ERROR, MANY_ANSWERS, MORE_DATA, SAMPLES, phrase_of, together
from toytf.experiments.study import Study
from toytf.measurement import Headline, Measurement, Scalar
from toytf.memory.prefixes import RandomVectors, Strengths, prefix_errors
from toytf.memory.schemes import Scheme, TopScheme, depends_on_dimension, scheme_name, scheme_phrase, strengths
from toytf.randomness import generator
from toytf.report.story import against, short
from toytf.runs import Run
from toytf.stopping import check_stop
from toytf.tidy import over_seeds
from toytf.words import counted

FEW_SEEDS = 50
"""Below this, a seed that loses a frequent input decides the mean."""

HURTS = 1.5
"""How many times the least error is worth a sentence."""

FINEST = 1e-3
"""Errors of powers below this are of no interest."""


@dataclass(frozen=True)
class ScalingCase:
    """A number of inputs and of answers; all else is measured at once."""

    n_inputs: int
    n_outputs: int


@dataclass(frozen=True)
class Setting:
    """A scheme for inputs of some frequencies, of which so many were drawn; None: infinitely many."""

    scheme: Scheme
    alpha: float
    samples: int | None


class Scaling(Study[ScalingCase]):
    """Stores inputs by every scheme, and asks for all of them at every dimension."""

    config: ScalingConfig

    def cases(self) -> list[ScalingCase]:
        """Every number of inputs and of answers."""
        return [ScalingCase(N, M) for N in self.config.n_inputs for M in self.config.answers_of(N)]

    @property
    def plain(self) -> Mapping[str, Scalar]:
        """A number of inputs, or of answers, that is the only one."""
        cases = self.cases()
        found = {"n_inputs": {case.n_inputs for case in cases}, "n_outputs": {case.n_outputs for case in cases}}
        return {factor: value for factor, (value, *others) in found.items() if not others}

    def settings(self, *, by_dimension: bool) -> list[Setting]:
        """Schemes with frequencies and samples: those whose choice depends on the dimension, or the others."""
        config = self.config
        return [
            Setting(scheme, alpha, None if n == "infinite" else n)
            for alpha in config.alphas
            for n in config.samples
            for scheme in config.schemes
            if depends_on_dimension(scheme) == by_dimension
        ]

    def measure(self, case: ScalingCase, seed: int) -> Iterator[Measurement]:
        """The error of every scheme at every dimension, exactly over all inputs."""
        check_stop()
        config, N, M = self.config, case.n_inputs, case.n_outputs
        dimensions = sorted(config.dimensions)
        device = torch.device(config.device)
        p = {alpha: torch.tensor(theory.zipf(N, alpha)) for alpha in config.alphas}
        counts = {alpha: draw_counts(p[alpha], config.finite_samples, seed) for alpha in config.alphas}

        def stored(settings: list[Setting], d: int) -> Float[Tensor, "scheme N"]:
            rows = [
                strengths(
                    one.scheme, p[one.alpha] if one.samples is None else counts[one.alpha][one.samples].double(),
                    samples=one.samples, alpha=one.alpha, d=d,
                ).float()
                for one in settings
            ]  # fmt: skip
            return (torch.stack(rows) if rows else torch.empty(0, N)).to(device)

        fixed, own = self.settings(by_dimension=False), self.settings(by_dimension=True)
        found = prefix_errors(
            RandomVectors(seed, N, M, dimensions[-1], config.distribution, device),
            torch.arange(N, device=device) % M,
            Strengths(stored(fixed, dimensions[-1]), lambda d: stored(own, d)),
            torch.stack([*p.values()]),
            dimensions,
        )
        phrase = f"error of {phrase_of(config)}, d = {{d}}"
        group = replace(ERROR, headline=(Headline(f"*_d{dimensions[-1]}", phrase, 1),))
        for d, errors in zip(dimensions, found.tolist(), strict=True):
            for one, error in zip([*fixed, *own], errors, strict=True):
                yield group.measurement(
                    error[config.alphas.index(one.alpha)],
                    theory=_expected(N, M, one, d, config.distribution),
                    limit=None if one.samples is None else _unseen(N, M, one.alpha, one.samples),
                    scheme=scheme_name(one.scheme), alpha=one.alpha, samples=one.samples, d=d,
                )  # fmt: skip

    def conclude(self, table: pd.DataFrame) -> Iterable[Measurement]:
        """Powers of d and n from the means over all seeds: the same in every seed."""
        return self._together

    @cached_property
    def _together(self) -> list[Measurement]:
        unsaid = tuple(self.plain)
        return [
            replace(found, quantity=replace(found.quantity, plain=unsaid))
            for found in together(self.config, self.table)
        ]

    def findings(self, run: Run) -> Iterator[str]:
        """How the error of each scheme falls with the dimension and the samples, and whether more data hurts."""
        config, table = self.config, over_seeds(run.table)
        ranges = {
            DIMENSION: f"the dimension d, from {config.fit_dimensions_from} on",
            SAMPLES: f"the samples n, from {config.fit_samples_from} on and at d = {max(config.dimensions)}",
        }
        for group, of in ranges.items():
            powers: Any = table[(table["group"] == group.name) & ~table["variant"]].groupby("alpha", sort=False)
            for alpha, rows in powers:
                each = []
                for row in rows.itertuples():  # a scheme in words and by name, and what there are several of
                    several = {"N": "n_inputs", "M": "n_outputs"}.items()
                    said = [f"{letter} = {getattr(row, key)}" for letter, key in several if key not in self.plain]
                    stored = f"stored {self._phrase(row.scheme)} ({', '.join([row.scheme, *said])})"
                    error = run.summary.get(f"{row.metric}/error")
                    power = short(run.summary[row.metric], None if error is None else max(error, FINEST))
                    each.append(f"{stored} {power}{against(run.summary, row.metric)}")
                yield f"With α = {alpha:g}, the power of {of}, with which the error grows: {'; '.join(each)}."
        if not (table["group"] == DIMENSION.name).any() and "infinite" in config.samples:
            yield f"There is no power of d: it takes two dimensions of at least {config.fit_dimensions_from}."
        hurt = table[(table["group"] == MORE_DATA.name) & (table["value"] > HURTS)].sort_values(
            "value", ascending=False
        )
        worst: Any = hurt.drop_duplicates("scheme").itertuples()
        for row in worst:
            yield (
                f"More data hurts a memory that stores {self._phrase(row.scheme)}: with {max(config.finite_samples)} "
                f"samples the error at d = {row.d} is {row.value:.1f} times the least."
            )
        if len(config.seeds) < FEW_SEEDS:
            n = counted(len(config.seeds), "seed")
            yield f"With {n}, a single one may decide a mean: use a hundred (seeds=0..99)."

    def _phrase(self, name: str) -> str:
        return next(scheme_phrase(scheme) for scheme in self.config.schemes if scheme_name(scheme) == name)

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Errors against dimension, samples and answers, with what theory predicts and the laws."""
        return scaling_figures(self.config, over_seeds(run.table))


def draw_counts(p: Float[Tensor, "N"], samples: list[int], seed: int) -> dict[int, Int[Tensor, "N"]]:
    """How often each input comes in the first n of the draws of a seed, for every n.

    The uniform numbers are the same for all frequencies, by inversion of the distribution.
    """
    random = generator(seed, "scaling", "samples")
    edges, met, before = p.cumsum(0), torch.zeros(len(p), dtype=torch.long), 0
    found = {}
    for n in samples:
        uniform = torch.rand(n - before, generator=random, dtype=torch.float64) * edges[-1]
        drawn = torch.searchsorted(edges, uniform, right=True).clamp_(max=len(p) - 1)
        met = met + torch.bincount(drawn, minlength=len(p))
        found[n], before = met, n
    return found


@cache
def _expected(N: int, M: int, setting: Setting, d: int, distribution: str) -> float | None:
    """The error of all data without simulation; with many answers, of a threshold whose inputs are all recalled."""
    if setting.samples is not None:
        return None
    p, scheme = theory.zipf(N, setting.alpha), setting.scheme
    if M <= MANY_ANSWERS:
        q = strengths(scheme, torch.tensor(p), samples=None, alpha=setting.alpha, d=d).numpy()
        return theory.scheme_error(q, p, np.arange(N) % M, d, M, sphere=distribution == "sphere")
    return theory.tail_error(p, scheme.stored(d), M) if isinstance(scheme, TopScheme) else None


@cache
def _unseen(N: int, M: int, alpha: float, samples: int) -> float:
    """The least error that so many samples allow, on average."""
    return theory.sampling_floor(theory.zipf(N, alpha), samples, M)
