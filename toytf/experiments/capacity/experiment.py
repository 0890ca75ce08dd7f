"""The experiment `capacity`: how many associations each rule stores, by size and width."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from toytf import theory
from toytf.errors import UserError
from toytf.experiments.capacity.config import CapacityConfig
from toytf.experiments.pairs import Size, sides
from toytf.experiments.study import Found, Study, factors
from toytf.figures import scaling_curves, series
from toytf.fits import power_law
from toytf.measurement import Group, Headline, Measurement, Quantity
from toytf.memory.builders import AdamOptions, RuleInputs
from toytf.memory.problem import StorageProblem
from toytf.memory.rules import RULES
from toytf.memory.search import Bracket, bisect, half_point, run_together
from toytf.memory.solver import Status, decide
from toytf.memory.stream import AssociationStream
from toytf.process import cpu_threads
from toytf.randomness import generator
from toytf.report.story import told
from toytf.runs import Run
from toytf.stopping import check_stop
from toytf.tidy import over_seeds

STORED = Group(
    "capacity", "Associations stored", "How many pairs a rule stores, beside what theory predicts for random vectors.",
    variants=("end",),
    headline=(
        Headline("*", "pairs stored by {rule}, width {width}, at d = {d}"),
        Headline("*", "pairs stored by {rule} at d = {d}"),
    ),
    meanings=(
        ("*/feasible", "Largest number of pairs that was found to be stored: the lower end of the search."),
        ("*/infeasible", "Smallest number of pairs that no matrix stores, by a certificate or as far as the solver can "
         "tell: the upper end of the search."),
        ("*/not_found", "Smallest number of pairs for which no memory was found, which does not prove that there is "
         "none: the upper end of the search."),
        ("*", "Pairs that this rule stores at this dimension d, and width m if it has one; more is better, and theory "
         "is about random vectors."),
    ),
)  # fmt: skip
OVER_THEORY = Group(
    "over_theory", "Measured / theory", "At 1 theory predicts the capacity exactly.", headline=(),
    meanings=(("*", "Pairs stored over what theory predicts for random vectors; 1 if theory is exact."),),
)  # fmt: skip
LOAD = Group(
    "load", "Load p log p / (d_in d_out) of p pairs",
    "For the best weights it falls slowly towards 1/2 as the dimension grows.",
    headline=(),
    meanings=(
        ("*", "Load p log p / (d_in d_out) of the p pairs stored; more is better, and that of the best weights falls "
         "slowly to 1/2 as d grows."),
    ),
)  # fmt: skip
FACTS = Group(
    "facts_per_parameter", "Associations per parameter", "Pairs stored per weight.", headline=(),
    meanings=(("*", "Pairs stored per weight; more is better."),),
)  # fmt: skip
BITS = Group(
    "bits_per_parameter", "Bits per parameter", "Bits needed to write down the stored answers, per weight.",
    headline=(),
    meanings=(("*", "Bits per weight that the stored answers take to write down; more is better."),),
)  # fmt: skip
EXPONENT = Group(
    "exponent", "Exponent b in capacity ∝ dimension^b", "2 means that capacity is proportional to the number "
    "of weights of a square matrix.", variants=("error",),
    headline=(
        Headline("*", "exponent b in pairs ∝ d^b, {rule}, width {width}"),
        Headline("*", "exponent b in pairs ∝ d^b, {rule}"),
    ),
    meanings=(
        ("*/error", "Standard error of this exponent; the smaller, the better the power law fits."),
        ("*", "Exponent b in pairs ∝ d^b for this rule; 2 if capacity is proportional to the number of weights of a "
         "square matrix."),
    ),
)  # fmt: skip
WIDTH_EXPONENT = Group(
    "width_exponent", "Exponent b in capacity ∝ width^b", "1 means that twice the width stores twice as many pairs.",
    variants=("error",),
    headline=(Headline("*", "exponent b in pairs ∝ width^b, {rule}, d = {d}"),),
    meanings=(
        ("*/error", "Standard error of this exponent; the smaller, the better the power law fits."),
        ("*", "Exponent b in pairs ∝ width^b for this rule; 1 if twice the width stores twice as many pairs."),
    ),
)  # fmt: skip

TINY_MARGIN = 0.05
"""A margin this small means that capacity is within some percent: there, not knowing is an answer."""

WORTH_TWO_THREADS = 2**24
"""Multiplications of one scoring below which a second thread brings little, and costs much on a busy machine."""


@dataclass(frozen=True)
class CapacityCase:
    """One rule at one size."""

    rule: str
    d: Size
    width: int | None = None

    @property
    def d_in(self) -> int:
        """The dimension of the keys."""
        return sides(self.d)[0]

    @property
    def d_out(self) -> int:
        """The dimension of the values."""
        return sides(self.d)[1]

    @property
    def side(self) -> float:
        """√(d_in d_out): the dimension of a square matrix with as many entries."""
        return math.sqrt(self.d_in * self.d_out)

    @property
    def n_parameters(self) -> int:
        """Entries of the matrix, or of the two matrices of a rule with a width."""
        return self.width * (self.d_in + self.d_out) if self.width else self.d_in * self.d_out

    @property
    def name(self) -> str:
        """Such as `mlp_h2_d64_m512`: what its random numbers are named after, too."""
        return Quantity(STORED, at=factors(self)).label


class Capacity(Study[CapacityCase]):
    """Searches the capacity of every case, then fits exponents."""

    config: CapacityConfig

    def cases(self) -> Iterator[CapacityCase]:
        """Every rule at every size, and width if it has one."""
        for rule in self.config.rules:
            for size in self.config.dimensions:
                for width in self.config.widths if RULES[rule].width != "none" else (None,):
                    yield CapacityCase(rule, size, width)

    def measure(self, case: CapacityCase, seed: int) -> Iterator[Measurement]:
        """Capacity, load, facts and bits per parameter of one case and seed."""
        return self._measurements(case, self._brackets(case, [seed])[seed])

    def seeds(self, case: CapacityCase, seeds: Sequence[int]) -> Iterator[tuple[int, int, Found]]:
        """Seed by seed; all at once where they are one batch, for the solver or in training."""
        if RULES[case.rule].search not in ("certified", "trained"):
            yield from super().seeds(case, seeds)
            return
        brackets = self._brackets(case, seeds)
        for seed in seeds:
            yield seed, self.last_step, self._measurements(case, brackets[seed])

    def conclude(self, table: pd.DataFrame) -> Iterator[Measurement]:
        """The power of d, and of the width, that capacity grows with."""
        stored = self._stored(table)
        wide = stored.dropna(subset="width")
        yield from power_law(stored, EXPONENT, x="side", by=("rule", "width"))
        yield from power_law(wide, WIDTH_EXPONENT, x="width", by=("rule", "d"))

    def findings(self, run: Run) -> Iterable[str]:
        """What the rules store at the largest size and width, the best first."""
        stored = self._stored(over_seeds(run.table)).sort_values("value", ascending=False)
        shapes = [factors(case)["d"] for case in self.cases() if case.side == stored["side"].max()]
        largest = stored[stored["d"] == shapes[0]] if shapes else stored  # of several shapes of one size, the first
        width = largest["width"].max()
        here = largest[largest["width"].isna() | (largest["width"] == width)]
        if here.empty:
            return super().findings(run)
        criterion = self.config.criterion
        how = "without an error" if criterion == "all" else f"with a recall of {criterion:g}"
        where = f"d = {here['d'].iloc[0]}" + ("" if pd.isna(width) else f", width {width}")
        by_rule = ", ".join(f"{row.rule} {told(run.summary, row.metric)}" for row in here.itertuples())
        return (f"Pairs stored {how} at {where}: {by_rule}.",)

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Measured capacity with its spread and the theory's curve: against the dimension, against the width."""
        stored = self._stored(over_seeds(run.table))
        by_size = series(stored, "side", lambda row: row.rule + ("" if pd.isna(row.width) else f", width {row.width}"))
        by_width = series(stored.dropna(subset="width"), "width", lambda row: f"{row.rule}, d = {row.d}")
        y = f"associations stored (criterion: {self.config.criterion})"
        if any(len(curve.x) > 1 for curve in by_size.values()) or (by_size and not by_width):
            best = self.config.criterion == "all" and self.config.data.n_answers is None
            guides = {"limit of the optimum: p log p = d²/2": _limit} if best else {}
            yield "capacity", scaling_curves(by_size, "Capacity by dimension", x="dimension d", y=y, guides=guides)
        if any(len(curve.x) > 1 for curve in by_width.values()):
            yield "capacity_by_width", scaling_curves(by_width, "Capacity by width", x="width m", y=y, guides={})

    def _stored(self, table: pd.DataFrame) -> pd.DataFrame:
        """The capacities of a table, with the side of each."""
        stored = table[(table["group"] == STORED.name) & ~table["variant"]]
        # There may be no case with a width; and of a run that an earlier version made, names are all that is known.
        stored = stored.reindex(columns=[*dict.fromkeys([*stored.columns, "rule", "d", "width"])]).dropna(subset="d")
        side = {factors(case)["d"]: case.side for case in self.cases()}
        return stored.assign(side=[side[d] for d in stored["d"]])

    def _brackets(self, case: CapacityCase, seeds: Sequence[int]) -> Mapping[int, Bracket]:
        """Search the capacity of a case in several seeds."""
        predicted = predicted_capacity(self.config, case)
        guess = _first_guess(self.config, case) if predicted is None else predicted
        with cpu_threads(self.config.n_threads if guess**2 * case.d_out > WORTH_TWO_THREADS else 1):
            if RULES[case.rule].search == "one_shot":
                return {seed: _half_point(self.config, case, seed, guess) for seed in seeds}
            return _search(self.config, case, seeds, guess)

    def _measurements(self, case: CapacityCase, bracket: Bracket) -> Iterator[Measurement]:
        config, p, predicted = self.config, bracket.estimate, predicted_capacity(self.config, case)
        yield STORED.measurement(p, theory=predicted)
        if bracket.feasible:
            yield STORED.measurement(bracket.feasible, end="feasible")
        if bracket.infeasible is not None:
            shown = RULES[case.rule].search == "certified"
            yield STORED.measurement(bracket.infeasible, end="infeasible" if shown else "not_found")
        error = 0.0 if config.criterion == "all" else 1 - config.criterion
        n = max(round(p), 1)
        bits = theory.bits_to_store(n, config.data.n_answers or n, error=error)
        yield FACTS.measurement(p / case.n_parameters)
        yield BITS.measurement(bits / case.n_parameters)
        if predicted is not None:
            yield OVER_THEORY.measurement(p / predicted)
        if config.data.n_answers is None:
            yield LOAD.measurement(
                theory.load(max(p, 1.0), case.d_in, case.d_out),
                theory=None if predicted is None else theory.load(max(predicted, 1.0), case.d_in, case.d_out),
            )


