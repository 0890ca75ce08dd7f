"""Ideal parts for a factual model: a construction stays as it is, and each part does its job in the learned vectors."""

import copy
from typing import Any

import pytest
import torch

from probes.factual.config import PairMemoryProbeConfig
from probes.factual.pair_memory import PairMemory
from tasks.factual.grafts import owned
from tasks.factual.ideal import key_vector, query_vector, write_kq
from tasks.factual.memories import DRAWS
from tasks.factual.tables import fact_tables
from tasks.factual.task import FactualTask
from tests.tasks.factual.test_ideal import accuracy, ideal, the_task, untouched
from toytf.build import build_probe
from toytf.config.plugins import plugins
from toytf.errors import UserError
from toytf.grafts import Graft
from toytf.models.transformer import ToyTransformer
from toytf.randomness import generator

PARTS = ("W_KQ1", "W_OV1", "FF1")
RULES = ("hebbian", "least_squares", "construction")


def grafts(task: FactualTask, model: ToyTransformer, rule: str, **options: float) -> dict[str, Graft]:
    return {graft.name: graft for graft in task.grafts(model, rule, **options)}


def with_parts(model: ToyTransformer, *chosen: Graft) -> ToyTransformer:
    trial = copy.deepcopy(model)
    with torch.no_grad():
        for graft in chosen:
            graft.implant(trial)
    return trial


@pytest.mark.parametrize("rule", ["least_squares", "construction"])
@pytest.mark.parametrize("width", [None, 192], ids=["attention only", "with hidden units"])
@pytest.mark.parametrize("last", ["eos", "relation"])
def test_an_ideal_model_stays_ideal(rule: str, width: int | None, last: str) -> None:
    """64 dimensions hold the 53 tokens, and 192 hidden units the 256 facts: least squares are exact."""
    task = the_task(last=last)
    model = ideal(task, 64, (8, 4), width)
    parts = grafts(task, model, rule)
    assert tuple(parts) == (PARTS if width else PARTS[:2])
    for part in parts.values():
        assert accuracy(task, with_parts(model, part)) == 1
    assert accuracy(task, with_parts(model, *parts.values())) == 1


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_construction_mends_a_part_as_drawn(part: str) -> None:
    """The others are left alone, so the model is whole again; in its own vectors a broken part stays broken."""
    task = the_task()
    drawn, whole = untouched(task, 64, (8, 4), 192), ideal(task, 64, (8, 4), 192)
    broken = copy.deepcopy(whole)
    held = {"W_KQ1": ("attn.W_Q", "attn.W_K"), "W_OV1": ("attn.W_V", "attn.W_O"), "FF1": ("mlp.W_out",)}
    with torch.no_grad():
        for name in held[part]:
            broken.get_parameter(f"blocks.0.{name}").copy_(drawn.get_parameter(f"blocks.0.{name}"))
    assert accuracy(task, broken) < 0.2
    mended = with_parts(broken, grafts(task, broken, "construction")[part])
    assert accuracy(task, mended) == 1
    torch.testing.assert_close(mended.W_OV(0), whole.W_OV(0))
    if part != "FF1":
        assert accuracy(task, with_parts(broken, grafts(task, broken, "least_squares")[part])) < 0.2


def half_ideal(task: FactualTask) -> tuple[ToyTransformer, torch.Tensor]:
    """A construction with weights beside it that do no harm to speak of, and which tokens its heads own."""
    model, noise = ideal(task, 64, (8, 4), 192).requires_grad_(False), untouched(task, 64, (8, 4), 192, seed=1)
    with torch.no_grad():
        for name in ("W_K", "W_V"):
            model.get_parameter(f"blocks.0.attn.{name}").add_(0.05 * noise.get_parameter(f"blocks.0.attn.{name}"))
    return model, owned(fact_tables(model, task, DRAWS).mass_given, task)


def test_selectors_score_own_tokens_as_learned_and_all_others_alike() -> None:
    task = the_task()
    model, owns = half_ideal(task)
    learned = fact_tables(model, task, DRAWS).scores[0]
    scores = fact_tables(with_parts(model, grafts(task, model, "least_squares")["W_KQ1"]), task, DRAWS).scores[0]
    assert owns.sum(1).tolist() == [4] * 8
    for head in range(8):
        others = learned[head][~owns[head]].mean()
        # The ridge takes λ / (singular value)² at most: 1e-3 / (1 − √(53/64))² = .12 of the worst direction.
        torch.testing.assert_close(scores[head][owns[head]], (learned[head] - others)[owns[head]], rtol=0.02, atol=0.5)
        assert float(scores[head][~owns[head]].abs().max()) < 1.5
        assert float((learned[head] - others)[~owns[head]].abs().max()) > 15  # it rested on the end token at β/2 = 30


