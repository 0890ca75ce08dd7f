"""One training after another until a model has learned a table, and the sizes of both."""

import itertools
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import toytf
from tasks.factual.capacity.config import FactCapacityConfig
from tasks.factual.config import FactualConfig
from tasks.factual.trainings import Sizes, TableSize, Trial, initialization_seed, trained_accuracies
from tests.tasks.factual.small_trainings import SMALL
from toytf.build import build_model
from toytf.claims import load_claim
from toytf.config.compose import read_config
from toytf.config.shipped import claim_files, config_files, sweep_files
from toytf.errors import Interrupted
from toytf.models.config import ModelConfig
from toytf.stopping import stop_on_interrupt
from toytf.sweeps.plan import plan_sweep
from toytf.training.config import AdamWConfig, TrainConfig
from toytf.training.driver import Trainer
from toytf.training.learner import Learner

FACTUAL_MODEL = Path(__file__).parents[3] / "configs" / "models" / "factual.yaml"


EASY = Trial(Sizes(8, 2, 4, 16), TableSize(2, 3, 2), 0)
"""Six facts for 512 parameters: a twelfth of the line."""


def trainings(**changes: Any) -> FactCapacityConfig:
    return FactCapacityConfig.model_validate({"experiment": "fact_capacity", "dimensions": [8], **SMALL, **changes})


def test_the_model_is_the_one_of_the_configs() -> None:
    content = read_config(FACTUAL_MODEL)["model"]
    assert Sizes(32, 8, 8, 64).model == ModelConfig.model_validate({**content, "d_model": 32})
    without = Sizes(32, 8, 8, 0).model
    assert without.feed_forward.kind == "none"
    assert without.attention == Sizes(32, 8, 8, 64).model.attention


def test_a_training_ends_at_the_goal_and_is_the_same_again() -> None:
    (found,) = trained_accuracies(trainings(steps=200, initializations=1), [EASY])
    assert len(found) == 1
    assert found[0] >= 0.8
    again = trained_accuracies(trainings(steps=4000, initializations=1), [EASY])
    assert again == [found]  # the goal came before the limit


def test_learning_rates_are_tried_in_order_until_one_reaches_the_goal() -> None:
    (slow_first,) = trained_accuracies(trainings(learning_rates=[1e-9, 5e-2, 1e-8], steps=200), [EASY])
    assert len(slow_first) == 4  # two initialisations at each of two rates
    assert max(slow_first[:2]) < 0.8 <= max(slow_first[2:])
    (all_slow,) = trained_accuracies(trainings(learning_rates=[1e-9, 1e-8], steps=20), [EASY])
    assert len(all_slow) == 4
    assert max(all_slow) < 0.8


def test_a_training_without_finite_values_ends_and_has_not_learned() -> None:
    (found,) = trained_accuracies(trainings(learning_rates=[1e30], steps=10**9), [EASY])
    assert max(found) < 0.8


def test_seeds_that_are_trained_together_find_what_each_finds_alone() -> None:
    """Also if they reach the goal after unlike numbers of steps, or at unlike learning rates."""
    config = trainings(learning_rates=[2e-3, 5e-2], steps=150, check_every=10, check_sequences=256, goal=0.95)
    trials = [Trial(EASY.sizes, EASY.table, seed) for seed in range(4)]
    together = trained_accuracies(config, trials)
    assert together == [trained_accuracies(config, [trial])[0] for trial in trials]
    assert len({*map(tuple, together)}) > 1


def test_the_optimiser_is_that_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    made = started(monkeypatch)
    trained_accuracies(trainings(learning_rates=[3e-3]), [EASY])
    optimizer = made[0].config.optimizer
    assert isinstance(optimizer, AdamWConfig)
    assert optimizer == AdamWConfig(lr=3e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)


