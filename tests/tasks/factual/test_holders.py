"""What the parts of a factual model hold, on models whose weights were planted.

16 subjects, 16 relations of 8 answers, unit vectors, 20 noise tokens, so that all 53 tokens fit into d = 64.
"""

import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from tasks.factual.config import FactualConfig
from tasks.factual.holders import own_head
from tasks.factual.memories import DRAWS
from tasks.factual.tables import fact_tables
from tasks.factual.task import FactualTask
from toytf.build import build_model, build_probe, build_task
from toytf.config.plugins import plugins
from toytf.holder import Holder
from toytf.memory.limits import best_matrices, matrix_limits
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.randomness import generator
from toytf.theory import selector_capacity, statistical_dimension

RELU = {"kind": "relu", "width": 192, "init": "normal_over_d"}
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "attention": ({}, {"init": "ideal"}),
    "mlp": ({}, {"init": "ideal", "feed_forward": RELU}),
    "hebbian": ({"construction": {"values": "hebbian"}}, {"init": "ideal", "d_model": 768}),
    "relation last": ({"last": "relation"}, {"init": "ideal"}),
    "untrained": ({}, {"feed_forward": RELU}),
}
SEEDS = range(3)


def built(task: dict[str, Any], model: dict[str, Any], seed: int = 0) -> tuple[FactualTask, ToyTransformer]:
    facts: Any = build_task(
        FactualConfig.model_validate({"kind": "factual", "n_noise": 20} | task), torch.device("cpu")
    )
    vectors = {"embedding": "sphere", "unembedding": "sphere", "position": "none"}
    attention = {"n_heads": 8, "d_head": 4, "residual": False, "init": "normal_over_out"} | model.get("attention", {})
    layer = {"d_model": 64, "n_layers": 1, **vectors, **model, "attention": attention}
    return facts, build_model(ModelConfig.model_validate(layer), facts, seed)


@cache
def setting(name: str, seed: int = 0) -> tuple[FactualTask, ToyTransformer]:
    task, model = SETTINGS[name]
    return built(task | {"table_seed": seed}, model, seed)


def recalled(holder: Holder) -> int:
    return int(holder.association.recalled(holder.memory).sum())


def found(task: FactualTask, model: ToyTransformer, name: str) -> list[Holder]:
    """All holders of a name."""
    return [holder for holder in task.holders(model) if holder.name == name]


def whole(task: FactualTask, model: ToyTransformer, name: str) -> Holder:
    return next(holder for holder in found(task, model, name) if holder.head is None)


def of_heads(task: FactualTask, model: ToyTransformer, name: str) -> tuple[int, int]:
    """Pairs recalled by heads, and pairs of heads."""
    heads = [holder for holder in found(task, model, name) if holder.head is not None]
    return sum(map(recalled, heads)), sum(len(holder.association.keys) for holder in heads)


# The construction


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["attention", "mlp"])
def test_the_heads_of_the_construction_select_all_tokens(name: str, seed: int) -> None:
    """16 subjects and 16 relations; keys are exact, as there are fewer tokens than dimensions."""
    assert of_heads(*setting(name, seed), "W_KQ1") == (32, 32)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_hidden_units_of_the_construction_hold_every_fact(seed: int) -> None:
    """192 hidden units are enough for 256 facts with every draw of the vectors."""
    assert recalled(whole(*setting("mlp", seed), "FF1")) == 256


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["attention", "relation last"])
def test_optimised_values_tell_most_answers_apart(name: str, seed: int) -> None:
    """.77–.95 of them: values of subject and relation decide together."""
    holder = whole(*setting(name, seed), "W_OV1")
    assert len(holder.association.keys) == 256
    assert 0.77 <= recalled(holder) / 256 <= 0.95


def test_hebbian_values_know_all_answers_in_many_dimensions() -> None:
    """At d = 768, a subject its 16 answers, a relation its 8, against crosstalk of variance 16/768."""
    task, model = setting("hebbian")
    assert recalled(whole(task, model, "W_OV1")) == 256
    assert recalled(whole(task, model, "W_OV1_relations")) == 128


