"""The config of the experiment `train`."""

import re
from typing import Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, model_validator

from toytf.config.compose import overlay
from toytf.config.footprint import Need
from toytf.config.plugins import AnyProbe, AnyTask, TaskConfig
from toytf.config.sections import validate
from toytf.errors import UserError, nearest, shortened
from toytf.experiments.seeded import SeededConfig
from toytf.models.config import ModelConfig
from toytf.training.config import TrainConfig
from toytf.training.footprint import training_needs


class TrainExperimentConfig(SeededConfig):
    """Train a model on a task, once per seed, and probe it on the way."""

    implementation: ClassVar[str] = "toytf.experiments.train.experiment:Training"
    trains_model: ClassVar[bool] = True

    experiment: Literal["train"]
    task: AnyTask
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    probes: tuple[AnyProbe, ...] = ()
    tests: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Other laws to evaluate on, by name: what they change in the task, such as {clean: {noise: {probability: 0}}}.
    Their metrics have the name behind the group: `eval@clean/in_context_accuracy`."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "TrainExperimentConfig":
        roles = self.task.roles
        if self.train.loss not in roles:
            raise ValueError(
                f'train.loss = "{self.train.loss}" is no role of this task: {nearest(self.train.loss, roles)}'
            )
        try:
            tasks = {"": self.task} | {f"tests.{name}: ": task for name, task in self.test_tasks.items()}
        except UserError as error:
            raise ValueError(str(error)) from None
        for where, task in tasks.items():
            if task.files() != self.task.files():
                raise ValueError(
                    f"{where}its own {' and '.join(task.files())} would be lost: a test keeps those of the task"
                )
            for probe in self.probes:
                try:
                    probe.check_fits(task)
                except UserError as error:
                    raise ValueError(f"{where}{error}") from None
        kinds = [probe.kind for probe in self.probes]
        if len(set(kinds)) < len(kinds):
            raise ValueError(f"probes: {max(kinds, key=kinds.count)} is listed twice")
        return self

    def needs(self) -> list[Need]:
        """Those of the task and its tests, and of a training if the task tells its sizes."""
        needs = [need for task in (self.task, *self.test_tasks.values()) for need in task.needs()]
        sizes = self.task.sizes()
        if sizes is not None:
            observed = any(probe.reads_batch for probe in self.probes)
            on_cpu = self.device.startswith("cpu")
            needs += training_needs(self.train, self.model, sizes, on_cpu=on_cpu, observed=observed)
        return needs

    @property
    def test_tasks(self) -> dict[str, TaskConfig]:
        """The task as each test changes it."""
        return {name: self._test_task(name) for name in self.tests}

    def _test_task(self, name: str) -> TaskConfig:
        if not re.fullmatch("[a-z][a-z0-9_]{0,59}", name):
            raise UserError(
                f'tests: "{shortened(name)}" cannot be a name: take small letters, digits and _, at most 60'
            )
        changed = overlay(self.task.model_dump(), self.tests[name])
        return validate(TypeAdapter(type(self.task)), changed, f"tests.{name}")
