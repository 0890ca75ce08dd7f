"""One training after another until a model has learned a table, and the sizes of both."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tasks.factual.capacity.config import FactTrainingsConfig
from tasks.factual.trainings import Sizes, TableSize, Trial, trained_accuracies
from tests.tasks.factual.small_trainings import SMALL
from toytf.config.compose import read_config
from toytf.errors import Interrupted
from toytf.models.config import ModelConfig
from toytf.stopping import stop_on_interrupt

FACTUAL_MODEL = Path(__file__).parents[3] / "configs" / "models" / "factual.yaml"


EASY = Trial(Sizes(8, 2, 4, 16), TableSize(2, 3, 2), 0)
"""Six facts for 512 parameters: a twelfth of the line."""


def trainings(**changes: Any) -> FactTrainingsConfig:
    return FactTrainingsConfig.model_validate({"experiment": "fact_capacity", **SMALL, **changes})


def test_the_model_is_the_one_of_the_configs() -> None:
    content = read_config(FACTUAL_MODEL)["model"]
    assert Sizes(32, 8, 8, 64).model == ModelConfig.model_validate({**content, "d_model": 32})
    without = Sizes(32, 8, 8, 0).model
    assert without.feed_forward.kind == "none"
    assert without.attention == Sizes(32, 8, 8, 64).model.attention


def test_a_training_ends_at_the_goal_and_is_the_same_again() -> None:
    (found,) = trained_accuracies(trainings(steps=200), [EASY])
    assert len(found) == 1
    assert found[0] >= 0.8
    assert trained_accuracies(trainings(steps=4000), [EASY]) == [found]  # the goal came before the limit


def test_learning_rates_are_tried_in_order_until_one_reaches_the_goal() -> None:
    (slow_first,) = trained_accuracies(trainings(learning_rates=[1e-9, 5e-2, 1e-8], steps=200), [EASY])
    assert len(slow_first) == 2
    assert slow_first[0] < 0.8 <= slow_first[1]
    (all_slow,) = trained_accuracies(trainings(learning_rates=[1e-9, 1e-8], steps=20), [EASY])
    assert len(all_slow) == 2
    assert max(all_slow) < 0.8


def test_a_training_without_finite_values_ends_and_has_not_learned() -> None:
    (found,) = trained_accuracies(trainings(learning_rates=[1e30], steps=10**9), [EASY])
    assert found[0] < 0.8


def test_seeds_that_are_trained_together_find_what_each_finds_alone() -> None:
    """Also if they reach the goal after unlike numbers of steps, or at unlike learning rates."""
    config = trainings(learning_rates=[2e-3, 5e-2], steps=150, check_every=10, check_sequences=256, goal=0.95)
    trials = [Trial(EASY.sizes, EASY.table, seed) for seed in range(4)]
    together = trained_accuracies(config, trials)
    assert together == [trained_accuracies(config, [trial])[0] for trial in trials]
    assert len({*map(tuple, together)}) > 1


def test_a_training_can_be_stopped_between_two_looks() -> None:
    with stop_on_interrupt(), pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGINT)
        trained_accuracies(trainings(steps=10**9, goal=1.0, learning_rates=[1e-9]), [EASY])
