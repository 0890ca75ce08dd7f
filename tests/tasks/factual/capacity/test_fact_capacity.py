"""The experiment fact_capacity: the largest table that a model learns."""

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import toytf
from tasks.factual.capacity.config import FactCapacityConfig
from tasks.factual.capacity.experiment import FactCapacity, FactCapacityCase
from tasks.factual.trainings import Sizes, TableSize, Trial, trained_accuracies
from tests.tasks.factual.small_trainings import CHANGES, SMALL, values
from toytf import theory
from toytf.memory.search import Bracket

if TYPE_CHECKING:
    from conftest import EndsTheSame, Refused

TINY: dict[str, Any] = {
    "experiment": "fact_capacity",
    "dimensions": [4, 6, 8],
    "mixes": [[1, 2], [2, 0]],
    "n_heads": 2,
    "n_answers": 2,
    "resolution": 0.5,
    "seeds": [0, 1],
    **SMALL,
}


def capacity_study(**changes: Any) -> FactCapacity:
    return FactCapacity(FactCapacityConfig.model_validate({**TINY, **changes}))


def named(case: FactCapacityCase) -> str:
    return f"d{case.d}_a{case.alpha:g}_b{case.beta:g}"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    return toytf.run(TINY, out=tmp_path_factory.mktemp("tiny") / "run")


@pytest.fixture(scope="module")
def hopeless(tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    """One step learns nothing."""
    changes = {"steps": 1, "dimensions": [4, 8], "mixes": [[1, 2]]}
    return toytf.run({**TINY, **changes}, out=tmp_path_factory.mktemp("hopeless") / "run")


# Sizes


def test_a_mix_says_what_a_model_has_of_attention_and_hidden_units() -> None:
    study = capacity_study(n_heads=8, dimensions=[32])
    sizes = study.sizes(FactCapacityCase(32, 1.0, 2.0))
    assert sizes == Sizes(32, 8, 4, 64)
    assert sizes.n_parameters == 4 * 32 * 32 + 2 * 64 * 32
    assert study.sizes(FactCapacityCase(45, 0.25, 0.5)) == Sizes(45, 8, 1, 22)  # rounded down
    assert (
        study.sizes(FactCapacityCase(16, 2.0, 0.0)).n_parameters
        == study.sizes(FactCapacityCase(16, 1.0, 2.0)).n_parameters
    )
    assert capacity_study(n_heads=4, dimensions=[32]).sizes(FactCapacityCase(32, 1.0, 2.0)) == Sizes(32, 4, 8, 64)
    assert study.label(FactCapacityCase(32, 1.0, 2.0)) == "fact_capacity/d32_a1_b2"
    assert study.label(FactCapacityCase(16, 2.0, 0.0)) == "fact_capacity/d16_a2_b0"


def test_tables_grow_by_their_rule() -> None:
    assert capacity_study(n_answers=None).table_size(12) == TableSize(12, 12, 8)
    assert capacity_study(n_answers=None, table="square").table_size(12) == TableSize(12, 3, 8)
    assert capacity_study(n_answers=None, table="distinct").table_size(12) == TableSize(12, 12, 12)
    assert TableSize(12, 3, 8).n_facts == 36


# The search


def test_a_search_reports_a_table_that_is_learned_and_one_that_is_not() -> None:
    study, case = capacity_study(), FactCapacityCase(8, 1.0, 2.0)
    bracket, n_trainings = study.search(case, [0])[0]
    assert bracket.infeasible is not None
    for S, learned in ((bracket.feasible, True), (bracket.infeasible, False)):
        (accuracies,) = trained_accuracies(study.config, [Trial(study.sizes(case), study.table_size(S), 0)])
        assert (max(accuracies) >= study.config.goal) is learned
    assert n_trainings >= 2 * study.config.initializations


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[FactCapacityCase, list[int]]]:
    """The S that a study asks about, case by case, if just those in `stored` are learned."""

    def ask(stored: Collection[int], **changes: Any) -> dict[FactCapacityCase, list[int]]:
        questions: list[int] = []

        def answer(config: FactCapacityConfig, trials: Sequence[Trial]) -> list[list[float]]:
            questions.extend(trial.table.S for trial in trials)
            return [[float(trial.table.S in stored)] for trial in trials]

        monkeypatch.setattr("tasks.factual.capacity.experiment.trained_accuracies", answer)
        study, found = capacity_study(**changes), {}
        for case in study.cases():
            questions.clear()
            study.search(case, [0])
            found[case] = [*questions]
        return found

    return ask


