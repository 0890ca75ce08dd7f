"""What attention does with facts, as tables: the same as the forward of the model, token by token."""

from typing import Any

import pytest
import torch

from probes.factual.tables import factual
from tasks.factual.config import FactualConfig
from tasks.factual.streams import final_streams
from tasks.factual.tables import fact_tables, subject_answers, why_no_tables
from tasks.factual.task import FactualTask
from toytf.build import build_model, build_probe, build_task
from toytf.config.plugins import plugins
from toytf.errors import UserError
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig

CPU = torch.device("cpu")
SMALL = {"kind": "factual", "n_subjects": 5, "n_relations": 3, "n_answers": 4, "n_noise": 4, "seq_len": 12}
READ_AS_TABLES = ("ownership", "value_memory", "fact_storage", "pair_memory", "value_alignment")


def setting(task: dict[str, Any] | None = None, **model: Any) -> tuple[FactualTask, ToyTransformer]:
    """Strong attention, so that masses differ, on few tokens, so that noise comes twice."""
    built: Any = build_task(FactualConfig.model_validate(SMALL | (task or {})), CPU)
    attention = {"n_heads": 3, "d_head": 4, "residual": False, "init": "normal"}
    one_layer = {"d_model": 16, "n_layers": 1, "position": "none", "attention": attention}
    config = ModelConfig.model_validate({**one_layer, **model, "attention": attention | model.get("attention", {})})
    return built, build_model(config, built, 0)


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ({}, {}),
        ({"last": "relation"}, {}),
        ({}, {"attention": {"residual": True, "kq": "joint", "ov": "joint"}}),
        ({"last": "relation"}, {"attention": {"residual": True, "scale": 2.0}}),
    ],
)
@torch.no_grad()
def test_the_tables_are_what_the_forward_does(task: dict[str, Any], model: dict[str, Any]) -> None:
    facts, layer = setting(task, feed_forward={"kind": "relu"}, **model)
    draws = 4
    tables, batch = fact_tables(layer, facts, draws), facts.facts_among_noise(draws)
    names = ("blocks.0.attn.hook_pattern", "blocks.0.hook_resid_mid", "blocks.0.attn.hook_attn_scores")
    logits, seen = layer.observe(batch.tokens, *names, last=1)
    pattern, attended, scores = (seen[name] for name in names)
    V = len(facts.token_names)
    one_hot = torch.nn.functional.one_hot(batch.tokens, V).float()
    mass = torch.einsum("bht,btv->bhv", pattern[:, :, -1], one_hot)
    there = one_hot.amax(1)
    torch.testing.assert_close(tables.mass, mass.mean(0), rtol=0, atol=1e-5)
    torch.testing.assert_close(tables.mass_given, mass.sum(0) / there.sum(0), rtol=0, atol=1e-5)
    of_relation = batch.latents["relation"] + facts.relations.start
    own = mass[torch.arange(len(mass)), :, of_relation].reshape(-1, draws, 3)
    torch.testing.assert_close(tables.relation_mass, own, rtol=0, atol=1e-5)
    torch.testing.assert_close(tables.attended.flatten(0, 1), attended[:, -1], rtol=1e-4, atol=1e-4)
    read_out = final_streams(layer, facts, draws) @ layer.unembed.W_U
    torch.testing.assert_close(read_out.flatten(0, 1), logits[:, -1], rtol=1e-4, atol=1e-3)
    if facts.end is not None:
        found = tables.scores[0][:, batch.tokens].transpose(0, 1)
        torch.testing.assert_close(found, scores[:, :, -1], rtol=1e-4, atol=1e-4)


def test_every_fact_meets_the_same_noise_again() -> None:
    facts, _ = setting()
    assert torch.equal(facts.facts_among_noise(3).tokens, facts.facts_among_noise(3).tokens)


class LouderConfig(ModelConfig):
    """An option that somebody adds to models, without a thought of these tables."""

    gain: float = 1.0


@pytest.mark.parametrize(("gain", "reason"), [(1.0, None), (2.0, "an option that these tables do not support")])
def test_a_model_with_an_unknown_option_has_no_tables(gain: float, reason: str | None) -> None:
    task = FactualTask(FactualConfig(kind="factual"), torch.device("cpu"))
    config = LouderConfig(d_model=16, n_layers=1, position="none", gain=gain)
    assert why_no_tables(build_model(config, task, 0)) == reason


def test_a_subject_has_the_answers_of_all_its_relations() -> None:
    facts, _ = setting()
    of_subject = subject_answers(facts)
    assert of_subject.sum(1).tolist() == [3] * 5  # the sets of the relations are disjoint
    for (s, _), a in zip(facts.pairs.tolist(), facts.targets.tolist(), strict=True):
        assert of_subject[s, a]


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ({"n_layers": 2}, "n_layers = 2"),
        ({"position": "normal"}, "position = normal"),
        ({"norm": "layer"}, "norm = layer"),
        ({"attention": {"kind": "linear"}}, "attention.kind = linear"),
    ],
)
@pytest.mark.parametrize("kind", READ_AS_TABLES)
def test_attention_that_is_no_table_over_tokens_is_refused(kind: str, model: dict[str, Any], what: str) -> None:
    facts, layer = setting(feed_forward={"kind": "relu"}, **model)
    with pytest.raises(UserError, match=f'probe "{kind}" reads attention as tables .* this model has {what}'):
        build_probe(plugins("probes")[kind](kind=kind)).check(layer, facts)


@pytest.mark.parametrize("model", [{"n_layers": 2, "position": "normal", "norm": "layer"}, {}])
@pytest.mark.parametrize("kind", ["facts", "additivity"])
def test_what_looks_at_logits_only_takes_any_model(kind: str, model: dict[str, Any]) -> None:
    facts, layer = setting(**model)
    probe = build_probe(plugins("probes")[kind](kind=kind))
    probe.check(layer, facts)
    found = probe(layer, facts, facts.facts_among_noise(1)).metrics
    assert ("additivity/table_accuracy" in found) == (kind == "additivity" and not model)


@pytest.mark.parametrize("kind", ["fact_storage", "pair_memory"])
def test_a_feed_forward_part_beside_attention_is_refused(kind: str) -> None:
    facts, layer = setting(feed_forward={"kind": "relu", "reads": "block_input"})
    with pytest.raises(UserError, match=r"feed_forward\.reads = attention"):
        build_probe(plugins("probes")[kind](kind=kind)).check(layer, facts)


@pytest.mark.parametrize("kind", ["none", "linear"])
def test_a_pair_memory_has_hidden_units(kind: str) -> None:
    facts, layer = setting(feed_forward={"kind": kind})
    with pytest.raises(UserError, match=f"model.feed_forward.kind = relu, got {kind}"):
        build_probe(plugins("probes")["pair_memory"](kind="pair_memory")).check(layer, facts)


def test_a_task_without_facts_is_refused() -> None:
    from tasks.bigram.config import BigramConfig

    config = plugins("probes")["ownership"](kind="ownership")
    bigram = BigramConfig(kind="bigram")
    with pytest.raises(UserError, match='probe "ownership" needs a task with the role "fact"'):
        config.check_fits(bigram)
    with pytest.raises(UserError, match=r"task\.kind = factual, got bigram"):
        factual("ownership", build_task(bigram, CPU))
