"""A fast forward steps aside for every model option that it does not understand."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch

from toytf.config.sections import Config
from toytf.models import ToyTransformer, transformer
from toytf.models.config import AttentionConfig, ModelConfig
from toytf.models.counts import count_forward, counts_pay
from toytf.models.fast_options import fast_paths
from toytf.models.tables import fast_forward, table_forward, tables_pay
from toytf.models.transformer import Block, Hook
from toytf.randomness import generator

N, T = 7, 9
BAG = {"n_layers": 1, "position": "none"}
Louder = Callable[[dict[str, Any]], ToyTransformer]

# An option that somebody adds to config and model, without a thought of the fast forwards


class LouderAttentionConfig(AttentionConfig):
    gain: float = 1.0


class LouderConfig(ModelConfig):
    attention: LouderAttentionConfig = LouderAttentionConfig()
    gain: float = 1.0


class LouderBlock(Block):
    """Each gain multiplies the stream after the layer."""

    config: LouderConfig

    def forward(self, x: torch.Tensor, hook: Hook, first: int = 0) -> torch.Tensor:
        return self.config.gain * self.config.attention.gain * super().forward(x, hook, first)


@pytest.fixture
def louder(monkeypatch: pytest.MonkeyPatch) -> Louder:
    monkeypatch.setattr(transformer, "Block", LouderBlock)

    def build(fields: dict[str, Any]) -> ToyTransformer:
        config = LouderConfig.model_validate({"d_model": 24, **fields})
        return ToyTransformer(config, n_tokens=N, n_positions=T, n_outputs=N, generator=generator(0, "model"))

    return build


FORWARDS = pytest.mark.parametrize(
    ("fields", "last", "by_this"), [({}, None, table_forward), (BAG, 1, count_forward)], ids=["tables", "counts"]
)


def some_tokens() -> torch.Tensor:
    return torch.randint(N, (3, T), generator=generator(0, "tokens"))


@FORWARDS
@pytest.mark.parametrize("option", [{"gain": 2.0}, {"attention": {"gain": 2.0}}], ids=["model", "attention"])
def test_an_unlisted_option_takes_the_plain_forward(
    option: dict[str, Any], fields: dict[str, Any], last: int | None, by_this: Any, louder: Louder
):
    model, tokens = louder({**fields, **option}), some_tokens()
    assert not tables_pay(model) and not counts_pay(model, T)
    plain = model(tokens, last=last)
    assert torch.equal(fast_forward(model, tokens, last), plain)
    # It matters: this fast forward would have left the option out.
    assert (by_this(model, tokens) - plain).abs().max() > 0.1 * plain.abs().max()


@FORWARDS
def test_an_unlisted_option_at_its_default_keeps_the_fast_forward(
    fields: dict[str, Any], last: int | None, by_this: Any, louder: Louder
):
    model, tokens = louder(fields), some_tokens()
    assert torch.equal(fast_forward(model, tokens, last), by_this(model, tokens))
    torch.testing.assert_close(fast_forward(model, tokens, last), model(tokens, last=last), rtol=0, atol=1e-4)


# Other ways in which a config can grow


class Rotation(Config):
    base: float = 10_000.0


class GrownConfig(ModelConfig):
    norm: Literal["none", "layer", "rms"] = "none"
    rotation: Rotation | None = None
    capped: tuple[int, ...] = ()


class OptionWithoutDefault(ModelConfig):
    tied: bool


BOTH = {"tables", "counts"}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GrownConfig(**BAG), BOTH),
        (GrownConfig(**BAG, capped=()), BOTH),
        (GrownConfig(**BAG, capped=(0,)), set()),
        (GrownConfig(**BAG, norm="rms"), set()),
        (GrownConfig(**BAG, rotation=Rotation()), set()),
        (OptionWithoutDefault(**BAG, tied=False), set()),
        (ModelConfig(**BAG, attention=LouderAttentionConfig()), BOTH),
        (ModelConfig(**BAG, attention=LouderAttentionConfig(gain=2.0)), set()),
    ],
    ids=[
        "new options at their defaults",
        "the default, written out",
        "another value of a new option",
        "a new value of a known option",
        "a new section, itself at its defaults",
        "an option without a default",
        "a known section with a new option",
        "another value of this one",
    ],
)
def test_only_defaults_of_new_options_are_understood(config: ModelConfig, expected: set[str]):
    assert fast_paths(config) == expected
