"""From a config and what is varied to runs: one for each point and seed, each with an id and a group. Imports no torch.

The plan depends on the sweep alone, not on the machine, on how many jobs run at a time, or on what is finished. Runs
that can be trained as one tensor program, as they differ only in seed or learning rate, form groups.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from toytf.catalogue import first_comment
from toytf.config.compose import Overrides, parse_override, read_config, source_file
from toytf.config.plugins import ExperimentConfig, load_config
from toytf.config.sections import Config, digest, digest_of, flattened, validate
from toytf.errors import UserError, nearest, shortened
from toytf.sweeps.config import MOST_RUNS, SweepConfig
from toytf.sweeps.expression import keys_of, value_of
from toytf.sweeps.points import Point, Points, label_of, points_of
from toytf.sweeps.values import is_spread
from toytf.training.stacking import even_parts

ID_DIGITS = 12
"""Eight, as of other runs, would give two of 10,000 the same name once in a hundred sweeps."""

FEW = 4
"""So few runs are not parted into two groups: a stack of two brings little."""

Source = Path | str | Mapping[str, Any]
SWEEP_FILE, PLAN = "sweep.yaml", "plan.json"


class _File(Config):
    """For the words of mistakes: they name sweep.grid."""

    sweep: SweepConfig


@dataclass(frozen=True)
class Asked:
    """What was asked for: the config that all runs share, and what is varied."""

    label: str
    """For messages."""
    base: dict[str, Any]
    section: SweepConfig
    name: str
    title: str


@dataclass(frozen=True)
class Member:
    """One run of a sweep, as far as its results are concerned."""

    id: Annotated[str, Field(pattern="^[0-9a-f]+$")]
    point: int
    at: Point
    """The factors of its point."""
    known: Point
    """What figures need besides: values of other keys of its config."""
    seed: int | None
    """Its only seed; None: all seeds are in this run."""


@dataclass(frozen=True)
class PlannedRun(Member):
    """A run that has still to be done."""

    config: ExperimentConfig
    group: int = 0
    """Runs of one group are trained together."""


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep in their order."""

    asked: Asked
    points: Points
    runs: tuple[PlannedRun, ...]

    @cached_property
    def groups(self) -> list[list[PlannedRun]]:
        """The runs that are trained together, in the order of their first."""
        found: dict[int, list[PlannedRun]] = {}
        for run in self.runs:
            found.setdefault(run.group, []).append(run)
        return list(found.values())

    @property
    def hash(self) -> str:
        """Eight digits that name the sweep: which runs there are, whatever is shown of them."""
        return hashlib.sha256("\n".join(run.id for run in self.runs).encode()).hexdigest()[:8]

    @property
    def directory(self) -> Path:
        """Where the sweep goes if nobody says where."""
        return Path("sweeps") / f"{self.asked.name}-{self.hash}"


def plan_sweep(source: Source, overrides: Overrides = ()) -> Plan:
    """Read a sweep and validate every run of it."""
    asked = read_sweep(source, overrides)
    try:
        return _plan(asked)
    except UserError as error:
        raise UserError(f"{asked.label}: {error}") from None


def read_sweep(source: Source, overrides: Overrides = ()) -> Asked:
    """The config with its section `sweep:`, changed by overrides: a list of values, or log(…), becomes a factor."""
    label = str(source) if isinstance(source, str | Path) else "config"
    lost = Path(source) if isinstance(source, str | Path) else Path()
    if lost.name == SWEEP_FILE and not lost.exists() and lost.with_name(PLAN).exists():
        raise UserError(f"{lost} is missing: restore it, or begin the sweep by its first command again, with --resume")
    base = read_config(source)
    given = base.pop("sweep", None)
    if given is not None and not isinstance(given, Mapping):
        raise UserError(f"{label}: sweep should be a mapping of keys to values")
    section: dict[str, Any] = {**(given or {})}
    overrides = [overrides] if isinstance(overrides, str) else overrides
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(parse_override, overrides)
    for key, value in ((key, _plain(value)) for key, value in pairs):
        if key == "seeds" or key.startswith("sweep."):
            section = read_config({"sweep": section}, {f"sweep.{key.removeprefix('sweep.')}": value})["sweep"]
        elif is_spread(value) or (isinstance(value, list | tuple) and len(value) != 1):
            section["grid"] = {**_mapping(section, "grid", label), key: value}
        else:
            own = value[0] if isinstance(value, list | tuple) else value
            base = read_config(base, {key: own})
            section["grid"] = {k: v for k, v in _mapping(section, "grid", label).items() if k != key}
            _refuse_varied(key, section, label)
    checked = validate(TypeAdapter(_File), {"sweep": section}, label).sweep
    if not isinstance(source, str | Path):
        return Asked(label, base, checked, "sweep", checked.title)
    # A sweep is called as its config; a sweep.yaml or config.yaml by its directory.
    name = lost.resolve().parent.name if lost.name in (SWEEP_FILE, "config.yaml") else lost.stem
    return Asked(label, base, checked, name, checked.title or first_comment(source_file(source)).rstrip())


