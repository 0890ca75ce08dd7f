"""What a ToyTransformer is made of, as config: the parts the theory needs are fields, not subclasses."""

from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from toytf.config.sections import Config, Unique

VectorDistribution = Literal["normal", "normal_over_d", "uniform_over_d", "sphere", "orthonormal", "one_hot"]
"""How a set of vectors is drawn in R^d: entries N(0, 1), N(0, 1/d) or U(±1/√d); unit vectors that are uniform on the
sphere, orthonormal, or the first basis vectors."""

WeightDistribution = Literal["normal", "normal_over_d", "normal_over_out", "uniform_over_d", "orthonormal", "zeros"]
"""How a weight matrix is drawn; d is the length of the vectors it reads, `out` of those it gives."""


class AttentionConfig(Config):
    """The attention of every layer."""

    kind: Literal["softmax", "linear"] = "softmax"
    """linear: the scores of earlier tokens are the weights themselves, without a softmax."""
    n_heads: PositiveInt = 1
    d_head: PositiveInt | None = None
    """Dimension of a head (default: d_model / n_heads). Joint matrices ignore it: they act in d_model."""
    kq: Literal["joint", "factored"] = "factored"
    """joint: one matrix W_K per head holds W_KQ and queries are the stream itself; factored: W_Q and W_K."""
    ov: Literal["joint", "factored"] = "factored"
    """joint: one matrix W_O per head holds W_OV and values are the stream itself; factored: W_V and W_O."""
    scale: Literal["sqrt_d_head"] | PositiveFloat = "sqrt_d_head"
    """What scores are divided by (with joint W_KQ, d_head is d_model)."""
    residual: bool = True
    init: WeightDistribution = "uniform_over_d"
    """How the matrices are drawn at the start: their initial distribution."""


class FeedForwardConfig(Config):
    """The feed-forward part, in the layers that have one."""

    kind: Literal["none", "linear", "relu"] = "none"
    """linear: x W; relu: relu(x W_in) W_out."""
    width: PositiveInt | None = None
    """Hidden units of `relu` (default: 4 d_model)."""
    bias: bool = False
    """Whether the hidden units of `relu` have a bias, relu(x W_in + b_in). It starts at 0."""
    layers: Literal["all"] | tuple[NonNegativeInt, ...] = "all"
    """Which layers have it, counted from 0."""
    reads: Literal["attention", "block_input"] = "attention"
    """attention: the stream after attention (sequential); block_input: the same input as attention (parallel)."""
    residual: bool = True
    init: WeightDistribution = "uniform_over_d"
    """How the matrices are drawn at the start: their initial distribution."""

    @model_validator(mode="after")
    def _bias_has_units(self) -> "FeedForwardConfig":
        if self.bias and self.kind != "relu":
            raise ValueError(f"bias: true has an effect only with kind: relu, got {self.kind}")
        return self


class ModelConfig(Config):
    """A toy transformer."""

    d_model: PositiveInt = 128
    n_layers: PositiveInt = 2
    embedding: VectorDistribution = "normal"
    position: VectorDistribution | Literal["sinusoidal", "none"] = "normal"
    """Absolute positions, added to the embeddings. They are learned unless `freeze` names them."""
    unembedding: VectorDistribution = "uniform_over_d"
    norm: Literal["none", "layer"] = "none"
    """layer: LayerNorm before attention, before feed-forward, and at the end."""
    attention: AttentionConfig = AttentionConfig()
    feed_forward: FeedForwardConfig = FeedForwardConfig()
    init: Literal["random", "ideal"] = "random"
    """ideal: write the memories that solve the task into the freshly drawn model."""
    ideal_memories: Annotated[tuple[str, ...], Unique, Field(min_length=1)] | None = None
    """Which of these memories are written, such as [W_KQ1, W_KQ2]; the rest of the model stays as it was drawn
    (default: all are written)."""
    beta: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Inverse temperature of each ideal memory by name, such as W_KQ1: the score of a stored pair (default 1)."""
    freeze: tuple[str, ...] = ()
    """Parameters that are not trained, by name or pattern, such as embed.W_E or blocks.0.*"""
    unfreeze: dict[NonNegativeInt, tuple[str, ...]] = Field(default_factory=dict)
    """Frozen parameters that are trained from some step on, such as {300: [blocks.1.attn.W_K]}."""

    @model_validator(mode="after")
    def _heads_fit(self) -> "ModelConfig":
        heads, d_head = self.attention.n_heads, self.attention.d_head
        factored = "factored" in (self.attention.kq, self.attention.ov)
        if factored and d_head is None and self.d_model % heads:
            raise ValueError(
                f"d_model = {self.d_model} is not divisible by attention.n_heads = {heads}: give attention.d_head"
            )
        chosen = self.feed_forward.layers
        if chosen != "all" and max(chosen, default=0) >= self.n_layers:
            raise ValueError(
                f"feed_forward.layers names layer {max(chosen)}, but n_layers = {self.n_layers} (the first layer is 0)"
            )
        if self.beta and self.init == "random":
            raise ValueError("beta has an effect only with init: ideal")
        if self.ideal_memories is not None and self.init == "random":
            raise ValueError("ideal_memories has an effect only with init: ideal")
        return self

    @property
    def d_head(self) -> int:
        """Dimension of a factored head."""
        return self.attention.d_head or self.d_model // self.attention.n_heads

    def trains(self, parameter: str) -> bool:
        """Is this parameter, such as blocks.1.attn.W_V, trained at some time?"""

        def named(patterns: tuple[str, ...]) -> bool:
            return any(fnmatchcase(parameter, pattern) for pattern in patterns)

        return not named(self.freeze) or any(map(named, self.unfreeze.values()))

    def has_feed_forward(self, layer: int) -> bool:
        """Does this layer have a feed-forward part?"""
        chosen = self.feed_forward.layers
        return self.feed_forward.kind != "none" and (chosen == "all" or layer in chosen)

    @property
    def width(self) -> int:
        """The hidden units of a feed-forward part: d_model if it is linear, 0 if no layer has one."""
        if self.feed_forward.kind == "none" or not self.feed_forward.layers:
            return 0
        return self.d_model if self.feed_forward.kind == "linear" else self.feed_forward.width or 4 * self.d_model


CACHED = 2**22
"""Floats of the largest activation of a chunk on a CPU (16 MB), such as an attention pattern or a hidden layer."""


def cached_chunk(config: ModelConfig, n_positions: int, asked: int) -> int:
    """How many sequences of a CPU's chunk keep their activations in the cache, asked at their last positions."""
    largest = asked * max(n_positions * config.attention.n_heads, config.width)
    return max(1, CACHED // max(largest, n_positions * config.d_model))
