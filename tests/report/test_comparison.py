"""Several runs beside each other, of rows that are written by hand."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import toytf
from tests.report.written import recall, written
from toytf.errors import UserError
from toytf.measurement import KINDS
from toytf.report.comparison import _distinct


def cells(comparison: toytf.Comparison) -> dict[str, dict[str, str]]:
    """By metric, its cells."""
    return {metric: row for _, metric, row in comparison.rows}


@pytest.fixture
def pair(tmp_path: Path, tiny_config: Path) -> list[toytf.Run]:
    """Both have W_OV2, with different chances; each has one more metric, and five seeds or one."""
    return [
        written(
            tmp_path / "first", tiny_config,
            {(0, 2): [recall(0.75, ideal=1.0, chance=0.2), recall(0.5, "W_KQ1", theory=0.25)]},
        ),
        written(
            tmp_path / "second", tiny_config,
            {(s, 2): [recall(s / 4, ideal=1.0, chance=0.1), recall(1.0, "W_KQ2")] for s in range(5)},
            seeds=[*range(5)], task__seq_len=9, train__optimizer__lr=0.5,
        ),
    ]  # fmt: skip


# The table


def test_every_run_is_a_column_and_every_main_metric_a_row(pair: list[toytf.Run]) -> None:
    compared = toytf.compare(pair)
    assert [(phrase, metric) for phrase, metric, _ in compared.rows] == [
        ("recall of W_KQ1", "recalled/W_KQ1"),
        ("recall of W_OV2", "recalled/W_OV2"),
        ("recall of W_KQ2", "recalled/W_KQ2"),
    ]
    assert compared.columns == ["first", "second", "ideal", "theory", "chance"]
    found = cells(compared)["recalled/W_OV2"]
    assert (found["first"], found["second"]) == ("0.750", "0.500 ± 0.395")  # √(5/32) over five seeds


def test_what_a_run_did_not_measure_is_a_dash(pair: list[toytf.Run]) -> None:
    found = cells(toytf.compare(pair))
    assert [found["recalled/W_KQ1"][name] for name in ("first", "second")] == ["0.500", "–"]
    assert [found["recalled/W_KQ2"][name] for name in ("first", "second")] == ["–", "1.000 ± 0.000"]
    assert [found["recalled/W_KQ2"][kind] for kind in KINDS] == ["–"] * 5


def test_references_that_differ_are_both_shown_and_equal_ones_once(pair: list[toytf.Run]) -> None:
    found = cells(toytf.compare(pair))
    assert (found["recalled/W_OV2"]["chance"], found["recalled/W_OV2"]["ideal"]) == ("0.200 / 0.100", "1.000")
    assert found["recalled/W_KQ1"]["theory"] == "0.250"  # of the one run that has it


def test_the_table_has_the_numbers_of_the_summaries(pair: list[toytf.Run]) -> None:
    table = toytf.compare(pair).table
    assert [*table] == ["first", "second", "second/std"]
    for run in pair:
        for metric in table.index:
            expected = run.summary.get(metric, float("nan"))
            assert table.loc[metric, run.name] == pytest.approx(expected, nan_ok=True)
    assert table.loc["recalled/W_OV2", "second/std"] == pytest.approx((5 / 32) ** 0.5)
    assert table["first"].isna().sum() == table["second"].isna().sum() == 1


def test_a_metric_that_is_main_in_one_run_is_shown_of_all_that_have_it(tmp_path: Path, tiny_config: Path) -> None:
    """Of thirteen rows one does not fit into the short table; beside a run with that row alone it is there."""
    many = {(0, 0): [recall(i / 20, f"m{i:02}") for i in range(13)]}
    alone = {(0, 0): many[0, 0][-1:]}
    runs = [written(tmp_path / name, tiny_config, rows) for name, rows in (("many", many), ("one", alone))]
    assert "recalled/m12" not in cells(toytf.compare(runs[:1]))
    assert cells(toytf.compare(runs))["recalled/m12"] == {"many": "0.600", "one": "0.600", **dict.fromkeys(KINDS, "–")}


# Configs


def test_configs_differ_in_exactly_the_keys_that_were_changed(pair: list[toytf.Run]) -> None:
    assert toytf.compare(pair).differences == {
        "task.seq_len": ["8", "9"],
        "train.optimizer.lr": ["0.003", "0.5"],
        "seeds": ["[0]", "[0, 1, 2, 3, 4]"],
    }
    assert toytf.compare([pair[0], pair[0]]).differences == {}


def test_long_values_that_differ_late_are_listed_and_cut(tmp_path: Path, tiny_config: Path) -> None:
    frozen = [f"blocks.{layer}.attn.W_{part}" for layer in (0, 1) for part in "KVO"]
    lists = ([*frozen[:5], *[name] * 2] for name in ("embed.W_E", "unembed.W_U"))
    runs = [
        written(tmp_path / f"{i}", tiny_config, {(0, 0): [recall(0.5)]}, model__freeze=names)
        for i, names in enumerate(lists)
    ]
    assert [*toytf.compare(runs).differences] == ["model.freeze"]
    assert all(len(said) <= 121 for said in toytf.compare(runs).differences["model.freeze"])


def test_a_key_that_another_task_does_not_have_is_a_dash(tmp_path: Path, tiny_config: Path) -> None:
    configs = {"bigram": tiny_config, "facts": "configs/factual/quick.yaml"}
    compared = toytf.compare(
        [written(tmp_path / name, config, {(0, 0): [recall(0.5)]}) for name, config in configs.items()]
    )
    assert compared.differences["task.kind"] == ["bigram", "factual"]
    assert compared.differences["task.n_triggers"] == ["5", "–"]
    assert compared.differences["task.pools"] == ["–", "disjoint"]


def test_a_config_that_cannot_be_read_differs_from_none(pair: list[toytf.Run]) -> None:
    class Strange(toytf.Run):
        @property
        def config(self) -> Any:  # type: ignore[override]
            raise UserError("no task is called strange")

    strange = Strange(pair[1].directory)
    assert toytf.compare([pair[0], strange]).differences == {}
    assert toytf.compare([*pair, strange]).differences["task.seq_len"] == ["8", "9", "–"]


# Curves


def curve(values: list[float], **more: float) -> dict[tuple[int, int], list[Any]]:
    """A metric at every step, and others at the last one."""
    rows: dict[tuple[int, int], list[Any]] = {(0, step): [recall(value)] for step, value in enumerate(values)}
    rows[0, len(values) - 1] += [recall(value, name) for name, value in more.items()]
    return rows


def test_only_curves_that_several_runs_share_are_drawn(tmp_path: Path, tiny_config: Path) -> None:
    rising, falling = curve([0.1, 0.2, 0.3], end=1.0), curve([0.9, 0.8, 0.7, 0.6], end=0.0)
    rising[0, 1].append(recall(0.5, "ends"))
    for step in (0, 1, 2, 3):
        falling[0, step].append(recall(0.5, "lonely"))
    runs = [written(tmp_path / name, tiny_config, rows) for name, rows in (("up", rising), ("down", falling))]
    compared = toytf.compare(runs)
    assert [*compared.figures()] == ["recalled/W_OV2"]
    figure = compared.figure()
    assert (figure.layout.title.text, figure.layout.meta["says"]) == ("recalled/W_OV2", "recall of W_OV2")
    drawn = {trace.name: (list(trace.x), list(trace.y)) for trace in figure.data}
    assert drawn == {"up": ([0, 1, 2], [0.1, 0.2, 0.3]), "down": ([0, 1, 2, 3], [0.9, 0.8, 0.7, 0.6])}
    assert compared.figure("recalled/W_OV2") == figure
    with pytest.raises(UserError) as refused:
        compared.figure("recalled/lonely")
    assert str(refused.value) == (
        'these runs share no curves of "recalled/lonely": did you mean "recalled/W_OV2"? (accepted: recalled/W_OV2)'
    )


def test_what_is_measured_before_and_after_training_only_is_no_curve(tmp_path: Path, tiny_config: Path) -> None:
    ends = {(seed, step): [recall(0.5)] for seed in (0, 1) for step in (0, 2)}
    runs = [written(tmp_path / name, tiny_config, ends, seeds=[0, 1]) for name in "ab"]
    assert toytf.compare(runs).figures() == {}
    for metric in (None, "recalled/W_OV2"):
        with pytest.raises(UserError) as refused:
            toytf.compare(runs).figure(metric)
        assert str(refused.value) == "these runs share no curves"


# Names


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path, tiny_config: Path) -> None:
    runs = [
        written(tmp_path / place / "run", tiny_config, {(0, 0): [recall(value)]})
        for place, value in (("here", 0.25), ("there", 0.75))
    ]
    compared = toytf.compare(runs)
    assert compared.names == ["run (1)", "run (2)"]
    assert compared.table.loc["recalled/W_OV2"].to_dict() == {"run (1)": 0.25, "run (2)": 0.75}


def test_a_run_called_as_a_reference_keeps_its_own_column(tmp_path: Path, tiny_config: Path) -> None:
    runs = [written(tmp_path / name, tiny_config, {(0, 0): [recall(0.5, ideal=1.0)]}) for name in ("ideal", "learned")]
    compared = toytf.compare(runs)
    assert compared.columns == ["ideal (1)", "learned", "ideal"]
    found = cells(compared)["recalled/W_OV2"]
    assert [found[column] for column in compared.columns] == ["0.500", "0.500", "1.000"]


@given(names=st.lists(st.sampled_from(["a", "b", "a (1)", "a (2)", "a (1) (1)", "ideal", "chance"]), max_size=8))
def test_names_are_distinct_and_stay_where_they_can(names: list[str]) -> None:
    found = _distinct(names, KINDS)
    assert len({*found} - {*KINDS}) == len(names)
    for name, said in zip(names, found, strict=True):
        assert said == name or said.startswith(f"{name} (")
        assert (said == name) == (names.count(name) == 1 and name not in KINDS)


# Which runs


def test_nothing_to_compare_is_refused_in_one_line() -> None:
    with pytest.raises(UserError) as refused:
        toytf.compare([])
    assert str(refused.value) == "there are no runs to compare"


def test_runs_can_be_given_by_their_directories(pair: list[toytf.Run], tmp_path: Path) -> None:
    compared = toytf.compare([str(pair[0].directory), pair[1].directory])
    assert cells(compared) == cells(toytf.compare(pair))
    with pytest.raises(UserError, match="not a run directory"):
        toytf.compare([tmp_path])


# All values of all runs


def test_all_values_of_all_runs_that_fit_are_one_table(pair: list[toytf.Run], tmp_path: Path) -> None:
    (tmp_path / "no run").mkdir()
    table = toytf.open_runs(tmp_path / "*")
    assert [*table][:3] == ["run", "task.seq_len", "train.optimizer.lr"]  # seeds are a list, which no cell can hold
    assert len(table) == sum(len(run.table) for run in pair) == 2 + 10
    for run, seq_len, lr in zip(pair, (8, 9), (0.003, 0.5), strict=True):
        own = table[table["run"] == run.name]
        assert own[["seed", "metric", "value"]].to_numpy().tolist() == (
            run.table[["seed", "metric", "value"]].to_numpy().tolist()
        )
        assert {*own["task.seq_len"]} == {seq_len}
        assert {*own["train.optimizer.lr"]} == {lr}
    assert table["memory"].tolist() == [*pair[0].table["memory"], *pair[1].table["memory"]]


def test_one_run_is_its_table_with_its_name_in_front(pair: list[toytf.Run]) -> None:
    table = toytf.open_runs(pair[1].directory)
    assert [*table] == ["run", *pair[1].table]
    assert {*table["run"]} == {"second"}
    pd.testing.assert_frame_equal(table.drop(columns="run"), pair[1].table)


def test_a_pattern_may_be_relative(pair: list[toytf.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pd.testing.assert_frame_equal(toytf.open_runs("*"), toytf.open_runs(tmp_path / "*"))
    assert {*toytf.open_runs("sec*")["run"]} == {"second"}


def test_runs_of_the_same_name_in_several_folders_are_told_apart(tmp_path: Path, tiny_config: Path) -> None:
    for place in ("a", "b"):
        written(tmp_path / place / "run", tiny_config, {(0, 0): [recall(0.5)]})
    assert toytf.open_runs(tmp_path / "*" / "run")["run"].tolist() == ["run (1)", "run (2)"]


def test_a_config_key_called_as_a_factor_has_a_column_of_its_own(tmp_path: Path, tiny_config: Path) -> None:
    for threads in (1, 2):
        measured = [recall(0.5).placed({"threads": 10 * threads})]
        written(tmp_path / f"{threads}", tiny_config, {(0, 0): measured}, threads=threads)
    table = toytf.open_runs(tmp_path / "*")
    assert table["config.threads"].tolist() == [1, 2]
    assert table["threads"].tolist() == [10, 20]


def test_runs_of_different_tasks_and_runs_without_a_row_fit_into_one_table(tmp_path: Path, tiny_config: Path) -> None:
    written(tmp_path / "bigram", tiny_config, {(0, 0): [recall(0.5, theory=0.25)]})
    written(tmp_path / "facts", "configs/factual/quick.yaml", {(0, 0): [recall(0.75).placed({"head": 3})]})
    written(tmp_path / "nothing yet", tiny_config, {}, finished=False)
    table = toytf.open_runs(tmp_path / "*")
    rows = table[["run", "value", "task.kind"]].to_numpy().tolist()
    assert rows == [["bigram", 0.5, "bigram"], ["facts", 0.75, "factual"]]
    assert table["head"].isna().tolist() == [True, False]
    assert table["task.n_triggers"].dropna().tolist() == [5]


def test_a_pattern_that_nothing_fits_is_refused_in_one_line(pair: list[toytf.Run], tmp_path: Path) -> None:
    for pattern in (tmp_path / "third*", str(tmp_path / "first" / "*"), tmp_path / "first" / "config.yaml"):
        with pytest.raises(UserError) as refused:
            toytf.open_runs(pattern)
        assert str(refused.value) == f"{pattern}: no run directories fit this"
