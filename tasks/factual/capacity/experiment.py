"""The experiment `fact_capacity`: the largest table of facts that trained models of each size learn.

A search asks whether a table can be learned, by training several initialisations until one reaches an accuracy. So a
capacity is what this training finds, and a lower bound of what the model could hold. All searches begin at the same
size and go on the same ladder of sizes, so what they find cannot come from where they looked.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.factual.capacity.config import N_ANSWERS, FactCapacityConfig, head_dimension, hidden_units
from tasks.factual.trainings import Sizes, TableSize, Trial, trained_accuracies
from toytf import theory
from toytf.experiments.study import Study, factors
from toytf.fits import power_law
from toytf.measurement import Group, Headline, Measurement, Quantity, flat
from toytf.memory.search import Bracket, climb, ladder, run_together
from toytf.memory.solver import Status
from toytf.report.story import against, amount, told
from toytf.runs import Run
from toytf.tidy import over_seeds

if TYPE_CHECKING:
    import pandas as pd

CAPACITY = Group(
    "capacity", "Facts stored",
    "Halfway between the largest table that was learned and the next one, which was not; theory is the line of 0.15 "
    "facts per parameter.",
    variants=("end",),
    headline=(Headline("*", "facts stored at d = {d}, α = {alpha}, β = {beta}"),),
    meanings=(
        ("*/feasible", "Facts of the largest table that such a model learned; it can hold at least these."),
        ("*/not_found", "Facts of the smallest table that no training learned, which proves nothing; below the largest "
         "learned, success came and went."),
        ("*", "Facts that such a model learns, halfway between the largest table learned and the next one, not "
         "learned; more is better."),
    ),
)  # fmt: skip
DENSITY = Group(
    "facts_per_parameter", "Facts per parameter", "The same for all sizes if capacity is proportional to parameters.",
    headline=(),
    meanings=(
        ("*", "Facts stored per parameter; more is better, and the same at all sizes means that capacity is "
         "proportional to parameters."),
    ),
)  # fmt: skip
BITS = Group(
    "bits_per_parameter",
    "Bits per parameter",
    "Bits needed to write down the stored answers, per parameter.",
    headline=(),
    meanings=(("*", "Bits per parameter that the stored answers take to write down; more is better."),),
)  # fmt: skip
EXPONENT = Group(
    "parameter_exponent", "Exponent b in facts ∝ parameters^b", "Theory says that the two are proportional: 1.",
    variants=("error",),
    headline=(
        Headline("all", "exponent b in facts ∝ parameters^b"),
        Headline("feed_forward", "the same, models with hidden units only", 1),
    ),
    meanings=(
        ("*/error", "Standard error of this exponent; the smaller, the better the power law fits."),
        ("all", "Exponent b in facts ∝ parameters^b over all models; 1 by theory, capacity proportional to "
         "parameters."),
        ("feed_forward", "Exponent b in facts ∝ parameters^b over models with hidden units; 1 by theory, capacity "
         "proportional to parameters."),
        ("*", "Exponent b in facts ∝ parameters^b at this mix of heads and hidden units; 1 by theory, capacity "
         "proportional to parameters."),
    ),
)  # fmt: skip
GAIN = Group(
    "feed_forward_gain", "Facts per parameter with hidden units / with attention alone",
    "Above 1, hidden units store more facts than heads with the same number of parameters.",
    headline=(Headline("all", "facts per parameter: with / without hidden units"),),
    meanings=(
        ("all", "Facts per parameter with hidden units over those with attention alone, over all dimensions; above 1 "
         "hidden units store more."),
        ("*", "Facts per parameter with hidden units over those with attention alone, at this dimension; above 1 "
         "hidden units store more."),
    ),
)  # fmt: skip
TRAININGS = Group(
    "trainings", "Trainings that each search took", format="whole", headline=(),
    meanings=(
        ("*", "Trainings that the search for this capacity took; fewer are faster, and say nothing about the model."),
    ),
)  # fmt: skip
FAILED = Group(
    "failed", "Searches that found nothing",
    "The fraction of seeds in which not even the smallest table was learned; shown only where there are any.",
    headline=(Headline("*", "searches that found nothing, d = {d}, α = {alpha}, β = {beta}", 1),),
    meanings=(("*", "Fraction of the seeds in which not even the smallest table was learned; 0 is best."),),
)  # fmt: skip

MIN_SUBJECTS = 2
"""The smallest S that is tried: if it fails, there is no capacity to report."""

MAX_TICKS = 8
"""So many sizes have no room for a tick each."""


@dataclass(frozen=True)
class FactCapacityCase:
    """A dimension and a mix of attention and hidden units."""

    d: int
    alpha: float
    beta: float


class FactCapacity(Study[FactCapacityCase]):
    """Search every capacity, then fit how they grow with the parameters."""

    config: FactCapacityConfig

    def cases(self) -> Sequence[FactCapacityCase]:
        """Every mix at every dimension."""
        return [FactCapacityCase(d, alpha, beta) for alpha, beta in self.config.mixes for d in self.config.dimensions]

    def sizes(self, case: FactCapacityCase) -> Sizes:
        """The model of a case."""
        n_heads = self.config.n_heads
        return Sizes(case.d, n_heads, head_dimension(case.alpha, case.d, n_heads), hidden_units(case.beta, case.d))

    def table_size(self, S: int) -> TableSize:
        """The table of S subjects, by how the config lets tables grow."""
        rule = self.config.table
        D = S if rule == "distinct" else self.config.n_answers or N_ANSWERS
        return TableSize(S, isqrt(S) if rule == "square" else S, D)

    def measure(self, case: FactCapacityCase, seed: int) -> Iterator[Measurement]:
        """The capacity between its two ends, and what a parameter holds; none if even the smallest table failed."""
        return self._measurements(case, *self.search(case, [seed])[seed])

    def seeds(self, case: FactCapacityCase, seeds: Sequence[int]) -> Iterator[tuple[int, int, Iterable[Measurement]]]:
        """The same for several seeds, whose models are trained together while they ask for tables of one size."""
        for seed, found in self.search(case, seeds).items():
            yield seed, self.last_step, self._measurements(case, *found)

    def _measurements(self, case: FactCapacityCase, bracket: Bracket, n_trainings: int) -> Iterator[Measurement]:
        config, n_parameters = self.config, self.sizes(case).n_parameters
        not_found, above = (
            None if S is None else self.table_size(S).n_facts for S in (bracket.failed, bracket.infeasible)
        )
        has_line = config.table == "equal" and config.n_answers in (None, N_ANSWERS) and case.beta > 0
        line = theory.FACTS_PER_PARAMETER * n_parameters if has_line else None
        if bracket.feasible < MIN_SUBJECTS:
            yield CAPACITY.measurement(None, theory=line)
        else:
            stored = self.table_size(bracket.feasible)
            n_facts = (stored.n_facts + (above or stored.n_facts)) / 2
            bits = theory.bits_to_store(round(n_facts), stored.D, error=1 - config.goal)
            yield CAPACITY.measurement(n_facts, theory=line)
            yield CAPACITY.measurement(stored.n_facts, end="feasible")
            yield DENSITY.measurement(n_facts / n_parameters)
            yield BITS.measurement(bits / n_parameters)
        yield CAPACITY.measurement(not_found, end="not_found")
        yield TRAININGS.measurement(n_trainings)

    def search(self, case: FactCapacityCase, seeds: Sequence[int]) -> dict[int, tuple[Bracket, int]]:
        """The largest S that is learned and the smallest that is not, and how many trainings it took, in every seed."""
        sizes, n_trainings = self.sizes(case), Counter[int]()

        def ask(questions: dict[int, int]) -> dict[int, Status]:
            answers: dict[int, Status] = {}
            for S in dict.fromkeys(questions.values()):
                asking = [seed for seed, size in questions.items() if size == S]
                trials = [Trial(sizes, self.table_size(S), seed) for seed in asking]
                for seed, accuracies in zip(asking, trained_accuracies(self.config, trials), strict=True):
                    n_trainings[seed] += len(accuracies)
                    learned = max(accuracies) >= self.config.goal
                    answers[seed] = Status.FEASIBLE if learned else Status.INFEASIBLE
            return answers

        start, scan = self.config.start, self.config.scan
        subjects = ladder(start, self.config.resolution, MIN_SUBJECTS, self.config.largest)
        brackets = run_together({seed: climb(subjects, start, scan) for seed in seeds}, ask)
        return {seed: (brackets[seed], n_trainings[seed]) for seed in seeds}

    def conclude(self, table: "pd.DataFrame") -> Iterator[Measurement]:
        """Powers of the parameters, the gain by hidden units, and which searches found nothing.

        A slope of log facts against log parameters is over all cases, those with hidden units, and each mix. A failure
        is 0 or 1 for this seed, if a search of the same case failed in any seed: their mean says how often.
        """
        stored = _of_group(table, CAPACITY)
        here, n_found = _cases_of(stored), Counter(_cases_of(_of_group(self.table, CAPACITY)))
        stored = stored.assign(n_parameters=[self.sizes(case).n_parameters for case in here])
        fit = partial(power_law, group=EXPONENT, x="n_parameters", theory=1.0, points=3)
        yield from fit(stored, name="all")
        yield from fit(stored[stored["beta"] > 0], name="feed_forward")
        if len(self.config.mixes) > 1:
            yield from fit(stored, by=("alpha", "beta"))
        yield from self._gains(_of_group(table, DENSITY))
        for case in self.cases():
            if n_found[case] < len(self.config.seeds):
                yield FAILED.measurement(case not in here).placed(factors(case))

    def _gains(self, densities: "pd.DataFrame") -> Iterator[Measurement]:
        """Mean facts per parameter with hidden units over those without, at every d where no search failed.

        Only models count that have as many parameters as one of the other kind; if none has, all.
        """
        known, gains = dict(zip(_cases_of(densities), densities["value"], strict=True)), []
        for d in self.config.dimensions:
            here = {case: self.sizes(case).n_parameters for case in self.cases() if case.d == d}
            without = [case for case in here if case.beta == 0]
            with_hidden = [case for case in here if case.beta > 0]
            common = {here[case] for case in without} & {here[case] for case in with_hidden} or {*here.values()}
            if without and with_hidden and all(case in known for case in here):
                mean_with, mean_without = (
                    float(np.mean([known[case] for case in kind if here[case] in common]))
                    for kind in (with_hidden, without)
                )
                gains.append(mean_with / mean_without)
                yield GAIN.measurement(gains[-1], d=d)
        if gains:
            yield GAIN.measurement(np.exp(np.mean(np.log(gains))), "all")

    def findings(self, run: Run) -> Iterator[str]:
        """What the model with most parameters stores, and how facts grow with parameters."""
        summary = run.summary
        metrics = {case: flat(Quantity(CAPACITY, at=factors(case))) for case in self.cases()}
        found = [case for case, name in metrics.items() if name in summary]
        if not found:
            yield "No table was learned in every seed, not even the smallest."
            return
        largest = max(found, key=lambda case: self.sizes(case).n_parameters)
        n_parameters = self.sizes(largest).n_parameters
        stored = f"{amount(summary, metrics[largest])} facts{against(summary, metrics[largest])}"
        yield f"The largest model, of d = {largest.d} and {n_parameters} parameters, stores {stored}."
        grows = flat(Quantity(EXPONENT, "all"))
        if grows in summary:
            yield f"Facts grow like parameters to the power of {told(summary, grows)}."

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Facts stored against parameters, one curve for each mix, and the line that Nichani et al. 2024 draw."""
        from toytf.figures import scaling_curves, series

        stored = _of_group(over_seeds(run.table), CAPACITY)
        if stored.empty:
            return
        curves = series(
            stored.assign(theory=np.nan),  # one line for all
            lambda row: self.sizes(_case_of(row)).n_parameters,
            lambda row: f"α = {row.alpha:g}, β = {row.beta:g}" + ("" if row.beta else " (attention only)"),
        )
        found = _cases_of(stored)
        missing = [Quantity(CAPACITY, at=factors(case)).label for case in self.cases() if case not in found]
        figure = scaling_curves(
            curves,
            "Facts by parameters" + (f"; no capacity found in every seed: {', '.join(missing)}" if missing else ""),
            x="parameters 4 H d_head d + 2 m d",
            y=f"facts stored (accuracy ≥ {self.config.goal:g})",
            guides={f"{theory.FACTS_PER_PARAMETER:g} facts per parameter": lambda n: theory.FACTS_PER_PARAMETER * n},
        )
        if len({x for curve in curves.values() for x in curve.x}) > MAX_TICKS:
            figure.update_xaxes(tickmode="auto", tickvals=None, ticktext=None)
        yield "facts_by_parameters", figure


def _of_group(table: "pd.DataFrame", group: Group) -> "pd.DataFrame":
    """The rows of a group, without variants."""
    return table[(table["group"] == group.name) & ~table["variant"]]


def _cases_of(table: "pd.DataFrame") -> list[FactCapacityCase]:
    """The case of every row."""
    return [_case_of(row) for row in table.itertuples()]


def _case_of(row: Any) -> FactCapacityCase:
    return FactCapacityCase(int(row.d), float(row.alpha), float(row.beta))