@pytest.mark.parametrize("name", ["W_OV1", "W_OV1_relations"])
def test_heads_that_share_no_token_are_together_the_whole(name: str) -> None:
    """In the construction one head attends to a token, with mass 1."""
    task, model = setting("attention")
    together = whole(task, model, name)
    assert of_heads(task, model, name) == (recalled(together), len(together.association.keys))


def test_copies_of_tokens_say_nothing_of_answers() -> None:
    """With hidden units, values are the tokens' own vectors: 1/8 of 3 · 256 facts, 3 standard errors."""
    right = sum(recalled(whole(*setting("mlp", seed), "W_OV1")) for seed in SEEDS)
    assert right == pytest.approx(96, abs=3 * math.sqrt(768 * 7 / 64))


# Other planted weights


def test_an_untrained_model_guesses() -> None:
    """Over 5 draws: 1/D of 1,280 facts by values, 1/A of them by hidden units; 3 standard errors of a guess."""
    n, models = 5 * 256, [setting("untrained", seed) for seed in range(5)]
    for name, chance in {"W_OV1": 1 / 8, "FF1": 1 / 128}.items():
        holders = [whole(*model, name) for model in models]
        right = sum(map(recalled, holders))
        assert right == pytest.approx(n * chance, abs=3 * math.sqrt(n * chance * (1 - chance)))
        assert all(holder.association.chance == pytest.approx(chance) for holder in holders)


@torch.no_grad()
def test_half_of_the_facts_planted_are_half_recalled_and_chance_on_the_rest() -> None:
    """One joint head that knows every second relation: 128 + 128/8, 3 standard errors of the guesses."""
    joint = {"n_heads": 1, "ov": "joint", "d_head": None}
    task, model = built({}, {"d_model": 512, "attention": joint})
    (s, r), u = task.pairs.unbind(1), model.unembed.W_U.T
    g = torch.zeros(16, 512).index_add_(0, s[r % 2 == 0], u[task.targets[r % 2 == 0]])
    model.attention(0).W_O[0] = torch.linalg.pinv(model.embed.W_E[:16]) @ g
    holder = whole(task, model, "W_OV1")
    right = holder.association.recalled(holder.memory)
    assert int(right[r % 2 == 0].sum()) == 128
    assert int(right.sum()) == pytest.approx(128 + 16, abs=3 * math.sqrt(128 * 7 / 64))


@torch.no_grad()
def test_heads_without_keys_select_nothing() -> None:
    """Four of eight heads: their 16 tokens go to others, which score the end token higher, and half is left."""
    task, model = built({}, {"init": "ideal"})
    model.attention(0).W_K[::2] = 0
    assert of_heads(task, model, "W_KQ1") == (16, 32)


# What does not matter


def counts(task: FactualTask, model: ToyTransformer) -> Counter[str]:
    """Pairs recalled: by the whole, or by all heads where these are the whole."""
    found: Counter[str] = Counter()
    for holder in task.holders(model):
        if holder.name == "W_KQ1" or holder.head is None:
            found[holder.name] += recalled(holder)
    return found


@torch.no_grad()
def reordered(model: ToyTransformer) -> None:
    for weights in model.attention(0).parameters():
        weights.copy_(weights[[3, 7, 0, 1, 6, 2, 5, 4]])


@torch.no_grad()
def louder(model: ToyTransformer) -> None:
    model.attention(0).W_O.mul_(3)
    part = model.feed_forward(0)
    if part is not None and part.W_out is not None:
        part.W_out.mul_(3)


@pytest.mark.parametrize("name", ["attention", "mlp", "untrained"])
@pytest.mark.parametrize("change", [reordered, louder])
def test_neither_the_order_of_heads_nor_the_scale_matters(change: Callable[[ToyTransformer], None], name: str) -> None:
    """Hidden units without offsets are as many times louder as their keys; sums in another order differ by rounding."""
    task, model = built(*SETTINGS[name])
    before = counts(task, model)
    change(model)
    assert counts(task, model) == before
    assert set(before) == {"W_KQ1", "W_OV1", "W_OV1_relations"} | ({"FF1"} if name != "attention" else set())


# What fits


