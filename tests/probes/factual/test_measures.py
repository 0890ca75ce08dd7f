"""The measures behind the probes of facts, on tables made by hand."""

import math
import re
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import torch

from probes.factual.additivity import sums, two_way
from probes.factual.fact_ratios import bits_known
from probes.factual.pair_memory import swaps
from probes.factual.tables import missed
from probes.factual.value_memory import recall_at_size
from tasks.factual.config import FactualConfig
from tasks.factual.streams import by_pair
from tasks.factual.tables import fact_tables
from tasks.factual.task import FactualTask
from toytf.build import build_model, build_probe, build_task
from toytf.config.plugins import plugins
from toytf.errors import UserError
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.models.transformer import LayerPart
from toytf.probe import ProbeResult
from toytf.randomness import generator

FACTS = """subject,relation,attribute
France,capital,Paris
France,language,French
Canada,capital,Ottawa
Canada,language,French
Chad,capital,Ndjamena
"""


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(0, "logits"), dtype=torch.float64)


@pytest.fixture
def gaps(tmp_path: Path) -> FactualTask:
    """Five facts; the language of Chad is unknown, and two answers have the same name."""
    path = tmp_path / "facts.csv"
    path.write_text(FACTS, encoding="utf-8")
    task: Any = build_task(FactualConfig(kind="factual", facts=str(path), seq_len=8, n_noise=4), torch.device("cpu"))
    return task


def layer(task: FactualTask, **feed_forward: Any) -> ToyTransformer:
    attention = {"n_heads": 2, "d_head": 8, "residual": False}
    config = {"d_model": 16, "n_layers": 1, "position": "none", "attention": attention, "feed_forward": feed_forward}
    return build_model(ModelConfig.model_validate(config), task, 0)


def probed(kind: str, task: FactualTask, model: ToyTransformer, **fields: Any) -> ProbeResult:
    probe = build_probe(plugins("probes")[kind](kind=kind, **fields))
    probe.check(model, task)
    return probe(model, task, task.sample(1, generator(0, "batch")))


def small(**changes: Any) -> FactualTask:
    """Twelve facts."""
    config = {"kind": "factual", "n_subjects": 4, "n_relations": 3, "n_answers": 2, "seq_len": 8, **changes}
    task: Any = build_task(FactualConfig.model_validate(config), torch.device("cpu"))
    return task


# What can be chosen


@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        ("facts", "facts/accuracy"),
        ("value_memory", "value_memory/within_set"),
        ("additivity", "additivity/accuracy"),
        ("pair_memory", "pair_memory/accuracy"),
    ],
)
def test_as_many_failures_are_named_as_are_asked_for(kind: str, metric: str) -> None:
    """An untrained model misses more than two of twelve facts."""
    task = small()
    model = layer(task, kind="relu")
    for n in (1, 2):
        named = probed(kind, task, model, failures=n).failures[metric]
        assert len(named) == n
        assert all(re.fullmatch(r"s\d, r\d: says r\da\d, is r\da\d", name) for name in named)


def test_a_fact_that_noise_can_change_is_not_stored() -> None:
    """Asked for once, accuracy and stored are the same; more often, it is right sometimes, but less often always."""
    task = small()
    once, often = (probed("facts", task, layer(task), repeats=n).metrics for n in (1, 16))
    assert once["facts/accuracy"] == once["facts/stored"]
    assert often["facts/stored"] < often["facts/accuracy"]


# The analysis of variance


def test_a_sum_of_subject_and_relation_has_no_interaction() -> None:
    subject, relation = normal(5, 1, 7), 2 * normal(1, 4, 7)
    split = two_way(subject + relation)
    assert split is not None
    assert split.interaction == pytest.approx(0, abs=1e-20)
    torch.testing.assert_close(split.additive.argmax(2), (subject + relation).argmax(2))


def test_what_only_pairs_explain_is_interaction() -> None:
    """A checkerboard of answers: every row and every column has the mean 0."""
    signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])[..., None] * torch.tensor([1.0, -1.0])
    split = two_way(signs)
    assert split is not None
    assert (split.subject, split.relation, split.interaction) == (0, 0, 1)


