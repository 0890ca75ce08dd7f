"""What the configs of experiments share."""

from typing import Annotated, Self

from pydantic import Field

from toytf.config.plugins import ExperimentConfig
from toytf.config.sections import Unique
from toytf.runs.tracking import LoggingConfig


class SeededConfig(ExperimentConfig):
    """An experiment that runs once per seed."""

    seeds: Annotated[tuple[int, ...], Unique] = Field(default=(0,), min_length=1)
    """The experiment runs once with each; the summary has the mean and standard deviation over seeds."""
    device: str = "auto"
    """auto: a GPU if there is one; or cpu, cuda, cuda:1, mps."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 2
    """CPU threads; part of the config because the last bits of a sum depend on it."""
    logging: LoggingConfig = LoggingConfig()

    def resolved(self) -> Self:
        """With `device: auto` replaced by the device that it means here."""
        from toytf.build import pick_device

        return self.model_copy(update={"device": str(pick_device(self.device))})
