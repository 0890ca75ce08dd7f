"""The experiment storage: the same associations stored by several rules, and what is measured of each."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import toytf
from toytf import theory
from toytf.config.plugins import load_config
from toytf.errors import UserError
from toytf.experiments.opened import shown
from toytf.experiments.pairs import DataConfig, TrainedRulesConfig
from toytf.experiments.storage.config import PairsConfig, StorageConfig
from toytf.experiments.storage.experiment import rule_inputs
from toytf.memory import RULES, Rule, RuleInputs

if TYPE_CHECKING:
    from conftest import Ended

Run = Callable[..., toytf.Run]

D, N = 12, 32
"""n log n / d² = 0.77: the optimum stores them all (38 are predicted), the Hebbian rule by far not."""


@pytest.fixture(scope="module")
def store(run_quietly: Run) -> Run:
    """A run of the experiment storage: `store(rules=[…], dimension=…, n=…)`."""

    def run(**config: Any) -> toytf.Run:
        return run_quietly(experiment="storage", **config)

    return run


@pytest.fixture(scope="module")
def three_rules(store: Run) -> toytf.Run:
    return store(rules=["hebbian", "optimum", "mlp_h2"], dimension=D, n=N, width=16, seeds=[0, 1])


def configured(**config: Any) -> StorageConfig:
    loaded: StorageConfig = load_config({"experiment": "storage", "rules": ["hebbian"], "device": "cpu", **config})
    return loaded


# --- what is measured


def test_the_optimum_recalls_what_the_hebbian_rule_does_not(three_rules: toytf.Run) -> None:
    summary = three_rules.summary
    assert summary["recall/optimum"] == 1
    assert summary["recall/hebbian"] < 0.8
    for rule in three_rules.config.rules:
        assert summary[f"ideal/recall/{rule}"] == 1
        assert summary[f"chance/recall/{rule}"] == pytest.approx(1 / N)
    assert summary["margin/optimum_min"] > 0 > summary["margin/hebbian_min"]
    assert summary["margin/hebbian_negative"] == pytest.approx(1 - summary["recall/hebbian"])
    assert summary["utilisation/hebbian/stored"] == pytest.approx(N * summary["recall/hebbian"])
    full = summary["utilisation/optimum/stored"] / summary["utilisation/optimum/capacity"]
    assert summary["utilisation/optimum"] == pytest.approx(full)


def test_a_metric_is_named_by_its_group_and_rule(three_rules: toytf.Run) -> None:
    matrix = {
        "recall/{}", "margin/{}_min", "margin/{}_median", "margin/{}_mean", "margin/{}_negative",
        "scores/{}_correct_mean", "scores/{}_correct_spread", "scores/{}_rival_max", "scores/{}_rival_spread",
        "spectrum/{}_fourth_moment", "spectrum/{}_largest", "spectrum/{}_effective_rank", "spectrum/{}_distance",
        "spectrum/{}_distance_hebbian", "utilisation/{}", "utilisation/{}/stored", "utilisation/{}/capacity",
    }  # fmt: skip
    names = {name for name in three_rules.summary if not name.startswith(("theory/", "ideal/", "chance/"))}
    for rule in ("hebbian", "optimum"):
        assert {name.format(rule) for name in matrix} == {
            name for name in names if re.search(rf"/{rule}(_|/|$)", name) and not name.endswith("/std")
        }
    assert not any(name.startswith(("spectrum/mlp", "utilisation/mlp", "theory/scores/mlp")) for name in names)
    assert {f"{name}/std" for name in names if not name.endswith("/std")} <= names


def test_the_hebbian_rule_has_its_own_prediction_beside_it(three_rules: toytf.Run) -> None:
    """Right scores √(d²/p) ± 1, rivals √(1 + 2d/p), ⟨s⁴⟩ = 2 + d/p; for its margins there is no prediction."""
    summary = three_rules.summary
    assert summary["theory/scores/hebbian_correct_mean"] == pytest.approx(D / math.sqrt(N))
    assert summary["theory/scores/hebbian_correct_spread"] == 1
    assert summary["theory/scores/hebbian_rival_spread"] == pytest.approx(math.sqrt(1 + 2 * D / N))
    assert summary["theory/spectrum/hebbian_fourth_moment"] == pytest.approx(2 + D / N)
    assert not any(name.startswith("theory/margin/hebbian") for name in summary)
    # Each seed scatters by √2/d = 0.12 of the mean.
    assert summary["scores/hebbian_correct_mean"] == pytest.approx(D / math.sqrt(N), rel=0.25)
    assert summary["spectrum/hebbian_fourth_moment"] == pytest.approx(2 + D / N, rel=0.25)


def test_the_optimum_has_the_prediction_for_the_best_weights(three_rules: toytf.Run) -> None:
    summary = three_rules.summary
    kappa = theory.maximal_margin(N, D, D)
    assert summary["theory/margin/optimum_min"] == pytest.approx(kappa)
    assert summary["theory/scores/optimum_correct_mean"] == pytest.approx(theory.optimum_scores(N, kappa).mean)
    assert summary["theory/spectrum/optimum_fourth_moment"] == pytest.approx(2, abs=1e-3)
    assert summary["theory/utilisation/optimum/stored"] == N


def test_the_hebbian_mean_of_a_rectangle_is_that_of_its_area(store: Run) -> None:
    run = store(rules=["hebbian"], dimension=[8, 18], n=36)
    assert run.summary["theory/scores/hebbian_correct_mean"] == pytest.approx(2)
    assert run.summary["theory/scores/hebbian_rival_spread"] == pytest.approx(math.sqrt(1 + 26 / 36))


def test_the_hebbian_prediction_is_not_told_of_answers_that_are_shared(store: Run) -> None:
    run = store(rules=["hebbian"], dimension=6, n=12, data={"n_answers": 4})
    assert run.summary["chance/recall/hebbian"] == pytest.approx(1 / 4)
    assert not any(name.startswith(("theory/scores/", "theory/spectrum/", "theory/margin/")) for name in run.summary)


@pytest.mark.parametrize(
    "change", [{}, {"noise_vectors": 3}, {"data": {"n_answers": 3}}], ids=["plain", "noise", "shared"]
)
def test_the_lemmas_are_what_autograd_says(change: dict[str, Any], store: Run) -> None:
    run = store(rules=["gradient_step", "noisy_gradient_step"], dimension=[6, 9], n=8, **change)
    for rule in run.config.rules:
        assert 0 < run.summary[f"lemma/{rule}"] < 1e-12


def test_noise_cancels_in_the_step_that_knows_its_classes(store: Run) -> None:
    """128 dimensions, 16 answers, each asked for with 8 noise vectors as long as the key itself."""
    run = store(rules=["noisy_gradient_step"], dimension=128, n=16, noise_vectors=8)
    assert run.summary["recall/noisy_gradient_step"] >= 0.99


def test_rivals_of_its_own_leave_the_hebbian_right_scores_as_they_are(store: Run) -> None:
    """The matrix is the same; its rivals have the spread √(1 + d/p) in place of √(1 + 2d/p)."""
    summary = store(rules=["hebbian", "hebbian_decoupled"], dimension=D, n=N).summary
    for measure in ("scores/{}_correct_mean", "scores/{}_correct_spread", "spectrum/{}_fourth_moment"):
        assert summary[measure.format("hebbian_decoupled")] == pytest.approx(summary[measure.format("hebbian")])
    assert summary["theory/scores/hebbian_decoupled_rival_spread"] == pytest.approx(math.sqrt(1 + D / N))
    assert summary["scores/hebbian_decoupled_rival_spread"] != summary["scores/hebbian_rival_spread"]


def test_the_optimum_is_read_against_the_rivals_it_was_stored_against(store: Run) -> None:
    rules = ["optimum_decoupled", "max_margin_decoupled"]
    summary = store(rules=rules, dimension=D, n=N).summary
    for rule in rules:
        assert summary[f"recall/{rule}"] == 1
        assert summary[f"margin/{rule}_min"] > 0
    shared = configured(n=N, dimension=D)
    memory = RULES["max_margin_decoupled"].build(rule_inputs(shared, 0, "max_margin_decoupled"))
    assert float(rule_inputs(shared, 0, "hebbian").association.recall(memory)) < 1  # other rivals, other inequalities


def test_a_rank_has_the_prediction_of_its_own_margin(store: Run) -> None:
    """p δ_κ(p) = d² ω²(rank): 20 pairs are two thirds of what rank 4 holds at d = 12, half of what full rank does."""
    summary = store(rules=["low_rank_max_margin", "max_margin"], dimension=D, n=20, width=4).summary
    kappa = theory.maximal_margin(20, D, D, rank=4)
    assert 0 < kappa < summary["theory/margin/max_margin_min"]
    assert summary["theory/margin/low_rank_max_margin_min"] == pytest.approx(kappa)
    expected = theory.optimum_scores(20, kappa)
    assert summary["theory/scores/low_rank_max_margin_correct_mean"] == pytest.approx(expected.mean)
    assert summary["margin/low_rank_max_margin_min"] < summary["margin/max_margin_min"]


# --- the associations


def test_all_rules_get_the_same_associations() -> None:
    config = configured(rules=["hebbian", "mlp_h2"], width=4, n=9, dimension=5)
    first, second = (rule_inputs(config, 0, rule).association for rule in config.rules)
    assert torch.equal(first.keys, second.keys)
    assert torch.equal(first.values, second.values)
    other = rule_inputs(config, 1, "hebbian").association
    assert not torch.equal(first.keys, other.keys)


def test_every_answer_is_asked_for_with_every_noise_vector() -> None:
    clean = rule_inputs(configured(n=5, dimension=7), 0, "hebbian").association
    noisy = rule_inputs(configured(n=5, dimension=7, noise_vectors=3), 0, "hebbian").association
    assert noisy.keys.shape == (15, 7)
    assert noisy.targets.tolist() == [answer for answer in range(5) for _ in range(3)]
    noise = noisy.keys.reshape(5, 3, 7) - clean.keys[:, None]
    torch.testing.assert_close(noise, noise[:1].expand_as(noise))  # the same three for every key
    assert not torch.allclose(noise[0, 0], noise[0, 1])
    torch.testing.assert_close(noise.norm(dim=2), torch.full((5, 3), math.sqrt(7)))
    assert torch.equal(noisy.values, clean.values)


def test_facts_about_pairs_have_answers_of_their_second_part() -> None:
    given = rule_inputs(configured(dimension=[6, 8], pairs={"first": 3, "second": 4, "answers": 5}), 0, "hebbian")
    facts, parts = given.association, given.parts
    assert parts is not None
    assert facts.keys.shape == (12, 6)
    assert facts.values.shape == (20, 8)
    torch.testing.assert_close(facts.keys, (parts[0] + parts[1]) / math.sqrt(2))
    firsts, seconds = parts[0].reshape(3, 4, 6), parts[1].reshape(3, 4, 6)
    assert torch.equal(firsts, firsts[:, :1].expand_as(firsts))  # every first part with every second
    assert torch.equal(seconds, seconds[:1].expand_as(seconds))
    pools = facts.targets.reshape(3, 4) // 5
    assert torch.equal(pools, torch.arange(4).expand(3, 4))
    assert len(facts.targets.unique()) > 4  # not the same answer for all


def test_facts_differ_by_seed_and_not_by_rule() -> None:
    config = configured(dimension=6, pairs={"first": 3, "second": 4, "answers": 5})
    targets = [rule_inputs(config, seed, rule).association.targets for seed, rule in ((0, "a"), (0, "b"), (1, "a"))]
    assert torch.equal(targets[0], targets[1])
    assert not torch.equal(targets[0], targets[2])


# --- every rule, every size, every field


@pytest.mark.parametrize("pairs", [{"first": 2, "second": 2, "answers": 2}, None], ids=["pairs", "plain"])
def test_every_rule_can_be_run(pairs: dict[str, int] | None, store: Run) -> None:
    chosen = [name for name, rule in RULES.items() if "storage" in rule.experiments and rule.pairs == bool(pairs)]
    run = store(rules=chosen, dimension=4, width=3, n=None if pairs else 4, pairs=pairs)
    recalls = run.table.query("group == 'recall'")
    assert recalls["rule"].tolist() == chosen
    assert recalls["value"].between(0, 1).all()


@pytest.mark.parametrize(
    "smallest",
    [
        {"n": 1},
        {"n": 2, "dimension": 1},
        {"n": 3, "data": {"n_answers": 2}},
        {"pairs": {"first": 1, "second": 1, "answers": 1}},
    ],
    ids=["one pair", "one dimension", "two answers", "one fact"],
)
def test_the_smallest_associations_are_measured_too(smallest: dict[str, Any], store: Run) -> None:
    run = store(rules=["hebbian", "optimum", "gradient_step"], **{"dimension": 3, **smallest})
    assert run.finished
    assert all(math.isfinite(value) for value in run.summary.values())


PAIRS = {"first": 3, "second": 3, "answers": 3}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rules": ({}, {"rules": ["ridge"]}),
    "dimension": ({}, {"dimension": 5}),
    "n": ({}, {"n": 7}),
    "width": ({"rules": ["low_rank"], "width": 2}, {"width": 3}),
    "data.distribution": ({}, {"data": {"distribution": "gaussian"}}),
    "data.n_answers": ({}, {"data": {"n_answers": 3}}),
    "noise_vectors": ({}, {"noise_vectors": 2}),
    "pairs": ({}, {"n": None, "pairs": PAIRS}),
    "pairs.first": ({"n": None, "pairs": PAIRS}, {"pairs": {**PAIRS, "first": 2}}),
    "pairs.second": ({"n": None, "pairs": PAIRS}, {"pairs": {**PAIRS, "second": 2}}),
    "pairs.answers": ({"n": None, "pairs": PAIRS}, {"pairs": {**PAIRS, "answers": 2}}),
    "iterations": ({"rules": ["optimum"], "n": 8}, {"iterations": 1}),
    "trained.lr": ({"rules": ["trained_linear"]}, {"trained": {"lr": 0.01}}),
    "trained.steps": ({"rules": ["trained_linear"]}, {"trained": {"steps": 1}}),
    "seeds": ({}, {"seeds": [1]}),
}
ELSEWHERE = {"experiment", "device", "threads", "logging", "data", "trained"}
"""Of the machine, the same for all experiments, or listed by its fields."""


def test_the_table_of_changes_has_every_field() -> None:
    nested = {f"data.{field}" for field in DataConfig.model_fields}
    nested |= {f"trained.{field}" for field in TrainedRulesConfig.model_fields}
    nested |= {f"pairs.{field}" for field in PairsConfig.model_fields}
    assert set(CHANGES) == set(StorageConfig.model_fields) - ELSEWHERE | nested


@pytest.mark.parametrize("field", CHANGES)
def test_every_field_changes_what_is_measured(field: str, store: Run) -> None:
    besides, change = CHANGES[field]
    config = {"rules": ["hebbian"], "dimension": 4, "n": 6, **besides}
    before, after = store(**config), store(**{**config, **change})
    assert before.table["value"].tolist() != after.table["value"].tolist()


def test_the_threads_are_used_and_given_back(store: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    store(rules=["hebbian"], dimension=4, n=6, threads=2, anew=True, page=False)
    assert used == [2, 1]  # and back to what the process had


def test_the_same_config_gives_the_same_bytes(store: Run) -> None:
    config = {"rules": ["hebbian", "mlp_relu", "optimum"], "dimension": 5, "n": 8, "width": 6}
    first, again = (store(**config, anew=True).metrics_file.read_bytes() for _ in range(2))
    assert first == again


# --- what can be looked at


def test_the_figures_are_scores_and_singular_values_of_every_matrix(three_rules: toytf.Run) -> None:
    saved = {path.stem for path in (three_rules.directory / "figures").glob("*.json")}
    scores = {"scores_hebbian", "scores_optimum", "scores_mlp_h2"}
    assert saved == scores | {"spectrum_hebbian", "spectrum_optimum"}  # an MLP has no singular values
    assert saved == set(shown(three_rules).figures)


def test_a_memory_is_built_once_for_its_metrics_and_its_figures(store: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    real = Rule.build

    def build(self: Rule, inputs: RuleInputs) -> Any:
        built.append(len(inputs.association.keys))
        return real(self, inputs)

    monkeypatch.setattr(Rule, "build", build)
    run = store(rules=["hebbian", "ridge"], dimension=4, n=6, seeds=[0, 1], anew=True)
    assert set(shown(run).figures) == {"scores_hebbian", "scores_ridge", "spectrum_hebbian", "spectrum_ridge"}
    assert built == [6] * 4  # two rules, two seeds


def test_a_silent_memory_has_no_figures(store: Run) -> None:
    """With one answer there is nothing to learn: the gradient is 0, and so is W after its step."""
    run = store(rules=["gradient_step"], dimension=3, pairs={"first": 2, "second": 1, "answers": 1})
    assert run.finished
    assert shown(run).figures == {}


def test_the_page_has_the_theory_beside_what_was_measured(three_rules: toytf.Run) -> None:
    html = three_rules.report_file.read_text(encoding="utf-8").replace("<wbr>", "")
    table = html[html.index("Every metric with what it means") :].partition("</table>")[0]
    assert re.findall("<th>(.*?)</th>", table) == ["", "measured", "ideal", "theory", "chance"]
    for text in (
        "Recall, as a fraction of the pairs",
        "Margins (standard deviations of a score)",
        "hebbian_correct_mean",
    ):
        assert text in table
    assert f">{D / math.sqrt(N):.3f}</td>" in table


def test_the_table_in_the_terminal_has_the_theory_too(three_rules: toytf.Run, invoke: "Callable[..., Ended]") -> None:
    ended = invoke("run", three_rules.config_file, "--out", three_rules.directory, "--resume", "--verbose")
    assert ended.code == 0
    assert re.search(r"measured.*ideal.*theory.*chance", ended.out)
    assert re.search(rf"hebbian_correct_mean .* {D / math.sqrt(N):.3f} ", ended.out)


@pytest.mark.parametrize("arguments", [[], ["--probe", "limits"]], ids=["all", "one"])
def test_there_is_no_model_to_probe(
    arguments: list[str], three_rules: toytf.Run, invoke: "Callable[..., Ended]"
) -> None:
    ended = invoke("probe", three_rules.directory, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(r"toytf: .*experiment storage.* has no model.*\n", ended.err)


def test_there_is_no_model_from_python_either(three_rules: toytf.Run) -> None:
    with pytest.raises(UserError, match="experiment storage, which has no model"):
        _ = three_rules.trained


def test_inspect_puts_memories_and_a_training_on_one_page(
    three_rules: toytf.Run, tiny_run: toytf.Run, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    page = tmp_path / "both.html"
    ended = invoke("inspect", three_rules.directory, tiny_run.directory, "--html", page)
    assert (ended.code, ended.out) == (0, f"{page}\n")
    text = page.read_text(encoding="utf-8")
    for title in ("Singular values of", "Mean attention of layer 1", "Recall, as a fraction of the pairs"):
        assert title in text


def test_inspect_writes_the_page_of_memories_again(three_rules: toytf.Run, invoke: "Callable[..., Ended]") -> None:
    ended = invoke("inspect", three_rules.directory)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"{three_rules.report_file}\n"