@pytest.mark.parametrize("name", ["attention", "mlp", "untrained"])
def test_hebbian_holds_at_most_what_the_best_does_and_the_best_no_more_than_fits(name: str) -> None:
    for holder in setting(name)[0].holders(setting(name)[1]):
        if holder.name == "W_KQ1" or holder.head is None:
            stored = holder.association
            best = best_matrices(stored, holder.rank, quick=True)
            hebbian, most = (int(stored.recalled(best[rule]).sum()) for rule in ("hebbian", "max_margin"))
            limits = holder.limits or matrix_limits(stored, holder.rank)
            assert limits is not None
            assert hebbian <= most == len(stored.keys) <= limits.at_values
            assert recalled(holder) <= limits.at_values


def test_parts_know_their_size() -> None:
    task, model = setting("attention")
    d, d_head, heads, others = 64, 4, 8, 21
    for holder in task.holders(model):
        own = 1 if holder.head is not None else heads
        if holder.name == "W_KQ1":
            assert holder.n_parameters == 0  # it picks tokens, and answers nothing that has bits
            assert holder.limits == (selector_capacity(d, others),) * 2
            continue
        assert holder.n_parameters == own * (2 * d - d_head) * d_head  # A Bᵀ does not change with A M, B M⁻ᵀ
        if holder.name == "W_OV1":
            assert holder.limits == matrix_limits(holder.association, holder.rank)  # few subjects: as in any matrix


def test_many_subjects_fit_only_as_far_as_each_head_has_room() -> None:
    """256 subjects, 4 heads of width 8 at d = 64: each holds d² ω²(1/8) / δ(8) facts, ω² = .376."""
    task, model = built({"n_subjects": 256}, {"attention": {"n_heads": 4, "d_head": 8}})
    limits = whole(task, model, "W_OV1").limits
    assert limits is not None
    one = 64**2 * 0.376 / statistical_dimension(8).value
    assert limits.at_values == pytest.approx(4 * one, rel=0.02)


def test_a_head_without_tokens_could_hold_some() -> None:
    task, model = setting("untrained")
    selecting = found(task, model, "W_KQ1")
    assert len(selecting) == model.config.attention.n_heads
    assert sum(len(holder.association.keys) for holder in selecting) == 32


def test_the_rank_is_the_width_of_the_heads_unless_few_tokens_ask() -> None:
    """40 subjects, 8 heads of width 4; a head of 3 tokens has no use for a fourth dimension."""
    task, model = built({"n_subjects": 40}, {})
    assert whole(task, model, "W_OV1").rank == 32
    for holder in found(task, model, "W_OV1"):
        n_tokens = len(holder.association.keys) // 16
        assert holder.rank == (None if holder.head is not None and n_tokens <= 4 else 4 if n_tokens < 40 else 32)
    joint = built({"n_subjects": 40}, {"attention": {"ov": "joint", "kq": "joint", "d_head": None}})
    assert all(holder.rank is None for holder in joint[0].holders(joint[1]))
    assert {holder.n_parameters for holder in joint[0].holders(joint[1])} == {0, 64 * 64, 8 * 64 * 64}


# What is asked


def test_every_token_belongs_to_the_head_that_attends_to_it_most() -> None:
    task, model = setting("untrained")
    tables = fact_tables(model, task, DRAWS)
    selected = {
        name: holder.head
        for holder in found(task, model, "W_KQ1")
        for name in holder.association.key_names or ()
    }  # fmt: skip
    assert sorted(selected) == sorted(task.token_names[:32])
    for z, name in enumerate(task.token_names[:32]):
        masses = tables.mass_given[:, z].tolist()
        assert selected[name] == max(range(8), key=masses.__getitem__) == int(own_head(tables, task)[z])


