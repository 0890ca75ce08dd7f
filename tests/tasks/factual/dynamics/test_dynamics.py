"""The stages in which facts are learned: the plateau of the relation, the order of the stages, and their times."""

import json
import math
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import toytf
from tasks.factual.dynamics.config import FactDynamicsConfig
from tasks.factual.dynamics.experiment import FactDynamics, InitScale, fact_table
from tasks.factual.dynamics.measures import Comparisons, Curve, plateau, plateau_span
from tasks.factual.dynamics.model import FactBatch
from tasks.factual.table import structured_table
from toytf import theory
from toytf.config.plugins import load_config
from toytf.errors import Interrupted, RunFailed
from toytf.measurement import as_row
from toytf.stopping import stop_on_interrupt

if TYPE_CHECKING:
    from conftest import EndsTheSame, Refused

QUIET: dict[str, Any] = {"device": "cpu", "threads": 1, "logging": {"wandb": "off"}}
TINY: dict[str, Any] = {
    "n_subjects": 4, "n_relations": 2, "n_answers": 2, "n_noise": 3, "seq_len": 6,
    "lr": 1.0, "steps": 90, "evaluate_every": 8, "init_scales": [1e-3],
}  # fmt: skip
"""Stages at step 35 and 70 by theory."""


def configured(**config: Any) -> FactDynamicsConfig:
    loaded: FactDynamicsConfig = load_config({"experiment": "fact_dynamics", **QUIET, **config})
    return loaded


def run(out: Path, **config: Any) -> toytf.Run:
    return toytf.run({"experiment": "fact_dynamics", **QUIET, **config}, out=out / "run")


def last_rows(**config: Any) -> list[dict[str, float]]:
    """The last row of every seed, without a run directory."""
    study = FactDynamics(configured(**config))
    (scale,) = study.cases()
    return [as_row(study.measure(scale, seed)) for seed in study.config.seeds]


# --- the plateau, at the sizes of the notebook


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    """S = 16, R = 4, D = 8, α = 1e-5, lr = 0.1, all by default."""
    return run(tmp_path_factory.mktemp("notebook"), evaluate_every=16)


def test_relations_are_learned_at_1690_and_facts_at_4382(notebook: toytf.Run) -> None:
    """Independent simulation of the same flow; evaluations are 16 steps apart."""
    assert notebook.summary["stage/relation"] == pytest.approx(1690, abs=20)
    assert notebook.summary["stage/within_set"] == pytest.approx(4382, abs=40)
    assert notebook.summary["stage/subject"] == pytest.approx(4382, abs=40)


def test_the_closed_forms_hold_to_15_percent(notebook: toytf.Run) -> None:
    assert notebook.summary["theory/stage/relation"] == pytest.approx(1595, abs=1)
    assert notebook.summary["theory/stage/subject"] == pytest.approx(4176, abs=1)
    for part in ("relation", "subject", "within_set"):
        assert 1 < notebook.summary[f"over_theory/{part}"] < 1.15
    measured, predicted = (notebook.summary[f"{kind}plateau/length"] for kind in ("", "theory/"))
    assert measured == pytest.approx(predicted, rel=0.15)


def test_the_loss_between_the_stages_is_ln_8(notebook: toytf.Run) -> None:
    history = notebook.history.set_index("step")
    on_plateau = history.loc[2600:3300]
    assert len(on_plateau) > 40
    assert on_plateau["eval/fact_loss"].between(math.log(8), math.log(8) + 0.02).all()
    assert (on_plateau["tv/relation"] < 0.02).all()
    assert on_plateau["probability/right"].sub(1 / 8).abs().max() < 0.01
    assert on_plateau["probability/same_relation"].sub(7 / 8).abs().max() < 0.02
    assert notebook.summary["plateau/loss"] == pytest.approx(math.log(8), abs=0.02)
    assert notebook.summary["theory/plateau/loss"] == pytest.approx(math.log(8))
    assert 1690 < notebook.summary["plateau/start"] < 2600
    assert 3300 < notebook.summary["plateau/end"] < 4382


