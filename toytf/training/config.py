"""How a model is trained, evaluated, saved and logged."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from toytf.config import Config


class OptimizerConfig(Config):
    """The optimiser, at a fixed learning rate."""

    kind: Literal["sgd", "adamw"] = "adamw"
    lr: PositiveFloat = 3e-3
    weight_decay: NonNegativeFloat = 0.0
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """For sgd."""
    betas: tuple[float, float] = (0.9, 0.95)
    """For adamw."""
    eps: PositiveFloat = 1e-8
    """For adamw."""


class EvaluationConfig(Config):
    """Evaluation on fresh held-out sequences, at step 0, every so many steps, and at the end."""

    every: PositiveInt = 10
    sequences: PositiveInt = 512


class CheckpointConfig(Config):
    """Checkpoints, besides the first and the last."""

    every: PositiveInt = 100
    log_spaced: bool = True
    """Also at steps 1, 2, 4, 8, …"""

    def due(self, step: int) -> bool:
        """Is there a checkpoint at this step?"""
        return step % self.every == 0 or (self.log_spaced and step & (step - 1) == 0)


class TrainConfig(Config):
    """One training."""

    steps: NonNegativeInt = 300
    """0 evaluates the model as it is built."""
    batch_size: PositiveInt = 64
    loss: str = "all"
    """The role whose positions the loss is taken over, such as all, in_context or global."""
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()


class LoggingConfig(Config):
    """Mirrors of the run directory; it is the record whatever these say."""

    wandb: Literal["off", "offline", "online"] = "offline"
    project: str = "toytf"
    group: str | None = None
    """Default: the name of the run directory; each seed is a wandb run of this group."""
    tags: tuple[str, ...] = ()

    @field_validator("wandb", mode="before")
    @classmethod
    def _read_yaml_off(cls, value: object) -> object:
        return "off" if value is False else value  # YAML reads a bare `off` as false