def _plain(value: Any) -> Any:
    """Numbers and lists of numpy as those of Python."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _mapping(section: Mapping[str, Any], name: str, label: str) -> Mapping[str, Any]:
    found = section.get(name) or {}
    if not isinstance(found, Mapping):
        raise UserError(f"{label}: sweep.{name} should be a mapping of keys to values")
    return found


def _refuse_varied(key: str, section: Mapping[str, Any], label: str) -> None:
    """A key cannot be set that the file varies together with others."""
    points = section.get("points") or ()
    drawn = section.get("random") or {}
    varied = {
        "zip": section.get("zip") or {},
        "points": points[0] if isinstance(points, list | tuple) and points else {},
        "random": drawn.get("draw") or {} if isinstance(drawn, Mapping) else {},
    }
    for part, keys in varied.items():
        if isinstance(keys, Mapping) and key in keys:
            raise UserError(f"{label}: {key} is varied by sweep.{part}: change it there")


# From points to runs


def _plan(asked: Asked) -> Plan:
    base, section = asked.base, asked.section
    seeds = section.numbers()
    more = {} if seeds is None else {"seeds": seeds}

    def wants_whole(key: str, value: Any, point: Point) -> bool:
        try:
            load_config(base, {**point, **more, key: value})
        except UserError:
            return True
        return False

    points = points_of(section, wants_whole)
    if len(points.points) * len(seeds or [0]) > MOST_RUNS:
        raise UserError(
            f"{len(points.points):,} points with {len(seeds or [0]):,} seeds each are more than {MOST_RUNS:,} runs"
        )
    runs: list[PlannedRun] = []
    first_of: dict[str, Point] = {}
    axes = [axis for figure in section.figures for axis in (figure.x, figure.y, figure.color) if axis]
    wanted = [key for axis in axes for key in keys_of(axis) if key not in points.factors]
    for i, point in enumerate(points.points):
        config = _load(base, point, more)
        values = flattened(config) if wanted else {}
        for key in wanted:
            if key not in values:
                raise UserError(f'sweep.figures: the config has no key "{shortened(key)}": {nearest(key, values)}')
        known = {key: values[key] for key in wanted}
        for axis in axes:
            value_of(axis, {**known, **point})  # a mistake should show before anything runs
        # A training has every seed by itself; a study, whose cases are shared by its seeds, has all of them.
        own = getattr(config, "seeds", ()) if config.trains_model else ()
        for seed in own or [None]:
            one = _small(config if seed is None else config.model_copy(update={"seeds": (seed,)}))
            run = PlannedRun(digest(one, ID_DIGITS), i, point, known, seed, one)
            if run.id in first_of:
                raise UserError(f"two points are the same: {label_of(first_of[run.id])} and {label_of(point)}")
            first_of[run.id] = point
            runs.append(run)
    return Plan(asked, points, tuple(_grouped(runs)))


def _load(base: Mapping[str, Any], point: Point, more: Mapping[str, Any]) -> ExperimentConfig:
    """The validated config of a point; a mistake says which."""
    try:
        return load_config(base, {**point, **more})
    except UserError as error:
        said = str(error).removeprefix("config: ")
        hint = "; a list as one value is written in two brackets, [[a, b]]" if "valid list" in said else ""
        raise UserError(f"at {shortened(label_of(point))}: {said}{hint}" if point else said) from None


def _small(config: ExperimentConfig) -> ExperimentConfig:
    """The config with one thread, unless it says how many: runs in parallel are worth more than threads."""
    auto = getattr(config, "threads", None) == "auto"
    return config.model_copy(update={"threads": 1}) if auto else config


def config_of(asked: Asked, member: Member) -> ExperimentConfig:
    """The config that was asked for at a run of a sweep."""
    seeds = asked.section.numbers() if member.seed is None else [member.seed]
    return _small(_load(asked.base, member.at, {} if seeds is None else {"seeds": seeds}))


def is_id_of(run: str, content: Mapping[str, Any]) -> bool:
    """Is this the id of a config, as config.yaml holds it: with what a run has filled in where it said `auto`?"""
    open_keys = [key for key in ("device", "stack") if key in content]
    ways = product(*(("auto", content[key]) for key in open_keys))
    return any(digest_of({**content, **dict(zip(open_keys, way, strict=True))}, ID_DIGITS) == run for way in ways)


def _grouped(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The runs with their groups, which are no larger than is worthwhile, and of nearly equal sizes.

    There are as few groups as can be, but an even number, so that two workers end together.
    """
    together: dict[object, list[int]] = {}
    for i, run in enumerate(runs):
        key, stack = run.config.stack_key, getattr(run.config, "stack", "auto")
        together.setdefault(i if key is None else (key, stack), []).append(i)
    group_of: dict[int, int] = {}
    for members in together.values():
        config: Any = runs[members[0]].config
        asked: Any = getattr(config, "stack", "auto")
        largest: int = config.worth_stacking if asked == "auto" else asked
        n = math.ceil(len(members) / largest)
        for part in even_parts(members, n + n % 2 if len(members) >= FEW and largest > 1 else n):
            group_of |= dict.fromkeys(part, part[0])  # a group is called after its first
    return [replace(run, group=group_of[i]) for i, run in enumerate(runs)]