def test_attention_ends_on_subjects_and_relations(notebook: toytf.Run) -> None:
    assert notebook.summary["weights/subject"] == pytest.approx(3.58, abs=0.005)
    assert notebook.summary["weights/relation"] == pytest.approx(4.39, abs=0.005)
    assert notebook.summary["weights/noise"] == pytest.approx(1e-5, rel=1e-6)
    assert notebook.summary["weights/end"] == pytest.approx(1e-5, rel=1e-6)
    assert notebook.summary["conserved/drift"] < 1e-9


def test_losses_start_uniform_and_fall_to_zero(notebook: toytf.Run) -> None:
    first = notebook.history.iloc[0]
    for part, level in {"fact": math.log(32), "relation": math.log(4), "subject": math.log(8)}.items():
        assert first[f"eval/{part}_loss"] == pytest.approx(level, abs=1e-6)
        assert notebook.summary[f"chance/eval/{part}_loss"] == pytest.approx(level)
    assert notebook.summary["eval/fact_loss"] < 0.01
    parts = notebook.history[
        [f"probability/{place}" for place in ("right", "same_relation", "same_subject", "elsewhere")]
    ]
    assert parts.sum(axis=1).sub(1).abs().max() < 1e-9


def test_the_summary_has_last_values_and_the_figures_the_curves(notebook: toytf.Run) -> None:
    assert notebook.summary["eval/fact_loss"] == notebook.history["eval/fact_loss"].iloc[-1]
    assert len(notebook.history) == 8192 // 16 + 1
    saved = {path.stem: json.loads(path.read_text()) for path in (notebook.directory / "figures").glob("*.json")}
    assert set(saved) == {"losses", "distances", "probabilities"}
    names = {trace["name"] for trace in saved["losses"]["data"]}
    assert {"fact_loss", "relation_loss", "subject_loss", "ln|A| = 3.466", "H(a|r) = 2.079"} <= names
    marks = [note["text"] for note in saved["losses"]["layout"]["annotations"]]
    assert marks == ["theory: relations", "theory: subjects"]


# --- other sizes, initial weights, tables


@pytest.mark.parametrize(
    ("S", "R", "relation", "subject"),
    [(8, 16, 616, 456), (16, 16, 620, 910), (32, 8, 320, 1265), pytest.param(64, 8, 320, 2515, marks=pytest.mark.slow)],
)
def test_the_order_of_stages_flips_with_the_sizes(S: int, R: int, relation: int, subject: int) -> None:
    """Times of an independent simulation at D = 8 and lr = 1, to 5 steps; evaluations are 4 apart."""
    (row,) = last_rows(n_subjects=S, n_relations=R, lr=1.0, steps=int(1.4 * max(relation, subject)), evaluate_every=4)
    assert row["stage/relation"] == pytest.approx(relation, abs=9)
    assert row["stage/subject"] == pytest.approx(subject, abs=9)
    assert theory.relations_first(S, R, 8) == (row["stage/relation"] < row["stage/subject"])
    assert 1 < row["over_theory/relation"] < 1.15
    assert 1 < row["over_theory/subject"] < 1.15
    flipped = S < R
    assert row["closest/relation"] > 0.8 if flipped else row["closest/relation"] < 0.05
    assert row["closest/subject"] < 0.06 if flipped else row["closest/subject"] > 0.8
    assert ("theory/plateau/length" in row) != flipped
    if S != R:  # there it depends on how long the run is
        assert ("plateau/loss" in row) != flipped


def test_the_stages_come_later_with_the_logarithm_of_the_scale() -> None:
    """At lr = 0.1 and α = 1e-2 the authors' model has 832 and 2048, the formula 692 and 1813, here at lr = 1."""
    (row,) = last_rows(lr=1.0, steps=400, evaluate_every=2, init_scales=[1e-2])
    assert row["theory/stage/relation"] == pytest.approx(69.2, abs=0.1)
    assert row["theory/stage/subject"] == pytest.approx(181.3, abs=0.1)
    assert row["over_theory/relation"] == pytest.approx(83.2 / 69.2, abs=0.08)  # their evaluations are 6 apart
    assert row["over_theory/subject"] == pytest.approx(204.8 / 181.3, abs=0.05)


def test_a_larger_initial_attention_shortens_all_stages() -> None:
    """w = α √33: 1475 and 3800 steps at lr = 0.1, evaluated every 64; the formula has 1366 and 3578."""
    (row,) = last_rows(lr=1.0, steps=500, evaluate_every=2, initial="theory")
    assert row["theory/stage/relation"] == pytest.approx(136.6, abs=0.1)
    assert row["theory/stage/subject"] == pytest.approx(357.8, abs=0.1)
    assert row["stage/relation"] == pytest.approx(147.5, abs=6.4)
    assert row["stage/subject"] == pytest.approx(380, abs=6.4)