def predicted_capacity(config: CapacityConfig, case: CapacityCase) -> float | None:
    """What theory predicts for this case; None where it tells nothing about finite sizes."""
    rule, n_answers = RULES[case.rule], config.data.n_answers
    if min(case.d_in, case.d_out) == 1:
        return None  # theory is for many dimensions
    if rule.theory == "best_weights" and config.criterion == "all":
        rank = case.width if rule.width == "rank" else None
        return theory.capacity(case.d_in, case.d_out, rank=rank, n_values=n_answers, shared=not rule.decoupled)
    one_to_one_on_sphere = n_answers is None and config.data.distribution == "sphere"
    if rule.theory == "hebbian" and one_to_one_on_sphere and case.d_in == case.d_out:
        accuracy = None if config.criterion == "all" else config.criterion
        return theory.hebbian_capacity(case.d_in, accuracy=accuracy, crosstalk=1.0 if rule.decoupled else 2.0)
    return None


def _limit(d: float) -> float:
    """The p with p log p = d²/2."""
    return theory.asymptotic_capacity(1, 1, constant=d**2 / 2)


def _first_guess(config: CapacityConfig, case: CapacityCase) -> float:
    """Where to begin when there is no prediction: the order of magnitude of a one-shot rule."""
    rule = RULES[case.rule]
    if config.data.n_answers is not None:
        return max(2.0, 0.2 * case.d_in)
    if case.width and rule.width == "hidden":
        return max(2.0, (1.0 if rule.search == "trained" else 0.01) * case.width * case.d_in)
    return max(2.0, 0.05 * case.d_in * min(case.d_out, case.width or case.d_out))