def test_all_models_are_asked_the_same(asked: Callable[..., dict[FactCapacityCase, list[int]]]) -> None:
    """Where a search begins and which tables it tries depends on what was stored, not on what is expected."""
    for stored in (range(14), range(60), [8, 9, 11], []):
        questions = [*asked(stored).values()]
        assert len(questions) == 6
        assert all(of_case == questions[0] for of_case in questions)
        assert questions[0][0] == 8


SEARCH_CHANGES = {"start": 5, "largest": 20, "resolution": 0.05, "scan": 4}


@pytest.mark.parametrize("field", SEARCH_CHANGES)
def test_every_field_of_the_search_changes_what_is_asked(
    field: str, asked: Callable[..., dict[FactCapacityCase, list[int]]]
) -> None:
    assert asked(range(14), **{field: SEARCH_CHANGES[field]}) != asked(range(14))


def test_a_search_is_the_same_for_a_seed_alone_and_among_others() -> None:
    study, case = capacity_study(), FactCapacityCase(6, 1.0, 2.0)
    assert study.search(case, [0, 1]) == {**study.search(case, [0]), **study.search(case, [1])}


def test_every_capacity_has_its_bracket_and_facts_per_parameter(tiny: toytf.Run) -> None:
    study, seen = FactCapacity(tiny.config), 0
    for row in map(json.loads, tiny.metrics_file.read_text().splitlines()):
        for case in study.cases():
            name = f"capacity/{named(case)}"
            if name not in row:
                continue
            seen += 1
            low, high = row[f"{name}/feasible"], row[f"{name}/not_found"]
            assert low != high  # success may come and go: either may be the larger one
            assert row[name] == (low + high) / 2
            n_parameters = study.sizes(case).n_parameters
            assert row[f"facts_per_parameter/{named(case)}"] == row[name] / n_parameters
            bits = theory.bits_to_store(round(row[name]), 2, error=1 - 0.8)
            assert row[f"bits_per_parameter/{named(case)}"] == bits / n_parameters
            assert row[f"trainings/{named(case)}"] >= 2 * 2  # two initialisations, at least two tables
    assert seen == 12


def test_the_power_and_the_gain_are_those_of_the_capacities(tiny: toytf.Run) -> None:
    summary, study = tiny.summary, FactCapacity(tiny.config)
    assert {f"parameter_exponent/{label}" for label in ("all", "feed_forward", "a1_b2", "a2_b0")} <= set(summary)
    assert summary["parameter_exponent/feed_forward"] == summary["parameter_exponent/a1_b2"]  # the only such mix
    assert summary["theory/parameter_exponent/all"] == 1
    assert summary["parameter_exponent/all/error"] > 0
    sizes = {named(case): study.sizes(case).n_parameters for case in study.cases()}
    for _, row in tiny.seeds.iterrows():
        facts = [row[f"capacity/{name}"] for name in sizes]
        slope = np.polyfit(np.log([*sizes.values()]), np.log(facts), 1)[0]
        assert row["parameter_exponent/all"] == pytest.approx(slope)
        gains = [row[f"facts_per_parameter/d{d}_a1_b2"] / row[f"facts_per_parameter/d{d}_a2_b0"] for d in (4, 6, 8)]
        assert [row[f"feed_forward_gain/d{d}"] for d in (4, 6, 8)] == pytest.approx(gains)
        assert row["feed_forward_gain/all"] == pytest.approx(np.prod(gains) ** (1 / 3))  # their geometric mean


