"""A learned matrix beside the ideal one: on planted models, on matrices made by hand, and on a trained run."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import toytf
from tests.views.settings import FEW_FACTS, IDEAL, setting
from toytf.build import build_probe
from toytf.config.plugins import plugins
from toytf.holder import Holder
from toytf.memory import Association
from toytf.memory.measures import score_unit, singular_values
from toytf.models import Slot, ToyTransformer
from toytf.models.config import ModelConfig
from toytf.randomness import generator
from toytf.task import Batch, Task
from toytf.views import memory as views
from toytf.views.memory import SHOWN, MemoryView, Pair, memory_views

ANY_MODEL = ToyTransformer(
    ModelConfig(d_model=2, n_layers=1), n_tokens=2, n_positions=2, n_outputs=2, generator=generator(0)
)


class Held(Task):
    """A task that asks of any model whether these parts hold what they should."""

    def __init__(self, *parts: Holder) -> None:
        self.parts = parts

    def sample(self, n: int, generator: torch.Generator) -> Batch:
        raise NotImplementedError

    def holders(self, model: ToyTransformer) -> tuple[Holder, ...]:
        return self.parts


def view_of(stored: Association, W: Any, **fields: Any) -> MemoryView:
    (view,) = memory_views(ANY_MODEL, Held(Holder("W", stored, W, 1, **fields))).values()
    return view


def random_pairs(n: int, m: int, seed: int = 0, d: int = 8, **fields: Any) -> tuple[Association, Tensor]:
    """Random vectors with random answers, and a random matrix."""
    random = generator(seed, "pairs")
    keys, values = (torch.randn(k, d, generator=random) for k in (n, m))
    targets = torch.randint(m, (n,), generator=random)
    return Association(keys, values, targets, **fields), torch.randn(d, d, generator=random)


def one_hot(W: Tensor, targets: list[int], **fields: Any) -> tuple[Association, Tensor]:
    """Pairs whose scores are the entries of W: score[z, y] = W[y, z]."""
    m, n = W.shape
    return Association(torch.eye(n), torch.eye(m), torch.tensor(targets), **fields), W


# Planted models


def test_in_an_ideal_model_learned_is_ideal_and_every_right_cell_is_on_the_diagonal() -> None:
    found = memory_views(*reversed(setting("bigram/ideal", **IDEAL)))
    assert {name: len(view.margins) for name, view in found.items()} == {"W_KQ1": 31, "W_KQ2": 5, "W_OV2": 65}
    for view in found.values():
        n = len(view.margins)
        np.testing.assert_allclose(view.learned, view.ideal, atol=1e-5)  # float32, in units of the largest
        assert np.nanmax(np.abs(view.learned)) == pytest.approx(1)
        np.testing.assert_array_equal(view.right, np.eye(n, dtype=bool))
        np.testing.assert_array_equal(view.learned.argmax(1), np.arange(n))
        assert view.recalled == n
        assert all(pair.recalled for pair in view.worst(n))
    assert found["W_KQ2"].keys == found["W_KQ2"].values == ("␣", "e", "t", "o", "a")
    assert found["W_OV2"].title == "W_OV2: copy the attended token to the output"


def test_a_planted_wrong_pair_is_the_worst_and_has_a_name() -> None:
    """e answers t, by 2 in units in which the others win by 1; o wins by half as much as they."""
    task, model = setting(
        "quickstart", task__seq_len=8, model__d_model=65, model__embedding="one_hot", model__unembedding="one_hot",
        model__attention__ov="joint", model__freeze=[],
    )  # fmt: skip
    planted, (e, t, o) = torch.eye(65), map(task.token_names.index, "eto")
    planted[e, e], planted[e, t], planted[o, o] = 0, 2, 0.5
    model.write(Slot("OV", 1), planted)
    view = memory_views(model, task)["W_OV2"]
    unit = float(planted.norm()) / 65  # rms(e) = rms(u) = 1/√65
    worst, weak, *_ = view.worst()
    assert (worst.key, worst.right, worst.rival, worst.recalled) == ("e", "e", "t", False)
    assert worst.margin == pytest.approx(-2 / unit)
    assert str(worst) == f"e → e: margin {-2 / unit:.2f} behind t"
    assert (weak.key, weak.margin) == ("o", pytest.approx(0.5 / unit))
    assert str(weak).startswith(f"o → o: margin {0.5 / unit:.2f} ahead of ")
    assert view.recalled == 64
    assert len(view.worst(1)) == 1


def test_a_key_that_asks_several_times_is_one_row_with_several_right_cells() -> None:
    """Subjects ask W_OV1 once under each relation, and are called what these names share."""
    task, model = setting("factual/quick", **FEW_FACTS)
    view = memory_views(model, task)["W_OV1"]
    assert view.keys == ("s1", "s2", "s3", "s4", "s5", "s6")
    assert view.pair_keys[:5] == ("s1, r1", "s1, r2", "s1, r3", "s1, r4", "s2, r1")
    assert view.values == task.output_names
    expected = np.zeros((6, len(view.values)), dtype=bool)
    for s, answers in enumerate(task.table.answers):
        expected[s, answers] = True
    np.testing.assert_array_equal(view.right, expected)
    np.testing.assert_array_equal(view.right.sum(1), [4] * 6)
    assert len(view.margins) == 24
    assert not np.isnan(view.learned).any()  # every answer competes under some relation


def test_pairs_of_one_key_that_share_no_name_are_one_row() -> None:
    task, model = setting("factual/quick", **FEW_FACTS, model__attention__n_heads=1)
    view = memory_views(model, task)["W_KQ1"]  # one question of the end token, answered by every subject and relation
    assert view.keys == ("all pairs",)
    assert view.right.tolist() == [[True] * 10 + [False] * 11]


def test_heads_have_views_of_their_own_where_these_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = setting("quickstart", task__seq_len=8, model__d_model=16, model__attention__n_heads=2)
    wholes = ["W_KQ1", "W_KQ2", "W_OV2"]
    heads = [f"{name}, head {head}" for name in wholes for head in (0, 1)]
    found = memory_views(model, task)
    assert sorted(found) == sorted([*wholes, *heads])
    for head in (0, 1):
        scores = model.embed.W_E @ model.W_OV(1)[head] @ model.unembed.W_U
        expected = (scores / scores.abs().max()).detach()
        np.testing.assert_allclose(found[f"W_OV2, head {head}"].learned, expected, atol=1e-5)
    monkeypatch.setattr(views, "SMALL", 5 * 5)
    assert sorted(memory_views(model, task)) == sorted([*wholes, *heads[2:4]])  # five triggers among five


def test_a_part_that_is_not_a_number_has_no_view() -> None:
    task, model = setting("quickstart", task__seq_len=8, model__d_model=16)
    with torch.no_grad():
        model.attention(1).W_O[0, 0, 0] = math.nan
    assert {*memory_views(model, task)} == {"W_KQ1", "W_KQ2"}


# A distribution


def test_a_distribution_has_no_margins_and_rows_that_sum_to_one() -> None:
    task, model = setting("bigram/global_relu", task__seq_len=8, model__d_model=16)
    view = memory_views(model, task)["FF2"]
    memory = task.memories(model)["FF2"]
    assert view.is_distribution
    assert (len(view.margins), view.recalled, view.worst(), view.pair_keys) == (0, 0, [], ())
    with torch.no_grad():
        p = memory.association.scores(lambda keys: model.read(Slot("FF", 1), keys)).softmax(1)
    order = memory.association.targets.argsort(stable=True)
    np.testing.assert_allclose(view.learned, p[order], atol=1e-6)
    np.testing.assert_allclose(view.learned.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(view.ideal, memory.conditional[order], atol=1e-6)
    names = memory.association.key_names
    assert view.keys == tuple(names[z] for z in order)
    assert "know the bigrams of the text" in view._repr_html_()


# Matrices made by hand


def test_rows_are_in_the_order_of_their_right_values() -> None:
    stored, W = one_hot(torch.randn(3, 4, generator=generator(0)), [2, 0, 1, 0], key_names=tuple("abcd"))
    view = view_of(stored, W)
    assert view.keys == ("b", "d", "c", "a")
    assert view.right.argmax(1).tolist() == [0, 0, 1, 2]
    np.testing.assert_allclose(view.learned, W.T[[1, 3, 2, 0]] / W.abs().max(), atol=1e-6)
    assert view.pair_keys == tuple("abcd")  # pairs stay as they are asked


def test_values_that_may_not_compete_are_no_numbers() -> None:
    may = torch.tensor([[True, False, True], [False, True, True]])
    stored, W = one_hot(torch.tensor([[4.0, 9], [9, 2], [3, 1]]), [0, 1], candidates=may)
    view = view_of(stored, W)
    np.testing.assert_array_equal(np.isnan(view.learned), ~may)
    np.testing.assert_array_equal(np.isnan(view.ideal), ~may)
    np.testing.assert_allclose(view.learned[may], [1, 0.75, 0.5, 0.25])  # 9 is no candidate, and no scale either


def test_what_may_compete_for_some_pair_of_a_key_competes_in_its_row() -> None:
    keys, may = torch.ones(2, 1), torch.tensor([[True, False, True, False], [False, True, True, False]])
    stored = Association(keys, torch.eye(4), torch.tensor([0, 1]), candidates=may, key_names=("s, r", "s, q"))
    view = view_of(stored, torch.tensor([[4.0], [3], [2], [1]]))
    assert view.keys == ("s",)
    np.testing.assert_allclose(view.learned, [[1, 0.75, 0.5, np.nan]])
    assert view.recalled == 2  # the second competes with 2, not with 4


def in_blocks(values: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """[block row, row, block column, column], filled up with what is no number."""
    n, m = values.shape
    padded = np.pad(values, ((0, -n % rows), (0, -m % columns)), constant_values=np.nan)
    return padded.reshape(-(-n // rows), rows, -(-m // columns), columns)


@pytest.mark.parametrize(("n", "m", "rows", "columns"), [(601, 301, 3, 2), (40, 300, 1, 2), (257, 256, 2, 1)])
def test_more_than_can_be_drawn_is_averaged_in_blocks(n: int, m: int, rows: int, columns: int) -> None:
    """The means of numpy over what is a number, blocks at the ends smaller."""
    may = torch.rand(n, m, generator=generator(1)) < 0.2
    may[:, : 2 * columns] = False  # whole columns of blocks in which nothing competes
    stored, W = random_pairs(n, m)
    may[torch.arange(n), stored.targets] = True
    names = tuple(f"k{z}" for z in range(n))
    stored = Association(stored.keys, stored.values, stored.targets, candidates=may, key_names=names)
    view = view_of(stored, W)
    assert view.averaged == (rows, columns)
    assert max(view.learned.shape) <= SHOWN
    order = stored.targets.argsort(stable=True)
    scores = np.where(may, stored.keys @ W.T @ stored.values.T, np.nan)[order]
    blocks, of_right = (in_blocks(x, rows, columns) for x in (scores, np.eye(m)[stored.targets[order]]))
    n_there = np.isfinite(blocks).sum((1, 3))
    means = np.nansum(blocks, (1, 3)) / np.where(n_there, n_there, np.nan) / np.nanmax(np.abs(scores))
    np.testing.assert_allclose(view.learned, means, atol=1e-5)
    assert np.isnan(view.learned[:, :2]).all(1).any()
    np.testing.assert_array_equal(view.right, np.nansum(of_right, (1, 3)) > 0)
    last = [names[z] for z in order[-((n - 1) % rows + 1) :]]
    assert view.keys[-1] == (last[0] if len(last) == 1 else f"{last[0]} … {last[-1]}")
    assert len(view.margins) == n  # every pair counts, whatever is drawn
    assert view.rows == ("key" if rows == 1 else f"key (mean of {rows})")
    assert view.columns == ("value" if columns == 1 else f"value (mean of {columns})")


@given(n=st.integers(1, 8), m=st.integers(1, 6), seed=st.integers(0, 2**16))
def test_permuted_tokens_permute_the_view(n: int, m: int, seed: int) -> None:
    """Every cell, pair and margin is the same under the same names, and so is the number of pairs recalled."""
    stored, W = random_pairs(n, m, seed, key_names=tuple(f"k{z}" for z in range(n)),
                             value_names=tuple(f"v{y}" for y in range(m)))  # fmt: skip
    random = generator(seed, "permutation")
    pairs, values = (torch.randperm(k, generator=random) for k in (n, m))
    permuted = Association(
        stored.keys[pairs], stored.values[values], values.argsort()[stored.targets[pairs]],
        key_names=tuple(stored.key_name(z) for z in pairs.tolist()),
        value_names=tuple(stored.value_name(y) for y in values.tolist()),
    )  # fmt: skip

    def cells(view: MemoryView) -> dict[tuple[str, str], tuple[float, float, bool]]:
        return {
            (key, value): (view.learned[i, j], view.ideal[i, j], view.right[i, j])
            for i, key in enumerate(view.keys)
            for j, value in enumerate(view.values)
        }  # fmt: skip

    def by_name(view: MemoryView) -> dict[tuple[str, str], float]:
        return {(pair.key, pair.right): pair.margin for pair in view.worst(n)}

    before, after = view_of(stored, W), view_of(permuted, W)
    assert cells(after).keys() == cells(before).keys()
    for where, found in cells(after).items():
        assert found == pytest.approx(cells(before)[where], abs=1e-5)
    assert by_name(after) == pytest.approx(by_name(before), abs=1e-5)
    assert after.recalled == before.recalled


# Margins


@pytest.mark.parametrize("as_map", [False, True])
def test_margins_are_those_of_the_association_in_standard_deviations_of_a_score(as_map: bool) -> None:
    stored, W = random_pairs(20, 5)
    memory = (lambda keys: keys @ W.T) if as_map else W
    view = view_of(stored, memory)
    expected = stored.margins(memory) / score_unit(stored, memory)
    np.testing.assert_allclose(view.margins, expected, rtol=1e-4, atol=1e-5)
    others = stored.scores(memory).scatter(1, stored.targets[:, None], -torch.inf)
    np.testing.assert_array_equal(view.rivals, others.argmax(1))
    np.testing.assert_array_equal(view.targets, stored.targets)
    np.testing.assert_array_equal(view.singular, [] if as_map else singular_values(W))  # a map has no singular values
    margins = [pair.margin for pair in view.worst(20)]
    assert margins == sorted(view.margins)


def test_a_matrix_that_says_nothing_recalls_nothing() -> None:
    stored, W = random_pairs(6, 3)
    view = view_of(stored, torch.zeros_like(W))
    assert (view.recalled, np.abs(view.learned).max()) == (0, 0)
    assert view.margins.tolist() == [0.0] * 6


def test_a_pair_without_a_rival_is_recalled_as_in_the_metrics() -> None:
    """With one trigger, W_KQ2 has one value to choose from."""
    task, model = setting("quickstart", task__seq_len=8, task__n_triggers=1, model__d_model=16)
    view = memory_views(model, task)["W_KQ2"]
    limits = build_probe(plugins("probes")["limits"](kind="limits"))
    assert view.recalled == limits(model, task, task.sample(2, generator(0))).metrics["pairs/W_KQ2"] == 1
    assert str(view.worst()[0]) == "␣ → ␣: without a rival"


@pytest.mark.parametrize("step", [0, 2])
def test_as_many_pairs_are_recalled_as_the_probe_limits_counts(tiny_run: toytf.TrainedRun, step: int) -> None:
    found, metrics = tiny_run.memories(step=step), tiny_run.probe("limits", step=step).metrics
    counted = {name: view.recalled for name, view in found.items()}
    assert counted == {name: metrics[f"pairs/{name}"] for name in ("W_KQ1", "W_KQ2", "W_OV2")}
    assert 0 < sum(counted.values()) < sum(len(view.margins) for view in found.values())


def test_the_pairs_of_heads_add_up_to_what_the_probe_limits_counts() -> None:
    task, model = setting("factual/quick", **FEW_FACTS)
    limits = build_probe(plugins("probes")["limits"](kind="limits"))
    metrics = limits(model, task, task.facts_among_noise(1)).metrics
    found = memory_views(model, task)
    heads = [view for name, view in found.items() if name.startswith("W_KQ1, head ")]
    assert len(heads) > 1
    assert sum(view.recalled for view in heads) == metrics["pairs/W_KQ1"] > 0
    for name in ("W_OV1", "W_OV1_relations", "FF1"):
        assert found[name].recalled == metrics[f"pairs/{name}"]


# What is shown


def test_names_are_not_markup() -> None:
    stored, W = one_hot(torch.eye(2), [0, 1], key_names=("<b>x</b>", "y"), value_names=("a & b", "<script>"))
    shown = view_of(stored, W, job="<i>say</i>")._repr_html_()
    assert "2 of 2 pairs recalled" in shown
    for name, escaped in {
        "<b>x</b>": "&lt;b&gt;x&lt;/b&gt;", "<script>": "&lt;script&gt;", "a & b": "a &amp; b", "<i>": "&lt;i&gt;",
    }.items():  # fmt: skip
        assert name not in shown
        assert escaped in shown


def test_the_figure_has_learned_beside_ideal() -> None:
    stored, W = random_pairs(4, 3, key_names=tuple("abcd"), value_names=("<x>", "y", "z"))
    view = view_of(stored, W, job="answer")
    figure = view.figure()
    assert [panel.text for panel in figure.layout.annotations] == ["learned", "Hebbian: the plain sum"]
    np.testing.assert_array_equal(figure.data[0].z, view.learned)
    np.testing.assert_array_equal(figure.data[1].z, view.ideal)
    assert figure.layout.title.text == "W: answer"
    assert figure.data[0].customdata[0][0] == f"{view.keys[0]}, &lt;x&gt;"
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("value", "key")


def test_a_pair_is_recalled_if_its_margin_is_above_zero() -> None:
    assert Pair("a", "b", "c", 0.01).recalled
    assert not Pair("a", "b", "c", 0.0).recalled  # a tie is no answer
