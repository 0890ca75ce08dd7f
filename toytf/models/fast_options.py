"""Which model options the fast forwards understand; a model with any other option takes the plain forward.

A new option needs no line here. While it has its default, models are what they were before there was such an option,
and the fast forwards serve them; with any other value they step aside, until the value is listed. The same holds for a
new value of an option that is listed; distributions of vectors and weights are listed as such, for they
only say how the first ones are drawn. So an option that was forgotten here costs time, but is never ignored.
"""

from typing import Literal, get_args

from toytf.config.sections import Config
from toytf.models.config import ModelConfig, VectorDistribution, WeightDistribution

FastPath = Literal["tables", "counts"]

Options = dict[str, set[object]]
"""The values that are understood, by the name of the option; a type is all of its values."""

ANY: set[object] = {object}

_BOTH: Options = {
    "d_model": {int},
    "embedding": {*get_args(VectorDistribution)},
    "unembedding": {*get_args(VectorDistribution)},
    "norm": {"none"},
    "attention.n_heads": {int},
    "attention.d_head": {int, None},
    "attention.kq": {"joint", "factored"},
    "attention.ov": {"joint", "factored"},
    "attention.scale": {"sqrt_d_head", float},
    "attention.residual": {bool},
    "attention.init": {*get_args(WeightDistribution)},
    "feed_forward.kind": {"none", "linear", "relu"},
    "feed_forward.width": {int, None},
    "feed_forward.bias": {bool},
    "feed_forward.layers": {"all", tuple},
    "feed_forward.reads": {"attention", "block_input"},
    "feed_forward.residual": {bool},
    "feed_forward.init": {*get_args(WeightDistribution)},
    # What the first weights are, and when they train: the forward is the same.
    "init": ANY,
    "ideal_memories": ANY,
    "beta": ANY,
    "freeze": ANY,
    "unfreeze": ANY,
}
UNDERSTOOD: dict[FastPath, Options] = {
    "tables": _BOTH
    | {
        "n_layers": {int},
        "position": {*get_args(VectorDistribution), "sinusoidal", "none"},
        "attention.kind": {"softmax"},
    },
    "counts": _BOTH | {"n_layers": {1}, "position": {"none"}, "attention.kind": {"softmax", "linear"}},
}


def fast_paths(config: ModelConfig) -> frozenset[FastPath]:
    """The fast forwards that understand all options of a model."""
    return frozenset(path for path, options in UNDERSTOOD.items() if _understands(options, config))


def _understands(options: Options, section: Config, prefix: str = "") -> bool:
    """Is every field of a section listed with its value or, if it is not listed, at its default?"""
    for field, info in type(section).model_fields.items():
        name, value = prefix + field, getattr(section, field)
        if name in options:
            understood = any(isinstance(value, v) if isinstance(v, type) else value == v for v in options[name])
        elif isinstance(value, Config) and any(listed.startswith(f"{name}.") for listed in options):
            understood = _understands(options, value, f"{name}.")
        else:
            understood = bool(value == info.get_default(call_default_factory=True))
        if not understood:
            return False
    return True


def is_recall_network(config: ModelConfig) -> bool:
    """Is it the network of Nichani et al. 2024: factored heads without a residual path, and relu units on them?"""
    attention, units = config.attention, config.feed_forward
    heads = attention.kq == attention.ov == "factored" and not attention.residual
    return (
        heads
        and config.has_feed_forward(0)
        and (units.kind, units.reads, units.residual) == ("relu", "attention", True)
    )
