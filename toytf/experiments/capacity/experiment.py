"""The experiment `capacity`: how many associations each rule stores, by size and width."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from toytf import theory
from toytf.experiments.capacity import measures
from toytf.experiments.capacity.case import CapacityCase, predicted_capacity
from toytf.experiments.capacity.config import CapacityConfig
from toytf.experiments.capacity.figures import capacity_figures
from toytf.experiments.capacity.search import Searched, first_pairs, search_capacity
from toytf.experiments.study import Found, Study, factors
from toytf.measurement import Group, Measurement, Quantity, flat
from toytf.memory.rounding import recall_by_bits
from toytf.memory.rules import RULES
from toytf.process import cpu_threads
from toytf.report.story import percent, told
from toytf.runs import Run
from toytf.tidy import over_seeds

WORTH_TWO_THREADS = 2**24
"""Multiplications of one scoring below which a second thread brings little, and costs much on a busy machine."""


class Capacity(Study[CapacityCase]):
    """Searches the capacity of every case, then fits exponents."""

    config: CapacityConfig

    def cases(self) -> Iterator[CapacityCase]:
        """Every rule at every size, and width if it has one."""
        for rule in self.config.rules:
            for size in self.config.dimensions:
                for width in self.config.widths_at(size) if RULES[rule].width != "none" else (None,):
                    yield CapacityCase(rule, size, width)

    def measure(self, case: CapacityCase, seed: int) -> Iterator[Measurement]:
        """Capacity, load, facts and bits per parameter of one case and seed."""
        return self._measurements(case, self._searched(case, [seed])[seed])

    def seeds(self, case: CapacityCase, seeds: Sequence[int]) -> Iterator[tuple[int, int, Found]]:
        """Seed by seed; all at once where they are one batch, for the solver or in training."""
        if RULES[case.rule].search not in ("certified", "trained"):
            yield from super().seeds(case, seeds)
            return
        searched = self._searched(case, seeds)
        for seed in seeds:
            yield seed, self.last_step, self._measurements(case, searched[seed])

    def conclude(self, table: pd.DataFrame) -> Iterator[Measurement]:
        """The powers of d, width and weights that capacity grows with, and how well all widths are on one curve."""
        yield from measures.collapse(self._of(measures.HIDDEN_LOAD, table))
        yield from measures.exponents(self._of(measures.STORED, table), self.config.data.n_answers)

    def findings(self, run: Run) -> Iterable[str]:
        """What the rules store at the largest size and width, the best first, and whether widths collapse."""
        stored = self._of(measures.STORED, over_seeds(run.table)).sort_values("value", ascending=False)
        shapes = [factors(case)["d"] for case in self.cases() if case.side == stored["side"].max()]
        largest = stored[stored["d"] == shapes[0]] if shapes else stored  # of several shapes of one size, the first
        width = largest["width"].max()
        here = largest[largest["width"].isna() | (largest["width"] == width)]
        if here.empty:
            return super().findings(run)
        criterion = self.config.criterion
        how = "without an error" if criterion == "all" else f"with a recall of {criterion:g}"
        where = f"d = {here['d'].iloc[0]}" + ("" if pd.isna(width) else f", width {width}")
        by_rule = ", ".join(
            f"{row.rule} {told(run.summary, row.metric)}"
            + (" (without an error)" if self.config.criterion_of(row.rule) != criterion else "")
            for row in here.itertuples()
        )
        spreads = {
            rule: run.summary.get(flat(Quantity(measures.COLLAPSE, at={"rule": rule}))) for rule in self.config.rules
        }
        collapses = (
            f"Over all sizes and widths the load p log V / (m d) of {rule} varies by {percent(spread)}."
            for rule, spread in spreads.items()
            if spread is not None
        )
        return (f"Pairs stored {how} at {where}: {by_rule}.", *collapses)

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Measured capacity with its spread and the theory's curve: against dimension, weights and width."""
        table = over_seeds(run.table)
        precision = self._of(measures.PRECISION, table).groupby("rule")["value"].mean().items()
        bits = {str(rule): float(mean) for rule, mean in precision}
        return capacity_figures(self.config, self._of(measures.STORED, table), bits)

    def _of(self, group: Group, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a group, with the side and the weights of each case."""
        rows = table[(table["group"] == group.name) & ~table["variant"]]
        rows = rows.reindex(columns=[*dict.fromkeys([*rows.columns, "rule", "d", "width"])])  # there may be none yet
        side = {factors(case)["d"]: case.side for case in self.cases()}
        weights = {(case.rule, factors(case)["d"], case.width or 0): case.n_parameters for case in self.cases()}
        of_case = zip(rows["rule"], rows["d"], rows["width"].fillna(0), strict=True)
        return rows.assign(side=[side[d] for d in rows["d"]], weights=[weights[case] for case in of_case])

    def _searched(self, case: CapacityCase, seeds: Sequence[int]) -> Mapping[int, Searched]:
        """Search the capacity of a case in several seeds, with two threads where a scoring is large."""
        n = predicted_capacity(self.config, case) or first_pairs(self.config, case)
        with cpu_threads(self.config.n_threads if n**2 * case.d_out > WORTH_TWO_THREADS else 1):
            return search_capacity(self.config, case, seeds)

    def _measurements(self, case: CapacityCase, searched: Searched) -> Iterator[Measurement]:
        config, bracket, predicted = self.config, searched.bracket, predicted_capacity(self.config, case)
        p, n_answers = bracket.estimate, config.data.n_answers
        yield measures.STORED.measurement(p, theory=predicted)
        if bracket.feasible:
            yield measures.STORED.measurement(bracket.feasible, end="feasible")
        if bracket.infeasible is not None:
            shown = RULES[case.rule].search == "certified"
            yield measures.STORED.measurement(bracket.infeasible, end="infeasible" if shown else "not_found")
        criterion = config.criterion_of(case.rule)
        error = 0.0 if criterion == "all" else 1 - criterion
        yield measures.FACTS.measurement(p / case.n_parameters)
        yield measures.BITS.measurement(self._bits(max(round(p), 1), error) / case.n_parameters)
        if predicted is not None:
            yield measures.OVER_THEORY.measurement(p / predicted)
        if n_answers is None:
            yield measures.LOAD.measurement(
                theory.load(max(p, 1.0), case.d_in, case.d_out),
                theory=None if predicted is None else theory.load(max(predicted, 1.0), case.d_in, case.d_out),
            )
        if RULES[case.rule].width == "hidden":
            units = case.n_parameters / 2
            line = None if predicted is None else measures.nats(predicted, n_answers) / units
            yield measures.HIDDEN_LOAD.measurement(measures.nats(p, n_answers) / units, theory=line)
        if searched.largest is not None and RULES[case.rule].search == "trained" and RULES[case.rule].width != "rank":
            n, goal = len(searched.largest.association.keys), 1 - error
            recalls = recall_by_bits(searched.largest.association, searched.largest.memory)
            enough = [bits for bits, recall in enumerate(recalls, start=1) if recall >= goal]
            yield measures.PRECISION.measurement(
                min(enough, default=None), theory=self._bits(n, 1 - goal) / case.n_parameters
            )
            used = (self._bits(n, 1 - recall) / bits for bits, recall in enumerate(recalls, start=1))
            yield measures.BITS_USED.measurement(max(used) / case.n_parameters, limit=1.0)

    def _bits(self, n: int, error: float) -> float:
        """The information in the answers of n pairs, of which a fraction may be wrong; log₂ n! if each has its own."""
        n_answers = self.config.data.n_answers
        return theory.bits_to_store(n, n_answers or n, error=error, injective=n_answers is None)