def test_every_training_on_facts_that_ships_has_the_optimiser_of_the_paper() -> None:
    """The same as in the studies above, but for the learning rate, so that one can be compared with another."""
    configs = {name: toytf.load_config(path) for name, path in config_files().items()}
    configs |= {name: run.config for name in sweep_files() for run in plan_sweep(name).runs[:1]}
    for claim, path in claim_files().items():
        configs |= {f"{claim}, {run}": config for run, config in load_claim(path)[1].items()}
    of_facts: dict[str, Any] = {
        name: config for name, config in configs.items() if isinstance(getattr(config, "task", None), FactualConfig)
    }
    named = {"factual/quick", "factual/countries", "limits/factual_mlp", "sweeps/facts", "factual/transplant, wide"}
    assert named <= set(of_facts)
    paper = AdamWConfig(betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
    optimisers = {name: config.train.optimizer.model_copy(update={"lr": paper.lr}) for name, config in of_facts.items()}
    assert {name for name, optimiser in optimisers.items() if optimiser != paper} == set()


# Initialisations

HARD = Trial(Sizes(4, 2, 2, 8), TableSize(6, 6, 2), 0)
"""36 facts for 128 parameters: twice the line."""


def started(monkeypatch: pytest.MonkeyPatch) -> list[Trainer]:
    """The trainings that are begun from now on, those that go on with fewer members among them."""
    made: list[Trainer] = []
    begin = Trainer.__init__

    def noted(trainer: Trainer, learner: Learner, config: TrainConfig) -> None:
        begin(trainer, learner, config)
        made.append(trainer)

    monkeypatch.setattr(Trainer, "__init__", noted)
    return made


def test_the_first_initialisation_is_the_model_of_the_seed_and_the_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = started(monkeypatch)
    trained_accuracies(trainings(initializations=3, steps=1, learning_rates=[1e-30], goal=1.0), [HARD])
    members = made[0].learner.members
    assert [member.seed for member in members] == [initialization_seed(0, number) for number in range(3)]
    assert members[0].seed == HARD.seed
    assert len({member.seed for member in members}) == 3
    assert initialization_seed(1, 2) != initialization_seed(2, 1)
    assert len({id(member.task) for member in members}) == 1  # one table
    drawn = build_model(HARD.sizes.model, members[0].task, HARD.seed)
    for name, weight in drawn.named_parameters():
        if not name.endswith("b_in"):  # biases begin at 0
            same = [torch.equal(dict(member.model.named_parameters())[name], weight) for member in members]
            assert same == [True, False, False]


def test_every_initialisation_has_sequences_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = started(monkeypatch)
    trained_accuracies(trainings(initializations=3, steps=1), [HARD])
    batches = [member.sample(0).tokens for member in made[0].learner.members]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(batches, 2))


def test_initialisations_differ_and_do_not_disturb_each_other() -> None:
    config = {"steps": 60, "check_every": 20, "prune_at": 1.0, "goal": 1.0, "check_sequences": 512}
    (one,) = trained_accuracies(trainings(initializations=1, **config), [HARD])
    (three,) = trained_accuracies(trainings(initializations=3, **config), [HARD])
    assert three[:1] == one
    assert len(set(three)) == 3


def test_when_one_has_learned_a_table_the_others_of_that_table_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made = started(monkeypatch)
    trials = [EASY, Trial(EASY.sizes, EASY.table, 1)]
    config = trainings(initializations=3, steps=300, goal=0.95, check_every=1, check_sequences=512, prune_at=1.0)
    found = trained_accuracies(config, trials)
    assert all(max(of_table) >= 0.95 for of_table in found)
    assert any(min(of_table) < 0.95 for of_table in found)  # those that were dropped
    of_tables = [{member.task for member in trainer.learner.members} for trainer in made]
    members = [len(trainer.learner.members) for trainer in made]
    assert [len(tables) * 3 for tables in of_tables] == members == [6, 3]  # all three of a table, or none


@pytest.mark.parametrize("stacked", [True, False])
def test_only_the_best_goes_on_after_the_share_of_the_steps(stacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not stacked:
        monkeypatch.setattr("tasks.factual.trainings.worth_stacking", lambda *_: 1)
    config = {"initializations": 4, "check_every": 10, "goal": 1.0, "check_sequences": 1024}
    (early,) = trained_accuracies(trainings(steps=30, prune_at=1.0, **config), [HARD])
    (late,) = trained_accuracies(trainings(steps=120, prune_at=1.0, **config), [HARD])
    (pruned,) = trained_accuracies(trainings(steps=120, prune_at=0.25, **config), [HARD])
    best = early.index(max(early))
    assert pruned == [late[i] if i == best else early[i] for i in range(4)]
    assert late != pruned


def test_a_training_can_be_stopped_between_two_looks() -> None:
    with stop_on_interrupt(), pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGINT)
        trained_accuracies(trainings(steps=10**9, goal=1.0, learning_rates=[1e-9]), [EASY])