def test_a_random_table_has_three_stages_and_a_plateau_of_its_own() -> None:
    """Frequencies, relations, facts; H(a|r) is that of the table, well below ln 8."""
    for row in last_rows(table="random", lr=1.0, steps=1000, evaluate_every=2, seeds=[0, 1]):
        assert row["stage/marginal"] < row["stage/relation"] < row["stage/within_set"]
        assert row["closest/marginal"] < 0.05
        assert row["theory/plateau/loss"] == row["floor/fact_loss/relation_only"] < math.log(8) - 0.1
        assert row["plateau/loss"] == pytest.approx(row["theory/plateau/loss"], abs=0.02)
        assert "theory/plateau/accuracy" not in row  # a flow has no accuracy
        assert row["floor/fact_loss/marginal"] < math.log(32) - 0.1
        assert row["floor/fact_loss/subject_only"] == pytest.approx(math.log(4))
        assert row["eval/fact_loss"] < 0.02
        for part in ("marginal", "relation", "subject", "within_set"):
            assert row[f"over_theory/{part}"] == pytest.approx(1, abs=0.15)


def test_learned_facts_go_on_to_zero_loss_like_one_over_t() -> None:
    """1/(t ln t), t counted from the start: 1 + 1/ln t + t_s/t = 1.2 to 1.35 for t = 2000 to 4000 and t_s = 444."""
    (row,) = last_rows(lr=1.0, steps=4096, evaluate_every=16)
    assert row["eval/fact_loss"] < 0.001
    assert 1 < row["tail/exponent"] < 1.35
    assert 0 < row["tail/exponent/error"] < 0.01


def test_sampled_sequences_give_the_same_stages_and_plateau() -> None:
    """At lr = 0.25 the flow has 676 and 1753; evaluations are 16 steps apart, and noise moves stages by more."""
    (row,) = last_rows(method="sgd", batch_size=512, lr=0.25, steps=2400, evaluate_every=16)
    assert row["stage/relation"] == pytest.approx(676, abs=40)
    assert row["stage/subject"] == pytest.approx(1753, abs=50)
    assert row["plateau/loss"] == pytest.approx(math.log(8), abs=0.02)
    assert row["theory/plateau/accuracy"] == 1 / 8
    # Of 64 facts that are right by chance: √(1/8 · 7/8 / 64) = 0.041 at one evaluation, a mean over 20 of them.
    assert row["plateau/accuracy"] == pytest.approx(1 / 8, abs=3 * 0.041 / math.sqrt(20))
    assert row["eval/fact_accuracy"] == 1


@pytest.mark.parametrize(("evaluations", "counted"), [(3, slice(0, 3)), (4, slice(1, 3)), (41, slice(10, 31))])
def test_numbers_of_the_plateau_are_means_over_its_middle_half(evaluations: int, counted: slice) -> None:
    """One evaluation is noise, and in the last quarter accuracy rises. 20 evaluations each side are no plateau."""
    table = structured_table(16, 4, 8)
    rng = np.random.default_rng(0)
    noise = {"loss": math.log(8) + rng.uniform(-0.03, 0.03, evaluations), "tv": rng.uniform(0, 0.03, evaluations)}
    accuracy = rng.binomial(64, 1 / 8, evaluations) / 64
    accuracy[counted.stop :] += 0.5
    curve = Curve(
        step=16.0 * np.arange(40 + evaluations),
        loss={
            "fact": np.r_[np.full(20, 3.4), noise["loss"], np.full(20, 0.1)],
            "relation": np.r_[np.full(20, 1.3), np.full(evaluations + 20, 0.01)],
        },
        distance={"relation": np.r_[np.full(20, 0.8), noise["tv"], np.full(20, 0.8)]},
        accuracy=np.r_[np.full(20, 0.1), accuracy, np.full(20, 1.0)],
    )
    span = plateau_span(configured(steps=16 * (evaluations - 1)), table, curve)
    row = as_row(plateau(table, curve, span))
    assert (row["plateau/start"], row["plateau/end"]) == (320, 320 + 16 * (evaluations - 1))
    for name, values in {**noise, "accuracy": accuracy}.items():
        assert row[f"plateau/{name}"] == pytest.approx(np.mean(values[counted]), rel=1e-12)


