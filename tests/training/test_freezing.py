"""Which parameters train at which step."""

import pytest

from toytf.errors import UserError
from toytf.models.config import ModelConfig
from toytf.training.freezing import trainable_at

NAMES = (
    "embed.W_E",
    "pos_embed.W_pos",
    "blocks.0.attn.W_K",
    "blocks.0.attn.W_O",
    "blocks.1.attn.W_K",
    "blocks.1.attn.W_O",
    "unembed.W_U",
)


def trained(step: int = 0, **fields: object) -> set[str]:
    return trainable_at(ModelConfig.model_validate(fields), NAMES, step)


def test_everything_trains_by_default():
    assert trained() == set(NAMES)


@pytest.mark.parametrize(
    ("patterns", "frozen"),
    [
        (["embed.W_E"], {"embed.W_E"}),
        (["blocks.0.*"], {"blocks.0.attn.W_K", "blocks.0.attn.W_O"}),
        (["*embed.*"], {"embed.W_E", "pos_embed.W_pos", "unembed.W_U"}),
        (["blocks.?.attn.W_K"], {"blocks.0.attn.W_K", "blocks.1.attn.W_K"}),
        (["blocks.[1]*", "embed.W_E"], {"blocks.1.attn.W_K", "blocks.1.attn.W_O", "embed.W_E"}),
        (["*"], set(NAMES)),
    ],
)
def test_patterns_freeze_what_they_match(patterns: list[str], frozen: set[str]):
    assert trained(freeze=patterns) == set(NAMES) - frozen


def test_frozen_parameters_train_from_their_step_on():
    schedule = {"freeze": ["*"], "unfreeze": {10: ["blocks.1.attn.W_O"], 20: ["blocks.?.attn.W_K"]}}
    assert trained(0, **schedule) == set()
    assert trained(9, **schedule) == set()
    assert trained(10, **schedule) == {"blocks.1.attn.W_O"}
    assert trained(19, **schedule) == {"blocks.1.attn.W_O"}
    assert trained(20, **schedule) == {"blocks.1.attn.W_O", "blocks.0.attn.W_K", "blocks.1.attn.W_K"}


def test_the_order_of_the_schedule_does_not_matter():
    forward = {"freeze": ["*"], "unfreeze": {10: ["embed.W_E"], 20: ["unembed.W_U"]}}
    backward = {"freeze": ["*"], "unfreeze": {20: ["unembed.W_U"], 10: ["embed.W_E"]}}
    assert all(trained(step, **forward) == trained(step, **backward) for step in (0, 10, 15, 20))


def test_an_unknown_pattern_is_the_users_error_with_the_nearest_name():
    with pytest.raises(UserError, match=r'model\.freeze: "embed\.W_e" .*did you mean "embed\.W_E"\?'):
        trained(freeze=["embed.W_e"])
    with pytest.raises(UserError, match=r'model\.unfreeze\.5: "blocks\.0\.attn\.WK" .*"blocks\.0\.attn\.W_K"'):
        trained(freeze=["*"], unfreeze={5: ["blocks.0.attn.WK"]})


def test_a_mistake_in_the_schedule_shows_before_its_step():
    with pytest.raises(UserError, match=r"model\.unfreeze\.1000"):
        trained(0, freeze=["*"], unfreeze={1000: ["nothing"]})


def test_only_what_is_frozen_can_be_unfrozen():
    with pytest.raises(UserError, match=r"model\.unfreeze\.5: unembed\.W_U is not frozen by model\.freeze"):
        trained(freeze=["embed.W_E"], unfreeze={5: ["unembed.W_U"]})


def test_the_users_errors_exit_with_two():
    assert UserError.exit_code == 2