def test_fractions_sum_to_one_and_ignore_what_all_answers_share() -> None:
    L = normal(6, 5, 9)
    split, shifted = two_way(L), two_way(L + 100 * normal(6, 5, 1))
    assert split is not None
    assert shifted is not None
    assert split.subject + split.relation + split.interaction == pytest.approx(1)
    assert shifted.interaction == pytest.approx(split.interaction)


def test_random_logits_have_the_fractions_of_their_degrees_of_freedom() -> None:
    """(S−1), (R−1) and (S−1)(R−1) of SR − 1; over 400 answers the standard error is below .005."""
    split = two_way(normal(8, 4, 400))
    assert split is not None
    assert split.subject == pytest.approx(7 / 31, abs=0.02)
    assert split.relation == pytest.approx(3 / 31, abs=0.02)
    assert split.interaction == pytest.approx(21 / 31, abs=0.02)


def test_the_sum_is_as_the_logits_are() -> None:
    """Not in float64, which it is computed in: not every device has that."""
    split = two_way(normal(3, 4, 5).float())
    assert split is not None
    assert split.additive.dtype == torch.float32


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("last", ["eos", "relation"])
@torch.no_grad()
def test_the_sum_of_values_is_what_even_attention_gives(last: str, residual: bool) -> None:
    """Without noise all masses are 1/T, and only what the end token says is missing in the sum; e_q is not."""
    task = small(last=last, n_noise=0, seq_len=3 if last == "eos" else 2)
    attention = {"n_heads": 2, "d_head": 8, "residual": residual}
    config = {"d_model": 16, "n_layers": 1, "position": "none", "attention": attention}
    model = build_model(ModelConfig.model_validate(config), task, 0)
    model.attention(0).W_K.zero_()
    tables = fact_tables(model, task, 1)
    G = tables.contributions
    ends = G[task.end] if task.end is not None else torch.zeros(16)
    torch.testing.assert_close((sums(G, model, task) + ends).flatten(0, 1), tables.attended[:, 0])


def test_logits_that_do_not_vary_have_no_fractions() -> None:
    assert two_way(torch.ones(3, 3, 4)) is None


# Recall


def test_recall_counts_members_of_a_set_among_as_many_highest() -> None:
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.0, 1.0]])
    sets = torch.tensor([[True, False, True, False], [False, False, False, True]])
    assert recall_at_size(scores, sets) == pytest.approx((1 / 2 + 0) / 2)
    assert recall_at_size(torch.where(sets, 9.0, scores), sets) == 1


# Tables with gaps


def test_facts_as_a_table_have_no_value_where_nothing_is_known(gaps: FactualTask) -> None:
    table = by_pair(torch.arange(5.0), gaps)
    assert table.isnan().tolist() == [[False, False], [False, False], [False, True]]


def test_wrong_facts_are_named(gaps: FactualTask) -> None:
    names = gaps.table.answer_names
    logits = torch.eye(len(names))[gaps.targets]
    assert missed(logits, gaps, 10) == []
    logits[2, names.index("Paris")] = 2
    assert missed(logits, gaps, 10) == ["Canada, capital: says Paris, is Ottawa"]


def test_a_swap_needs_another_answer_that_is_known(gaps: FactualTask) -> None:
    other, answers, counts = swaps(gaps, 2)
    assert other.tolist() == [[1, 1], [0, 0], [1, 1], [0, 0], [1, 1]]
    assert counts[:, 0].tolist() == [True, True, True, True, False]
    names = [gaps.table.answer_names[a] for a in answers[:4, 0].tolist()]
    assert names == ["French", "Paris", "French", "Ottawa"]


def test_bits_are_those_of_each_relation(gaps: FactualTask) -> None:
    """Three capitals, so 3 log₂ 3 bits; one language leaves nothing to know."""
    assert bits_known(gaps, torch.zeros(5)) == pytest.approx(3 * math.log2(3))
    assert bits_known(gaps, torch.full((5,), math.log(3))) == pytest.approx(0, abs=1e-6)
    assert math.isnan(bits_known(gaps, torch.full((5,), torch.nan)))


@pytest.mark.parametrize(
    "kind", ["facts", "ownership", "value_memory", "fact_storage", "pair_memory", "value_alignment", "fact_ratios"]
)
def test_a_table_with_gaps_can_be_probed(kind: str, gaps: FactualTask) -> None:
    found = probed(kind, gaps, layer(gaps, kind="relu"))
    assert found.metrics
    assert isinstance(found.figure(), go.Figure)
    assert all(torch.tensor(value).isfinite() for value in found.metrics.values())
    assert not any("interaction" in name or "additive" in name for name in found.metrics)


