"""What a claim is: runs, what is expected of their metrics, and how a quick check makes them smaller."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, TypeAdapter

from toytf.config.compose import overlay, read_config
from toytf.config.plugins import ExperimentConfig, load_config
from toytf.config.sections import Config, validate
from toytf.errors import UserError, nearest
from toytf.experiments.seeded import Seeds

SIZE = "{size}"
"""Where a size stands in the names of a run and a metric that are taken at several sizes."""

Kind = Literal["published", "derived here", "check of the code"]
"""A statement of a paper, one that was derived or compared here, or one that only a bug could refute."""

FEWEST_SIZES = 3
"""Fewer would let a straight line through them say nothing about whether it is straight."""


class Expectation(Config):
    """What a metric of a run should be."""

    run: str
    metric: str
    comparison: Literal[">=", ">", "<=", "<", "=="]
    value: float | str
    """A number, or another metric."""
    of: str | None = None
    """The run that `value` is a metric of (default: the same); it must have the same seeds."""
    factor: PositiveFloat = 1.0
    """What the value is multiplied by."""
    tolerance: NonNegativeFloat = 0.0
    over: Literal["mean", "every"] = "mean"
    """mean: of the seeds; every: each seed by itself."""
    exact: bool = False
    """Nothing in it is random: one seed is enough, and there is no doubt."""
    sizes: tuple[PositiveInt, ...] = ()
    """If given: the limit of a metric at infinite size, from a straight line in 1/size through these sizes, in every
    seed. {size} in `run` or `metric` stands for each."""

    def places(self) -> dict[int | None, tuple[str, str]]:
        """The run and the metric at every size; without sizes, just those."""
        if not self.sizes:
            return {None: (self.run, self.metric)}
        return {size: (self.run.replace(SIZE, f"{size}"), self.metric.replace(SIZE, f"{size}")) for size in self.sizes}

    def runs(self) -> list[str]:
        """The runs that it needs."""
        return [*(run for run, _ in self.places().values()), *([self.of] if self.of else [])]


class Quick(Config):
    """How `toytf claims --quick` makes a claim smaller."""

    seeds: PositiveInt = 1
    """The seeds of each run that are left, from the first on."""
    skip: tuple[str, ...] = ()
    """Runs that are left out, with what is expected of them."""
    change: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """What is different in the config of a run, by its name."""


class Claim(Config):
    """A statement, of a paper or derived here, that can be checked."""

    title: str
    kind: Kind
    source: str
    """The paper; and where the expected numbers come from: from it, a derivation, or a separate simulation."""
    statement: str
    note: str = ""
    """What a reader of the verdict should know."""
    minutes: PositiveFloat
    """Expected time on one core."""
    quick: Quick = Quick()
    seeds: Seeds | None = None
    """Those of every run that names none itself; default: the seeds of its base."""
    runs: dict[str, dict[str, Any]] = Field(min_length=1)
    """Configs by name; `base:` is relative to the claim's file."""
    expect: tuple[Expectation, ...] = Field(min_length=1)


def load_claim(path: Path, *, quick: bool = False) -> tuple[Claim, dict[str, ExperimentConfig]]:
    """Read a claim and validate the configs it runs, with wandb off; quick: the smaller version of it."""
    claim = validate(TypeAdapter(Claim), read_config(path), str(path))
    for problem in _problems(claim):
        raise UserError(f"{path}: {problem}")
    if quick:
        left, changes = _left(claim), claim.quick.change
        needed = {run for expectation in left for run in expectation.runs()}
        runs = {name: overlay(claim.runs[name], changes.get(name, {})) for name in claim.runs if name in needed}
        claim = claim.model_copy(update={"runs": runs, "expect": left})
    configs = {}
    for name, content in claim.runs.items():
        fixed = {"logging.wandb": "off"} | (
            {} if claim.seeds is None or "seeds" in content else {"seeds": [*claim.seeds]}
        )
        try:
            configs[name] = load_config(content, fixed, folder=path.parent)
            if quick:
                first = list(getattr(configs[name], "seeds", ()))[: claim.quick.seeds]
                configs[name] = load_config(content, fixed | {"seeds": first}, folder=path.parent)
        except UserError as error:
            raise UserError(f"{path}: runs.{name}: {error}") from None
    for expectation in claim.expect:
        seeds = {run: getattr(configs[run], "seeds", ()) for run in expectation.runs()}
        if expectation.exact and max(map(len, seeds.values())) > 1:
            raise UserError(f"{path}: {expectation.run} has several seeds, so that {expectation.metric} is not exact")
        if len(set(seeds.values())) > 1:
            raise UserError(f"{path}: {' and '.join(seeds)} are compared seed by seed, but have different seeds")
    return claim, configs


def _problems(claim: Claim) -> Iterator[str]:
    """What is wrong with a claim that no single field shows."""
    asked = [run for expectation in claim.expect for run in expectation.runs()]
    for run in (*asked, *claim.quick.skip, *claim.quick.change):
        if run not in claim.runs:
            yield f'no run of this claim is called "{run}": {nearest(run, claim.runs)}'
    for expectation in claim.expect:
        if expectation.of is not None and not isinstance(expectation.value, str):
            yield f'"of: {expectation.of}" needs a metric as value, got {expectation.value:g}'
        if expectation.factor != 1 and not isinstance(expectation.value, str):
            yield f'"factor: {expectation.factor:g}" needs a metric as value, got {expectation.value:g}'
        if expectation.sizes and isinstance(expectation.value, str):
            yield f'sizes need a number as value, got "{expectation.value}"'
        if expectation.sizes and len(set(expectation.sizes)) < FEWEST_SIZES:
            yield f"sizes = {[*expectation.sizes]}: a limit needs at least {FEWEST_SIZES} different sizes"
        if expectation.sizes and len(set(expectation.places().values())) < len(expectation.sizes):
            yield f"sizes need {SIZE} in run or metric, got {expectation.run}: {expectation.metric}"
    if not _left(claim):
        yield "quick.skip leaves nothing to be checked"


def _left(claim: Claim) -> tuple[Expectation, ...]:
    """The expectations that need none of the runs that a quick check skips."""
    return tuple(one for one in claim.expect if not {*one.runs()} & {*claim.quick.skip})
