"""One sequence as a model sees it: where it attends, what it predicts, and what would be right."""

from typing import Any

import numpy as np
import pytest
import torch

import toytf
from tests.tasks.bigram.sequences import drawn_by_hand, make, model_for
from tests.views.settings import FEW_FACTS, IDEAL, setting
from toytf.errors import UserError
from toytf.figures import attention_map
from toytf.models import ToyTransformer
from toytf.randomness import generator
from toytf.task import Annotation, Task
from toytf.views.sequence import TOP, SequenceView, sequence_views

TINY = {"task__seq_len": 12, "model__d_model": 16}


def views_of(task: Any, model: ToyTransformer, n: int = 3) -> tuple[Any, list[SequenceView]]:
    batch = task.sample(n, generator(0, "batch"))
    return batch, sequence_views(model, task, batch)


# What the model does


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("quickstart", {**TINY, "model__attention__n_heads": 2}),
        ("factual/quick", FEW_FACTS),
        ("factual/quick", {**FEW_FACTS, "model__n_layers": 2, "model__attention__residual": True}),
    ],
)
def test_attention_and_predictions_are_those_of_one_forward(name: str, fields: dict[str, Any]) -> None:
    task, model = setting(name, **fields)
    batch, views = views_of(task, model)
    hooks = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.config.n_layers)]
    with torch.no_grad():
        logits, seen = model.observe(batch.tokens, *hooks, last=batch.last)
    for i, view in enumerate(views):
        assert len(view.patterns) == len(hooks)
        for pattern, hook in zip(view.patterns, hooks, strict=True):
            np.testing.assert_array_equal(pattern, seen[hook][i])
            np.testing.assert_allclose(pattern.sum(-1), 1, atol=1e-5)
            assert not np.triu(pattern, pattern.shape[2] - pattern.shape[1] + 1).any()  # nobody sees what comes later
        p = logits[i].softmax(-1).numpy()
        np.testing.assert_array_equal(view.predicted[:, 0], p.argmax(-1))
        np.testing.assert_allclose(view.probabilities, np.take_along_axis(p, view.predicted, -1))
        np.testing.assert_allclose(view.probabilities, -np.sort(-p)[:, :TOP])  # the largest, in this order
        right = batch.targets[i].numpy()
        np.testing.assert_allclose(view.right_probability, p[np.arange(len(right)), right])
        assert view.right == tuple(task.output_names[y] for y in right)
        assert view.tokens == tuple(task.token_names[z] for z in batch.tokens[i])


def test_predictions_are_named_from_the_likeliest() -> None:
    _, (view, *_) = views_of(*setting("quickstart", **TINY))
    names, probabilities = zip(*view.predictions(3), strict=True)
    assert names == tuple(view.outputs[y] for y in view.predicted[3])
    assert list(probabilities) == sorted(probabilities, reverse=True) == view.probabilities[3].tolist()
    assert view.predictions() == view.predictions(11) != view.predictions(3)


def test_fewer_outputs_than_are_named_are_named_all() -> None:
    _, (view, *_) = views_of(*setting("factual/quick", **FEW_FACTS, task__pools="shared"))
    assert sorted(name for name, _ in view.predictions()) == ["a1", "a2", "a3"]
    assert sum(p for _, p in view.predictions()) == pytest.approx(1)


def test_an_ideal_induction_head_looks_where_it_should() -> None:
    """β = 10: less than e^−10 of the weight on any single other key, but for crosstalk of the vectors."""
    _, views = views_of(*setting("bigram/ideal", **IDEAL), n=20)
    by_layer: dict[int, list[float]] = {0: [], 1: []}
    for view in views:
        for layer, right in view.right_keys.items():
            asked = right.any(1)
            by_layer[layer] += (view.patterns[layer][0] * right).sum(1)[asked].tolist()
    assert np.mean(by_layer[0]) > 0.9
    assert np.mean(by_layer[1]) > 0.9


def test_a_run_shows_fresh_sequences_of_any_checkpoint(tiny_run: toytf.TrainedRun) -> None:
    first, second = tiny_run.sequences(2)
    assert first.tokens != second.tokens
    assert len(first.tokens) == 8
    before, _ = tiny_run.sequences(2, step=0)
    assert before.tokens == first.tokens
    assert not np.array_equal(before.patterns[0], first.patterns[0])


# What would be right