def _stream(config: CapacityConfig, case: CapacityCase, seed: int, draw: int = 0) -> AssociationStream:
    return AssociationStream(
        seed,
        case.d_in,
        case.d_out,
        distribution=config.data.distribution,
        n_answers=config.data.n_answers,
        own_rivals=RULES[case.rule].decoupled,
        purpose=f"draw {draw}",
        device=config.device,
    )


def _search(config: CapacityConfig, case: CapacityCase, seeds: Iterable[int], guess: float) -> dict[int, Bracket]:
    """Bisection of one stream per seed, all seeds in step."""
    rule, streams = RULES[case.rule], {seed: _stream(config, case, seed) for seed in seeds}

    def ask(questions: dict[int, int]) -> dict[int, Status]:
        check_stop()
        if rule.searches:
            answers: dict[int, Status] = {}
            for n in dict.fromkeys(questions.values()):
                asking = [seed for seed, number in questions.items() if number == n]
                answers |= _try(config, case, [streams[seed] for seed in asking], n)
            return answers
        return _decide(config, {seed: streams[seed].problem(n) for seed, n in questions.items()})

    return run_together({seed: bisect(guess, config.resolution) for seed in streams}, ask)


def _decide(config: CapacityConfig, problems: Mapping[int, StorageProblem]) -> dict[int, Status]:
    """What the solver says of the problem of each seed; where it cannot tell, the margin must be tiny."""
    stacked = StorageProblem.stack([*problems.values()])
    decisions = decide(stacked, tolerance=config.tolerance, iterations=config.iterations)
    for n, decision in zip(stacked.n.tolist(), decisions, strict=True):
        if decision.status is Status.UNKNOWN and decision.margin_upper > TINY_MARGIN:
            raise UserError(
                f"iterations = {config.iterations} is too small to decide on {n} pairs: choose a larger number"
            )
    return {seed: decision.status for seed, decision in zip(problems, decisions, strict=True)}


