"""The experiment filling: one training a case, and where recall breaks as the load grows."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
import torch
import yaml

import toytf
from tests.memory.problems import box_optimum, inequalities, margin_of
from toytf.config.plugins import load_config
from toytf.config.sections import differences
from toytf.experiments.filling.config import FillingConfig
from toytf.experiments.filling.curves import crossing, learned_recalls, recalls
from toytf.experiments.filling.experiment import STORABLE, Case, Filling, most_recalled, recall, storable, train_alone
from toytf.experiments.filling.figures import filling_figures
from toytf.experiments.opened import shown
from toytf.holder import Holder
from toytf.measurement import KINDS
from toytf.memory import Association, AssociationStream

if TYPE_CHECKING:
    from conftest import Ended, Refused

pytestmark = pytest.mark.repeats_runs

Run = Callable[..., toytf.Run]

FROZEN = ["embed.W_E", "pos_embed.W_pos", "unembed.W_U", "blocks.0.attn.W_V", "blocks.0.attn.W_O", "blocks.1.attn.W_V"]
ALONE = {
    "init": "ideal",
    "ideal_memories": ["W_KQ1", "W_KQ2"],
    "freeze": [*FROZEN, "blocks.0.attn.W_K", "blocks.1.attn.W_K"],
}
BIGRAM: dict[str, Any] = {
    "experiment": "filling",
    "task": {"kind": "bigram", "n_tokens": 12, "n_triggers": 2, "triggers": "random", "seq_len": 12},
    "model": {"d_model": 8, "attention": {"kq": "joint"}, "freeze": FROZEN},
    "train": {"steps": 3, "batch_size": 4, "loss": "in_context", "evaluation": {"sequences": 32}},
    "sizes": {"model": {"d_model": [8, 4]}},
    "settings": {"together": {}, "W_OV2_alone": {"model": ALONE}},
}
FACTUAL: dict[str, Any] = {
    "experiment": "filling",
    "task": {"kind": "factual", "n_subjects": 3, "n_relations": 3, "n_answers": 2, "seq_len": 4},
    "model": {
        "d_model": 6, "n_layers": 1, "position": "none", "freeze": ["embed.*", "unembed.*"],
        "attention": {"n_heads": 1, "residual": False}, "feed_forward": {"kind": "relu", "width": 4},
    },
    "train": {"steps": 2, "batch_size": 8, "loss": "fact", "evaluation": {"sequences": 16}},
    "sizes": {"task": {"n_subjects": [3, 4], "n_relations": [3, 4]}},
    "follow_seed": ["task.table_seed"],
}  # fmt: skip


def configured(content: dict[str, Any], **changes: Any) -> FillingConfig:
    loaded: FillingConfig = load_config({"device": "cpu", **content, **changes})
    return loaded


@pytest.fixture(scope="module")
def bigram(run_quietly: Run) -> toytf.Run:
    return run_quietly(**BIGRAM, seeds=[0, 1])


# --- what is measured


def test_every_case_has_accuracy_at_the_goal_and_what_the_probes_measure(bigram: toytf.Run) -> None:
    summary = bigram.summary
    for case in ("together_size8", "together_size4", "W_OV2_alone_size8", "W_OV2_alone_size4"):
        assert 0 <= summary[f"eval/{case}_in_context_accuracy"] <= 1
        assert {f"pairs/{case}_W_OV2", f"ideal/pairs/{case}_W_OV2", f"margin/{case}_W_OV2_min"} <= summary.keys()
        assert summary[f"trained/{case}"] == 3


def test_of_what_is_frozen_nothing_is_said(bigram: toytf.Run) -> None:
    of_memories = {name for name in bigram.summary if name.split("/")[0] in ("pairs", "margin", "storable", "break")}
    assert {name for name in of_memories if "together" in name and "W_KQ2" in name}
    assert not {name for name in of_memories if "alone" in name and "W_KQ" in name}


def test_recall_is_pairs_recalled_over_pairs_to_hold(bigram: toytf.Run) -> None:
    """12 characters are 12 pairs of W_OV2, 11 of the positions of W_KQ1."""
    found, table = recalls(bigram.table, "in_context"), bigram.table
    for memory, n in {"W_OV2": 12, "W_KQ1": 11}.items():
        own = table[(table["group"] == "pairs") & (table["memory"] == memory) & ~table["variant"]]
        learned = found[(found["memory"] == memory) & (found["rule"] == "learned")]
        assert sorted(learned["recall"] * n) == pytest.approx(sorted(own["value"]))
        assert sorted(found[(found["memory"] == memory)]["rule"].unique()) == [
            "accuracy", "bare", "best", "hebbian", "learned", "least_squares",
        ]  # fmt: skip


def test_only_the_memories_that_are_asked_for_are_followed(run_quietly: Run) -> None:
    run = run_quietly(**{**BIGRAM, "settings": {"together": {}}}, memories=["W_OV2"])
    assert run.table["memory"].dropna().unique().tolist() == ["W_OV2"]


def test_the_load_grows_as_the_dimension_falls(bigram: toytf.Run) -> None:
    loads = recalls(bigram.table, "in_context").groupby(["memory", "size"])["load"].mean()
    assert {memory for memory, _ in loads.index} == {"W_OV2", "W_KQ1"}  # any number of pairs fits into W_KQ2
    for memory in ("W_OV2", "W_KQ1"):
        assert loads[memory, 4] > 2 * loads[memory, 8]  # at half the dimension there is a quarter of the weights


def test_a_memory_without_a_load_can_be_the_first_to_break(bigram: toytf.Run) -> None:
    """12 characters are 12 pairs of W_KQ2."""
    found, table = learned_recalls(bigram.table, "in_context"), bigram.table
    own = table[(table["group"] == "pairs") & (table["memory"] == "W_KQ2") & ~table["variant"]]
    assert sorted(found[found["memory"] == "W_KQ2"]["recall"] * 12) == pytest.approx(sorted(own["value"]))
    counted = recalls(table, "in_context")
    counted = counted[counted["rule"] == "learned"]
    rest = found[found["memory"] != "W_KQ2"]
    assert rest["recall"].tolist() == counted["recall"].tolist()
    said = Filling(configured(BIGRAM, settings={"together": {}}))._first_to_break(
        found.assign(recall=found["recall"].where(found["memory"] == "W_KQ2", 1.0)).query("setting == 'together'")
    )
    assert [sentence.split(": ")[1][:5] for sentence in said] == ["W_KQ2"]


def test_figures_show_recall_margins_spectrum_and_what_is_lost(bigram: toytf.Run) -> None:
    figures = shown(bigram).figures
    assert {"recall_W_OV2", "margins_W_OV2", "spectrum_W_OV2", "lost_W_OV2"} <= set(figures)
    traces = {trace.name: trace for trace in figures["recall_W_OV2"].data}
    assert {
        "learned, together", "learned, W_OV2_alone", "Hebbian matrix", "least squares", "trained on the pairs alone",
        "best matrix found", "accuracy of the model, together", "accuracy of the model, W_OV2_alone", "capacity limit",
    } == set(traces)  # fmt: skip
    assert list(traces["capacity limit"].x) == [1, 1]


def test_a_run_without_the_probe_limits_has_accuracies_only(run_quietly: Run) -> None:
    run = run_quietly(**{**BIGRAM, "settings": {"together": {}}}, probes=["memory_recall"])
    assert recalls(run.table, "in_context").empty
    assert not list(filling_figures(run.table, "in_context"))
    assert "recall/together_size8_W_OV2" in run.summary


# --- where curves break


@pytest.mark.parametrize(
    ("points", "level", "expected"),
    [
        ([(0.5, 1.0), (1.0, 0.9)], 0.99, 0.55),  # a tenth of the way
        ([(1.0, 0.9), (0.5, 1.0)], 0.99, 0.55),  # in any order
        ([(0.5, 1.0), (1.0, 0.9), (2.0, 0.1)], 0.5, 1.5),
        ([(0.5, 1.0), (1.0, 0.99)], 0.99, None),  # at the level is not below it
        ([(0.5, 0.8), (1.0, 0.7)], 0.99, None),  # below from the start
        ([(0.5, 1.0), (1.0, 0.98), (2.0, 1.0), (4.0, 0.98)], 0.99, 0.75),  # the first time
        ([], 0.99, None),
    ],
)
def test_a_break_is_interpolated_between_the_loads_around_it(
    points: list[tuple[float, float]], level: float, expected: float | None
) -> None:
    assert crossing(points, level) == (None if expected is None else pytest.approx(expected))


def _planted(n: int, loads: dict[int, float], by_rule: dict[str, list[float]]) -> pd.DataFrame:
    """A table as the probe `limits` would leave it: n pairs, and the recall of every rule at every size."""
    rows: list[dict[str, Any]] = []
    for i, (size, load) in enumerate(loads.items()):
        case = {"seed": 0, "setting": "together", "size": size, "memory": "W", "variant": False}
        counts = {rule: n * recall[i] for rule, recall in by_rule.items()}
        of_pairs = {"hebbian": counts["hebbian"], "ideal": counts["best"], "limit": n / load}
        rows.append({**case, "group": "pairs", "value": counts["learned"], **of_pairs})
        rows.append({**case, "group": "pairs", "rule": "least_squares", "value": counts["least_squares"]})
        rows.append({**case, "group": "utilisation", "measure": "load", "value": load})
        rows.append({**case, "group": "utilisation", "measure": "capacity", "value": n / load})
    return (
        pd.DataFrame(rows)
        .reindex(columns=[*{**rows[0], **rows[1], **rows[3]}, "head", *KINDS])
        .T.groupby(level=0)
        .first()
        .T
    )


def test_breaks_of_a_planted_table_are_where_they_were_planted() -> None:
    """Between d = 32 at load 0.4 and d = 16 at load 1.4 learned recall falls from 1 to 0.8: 0.99 is at 0.4 + 0.05."""
    table = _planted(
        100,
        {64: 0.1, 32: 0.4, 16: 1.4},
        {"learned": [1, 1, 0.8], "hebbian": [1, 0.6, 0.1], "least_squares": [1, 0.98, 0.3], "best": [1, 1, 1]},
    )
    config = configured(BIGRAM, sizes={"model": {"d_model": [64, 32, 16]}}, settings={"together": {}})
    found = {one.flat: one.value for one in Filling(config).conclude(table)}
    expected = {
        "break/W_together_learned": 0.45,
        "break/W_together_learned_half": None,
        "break/W_together_hebbian": 0.1 + 0.3 * 0.01 / 0.4,
        "break/W_together_hebbian_half": 0.4 + 1.0 * 0.1 / 0.5,
        "break/W_together_least_squares": 0.1 + 0.3 * 0.01 / 0.02,
        "break/W_together_least_squares_half": 0.4 + 1.0 * 0.48 / 0.68,
        "break/W_together_best": None,
        "break/W_together_best_half": None,
        "break_size/W_together": 32 - 16 * 0.05,
    }
    assert {name: value and round(value, 9) for name, value in found.items()} == {
        name: value and round(value, 9) for name, value in expected.items()
    }


def test_what_can_be_stored_is_found_and_what_cannot_is_certified() -> None:
    """Orthogonal pairs can be stored. One key with two different answers cannot."""
    e = torch.eye(4)

    def holder(keys: torch.Tensor, rank: int | None = None) -> Holder:
        return Holder("W", Association(keys, e, torch.arange(4)), e, 16, rank=rank)

    assert storable([holder(e)]) == 1
    assert storable([holder(e[[0, 0, 1, 2]])]) == 0
    assert storable([holder(e), holder(e[[0, 0, 1, 2]])]) == 0
    assert storable([holder(e, rank=3)]) == 1  # margins, not equality: three dimensions tell four values apart
    assert storable([holder(e[[0, 0, 1, 2]], rank=2)]) == 0


def test_what_cannot_be_stored_is_said_at_its_margin() -> None:
    """These 15 pairs at d = 6 are stored by a matrix of margin .0002 that a linear program finds: no certificate denies
    that, and none may be said to."""
    association = AssociationStream(seed=1005, d_in=6, d_out=6).prefix(15)
    W, smallest = box_optimum(inequalities(association))
    assert smallest > 0 and 0 < margin_of(association, W) < 0.001
    assert storable([Holder("W", association, torch.eye(6), 36)]) == 0
    assert "certificate that none does with a margin above 0.01" in STORABLE.says


def test_beyond_the_limit_the_best_matrix_gives_pairs_up() -> None:
    """Of two answers to one key one can be recalled, so of these four pairs three; random keys beyond capacity keep
    about p_c of them: 60 pairs of 60 values at d = 8 have p_c = 8 · 8 / δ(60) = 64 / 4.1 = 16."""
    e = torch.eye(4)
    twice = Holder("W", Association(e[[0, 0, 1, 2]], e, torch.arange(4)), e, 16)
    assert most_recalled([twice], train_alone([twice], seed=0)) == 3 / 4
    random = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(60, 8, generator=random) for _ in range(2))
    full = Holder("W", Association(keys, values, torch.arange(60)), torch.eye(8), 64)
    (trained,) = train_alone([full], seed=0)
    kept = 60 * most_recalled([full], [trained])
    assert 0.9 * 16 <= kept <= 2 * 16  # the easiest pairs are kept, so more than at random
    assert kept >= 60 * recall([full], [trained])


# --- settings, sizes and seeds


def test_a_setting_changes_only_what_it_names() -> None:
    config = configured(BIGRAM)
    plain, alone = (config.training(name, 8, 0) for name in ("together", "W_OV2_alone"))
    changed = {difference.split()[0] for difference in differences(plain, alone)}
    assert changed == {"model.init", "model.ideal_memories", "model.freeze"}
    assert not differences(plain, configured({**BIGRAM, "settings": {"other": {}}}).training("other", 8, 0))


def test_sizes_of_several_keys_go_in_step() -> None:
    config = configured(FACTUAL)
    tasks = [config.training("together", n, 0).task for n in (3, 4)]
    assert [(task.n_subjects, task.n_relations) for task in tasks] == [(3, 3), (4, 4)]
    assert list(Filling(config).cases()) == [Case("together", 3), Case("together", 4)]


def test_seeds_differ_in_weights_data_and_what_is_stored(run_quietly: Run) -> None:
    config = configured(FACTUAL)
    assert [config.training("together", 3, seed).task.table_seed for seed in (0, 7)] == [0, 7]
    assert config.training("together", 3, -1).task.table_seed == 2**32 - 1  # seeds of tables are not negative
    table = run_quietly(**FACTUAL, seeds=[0, 1]).table
    losses = table[table["metric"] == "eval/together_size3_fact_loss"]["value"]
    assert losses.nunique() == 2


def test_a_training_that_diverges_has_no_number_and_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wild = {**BIGRAM["train"], "steps": 40, "optimizer": {"kind": "sgd", "lr": 1e38}}
    content = {**BIGRAM, "train": wild, "settings": {"together": {}}, "threads": 1, "logging": {"wandb": "off"}}
    run = toytf.run(content, out=tmp_path / "run", page=False)
    assert run.finished
    assert {name for name in run.summary if not name.startswith("trained/")} == set()
    assert run.summary["trained/together_size8"] == 0
    monkeypatch.setattr(Filling, "measure", None)  # would fail if it were called
    run.summary_file.unlink()
    assert toytf.run(content, out=tmp_path / "run", resume=True, page=False).finished


# --- mistakes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sizes": {"model": {"d_modl": [8, 4]}}}, ['unknown key "d_modl" in "model"', "d_model"]),
        ({"sizes": {"modl": {"d_model": [8, 4]}}}, ['sizes: unknown key "modl": did you mean "model"?']),
        ({"sizes": {"model": {"d_model": 8}}}, ["sizes.model.d_model should be a list of numbers, got 8"]),
        ({"sizes": {"model": {"d_model": [8, 8]}}}, ["8 is listed twice in model.d_model"]),
        (
            {"sizes": {"model": {"d_model": [8, -4]}}},
            ["with model.d_model = -4: model.d_model = -4: should be greater"],
        ),
        (
            {"sizes": {"model": {"d_model": [8, 4]}, "task": {"seq_len": [8]}}},
            ["keys go in step", "model.d_model has 2, task.seq_len has 1"],
        ),
        ({"settings": {"odd name": {}}}, ['settings: "odd name" cannot be a name']),
        ({"settings": {"a": {"models": {}}}}, ['settings.a: unknown key "models": did you mean "model"?']),
        ({"settings": {"a": {"model": {"inti": "ideal"}}}}, ['unknown key "inti" in "model"', '"init"']),
        ({"follow_seed": ["table_seed"]}, ['follow_seed: "table_seed" is not a key of a training']),
        ({"follow_seed": ["task.table_sed"]}, ['unknown key "table_sed" in "task"']),
    ],
)
def test_a_mistake_is_one_line(changes: dict[str, Any], says: list[str], refused: "Refused") -> None:
    refused(yaml.safe_dump({**BIGRAM, **changes}), [], says)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"settings": {"together": {}, "odd": {"model": {"freeze": ["blocks.7.*"]}}}},
            'model.freeze: "blocks.7.*" does not match any parameter',
        ),
        ({"memories": ["W_OV3"]}, 'memories: this model should hold no "W_OV3": did you mean "W_OV2"?'),
    ],
)
def test_what_only_the_model_knows_is_refused_before_the_first_training(
    changes: dict[str, Any], says: str, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**BIGRAM, **changes, "logging": {"wandb": "off"}}))
    ended = invoke("run", tmp_path / "mine.yaml", "--out", tmp_path / "run")
    assert ended.code == 2
    assert says in ended.err
    assert "Traceback" not in ended.err


def test_break_points_are_finite_numbers_or_absent(bigram: toytf.Run) -> None:
    assert all(math.isfinite(value) for value in bigram.summary.values())