@pytest.mark.parametrize("name", ["attention", "untrained", "relation last"])
def test_the_whole_says_what_tokens_add_on_average(name: str) -> None:
    """W key is G_s, up to a length, and so the pairs are those that the probe value_memory counts."""
    task, model = setting(name)
    holder = whole(task, model, "W_OV1")
    assert isinstance(holder.memory, torch.Tensor)
    G = fact_tables(model, task, DRAWS).contributions[task.pairs[:, 0]]
    said = holder.association.keys @ holder.memory.T
    torch.testing.assert_close(torch.nn.functional.cosine_similarity(said, G), torch.ones(256), rtol=0, atol=1e-4)
    probe = build_probe(plugins("probes")["value_memory"](kind="value_memory"))
    within = probe(model, task, task.sample(1, generator(0, "batch"))).metrics["value_memory/within_set"]
    assert recalled(holder) == round(256 * within)


def test_a_relation_that_comes_last_is_nobodys_own() -> None:
    """All heads fall back on it, and every relation asks with a vector of its own."""
    task, model = setting("relation last")
    assert not found(task, model, "W_KQ1")
    assert [holder.head for holder in found(task, model, "W_OV1_relations")] == [None]
    assert [holder.head for holder in found(task, model, "W_OV1")] == [None, 0, 1, 2, 3]


def test_one_head_is_the_whole() -> None:
    task, model = built({}, {"attention": {"n_heads": 1}})
    assert [(holder.name, holder.head) for holder in task.holders(model)] == [
        ("W_KQ1", None), ("W_OV1", None), ("W_OV1_relations", None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ({"pools": "shared"}, set()),  # 16 answers of one subject in the same set
        ({"n_relations": 1}, {"W_OV1"}),  # no other relation has answers
        ({"n_answers": 1}, {"W_OV1_relations"}),  # nothing to tell apart
        ({"n_relations": 1, "n_answers": 1}, set()),
        ({"n_noise": 0, "seq_len": 3}, {"W_OV1", "W_OV1_relations"}),
    ],
)
def test_what_has_no_rival_or_no_meaning_is_not_asked(task: dict[str, Any], names: set[str]) -> None:
    facts, model = built(task, {})
    assert {holder.name for holder in facts.holders(model)} == names | {"W_KQ1"}
    for holder in facts.holders(model):
        best_matrices(holder.association, holder.rank, quick=True)
        assert holder.limits or matrix_limits(holder.association, holder.rank)


def test_of_shared_answers_only_those_are_asked_that_the_subject_alone_can_tell() -> None:
    """Spain has two answers among the two of `visited`, France only one."""
    rows = [
        ("France", "visited", "Rome"),
        ("Spain", "visited", "Oslo"),
        ("Spain", "twin", "Rome"),
        ("Chad", "twin", "Bern"),
    ]
    task, model = built({"facts": rows}, {})
    assert whole(task, model, "W_OV1").association.key_names == ("France, visited", "Spain, twin", "Chad, twin")
    pairs = whole(task, model, "W_OV1_relations").association
    assert pairs.candidates is not None
    asked = {
        (pairs.key_name(z), pairs.value_name(int(pairs.targets[z]))): {
            pairs.value_name(int(y)) for y in pairs.candidates[z].nonzero()[:, 0]
        }
        for z in range(len(pairs.keys))
    }
    assert asked == {
        ("visited", "Rome"): {"Rome", "Bern"},
        ("visited", "Oslo"): {"Oslo", "Bern"},
        ("twin", "Rome"): {"Rome", "Oslo"},
        ("twin", "Bern"): {"Bern", "Oslo"},
    }


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ({"n_layers": 2, "position": "normal", "feed_forward": RELU}, ["FF1"]),
        ({"attention": {"kind": "linear"}, "feed_forward": RELU}, ["FF1"]),
        ({"norm": "layer", "feed_forward": RELU}, []),
        ({"n_layers": 2}, []),
    ],
)
def test_without_tables_only_the_feed_forward_part_is_asked(model: dict[str, Any], names: list[str]) -> None:
    facts, layers = built({}, model)
    assert [holder.name for holder in facts.holders(layers)] == names


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("weights", ["W_Q", "W_O", "W_out"])
@torch.no_grad()
def test_a_model_that_diverged_holds_nothing(weights: str, bad: float) -> None:
    task, model = built({}, {"feed_forward": RELU})
    for name, part in model.named_parameters():
        if name.endswith(weights):
            part[0] = bad
    assert task.holders(model) == []
