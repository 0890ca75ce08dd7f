"""From the rows of a run to its summary, on histories made by hand."""

import math

import pandas as pd
import pytest

from toytf.measurement import Group, Quantity, flat
from toytf.runs import summary
from toytf.task import EVAL

LOSS, ACCURACY = "eval/in_context_loss", "eval/in_context_accuracy"
RECALL = Group("recall", "Recall", timed="onset", variants=("head",))
QUANTITIES = [
    *(
        Quantity(EVAL, at={"role": "in_context", "quantity": quantity, **on})
        for quantity in ("loss", "accuracy")
        for on in ({}, {"on": "clean"})
    ),
    Quantity(RECALL, "W_OV2"),
    *(Quantity(Group(group, group), "a") for group in ("noise", "truncated", "evaluated")),
]
COLUMNS = {flat(quantity): quantity for quantity in QUANTITIES}


def by_seed(table: pd.DataFrame) -> pd.DataFrame:
    return summary.by_seed(table, COLUMNS)


def summarise(table: pd.DataFrame) -> dict[str, float]:
    return summary.summarise(table, COLUMNS)


def history(ideals: dict[str, float], *seeds: dict[str, list[float]], every: int = 10) -> pd.DataFrame:
    """Rows of seeds 0, 1, … at the steps 0, 10, …; ideal values stand in the first and the last, as in a run."""
    rows = []
    for seed, metrics in enumerate(seeds):
        n = len(next(iter(metrics.values())))
        for i in range(n):
            row = {"seed": seed, "step": every * i} | {name: values[i] for name, values in metrics.items()}
            if i in (0, n - 1):
                row |= {f"ideal/{name}": value for name, value in ideals.items()}
            rows.append(row)
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("name", "ideal", "values", "step"),
    [
        (LOSS, 0.0, [4.0, 3.0, 2.1, 1.9, 0.5], 30),
        (LOSS, 0.0, [4.0, 3.0, 2.0, 1.9, 0.5], 20),  # half of the way is there
        (LOSS, 1.0, [4.0, 3.0, 2.6, 2.4, 2.2], 30),  # to the ideal, not to zero
        (ACCURACY, 1.0, [0.0, 0.2, 0.4, 0.6, 0.4], 30),  # the first time, even if it is lost again
        (ACCURACY, 0.5, [0.1, 0.2, 0.4, 0.45, 0.5], 20),
        (ACCURACY, 0.5, [0.1, 0.9, 0.9, 0.9, 0.9], 10),  # beyond the ideal
    ],
)
def test_halfway_is_the_first_evaluation_halfway_to_the_ideal(
    name: str, ideal: float, values: list[float], step: int
) -> None:
    table = history({name: ideal}, {name: values})
    assert by_seed(table)[f"halfway/{name}"].tolist() == [step]
    assert summarise(table)[f"halfway/{name}"] == step


@pytest.mark.parametrize(
    ("name", "ideal", "values"),
    [
        (LOSS, 0.0, [4.0, 3.0, 2.5, 2.1, 2.1]),  # never
        (LOSS, 0.0, [4.0, 5.0, 9.0, 9.0, 9.0]),  # away from it
        (ACCURACY, 1.0, [0.2, 0.2, 0.2, 0.2, 0.2]),
        (LOSS, 2.0, [2.0, 1.0, 2.0, 3.0, 2.0]),  # there from the start: there is no way to go
        (ACCURACY, 1.0, [1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_what_is_never_halfway_has_no_halfway_step(name: str, ideal: float, values: list[float]) -> None:
    table = history({name: ideal}, {name: values})
    assert math.isnan(by_seed(table)[f"halfway/{name}"].item())
    assert f"halfway/{name}" not in summarise(table)


def test_each_seed_is_measured_from_its_own_start() -> None:
    table = history({LOSS: 0.0}, {LOSS: [4.0, 2.5, 1.9]}, {LOSS: [6.0, 2.9, 2.8]})
    assert by_seed(table)[f"halfway/{LOSS}"].tolist() == [20, 10]
    found = summarise(table)
    assert found[f"halfway/{LOSS}"] == 15
    assert found[f"halfway/{LOSS}/std"] == pytest.approx(50**0.5)


def test_the_summary_leaves_out_only_a_step_that_one_seed_lacks() -> None:
    table = history({LOSS: 0.0}, {LOSS: [4.0, 1.0, 1.0]}, {LOSS: [4.0, 4.0, 4.0]})
    steps = by_seed(table)[f"halfway/{LOSS}"]
    assert steps[0] == 10
    assert math.isnan(steps[1])
    assert f"halfway/{LOSS}" not in summarise(table)
    assert summarise(table)[LOSS] == 2.5


def test_tests_have_halfway_steps_and_other_groups_have_none() -> None:
    clean = "eval@clean/in_context_accuracy"
    others = ("recall/W_OV2", "noise/a", "evaluated/a", "loss")
    ideals = {clean: 1.0, **dict.fromkeys(others, 1.0)}
    table = history(ideals, {name: [0.0, 0.4, 0.8] for name in (clean, *others)})
    found = {name for name in by_seed(table).columns if name.startswith("halfway/")}
    assert found == {"halfway/eval@clean/in_context_accuracy"}
    assert by_seed(table)["halfway/eval@clean/in_context_accuracy"].item() == 20


def test_there_is_no_halfway_without_an_ideal_or_a_step() -> None:
    assert not any("halfway" in name for name in by_seed(history({}, {LOSS: [4.0, 0.0]})).columns)
    assert not any("halfway" in name for name in by_seed(history({LOSS: 0.0}, {LOSS: [4.0]})).columns)


@pytest.mark.parametrize(
    ("recalls", "step"),
    [
        ([0.2, 0.3, 0.31, 0.9], 20),  # chance + 0.1 is not more than that
        ([0.4, 0.0, 0.4, 0.4], 20),  # two of five pairs by luck at step 0 are not learned
        ([0.4, 0.4, 0.4, 0.4], 10),
        ([0.0, 0.4, 0.0, 0.4], 30),
        ([0.0, 0.4, math.nan, 0.4], 10),
        ([0.0, 0.4, 0.4, 0.3], math.nan),
        ([0.4, math.nan, math.nan, math.nan], math.nan),
    ],
)
def test_the_onset_is_from_when_on_recall_stays_above_chance_by_a_tenth(recalls: list[float], step: float) -> None:
    table = history({}, {"recall/W_OV2": recalls})
    table["chance/recall/W_OV2"] = 0.2
    assert by_seed(table)["onset/recall/W_OV2"].tolist() == pytest.approx([step], nan_ok=True)


def test_what_was_measured_at_the_end_alone_is_in_the_summary() -> None:
    table = history({}, {"truncated/a": [math.nan, math.nan, 0.25]})
    assert summarise(table)["truncated/a"] == 0.25


def test_the_steps_of_a_variant_are_left_to_the_full_table() -> None:
    of_head = Quantity(RECALL, "W_OV2", {"head": 0})
    places = {
        name: step.group.place for name, (_, step) in summary.moments({**COLUMNS, flat(of_head): of_head}).items()
    }
    assert places["onset/recall/W_OV2"] == "first"
    assert places["onset/recall/W_OV2/head0"] == "full"
    assert places[f"halfway/{LOSS}"] == "full"
