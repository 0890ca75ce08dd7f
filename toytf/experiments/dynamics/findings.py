"""What came out of a run of `dynamics`, in a few sentences."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from toytf.experiments.dynamics.config import DynamicsConfig
from toytf.experiments.dynamics.measures import ERROR, EXCESS, FORGOTTEN, GROWTH, LARGE, LAW, LOSS, SPIKES, TIME
from toytf.experiments.dynamics.systems import System
from toytf.measurement import Group, Quantity, flat
from toytf.report.story import amount, percent
from toytf.runs import Run
from toytf.words import counted

MOST = 3
"""Step sizes that are told about."""


def findings(config: DynamicsConfig, cases: Sequence[System], run: Run, unsaid: Iterable[str]) -> Iterator[str]:
    """What the smallest and the largest step sizes did to the last system, and what could not be learned.

    unsaid: factors that names of metrics leave out.
    """
    told = _Told(run.summary, cases[-1], (*unsaid,))
    rates = sorted(config.learning_rates)
    some = rates if len(rates) <= MOST else [rates[0], rates[-1]]
    where = f" at {told.where}" if len(cases) > 1 else ""
    if told.has(GROWTH, "slowest", rates[-1]):
        lr = rates[-1]
        yield (
            f"With orthonormal vectors and step size {lr:g} margins grow by {told(GROWTH, 'slowest', lr)} to "
            f"{told(GROWTH, 'fastest', lr)} per unit of log t (theory 1), and the loss over its law "
            f"N (M − 1) / (M η t) is {told(LAW, '', lr)}."
        )
    elif len(cases) > MOST:
        settings = [(_Told(run.summary, case, (*unsaid,)), lr) for case in cases for lr in config.learning_rates]
        right = sum(one.has(TIME, "first_right", lr) for one, lr in settings)
        counts = [[run.summary[one.name(SPIKES, name, lr)] for name in ("", "benign")] for one, lr in settings]
        spiked = [pair for pair in counts if pair[0] > 0]
        good = sum(events == benign for events, benign in spiked)
        yield (
            f"In {right} of {len(settings)} settings all tokens are right at some step within {config.steps}; the loss "
            f"spikes in {len(spiked)}, and in {good} of these every spike is made good."
        )
    elif told.has(LOSS, "", rates[0]):
        yield f"After {counted(config.steps, 'step')}{where}: {'; '.join(_of_rate(told, lr) for lr in some)}."
    if told.has(EXCESS, "best") and told.summary[told.name(EXCESS, "best")] > 0:
        of_seeds = ""
        if len(config.seeds) > 1:
            often = amount({"": told.summary[told.name(EXCESS, "large")]}, "", percent)
            of_seeds = f"; in {often} of the seeds it costs more than {LARGE:g}"
        yield (
            f"No direction has an error below {told(EXCESS, 'best')}, and the lowest cross-entropy has "
            f"{told(EXCESS, 'minimiser')}{of_seeds}."
        )


def _of_rate(told: "_Told", lr: float) -> str:
    """What a step size did, in half a sentence."""
    parts = [f"with step size {lr:g} the loss is {told(LOSS, '', lr)}"]
    if told.summary[told.name(SPIKES, "", lr)] > 0:
        parts.append(f"(spikes: {told(SPIKES, '', lr)}, made good: {told(SPIKES, 'benign', lr)})")
    if told.summary[told.name(FORGOTTEN, "", lr)] > 1e-9:
        parts.append(f"and the error {told(ERROR, '', lr)}, having been {told(ERROR, 'best', lr)}")
    elif told.summary[told.name(ERROR, "", lr)] > 0:
        parts.append(f"and the error {told(ERROR, '', lr)}")
    elif told.has(TIME, "last_error", lr):
        parts.append(f"and all tokens are right after step {told(TIME, 'last_error', lr)}")
    return " ".join(parts)


class _Told:
    """Metrics of a system in words."""

    def __init__(self, summary: Mapping[str, float], system: System, unsaid: tuple[str, ...]) -> None:
        self.summary, self.unsaid = summary, unsaid
        self.at = {factor: value for factor, value in asdict(system).items() if value is not None}

    @property
    def where(self) -> str:
        """The setting of the system."""
        said = {factor: value for factor, value in self.at.items() if factor not in self.unsaid}
        return ", ".join(f"{factor} = {value:g}" for factor, value in said.items())

    def name(self, group: Group, name: str, lr: float | None = None) -> str:
        """The flat name of a metric."""
        return flat(Quantity(group, name, self.at if lr is None else {**self.at, "lr": lr}, self.unsaid))

    def has(self, group: Group, name: str, lr: float | None = None) -> bool:
        """Is there such a metric?"""
        return self.name(group, name, lr) in self.summary

    def __call__(self, group: Group, name: str, lr: float | None = None) -> str:
        return amount(self.summary, self.name(group, name, lr))
