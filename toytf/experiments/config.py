"""What the configs of experiments share, and the config of the experiment `train`."""

from typing import ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from toytf.errors import UserError, nearest
from toytf.models.config import ModelConfig
from toytf.plugins import AnyProbe, AnyTask, ExperimentConfig
from toytf.training.config import LoggingConfig, TrainConfig


class SeededConfig(ExperimentConfig):
    """An experiment that is done once per seed."""

    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    """The experiment is done with each; the summary has their mean and standard deviation."""
    device: str = "auto"
    """auto: a GPU if there is one; or cpu, cuda, cuda:1, mps."""
    threads: PositiveInt = 2
    """CPU threads; part of the config because sums, and so the last bits, depend on it."""
    logging: LoggingConfig = LoggingConfig()

    @model_validator(mode="after")
    def _seeds_differ(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: {max(self.seeds, key=self.seeds.count)} is listed twice")
        return self

    def settled(self) -> Self:
        """With `device: auto` replaced by the device that it means here."""
        from toytf.training.build import pick_device

        return self.model_copy(update={"device": str(pick_device(self.device))})


class TrainExperimentConfig(SeededConfig):
    """Train a model on a task, once per seed, and probe it on the way."""

    implementation: ClassVar[str] = "toytf.experiments.train:run_training"
    figures: ClassVar[str] = "toytf.report.training:training_figures"

    experiment: Literal["train"]
    task: AnyTask
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    probes: tuple[AnyProbe, ...] = ()

    @model_validator(mode="after")
    def _parts_fit(self) -> "TrainExperimentConfig":
        roles = self.task.roles
        if self.train.loss not in roles:
            raise ValueError(
                f'train.loss = "{self.train.loss}" is no role of this task: {nearest(self.train.loss, roles)}'
            )
        for probe in self.probes:
            try:
                probe.check_fits(self.task)
            except UserError as error:
                raise ValueError(str(error)) from None
        kinds = [probe.kind for probe in self.probes]
        if len(set(kinds)) < len(kinds):
            raise ValueError(f"probes: {max(kinds, key=kinds.count)} is listed twice")
        return self