def test_values_say_of_own_tokens_what_was_learned_and_nothing_of_the_end_token() -> None:
    task = the_task()
    model, owns = half_ideal(task)
    learned = model.embed.W_E @ model.W_OV(0)
    said = model.embed.W_E @ with_parts(model, grafts(task, model, "least_squares")["W_OV1"]).W_OV(0)
    torch.testing.assert_close(said[owns], learned[owns], rtol=0, atol=1e-8)
    assert float(said[:, task.end].abs().max()) < 1e-8 < float(learned[:, task.end].abs().max())


@pytest.mark.parametrize("rule", ["hebbian", "least_squares"])
def test_the_read_out_has_the_norm_of_the_learned_one(rule: str) -> None:
    task = the_task()
    model = untouched(task, 64, (8, 4), 192).requires_grad_(False)
    for strength in (1.0, 2.5):
        part = with_parts(model, grafts(task, model, rule, strength=strength)["FF1"]).feed_forward(0)
        assert float(part.W_out.norm()) == pytest.approx(strength * float(model.feed_forward(0).W_out.norm()))


def test_the_read_out_is_that_of_the_pair_memory() -> None:
    """The probe pair_memory puts the same W_out in: with as many draws of the noise, its accuracy is the same."""
    task = the_task()
    model = untouched(task, 64, (8, 4), 64).to(torch.float32)
    probe = PairMemory(PairMemoryProbeConfig(kind="pair_memory", repeats=DRAWS))
    found = probe(model, task, task.facts_among_noise(DRAWS)).metrics
    trial = with_parts(model, grafts(task, model, "least_squares")["FF1"])
    batch = task.facts_among_noise(DRAWS)
    with torch.no_grad():
        right = trial(batch.tokens, last=1)[:, -1].argmax(-1) == batch.targets[:, 0]
    assert float(right.float().mean()) == pytest.approx(found["pair_memory/accuracy"], abs=0.002)


@pytest.mark.parametrize("rule", RULES)
def test_the_rest_of_the_model_stays_as_learned(rule: str) -> None:
    task = the_task()
    model = untouched(task, 64, (8, 4), 192)
    held = {"W_KQ1": ("W_Q", "W_K"), "W_OV1": ("W_V", "W_O"), "FF1": ("W_in", "b_in", "W_out")}
    for part, graft in grafts(task, model, rule).items():
        for name, weights in with_parts(model, graft).named_parameters():
            if name.rpartition(".")[2] not in held[part]:
                assert torch.equal(weights, model.get_parameter(name))


def test_a_head_that_owns_more_tokens_than_its_rank_says_what_it_has_learned() -> None:
    """A trained head of rank 4 may own more than 4 tokens; what it says of them has rank 4."""
    task = the_task()
    model = ideal(task, 64, (8, 4), 192).requires_grad_(False)
    phi, two_groups = model.embed.W_E, [*range(8)]
    write_kq(
        model.attention(0), 0, query_vector(phi[-1:]), 60 * key_vector(phi, two_groups, [task.end], "least_squares")
    )
    owns = owned(fact_tables(model, task, DRAWS).mass_given, task)
    assert int(owns[0].sum()) == 8
    said = model.embed.W_E @ with_parts(model, grafts(task, model, "least_squares")["W_OV1"]).W_OV(0)
    torch.testing.assert_close(said[owns], (model.embed.W_E @ model.W_OV(0))[owns], rtol=0, atol=1e-8)


def test_a_linear_feed_forward_part_is_one_matrix() -> None:
    task = the_task()
    model = untouched(task, 64, (8, 4), feed_forward={"kind": "linear"}).requires_grad_(False)
    parts = grafts(task, model, "least_squares")
    W = with_parts(model, parts["FF1"]).feed_forward(0).W_in
    assert float(W.norm()) == pytest.approx(float(model.feed_forward(0).W_in.norm()))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_layers": 2}, "n_layers = 2"),
        ({"position": "sphere"}, "position = sphere"),
        ({"norm": "layer"}, "norm = layer"),
        ({"attention": {"kind": "linear"}}, "attention.kind = linear"),
    ],
)
def test_a_model_without_tables_is_refused(changes: dict[str, Any], sentence: str) -> None:
    task = the_task()
    model = untouched(task, 64, (8, 4), 32, dtype=torch.float32, **changes)
    probe = plugins("probes")["transplant"](kind="transplant")
    with pytest.raises(UserError, match=f"probe transplant: ideal parts of a factual model need one layer.*{sentence}"):
        build_probe(probe).check(model, task)


def test_a_model_with_too_few_heads_for_the_construction_has_ideal_parts_of_its_own() -> None:
    task = the_task()
    model = untouched(task, 64, (1, 4), 32, dtype=torch.float32)
    probe = build_probe(plugins("probes")["transplant"](kind="transplant"))
    metrics = probe(model, task, task.sample(64, generator(0, "batch"))).metrics
    assert "transplant/ideal_all/least_squares" in metrics
    assert not any(name.endswith("/construction") for name in metrics)
    asked = build_probe(plugins("probes")["transplant"](kind="transplant", rules=["construction"]))
    with pytest.raises(UserError, match=r"probe transplant: model.init = ideal: .* need 4 \+ 4 heads"):
        asked.check(model, task)