def test_the_plateau_of_a_random_table_gives_the_likeliest_answers() -> None:
    """Σ_r p(r) max_a p(a|r): of 16 subjects, so many have the answer of which a relation has most."""
    config: dict[str, Any] = {"table": "random", "method": "sgd", "batch_size": 512, "lr": 0.25, "steps": 8}
    (row,) = last_rows(**config)
    most = [max(np.bincount(answers)) for answers in fact_table(configured(**config), 0).answers.T]
    assert row["theory/plateau/accuracy"] == pytest.approx(np.mean(most) / 16)
    assert row["theory/plateau/accuracy"] > 1 / 8


class _NoFloat64(TorchDispatchMode):
    """A device without float64, for which meta stands: nothing of that kind may come to be there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for made in tree_leaves(found):
            assert not (isinstance(made, torch.Tensor) and made.is_meta and made.dtype == torch.float64), func
        return found


def test_distributions_come_to_a_device_without_float64() -> None:
    table = structured_table(8, 2, 4)
    facts = FactBatch(torch.zeros(32, 16, device="meta"), torch.zeros(32, dtype=torch.long, device="meta"))
    with _NoFloat64():
        comparisons = Comparisons.of(table, facts)
    assert comparisons.relation_set.dtype == torch.bool
    assert comparisons.given_relation.dtype == torch.float32
    assert comparisons.given_relation.shape == (32, 8)
    assert comparisons.given_relation.is_meta and comparisons.same_place.is_meta


def test_a_training_that_ends_early_has_no_stages() -> None:
    (row,) = last_rows(steps=64)
    assert not any(name.startswith(("stage/", "plateau/", "over_theory/", "tail/")) for name in row)
    assert row["theory/stage/relation"] == pytest.approx(1595, abs=1)


# --- fields, names, resuming


CHANGES: dict[str, dict[str, Any]] = {
    "n_subjects": {"n_subjects": 6},
    "n_relations": {"n_relations": 3},
    "n_answers": {"n_answers": 4},
    "table": {"table": "random"},
    "n_noise": {"n_noise": 2, "table": "random"},
    "seq_len": {"seq_len": 7, "table": "random"},
    "method": {"method": "sgd", "batch_size": 16},
    "batch_size": {"method": "sgd", "batch_size": 17},
    "lr": {"lr": 0.9},
    "steps": {"steps": 91},
    "init_scales": {"init_scales": [2e-3]},
    "initial": {"initial": "theory"},
    "evaluate_every": {"evaluate_every": 7},
    "seeds": {"seeds": [3], "table": "random"},
}


def test_the_table_of_changes_has_every_field() -> None:
    assert set(CHANGES) == set(FactDynamicsConfig.model_fields) - {"experiment", "device", "threads", "logging"}


def test_every_field_changes_what_is_measured() -> None:
    found = {field: json.dumps(last_rows(**TINY | change)) for field, change in CHANGES.items()}
    found["nothing"] = json.dumps(last_rows(**TINY))
    assert len(set(found.values())) == len(found)
    assert json.dumps(last_rows(**TINY)) == found["nothing"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    """Two scales of two seeds."""
    return run(
        tmp_path_factory.mktemp("whole"), **TINY | {"init_scales": [1e-2, 1e-3], "table": "random", "seeds": [0, 1]}
    )


def test_the_smallest_scale_has_plain_names(whole: toytf.Run, tmp_path: Path) -> None:
    alone = run(tmp_path, **TINY | {"table": "random", "seeds": [0, 1]})
    assert all(whole.summary[name] == value for name, value in alone.summary.items())
    others = set(whole.summary) - set(alone.summary)
    assert {name.removesuffix("/std") for name in others if "/a0.01" not in name} == set()
    assert {"stage/relation/a0.01", "theory/stage/relation/a0.01", "eval/fact_loss/a0.01"} <= others
    assert whole.summary["stage/relation/a0.01"] < whole.summary["stage/relation"]
    figures = {path.stem for path in (whole.directory / "figures").glob("*.json")}
    assert figures == {"losses", "distances", "probabilities", "stages"}


def test_scales_that_are_almost_the_same_have_names_of_their_own(tmp_path: Path) -> None:
    both = run(tmp_path, **TINY | {"init_scales": [1e-2, 0.010000001], "steps": 8})
    assert {"weights/relation", "weights/relation/a0.010000001"} <= set(both.summary)


def test_references_are_in_the_last_row_alone(whole: toytf.Run) -> None:
    rows = [json.loads(line) for line in whole.metrics_file.read_text().splitlines()]
    for row in rows:
        there = {name.partition("/")[0] for name in row} & {"ideal", "theory", "chance"}
        assert there == ({"ideal", "theory", "chance"} if row["step"] == 90 else set())


def test_a_table_has_the_scale_and_the_part_of_every_stage_as_columns(whole: toytf.Run) -> None:
    table = whole.table
    stages = table[table["group"] == "stage"]
    assert set(stages["alpha"]) == {1e-2, 1e-3}
    assert {"relation", "subject", "within_set"} <= set(stages["part"])
    assert (stages["step"] == 90).all()
    assert stages["theory"].notna().all()
    relation = stages[(stages["part"] == "relation") & (stages["alpha"] == 1e-3)]
    assert relation["value"].mean() == whole.summary["stage/relation"]
    assert relation["theory"].mean() == pytest.approx(whole.summary["theory/stage/relation"])


@pytest.mark.parametrize("rows", [0, 1, 12, 13, 20, 27, 50])
def test_a_run_killed_after_any_row_and_resumed_ends_the_same(
    rows: int, whole: toytf.Run, ends_the_same: "EndsTheSame"
) -> None:
    """A curve has 13 rows: one that is done is not drawn again, one that is not is done anew without double rows."""
    assert len(whole.history) == 4 * 13
    ends_the_same(whole, rows)


def test_it_stops_between_evaluations() -> None:
    steps = FactDynamics(configured(**TINY)).steps(InitScale(1e-3), 0)
    with stop_on_interrupt():
        assert next(steps)[0] == 0
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted):
            next(steps)


def test_a_learning_rate_that_is_too_large_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"the loss is not finite at step .*lr = 1e\+30 is too large"):
        run(tmp_path, **TINY | {"lr": 1e30, "method": "sgd", "batch_size": 2})


def test_the_threads_of_the_caller_are_left_alone(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    run(tmp_path, **TINY | {"threads": before + 1})
    assert torch.get_num_threads() == before


MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "unequal_groups": (["n_subjects=12"], ["n_subjects = 12", "multiple of n_answers = 8", "table: random"]),
    "no_noise": (["n_noise=0"], ["n_noise = 0", "seq_len = 32", "seq_len = 3"]),
    "no_place_for_noise": (["seq_len=3"], ["n_noise = 20", "seq_len = 3"]),
    "short": (["seq_len=2"], ["seq_len = 2", "greater than or equal to 3"]),
    "batch_of_a_flow": (["batch_size=8"], ["batch_size = 8", "method: sgd"]),
    "no_batch": (["method=sgd"], ["batch_size is missing", "method: sgd"]),
    "seeds_of_nothing": (["seeds=[0,1]"], ["seeds", "has nothing random", "table: random"]),
    "init_scales_twice": (["init_scales=[0.1,0.1]"], ["init_scales: 0.1 is listed twice"]),
    "alpha_zero": (["init_scales=[0]"], ["init_scales.0 = 0", "greater than 0"]),
    "alpha_too_small": (["init_scales=[1e-31]"], ["init_scales: 1e-31 is too small", "at least 1e-30"]),
    "alpha_too_large": (["init_scales=[0.5]", "initial=theory"], ["init_scales: 0.5", "initial: theory", "< 2"]),
    "unknown_table": (["table=randm"], ['table = "randm"', 'did you mean "random"?']),
    "one_answer": (["n_answers=1"], ["n_answers = 1", "greater than or equal to 2"]),
    "unknown_key": (["step=3"], ['"step"', 'did you mean "steps"?']),
}


@pytest.mark.parametrize(("overrides", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_ends_with_2_and_one_line(overrides: list[str], says: list[str], refused: "Refused") -> None:
    refused("experiment: fact_dynamics\nlogging: {wandb: 'off'}\n", overrides, says)
