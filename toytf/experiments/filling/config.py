"""The config of the experiment `filling`. No torch here."""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, model_validator

from toytf.config.compose import overlay
from toytf.config.plugins import AnyProbe, AnyTask, default_probes
from toytf.config.sections import Unique, validate
from toytf.errors import UserError, nearest, shortened
from toytf.experiments.seeded import SeededConfig
from toytf.experiments.train.config import TrainExperimentConfig
from toytf.models.config import ModelConfig
from toytf.training.config import TrainConfig

SECTIONS = ("task", "model", "train")
"""What sizes and settings may change."""

Number = int | float


class FillingConfig(SeededConfig):
    """Fill a trained model up, from a fraction of what its matrices can hold to beyond: where does recall break?"""

    implementation: ClassVar[str] = "toytf.experiments.filling.experiment:Filling"

    experiment: Literal["filling"]
    task: AnyTask
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    probes: tuple[AnyProbe, ...] = Field(default_factory=default_probes)
    sizes: dict[str, Any] = Field(min_length=1)
    """What fills the model, from little load to too much, in the place of a single value: {model: {d_model: [64, 32]}}.
    Several keys go in step, and a case is called by the value of the first."""
    settings: dict[str, dict[str, Any]] = Field({"together": {}}, min_length=1)
    """Which parts learn: by name, what each changes in the training, such as {model: {init: ideal, freeze: […]}}."""
    memories: Annotated[tuple[str, ...], Unique, Field(min_length=1)] | None = None
    """Which memories are followed, such as [W_OV2] (default: all that the model should hold)."""
    follow_seed: Annotated[tuple[str, ...], Unique] = ()
    """Keys that take the seed as their value, such as task.table_seed: then seeds differ in what is stored, too."""

    @model_validator(mode="after")
    def _every_training_is_valid(self) -> "FillingConfig":
        try:
            self._check_sizes()
            for name in self.settings:
                if not re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,59}", name):
                    raise UserError(
                        f'settings: "{shortened(name)}" cannot be a name: use at most 60 letters, digits and _'
                    )
                for size in self.case_sizes:
                    self.training(name, size, self.seeds[0])
        except UserError as error:
            raise ValueError(str(error)) from None
        return self

    def _check_sizes(self) -> None:
        for key, values in self.values.items():  # a key that there is not comes before any other mistake
            self._training({}, {key: values[0]}, self.seeds[0], "sizes")
        lengths = {key: len(values) for key, values in self.values.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{key} has {n}" for key, n in lengths.items())
            raise UserError(f"sizes: keys go in step, so each needs as many values as the others: {shown}")
        if len(set(self.case_sizes)) < len(self.case_sizes):
            twice = max(self.case_sizes, key=self.case_sizes.count)
            raise UserError(f"sizes: {twice:g} is listed twice in {self.varied}, which names the cases")
        for key in self.follow_seed:
            if key.partition(".")[0] not in SECTIONS or "." not in key:
                raise UserError(f'follow_seed: "{shortened(key)}" is not a key of a training, such as task.table_seed')

    @cached_property
    def values(self) -> dict[str, tuple[Number, ...]]:
        """The values of each dotted key of `sizes`."""
        _refuse_other_sections("sizes", self.sizes)
        return dict(_leaves(self.sizes, ""))

    @property
    def varied(self) -> str:
        """The key of `sizes` that names the cases."""
        return next(iter(self.values))

    @property
    def case_sizes(self) -> tuple[Number, ...]:
        """The values of that key."""
        return self.values[self.varied]

    def training(self, setting: str, size: Number, seed: int) -> TrainExperimentConfig:
        """The training of a case and a seed: what the config says, then the setting, the sizes and the seed."""
        changes = self.settings[setting]
        label = f"settings.{setting}"
        _refuse_other_sections(label, changes)
        at = self.case_sizes.index(size)
        given = {key: values[at] for key, values in self.values.items()}
        given |= dict.fromkeys(self.follow_seed, seed % 2**32)  # seeds may be negative, those of tables not
        shown = ", ".join(f"{key} = {value:g}" for key, value in given.items() if key in self.values)
        return self._training(changes, given, seed, f"{label} with {shown}")

    def _training(
        self, changes: Mapping[str, Any], given: Mapping[str, Number], seed: int, label: str
    ) -> TrainExperimentConfig:
        content: dict[str, Any] = {"experiment": "train", "seeds": (seed,), "device": self.device}
        content |= {name: getattr(self, name).model_dump() for name in SECTIONS}
        content["probes"] = [probe.model_dump() for probe in self.probes]
        content = overlay(content, changes)
        for key, value in given.items():  # model.d_model, 64 as {"model": {"d_model": 64}}
            nested: Any = value
            for name in reversed(key.split(".")):
                nested = {name: nested}
            content = overlay(content, nested)
        return validate(TypeAdapter(TrainExperimentConfig), content, label)

    def needs(self) -> float:
        """What the training takes that needs most: there is one at a time."""
        cases = [(name, size) for name in self.settings for size in self.case_sizes]
        return max(self.training(name, size, self.seeds[0]).needs() for name, size in cases)


def _refuse_other_sections(where: str, changes: Mapping[str, Any]) -> None:
    for section in changes:
        if section not in SECTIONS:
            raise UserError(f'{where}: unknown key "{shortened(str(section))}": {nearest(section, SECTIONS)}')


def _leaves(nested: Mapping[str, Any], path: str) -> Iterator[tuple[str, tuple[Number, ...]]]:
    """Dotted keys and the lists at the ends of a mapping of mappings."""
    for key, value in nested.items():
        name = f"{path}.{key}".lstrip(".")
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, name)
        elif not (isinstance(value, list | tuple) and value and all(type(one) in (int, float) for one in value)):
            raise UserError(f"sizes.{shortened(name)} should be a list of numbers, got {shortened(str(value))}")
        else:
            yield name, tuple(value)