def test_right_keys_of_a_sequence_drawn_by_hand_are_where_they_should_be() -> None:
    """position    1  2  3  4  5  6  7  8  9 10 11
    token       h  e  k  a  t  e  k  ␣  t  e  k     e → k, t → e
    """
    task = make(seq_len=11, n_triggers=2, trigger_offset=1)
    (view,) = sequence_views(model_for(task), task, drawn_by_hand(task))
    assert "".join(view.tokens) == "hekatek␣tek"

    def looks(layer: int) -> dict[int, list[int]]:
        """By query, its right keys, counted from 1."""
        right = view.right_keys[layer]
        return {t + 1: (right[t].nonzero()[0] + 1).tolist() for t in range(11) if right[t].any()}

    assert looks(0) == {3: [2], 6: [5], 7: [6], 10: [9], 11: [10]}  # from an output at its trigger
    assert looks(1) == {6: [3], 9: [6], 10: [3, 7]}  # from a trigger at what followed it before
    assert [t + 1 for t in view.asked.nonzero()[0]] == [6, 9, 10]
    assert [view.right[t - 1] for t in (6, 9, 10)] == ["k", "e", "k"]
    parts = [view.parts[part] if part >= 0 else "" for part in view.part_of]
    again, first, output = view.parts
    assert parts == ["", first, output, "", first, again, output, "", again, again, output]
    assert (first, output) == ("trigger, first time", "output of the trigger before it")


def test_a_layer_that_the_model_does_not_have_looks_nowhere() -> None:
    task = make(seq_len=11, n_triggers=2, trigger_offset=1)
    (view,) = sequence_views(model_for(task, n_layers=1), task, drawn_by_hand(task))
    assert {*view.right_keys} == {0}


@pytest.mark.parametrize("last", ["eos", "relation"])
def test_parts_of_a_fact_are_its_subject_its_relation_and_the_end(last: str) -> None:
    task, model = setting("factual/quick", **FEW_FACTS, task__last=last)
    batch, views = views_of(task, model, n=20)
    for i, view in enumerate(views):
        subject, relation = (int(batch.latents[name][i]) for name in ("subject", "relation"))
        found = {view.parts[part]: view.tokens[t] for t, part in enumerate(view.part_of) if part >= 0}
        names = {"subject": f"s{subject + 1}", "relation": f"r{relation + 1}"}
        assert found == names | ({"end token: asks for the answer": "⟨eos⟩"} if last == "eos" else {})
        assert view.part_of.tolist().count(-1) == len(view.tokens) - len(found)
        assert (view.part_of[-1] >= 0, view.asked.tolist()) == (True, [True])
        (looked,) = view.right_keys[0]  # of the one query
        assert sorted(view.tokens[t] for t in looked.nonzero()[0]) == sorted(names.values())


def test_a_task_that_says_nothing_of_parts_marks_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = setting("factual/quick", **FEW_FACTS)
    monkeypatch.setattr(type(task), "annotate", Task.annotate)
    _, (view, *_) = views_of(task, model)
    assert view.parts == ("asked",)
    assert view.part_of.tolist() == [-1] * 7 + [0]
    assert view.right_keys == {}


def test_of_several_parts_of_a_token_the_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = setting("quickstart", **TINY)
    late = (torch.arange(12) >= 6).expand(3, 12)
    for parts, expected in (({"late": late, "any": torch.ones_like(late)}, [1] * 6 + [0] * 6), ({}, [-1] * 12)):
        monkeypatch.setattr(type(task), "annotate", lambda task, batch, parts=parts: Annotation(parts))
        _, (view, *_) = views_of(task, model)
        assert view.part_of.tolist() == expected


# What is shown


@pytest.mark.parametrize(
    ("name", "fields"),
    [("quickstart", TINY), ("factual/quick", {**FEW_FACTS, "model__n_layers": 2, "model__attention__residual": True})],
)
def test_of_a_long_sequence_some_positions_are_shown_and_the_others_counted(name: str, fields: dict[str, Any]) -> None:
    task, model = setting(name, **fields)
    batch, (whole, *_) = views_of(task, model)
    cut, *_ = sequence_views(model, task, batch, most=5)
    T, all_asked = len(whole.tokens), batch.last == batch.tokens.shape[1]
    assert (cut.before, cut.after) == ((0, T - 5) if all_asked else (T - 5, 0))
    assert cut.tokens == (whole.tokens[:5] if all_asked else whole.tokens[-5:])
    np.testing.assert_array_equal(cut.part_of, whole.part_of[:5] if all_asked else whole.part_of[-5:])
    for part, pattern in zip(cut.patterns, whole.patterns, strict=True):
        expected = pattern[:, :5, :5] if all_asked else pattern[:, -5:, -5:]
        np.testing.assert_allclose(part, expected, atol=1e-6)
    assert cut.right == (whole.right[:5] if all_asked else whole.right[-5:])
    assert {layer: keys.shape[1] for layer, keys in cut.right_keys.items()} == dict.fromkeys(whole.right_keys, 5)
    assert cut.last_positions(9).tokens == cut.tokens