def test_the_gain_compares_models_of_as_many_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """α = 1, β = 2 and α = 2, β = 0 have 8 d² parameters; models with 12 d² or 16 d² are left out unless alone."""

    def search(study: FactCapacity, case: FactCapacityCase, seeds: list[int]) -> dict[int, tuple[Bracket, int]]:
        stored = {0.0: 3, 2.0: 5, 4.0: 9}[case.beta]
        return {seed: (Bracket(stored, None, float(stored)), 1) for seed in seeds}

    monkeypatch.setattr(FactCapacity, "search", search)
    all_three = toytf.run({**TINY, "mixes": [[1, 2], [1, 4], [2, 0]]}, out=tmp_path / "all")
    assert all_three.summary["feed_forward_gain/d8"] == pytest.approx(25 / 9)
    more_heads = toytf.run({**TINY, "mixes": [[1, 2], [2, 0], [4, 0]]}, out=tmp_path / "heads")
    assert more_heads.summary["feed_forward_gain/d8"] == pytest.approx(25 / 9)
    unequal = toytf.run({**TINY, "mixes": [[1, 4], [2, 0]]}, out=tmp_path / "unequal")
    assert unequal.summary["feed_forward_gain/d8"] == pytest.approx(81 / 12 / (9 / 8))  # facts per parameter


def test_the_line_of_the_paper_is_beside_the_tables_it_is_for(tmp_path: Path) -> None:
    small = {"steps": 1, "check_sequences": 8, "dimensions": [4]}
    run = toytf.run({**TINY, **small, "n_answers": None}, out=tmp_path / "run")
    assert run.summary["theory/capacity/d4_a1_b2"] == pytest.approx(0.15 * 128)
    assert "theory/capacity/d4_a2_b0" not in run.summary  # it is for models with hidden units
    square = toytf.run({**TINY, **small, "n_answers": None, "table": "square"}, out=tmp_path / "square")
    assert not any(name.startswith("theory/capacity") for name in square.summary)


def test_there_is_no_capacity_if_the_smallest_table_fails(hopeless: toytf.Run) -> None:
    assert hopeless.finished
    for case in ("d4_a1_b2", "d8_a1_b2"):
        assert hopeless.summary[f"failed/{case}"] == 1
        assert hopeless.summary[f"capacity/{case}/not_found"] == 4
    assert {name.partition("/")[0] for name in hopeless.history if "/" in name} == {"capacity", "failed", "trainings"}
    assert not {"capacity/d4_a1_b2", "capacity/d8_a1_b2"} & set(hopeless.history)


