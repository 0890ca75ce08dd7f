"""Tasks, probes, experiments and benchmarks, found by entry point: the suite's own and a user's package alike.

A plug-in is a config class. Its `kind` (`experiment`, of an experiment) is its name, its fields are what a YAML file
may say, its `implementation` ("module:name") is imported only when it is built, so that listing and validating need no
torch. An entry point names one config class, or a module: then all that this module defines.
"""

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, Self, cast, get_args, get_origin

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from toytf.config.compose import Overrides, read_config
from toytf.config.sections import Config, validate
from toytf.config.shipped import refuse_hidden
from toytf.errors import UserError, nearest, one_line, shortened
from toytf.measurement import Section
from toytf.words import say


class Plugin(Config):
    """A config class that an entry point names; the first line of its docstring is what `toytf list` shows."""

    implementation: ClassVar[str]
    """Where the thing itself is, as "module:name"; called with the config as its first argument."""


@dataclass(frozen=True)
class TaskSizes:
    """What a model has to be built for: how many tokens, outputs and positions."""

    n_tokens: int
    n_outputs: int
    n_positions: int
    n_asked: int
    """Positions of a sequence that are asked."""


class TaskConfig(Plugin):
    """The config of a task."""

    kind: str
    roles: ClassVar[tuple[str, ...]] = ()
    """Named sets of positions, marked in every batch, over which the loss or an accuracy can be taken."""

    def sizes(self) -> TaskSizes | None:
        """What the memory and the speed of a training are estimated from; None: they are not."""
        return None


class ProbeConfig(Plugin):
    """The config of a probe."""

    kind: str
    when: Literal["always", "end"] = "always"
    """At every evaluation of a training, or only after its last step."""
    needs_roles: ClassVar[tuple[str, ...]] = ()
    """The roles that a task must have for this probe to make sense."""
    reads_batch: ClassVar[bool] = True
    """Whether its result depends on the sequences. If not, it is not repeated for every entry of `evaluate_on`."""
    by_default: ClassVar[bool] = False
    """Does a training have it whose config does not say which probes it has?"""
    details: ClassVar[tuple[str, ...]] = ()
    """The names of figures that it draws besides its own."""
    section: ClassVar[Section] = ""
    """The section of the page that its figures belong to; empty: after all others."""

    def check_fits(self, task: TaskConfig) -> None:
        """Refuse a task that lacks a role this probe needs."""
        missing = set(self.needs_roles) - set(task.roles)
        if missing:
            raise UserError(f'probe "{self.kind}" needs a task with the role "{min(missing)}"')


class ExperimentConfig(Plugin):
    """What a config file runs."""

    experiment: str
    trains_model: ClassVar[bool] = False
    """Whether it trains a model on a task, as `train` does. Then its run is a `TrainedRun`."""

    def needs(self) -> float:
        """Bytes of memory that a run takes, roughly, of what the limit of the process would not refuse at once."""
        return 0.0

    @property
    def stack_key(self) -> str | None:
        """Equal for configs whose runs can be one tensor program; None: there is no such thing for this experiment."""
        return None

    @property
    def worth_stacking(self) -> int:
        """How many of such runs at most are worth it."""
        return 1

    def resolved(self, before: "ExperimentConfig | None" = None) -> Self:
        """The same config with what is left open filled in: what config.yaml of a run holds.

        before: the config of the run that goes on, if there is one.
        """
        return self


@cache
def plugins(group: str) -> dict[str, Any]:
    """The entry points of `toytf.<group>`, by name; one that cannot be loaded is named on stderr and left out.

    Two different ones of one name are refused: which of them a config means would depend on what else is installed.
    """
    refuse_hidden()
    found: dict[str, Any] = {}
    owners: dict[str, str] = {}
    base = _BASES.get(group)
    for point in sorted(entry_points(group=f"toytf.{group}"), key=lambda point: point.name):
        try:
            plugin = point.load()
        except (Exception, SystemExit) as error:  # a stranger's package must not take the suite down
            _leave_out(point, repr(error))
            continue
        if base is None:
            named = [(point.name, plugin)]
        elif isinstance(plugin, type) and issubclass(plugin, base):
            names = _names(plugin, base)
            if point.name not in names:
                called = " or ".join(map(str, names)) or "no Literal"
                _leave_out(point, f"the {_tag(base)} of {plugin.__name__} is {called}, but must be {point.name}")
                continue
            named = [(point.name, plugin)]
        elif isinstance(plugin, ModuleType):
            classes = [cls for cls in vars(plugin).values() if isinstance(cls, type) and issubclass(cls, base)]
            named = [(name, cls) for cls in classes if cls.__module__ == plugin.__name__ for name in _names(cls, base)]
        else:
            _leave_out(point, f"it is not a {base.__name__} of toytf.config.plugins")
            continue
        package = point.dist.name if point.dist is not None else "a package without a name"
        for name, defined in named:
            if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]{0,59}", name):
                _leave_out(point, f'"{shortened(str(name))}" cannot be a name: use at most 60 letters, digits and _')
                continue
            owner = f"{package} ({point.value if ':' in point.value else f'{point.value}:{defined.__name__}'})"
            if name in found and found[name] is not defined:  # an entry point may well be seen twice
                raise UserError(
                    f'two of the toytf.{group} are called "{name}", those of {owners[name]} and {owner}: uninstall one '
                    "of the two packages, or rename what it defines"
                )
            found[name], owners[name] = defined, owner
    return dict(sorted(found.items()))