def _try(config: CapacityConfig, case: CapacityCase, streams: Sequence[AssociationStream], n: int) -> dict[int, Status]:
    """Look for a memory without a certificate: not found counts as infeasible, so the capacity is a lower bound."""
    goal = 1.0 if config.criterion == "all" else config.criterion
    inputs = [
        RuleInputs(
            stream.prefix(n),
            generator(stream.seed, case.name, n),
            case.width or 0,
            rank_iterations=config.iterations,
            adam=AdamOptions(config.trained.lr, config.trained.steps, goal),
        )
        for stream in streams
    ]
    found = RULES[case.rule].attempts(inputs)
    return {
        stream.seed: Status.FEASIBLE if one.recall >= goal else Status.INFEASIBLE
        for stream, one in zip(streams, found, strict=True)
    }


def _half_point(config: CapacityConfig, case: CapacityCase, seed: int, guess: float) -> Bracket:
    """Where half of many streams are stored (criterion all), or their mean recall falls to the criterion."""
    rule, streams = RULES[case.rule], [_stream(config, case, seed, draw) for draw in range(config.draws)]

    def succeed(n: int) -> Float[np.ndarray, "draws"]:
        recalls = []
        for draw, stream in enumerate(streams):
            check_stop()
            problem = stream.problem(n)
            memory = rule.build(RuleInputs(stream.prefix(n), generator(seed, case.name, draw), case.width or 0))
            outputs = problem.keys[0] @ memory.T if isinstance(memory, torch.Tensor) else memory(problem.keys[0])
            recalls.append(float((problem.margins(outputs[None]) > 0).float().mean()))
        return np.array(recalls) == 1.0 if config.criterion == "all" else np.array(recalls)

    steep = config.criterion == "all"
    level = 0.5 if config.criterion == "all" else config.criterion
    return Bracket(0, None, half_point(succeed, guess, level, steep=steep))