def test_additivity_needs_a_table_without_gaps(gaps: FactualTask) -> None:
    assert probed("additivity", gaps, layer(gaps)).metrics == {}


def test_answers_that_two_subjects_share_are_one_for_recall(gaps: FactualTask) -> None:
    """Chance: 2, 2 and 1 of 4 answers by subject, 3 and 1 by relation; a set of one cannot be missed within itself."""
    references = probed("value_memory", gaps, layer(gaps)).references
    assert references["value_memory/subject_recall"].chance == pytest.approx((2 / 4 + 2 / 4 + 1 / 4) / 3)
    assert references["value_memory/relation_recall"].chance == pytest.approx((3 / 4 + 1 / 4) / 2)
    assert references["value_memory/within_set"].chance == pytest.approx((3 * (1 / 3) + 2) / 5)


# Other shapes of the task


@pytest.mark.parametrize("task", [{"last": "relation"}, {"pools": "shared"}, {"seq_len": 3, "n_noise": 0}])
@pytest.mark.parametrize(
    "kind", ["facts", "ownership", "value_memory", "additivity", "fact_storage", "pair_memory", "value_alignment"]
)
def test_other_forms_of_the_task_can_be_probed(kind: str, task: dict[str, Any]) -> None:
    facts = small(**task)
    found = probed(kind, facts, layer(facts, kind="relu")).metrics
    assert found
    assert all(torch.tensor(value).isfinite() for value in found.values())
    if kind == "ownership":
        assert ("ownership/end_mass" in found) == ("last" not in task)
        assert ("key_gap/subjects" in found) == ("pools" in task)


def test_a_feed_forward_part_without_residual_leaves_no_direct_path() -> None:
    task = small()
    model = layer(task, kind="relu", residual=False)
    found = probed("fact_storage", task, model).metrics
    assert "fact_storage/direct" not in found
    assert found["fact_storage/feed_forward"] == probed("facts", task, model).metrics["facts/accuracy"]


@pytest.mark.parametrize("kept", [0.5, 1.0])
@torch.no_grad()
def test_probes_add_up_the_stream_as_the_model_does(kept: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if residual paths were weaker, which is no option yet: how parts are added is said in one place."""
    monkeypatch.setattr(LayerPart, "skip", lambda self, x: kept * x)
    task = small()
    model = layer(task, kind="relu")
    batch = task.facts_among_noise(8)
    mid = "blocks.0.hook_resid_mid"
    logits, seen = model.observe(batch.tokens, mid, last=1)
    logits, targets = logits[:, -1], task.targets.repeat_interleave(8)
    torch.testing.assert_close(fact_tables(model, task, 8).attended.flatten(0, 1), seen[mid][:, -1])
    said = (logits.argmax(1) == targets).float().mean()
    assert probed("facts", task, model).metrics["facts/accuracy"] == pytest.approx(float(said))
    paths = probed("fact_storage", task, model).metrics
    margin = (logits.gather(1, targets[:, None])[:, 0] - logits.mean(1)).mean()
    assert paths["fact_margin/direct"] + paths["fact_margin/feed_forward"] == pytest.approx(float(margin), rel=1e-4)


@pytest.mark.parametrize(("pools", "holds"), [("disjoint", 1), ("shared", 0)])
def test_attention_alone_suffices_only_for_disjoint_pools(pools: str, holds: int) -> None:
    """H d_head = 16 ≥ 4 + 3 and d = 16 ≥ 3 + 2 in both."""
    task = small(pools=pools)
    assert probed("fact_ratios", task, layer(task)).metrics["theorem/attention_only"] == holds


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ({"n_layers": 2}, "n_layers = 2"),
        ({"attention": {"kq": "joint", "n_heads": 1}}, "joint matrices"),
        ({"feed_forward": {"kind": "linear"}}, "a linear feed-forward part"),
    ],
)
def test_parameters_that_the_theorems_do_not_count_are_refused(model: dict[str, Any], what: str) -> None:
    task = small()
    built = build_model(ModelConfig.model_validate({"d_model": 16, "n_layers": 1, **model}), task, 0)
    with pytest.raises(UserError, match=f"this model has {what}"):
        probed("fact_ratios", task, built)