_BASES: dict[str, type[Plugin]] = {"tasks": TaskConfig, "probes": ProbeConfig, "experiments": ExperimentConfig}


def _tag(base: type[Plugin]) -> str:
    """The field by which a config says which plug-in it means."""
    return "experiment" if base is ExperimentConfig else "kind"


def _names(cls: type[Plugin], base: type[Plugin]) -> tuple[str, ...]:
    """What a config class is called: the Literal of its tag."""
    tag = cls.model_fields[_tag(base)].annotation
    return get_args(tag) if get_origin(tag) is Literal else ()


def _leave_out(point: EntryPoint, reason: str) -> None:
    say(f"toytf: plug-in {point.name} ({point.value}) cannot be loaded: {one_line(reason)}")


def implementation(config: Plugin) -> Callable[..., Any]:
    """Import the thing that a config configures."""
    return imported(config.implementation)


def imported(place: str) -> Callable[..., Any]:
    """Import what "module:name" names."""
    module, _, name = place.partition(":")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # of something that the module imports
        raise UserError(f'the implementation "{place}" cannot be imported: there is no module {error.name}') from None
    if not hasattr(loaded, name):
        raise UserError(f'the implementation "{place}" cannot be imported: {module} has no {name}')
    return cast(Callable[..., Any], getattr(loaded, name))


class _OneOf:
    """A field that holds the config of one plug-in of a group, chosen by its tag."""

    def __init__(self, group: str, tag: str) -> None:
        self.group, self.tag = group, tag

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices = {name: handler.generate_schema(cls) for name, cls in plugins(self.group).items()}
        if not choices:
            raise UserError(
                f"no {self.group} are installed: install the project first, for example with `make quickstart`"
            )
        union = core_schema.tagged_union_schema(choices, self.tag)
        return core_schema.no_info_before_validator_function(self._read_name, union)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        union = handler(schema)
        return {"anyOf": [{"enum": list(plugins(self.group))}, union]} if self.tag == "kind" else union

    def _read_name(self, value: Any) -> Any:
        """A bare name is a kind with nothing else said; a kind that is not installed is refused."""
        value = {"kind": value} if self.tag == "kind" and isinstance(value, str) else value
        kind = value.get(self.tag) if isinstance(value, Mapping) else None
        if isinstance(kind, str) and kind not in plugins(self.group):
            context = {"tag": self.tag, "kind": kind, "hint": nearest(kind, plugins(self.group)), "group": self.group}
            raise PydanticCustomError("unknown_plugin", "not installed", context)
        return value


AnyTask = Annotated[TaskConfig, _OneOf("tasks", "kind")]
AnyProbe = Annotated[ProbeConfig, _OneOf("probes", "kind")]
AnyExperiment = Annotated[ExperimentConfig, _OneOf("experiments", "experiment")]


@cache
def experiment_schema() -> TypeAdapter[ExperimentConfig]:
    """The schema of a whole config file, over every experiment, task and probe that is installed."""
    return TypeAdapter(AnyExperiment)


def load_config(
    source: Path | str | Mapping[str, Any], overrides: Overrides = (), folder: Path | None = None
) -> ExperimentConfig:
    """Read, compose and validate a config: the one door from a file (or a mapping) to an experiment."""
    label = str(source) if isinstance(source, str | Path) else "config"
    return validate(experiment_schema(), read_config(source, overrides, folder), label)


def lies_in_run(path: Path) -> bool:
    """Is this the config.yaml of a run directory? Such a directory has checksums or rows, from the first moment on."""
    return path.name == "config.yaml" and any(path.with_name(name).exists() for name in _OF_RUNS)


_OF_RUNS = ("checksums.json", "metrics.jsonl")
"""Files of toytf.runs, one of which every run has."""


def default_probes() -> tuple[ProbeConfig, ...]:
    """The probes of a training whose config does not name any."""
    return tuple(probe_config(kind) for kind, config in plugins("probes").items() if config.by_default)


def probe_config(kind: str) -> ProbeConfig:
    """The config of a probe at its defaults."""
    known = plugins("probes")
    if kind not in known:
        raise UserError(f'probe "{kind}" does not exist: {nearest(kind, known)}')
    return cast(ProbeConfig, validate(TypeAdapter(known[kind]), {"kind": kind}, f"probe {kind}"))