def test_a_case_that_fails_in_one_seed_is_marked_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the mean over seeds says how often it fails; what has a capacity in every seed is not marked."""

    def search(study: FactCapacity, case: FactCapacityCase, seeds: list[int]) -> dict[int, tuple[Bracket, int]]:
        failed = {seed: (case.d, seed) == (4, 1) for seed in seeds}
        return {seed: (Bracket(1, 2, 1.5, 2) if failed[seed] else Bracket(2, 3, 2.5, 3), 4) for seed in seeds}

    monkeypatch.setattr(FactCapacity, "search", search)
    run = toytf.run({**TINY, "dimensions": [4, 8]}, out=tmp_path / "run")
    assert run.summary["failed/d4_a1_b2"] == 0.5
    assert run.seeds["failed/d4_a1_b2"].to_dict() == {0: 0, 1: 1}
    assert "failed/d8_a1_b2" not in run.history
    assert "capacity/d4_a1_b2" not in run.summary
    assert run.summary["capacity/d8_a1_b2"] == (4 + 9) / 2
    assert run.history["feed_forward_gain/d4"].notna().sum() == 1  # of seed 0 only, so the summary has none
    assert {name for name in run.summary if name.startswith("feed_forward_gain")} == {
        f"feed_forward_gain/{part}" for part in ("d8", "d8/std", "all", "all/std")
    }
    figure = (run.directory / "figures" / "facts_by_parameters.json").read_text()
    assert "no capacity found in every seed: d4_a1_b2, d4_a2_b0" in figure


# The run


def test_the_figure_is_drawn_if_there_is_a_capacity(tiny: toytf.Run, hopeless: toytf.Run) -> None:
    (path,) = (tiny.directory / "figures").glob("*.json")
    assert path.stem == "facts_by_parameters"
    for label in ("α = 1, β = 2", "α = 2, β = 0 (attention only)", "0.15 facts per parameter"):
        assert label in str(json.loads(path.read_text())["data"])
    assert [*(hopeless.directory / "figures").glob("*.json")] == []


def test_a_resumed_run_ends_the_same(tiny: toytf.Run, ends_the_same: "EndsTheSame") -> None:
    for rows in (3, len(tiny.history) - 1):
        ends_the_same(tiny, rows)


CAPACITY_CHANGES = {"dimensions": [8], "mixes": [[1, 0]], "table": "square", "n_answers": 8}


def test_the_tables_of_changes_have_every_field() -> None:
    others = {"experiment", "device", "threads", "logging"}
    assert {*CHANGES, *CAPACITY_CHANGES, *SEARCH_CHANGES, "n_heads"} == set(FactCapacityConfig.model_fields) - others


SEARCHED = {**TINY, "dimensions": [4], "mixes": [[1, 2]], "seeds": [0], "resolution": 0.01}
"""To the last table."""


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    return toytf.run(SEARCHED, out=tmp_path_factory.mktemp("searched") / "run")


@pytest.mark.parametrize("field", CAPACITY_CHANGES)
def test_every_field_changes_what_is_found(field: str, searched: toytf.Run, tmp_path: Path) -> None:
    changed = toytf.run({**SEARCHED, field: CAPACITY_CHANGES[field]}, out=tmp_path / "run")
    assert values(changed, "capacity") != values(searched, "capacity")


MISTAKES = [
    ("mixes=[[0.25,1]]", ["α = 0.25 at d = 16", "8 heads", "⌊0.25 · 16 / 8⌋ = 0", "d ≥ 32"]),
    ("mixes=[[1,0.01]]", ["β = 0.01 at d = 16 leaves no hidden unit", "d ≥ 100"]),
    ("mixes=[[1,2],[1,2]]", ["mixes: [1.0, 2.0] is listed twice"]),
    ("mixes=[[0,2]]", ["mixes.0.0 = 0", "greater than 0"]),
    ("dimensions=[16,16]", ["dimensions: 16 is listed twice"]),
    ("learning_rates=[0.1,0.1]", ["learning_rates: 0.1 is listed twice"]),
    ("learning_rates=[]", ["learning_rates", "at least 1"]),
    ("seq_len=2", ["seq_len = 2", "greater than or equal to 3"]),
    ("goal=0.125", ["goal = 0.125 is reached by knowing the relation alone", "1/8"]),
    ("start=1", ["start = 1", "greater than or equal to 2"]),
    ("start=600", ["start = 600 is above largest = 512"]),
    ("scan=0", ["scan = 0", "greater than 0"]),
    ("initializations=0", ["initializations = 0", "greater than 0"]),
    ("prune_at=0", ["prune_at = 0", "greater than 0"]),
    ("goal=1.5", ["goal = 1.5", "less than or equal to 1"]),
    ("n_answers=1", ["n_answers = 1", "greater than or equal to 2"]),
    ("mode=grid", ['"mode"', "accepted"]),
]


@pytest.mark.parametrize(("override", "says"), MISTAKES, ids=[mistake[0] for mistake in MISTAKES])
def test_a_mistake_is_answered_with_one_line(override: str, says: list[str], refused: "Refused") -> None:
    refused("experiment: fact_capacity\ndimensions: [16]\n", [override], says)


def test_distinct_answers_leave_no_number_of_answers_to_choose(refused: "Refused") -> None:
    content = "experiment: fact_capacity\ndimensions: [16]\ntable: distinct\nn_answers: 4\n"
    refused(content, [], ["n_answers = 4 has no effect with table: distinct"])
