"""How a model is trained, evaluated and saved."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from toytf.config.sections import Config

Fraction = Annotated[float, Field(ge=0, lt=1)]

MOST_NEWTON_SCHULZ_STEPS = 99
"""As torch.optim.Muon has it; five come as near to an orthogonal matrix as the quintic brings them."""


class SgdConfig(Config):
    """Stochastic gradient descent, at a fixed learning rate."""

    kind: Literal["sgd"] = "sgd"
    lr: PositiveFloat = 0.03
    momentum: Fraction = 0.9
    weight_decay: NonNegativeFloat = 0.0


class AdamWConfig(Config):
    """AdamW, at a fixed learning rate."""

    kind: Literal["adamw"] = "adamw"
    lr: PositiveFloat = 3e-3
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0


class MuonConfig(Config):
    """Muon for the weight matrices of attention and feed-forward parts, AdamW for all else, at fixed learning rates.

    Every head is a matrix of its own. It is our own code, which needs no torch.optim.Muon: any torch that toytf can be
    installed with will do.
    """

    kind: Literal["muon"] = "muon"
    lr: PositiveFloat = 0.02
    """About the spectral norm of an update, whatever the gradient; of W [d_in d_out] times √max(1, d_out / d_in)."""
    momentum: Fraction = 0.95
    nesterov: bool = True
    """Does a step look ahead, by the momentum of the next one?"""
    weight_decay: NonNegativeFloat = 0.0
    newton_schulz_steps: Annotated[int, Field(ge=1, le=MOST_NEWTON_SCHULZ_STEPS)] = 5
    """How often an update is brought nearer to an orthogonal matrix."""
    rest: AdamWConfig = AdamWConfig()
    """How embeddings, the unembedding, biases and LayerNorm are trained, as far as they are not frozen."""


Optimizer = Annotated[
    SgdConfig | AdamWConfig | MuonConfig,
    Field(discriminator="kind"),
    BeforeValidator(lambda given: {"kind": "adamw", **given} if isinstance(given, dict) else given),
]


class EvaluationConfig(Config):
    """Evaluation on fresh held-out sequences: at step 0, every few steps, and at the end."""

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
    """How a model is trained."""

    steps: NonNegativeInt = 300
    """Training steps; 0 evaluates the initial model."""
    batch_size: PositiveInt = 64
    loss: str = "all"
    """The role whose positions the loss is taken over, such as all, in_context or global."""
    optimizer: Optimizer = AdamWConfig()
    forward: Literal["fast", "plain", "right_attention"] = "fast"
    """The forward pass of training steps and metrics by role. fast: computed from tables over tokens where the model
    allows it, with the same result; plain: always the forward pass that can be hooked. right_attention: the plain one,
    and in training steps every query looks where the task says it should, as far as it says so."""
    compile: bool = False
    """Compile the forward and backward pass with torch.compile, on CUDA as a CUDA graph. It takes half a minute, and
    pays in long trainings of small models on a GPU, which otherwise wait for one kernel after the other to be launched.
    On a CPU it needs a C++ compiler, and `fast` alone is as fast."""
    chunk: PositiveInt | None = None
    """How many sequences of a training step are computed at a time (default: all on a GPU, as many as fit in the cache
    on a CPU)."""
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()

    @property
    def is_plain_descent(self) -> bool:
        """Is every step one along the gradient, without momentum or weight decay?"""
        chosen = self.optimizer
        return isinstance(chosen, SgdConfig) and chosen.momentum == chosen.weight_decay == 0