def test_rows_of_a_map_are_the_last_positions_if_only_these_are_queries() -> None:
    figure = attention_map(np.eye(3, 8), "abcdefgh", "title")
    assert list(figure.layout.yaxis.ticktext) == ["f", "g", "h"]
    assert figure.data[0].customdata[0][7] == "f (t=6) attends to h (t=8)"


def test_weights_of_linear_attention_are_not_clipped() -> None:
    figure = attention_map(np.array([[0.0, -8.0], [6.0, 1.0]]), "ab", "title")
    assert (figure.data[0].zmin, figure.data[0].zmax) == (-8, 8)
    assert (
        attention_map(np.eye(2), "ab", "title").data[0].zmin,
        attention_map(np.eye(2), "ab", "title").data[0].zmax,
    ) == (0, 1)


def test_the_figure_is_the_map_of_one_head() -> None:
    _, (view, *_) = views_of(*setting("quickstart", **TINY, model__attention__n_heads=2))
    figure = view.figure(1, 1)
    np.testing.assert_array_equal(figure.data[0].z, view.patterns[1][1])
    assert figure.layout.title.text == "Attention of layer 2, head L1H1"
    assert figure.data[0].customdata[3][0] == f"{view.tokens[3]} (t=4) attends to {view.tokens[0]} (t=1)"


def test_the_figure_of_a_model_with_one_query_has_a_row_for_each_head() -> None:
    task, model = setting("factual/quick", **FEW_FACTS)
    _, (view, *_) = views_of(task, model)
    figure = view.figure()
    assert figure.data[0].z.shape == (8, 8)  # heads, tokens
    np.testing.assert_array_equal(figure.data[0].z, view.patterns[0][:, 0])
    assert list(figure.layout.yaxis.ticktext) == [f"L0H{head}" for head in range(8)]
    assert f"says {view.predictions()[0][0]}, right is {view.right[-1]}" in figure.layout.title.text


def test_a_layer_before_the_last_is_shown_at_every_position() -> None:
    task, model = setting("factual/quick", **FEW_FACTS, model__n_layers=2, model__attention__residual=True)
    _, (view, *_) = views_of(task, model)
    assert [pattern.shape for pattern in view.patterns] == [(8, 8, 8), (8, 1, 8)]  # heads, queries, positions
    np.testing.assert_array_equal(view.figure(0, 3).data[0].z, view.patterns[0][3])
    np.testing.assert_array_equal(view.figure(1).data[0].z, view.patterns[1][:, 0])


@pytest.mark.parametrize(
    ("layer", "head", "message"),
    [
        (2, 0, "layer 2: this model has layers 0 to 1"),
        (-1, 0, "layer -1: this model has layers 0 to 1"),
        (0, 1, "head 1: layer 0 has heads 0 to 0"),
        (1, -1, "head -1: layer 1 has heads 0 to 0"),
    ],
)
def test_a_layer_or_head_that_does_not_exist_is_refused_in_one_line(layer: int, head: int, message: str) -> None:
    _, (view, *_) = views_of(*setting("quickstart", **TINY))
    with pytest.raises(UserError) as refused:
        view.figure(layer, head)
    assert str(refused.value) == message


def test_names_are_not_markup() -> None:
    task, model = setting("factual/quick", **FEW_FACTS)
    task.token_names = tuple(f"<b>{name}</b>" for name in task.token_names)
    task.output_names = tuple(f"<i>{name}</i> & co" for name in task.output_names)
    _, (view, *_) = views_of(task, model)
    shown = view._repr_html_()
    assert "<b>" not in shown
    assert "<i>" not in shown
    assert "<code>&lt;b&gt;" in shown
    assert "&lt;i&gt;r" in shown
    assert "right is &lt;i&gt;" in shown
    assert all("<" not in text for text in view.figure().layout.xaxis.ticktext)
