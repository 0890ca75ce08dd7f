"""What a page keeps of the weights: few bytes that can be read back, each array once, and no more frames than fit."""

import base64
import json
import time
import zlib
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import toytf
from tests.views.settings import FEW_FACTS
from toytf.build import build_model, build_task
from toytf.config.plugins import load_config
from toytf.models import ToyTransformer
from toytf.randomness import generator
from toytf.report import frames
from toytf.report.frames import FRAMES, PAIR, POSITIONS, SEQUENCES, Store, _spread, frames_of
from toytf.report.page import as_script
from toytf.report.portrait import WINDOW, example_of
from toytf.task import Batch
from toytf.views.memory import memory_views
from toytf.views.sequence import sequence_views

TINY = {"task__seq_len": 8, "model__d_model": 8}


class Standing:
    """In place of a run: a checkpoint at each of some steps, at which its three matrices are drawn anew."""

    def __init__(self, name: str = "quickstart", *, seeds: int = 1, steps: int = 4, **overrides: Any) -> None:
        fields = {key.replace("__", "."): to for key, to in {**TINY, **overrides}.items()}
        self.config: Any = load_config(f"configs/{name}.yaml", {**fields, "seeds": [*range(seeds)]})
        self.task: Any = build_task(self.config.task, torch.device("cpu"))
        self.all_steps = [10 * i for i in range(steps)]

    def steps_of(self, seed: int) -> list[int]:
        return self.all_steps

    def batch(self, n: int, *, seed: int) -> Batch:
        return self.task.sample(n, generator(seed, "inspection"))

    @torch.no_grad()
    def model(self, *, step: int, seed: int) -> ToyTransformer:
        model = build_model(self.config.model, self.task, seed)
        for name, weights in model.named_parameters():
            if name in ("blocks.0.attn.W_K", "blocks.1.attn.W_K", "blocks.1.attn.W_O"):
                weights.normal_(generator=generator(seed, name, step))
        return model


def inflated(store: Store, number: int, kind: str, unit: float = 1.0) -> np.ndarray:
    """An array as page.js reads it."""
    content = zlib.decompress(base64.b64decode(store.to_json()["arrays"][number]))
    return np.frombuffer(content, kind) / unit


# Numbers in few bytes


@pytest.mark.parametrize(
    ("kind", "unit", "least", "most"),
    [("i1", 127, -1, 1), ("u1", 255, 0, 1), ("<i2", 100, -327, 327), ("<u2", 1000, 0, 65), ("<u2", 10_000, 0, 1)],
)
@given(data=st.data())
def test_a_number_is_read_back_within_half_a_unit(kind: str, unit: float, least: float, most: float, data: Any) -> None:
    values = np.array(data.draw(st.lists(st.floats(least, most), max_size=20)))
    store = Store()
    found = inflated(store, store.array(values, kind, unit), kind, unit)
    np.testing.assert_allclose(found, values, rtol=0, atol=0.5 / unit + 1e-12)


def test_whole_numbers_and_flags_are_read_back_as_they_are() -> None:
    store, numbers = Store(), np.array([[0, 5], [-1, 2**20]])
    np.testing.assert_array_equal(inflated(store, store.array(numbers, "<i4"), "<i4"), numbers.flatten())
    flags = np.array([True, False, True])
    np.testing.assert_array_equal(inflated(store, store.array(flags, "u1"), "u1"), flags)


def test_what_is_no_number_or_too_large_has_the_ends_of_the_range() -> None:
    store = Store()
    values = np.array([np.nan, -np.inf, np.inf, 2.0, -2.0])
    assert inflated(store, store.array(np.array([np.nan, -1, 1]), "i1", 127), "i1").tolist() == [-128, -127, 127]
    assert inflated(store, store.array(values, "i1", 127), "i1").tolist() == [-128, -128, 127, 127, -128]
    assert inflated(store, store.array(values, "<i2", 100), "<i2").tolist() == [-32768, -32768, 32767, 200, -200]


def test_equal_arrays_and_names_are_written_once() -> None:
    store = Store()
    first, other, again = (store.array(np.array(values), "i1") for values in ([1, 2], [2, 1], [1, 2]))
    assert first == again != other
    assert store.names(["a", "b"]) == store.names(("a", "b")) != store.names(["ab"])
    assert {name: len(content) for name, content in store.to_json().items()} == {"arrays": 2, "names": 2}
    assert store.raw_bytes == 6  # what is shown counts, however often


def test_names_that_would_end_a_script_survive_it() -> None:
    names = ["</script><script>alert(1)</script>", "<!--", "a\u2028b", '"quoted"', "\\u003c", "é 北 🦊"]
    store = Store()
    number = store.names(names)
    text = as_script(store.to_json())
    assert "<" not in text
    assert json.loads(text)["names"][number] == names


# What is kept of a run


def test_frames_are_what_the_run_shows(two_seeds_run: toytf.TrainedRun) -> None:
    run, store = two_seeds_run, Store()
    found, _ = frames_of(run, store)
    assert found["steps"] == dict.fromkeys((0, 1), run.steps)
    assert [*found["frames"]] == [f"{seed}/{step}" for seed in (0, 1) for step in run.steps]
    for seed in (0, 1):
        batch = run.batch(SEQUENCES, seed=seed)
        for step in run.steps:
            frame, model = found["frames"][f"{seed}/{step}"], run.model(step, seed)
            for name, view in run.memories(step, seed).items():
                kept = frame["memories"][name]
                margins = inflated(store, kept["margins"], "<i2", 100)
                np.testing.assert_allclose(margins, view.margins, atol=0.01 + 1e-6)
                assert (np.sign(margins) == np.sign(view.margins)).all()  # what is recalled stays so
                assert (kept["recalled"], kept["pairs_to_hold"]) == (view.recalled, len(view.margins))
                for field, unit in (("learned", 127), ("ideal", 127), ("singular", 1000)):
                    kind = {"singular": "<u2"}.get(field, "i1")
                    values = getattr(view, field).flatten()
                    np.testing.assert_allclose(inflated(store, kept[field], kind, unit), values, atol=0.5 / unit + 1e-6)
                np.testing.assert_array_equal(inflated(store, kept["right"], "u1"), view.right.flatten())
                np.testing.assert_array_equal(inflated(store, kept["rivals"], "<i4"), view.rivals)
                names = store.to_json()["names"]
                assert (names[kept["keys"]], names[kept["values"]]) == ([*view.keys], [*view.values])
            for i, view in enumerate(sequence_views(model, run.task, batch)):
                for layer, kept in enumerate(frame["attention"]["layers"]):
                    assert (kept["heads"], kept["queries"], kept["signed"]) == (1, 8, False)
                    maps = inflated(store, kept["maps"][i], "u1", 255)
                    np.testing.assert_allclose(maps, view.patterns[layer].flatten(), atol=0.5 / 255 + 1e-6)
                kept = inflated(store, frame["attention"]["probabilities"][i], "<u2", 10_000)
                np.testing.assert_allclose(kept, view.probabilities.flatten(), atol=0.5e-4 + 1e-6)
                assert found["sequences"][seed][i]["part_of"] == view.part_of.tolist()
    json.dumps([found, store.to_json()], allow_nan=False)  # nothing that is no JSON


def test_the_ideal_of_frozen_vectors_is_written_once_for_all_checkpoints() -> None:
    run, store = Standing(steps=3), Store()
    memories = [frame["memories"] for frame in frames_of(run, store)[0]["frames"].values()]
    for name in ("W_KQ1", "W_KQ2", "W_OV2"):
        assert len({memory[name]["ideal"] for memory in memories}) == 1
        assert len({memory[name]["learned"] for memory in memories}) == 3
        assert len({memory[name]["keys"] for memory in memories}) == 1


def test_what_is_known_of_every_fact_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "facts.csv"
    path.write_text("subject,relation,attribute\nFrance,capital,Paris\nFrance,language,French\nChad,capital,Ndjamena\n")
    run, store = Standing("factual/quick", steps=1, task__facts=str(path)), Store()
    (frame,) = frames_of(run, store)[0]["frames"].values()
    kept, sheet = frame["facts"], run.task.facts(run.model(step=0, seed=0))
    for field, kind, unit in (
        ("right", "<i4", 1), ("said", "<i4", 1), ("known", "i1", 100), ("margin", "<i2", 100), ("stored", "i1", 1),
    ):  # fmt: skip
        found, values = inflated(store, kept[field], kind, unit), getattr(sheet, field).flatten()
        asked = np.isfinite(values)
        np.testing.assert_allclose(found[asked], values[asked], atol=0.5 / unit if unit > 1 else 0)
        assert (found[~asked] == np.iinfo(kind).min / unit).all()  # of Chad's language nothing is said
    assert np.isnan(sheet.known).sum() == 1
    names = store.to_json()["names"]
    assert (names[kept["subjects"]], names[kept["answers"]]) == ([*sheet.subjects], [*sheet.answers])


def test_linear_attention_has_signs_and_the_scale_of_the_largest() -> None:
    run, store = Standing(steps=1, model__attention__kind="linear"), Store()
    (frame,) = frames_of(run, store)[0]["frames"].values()
    views = sequence_views(run.model(step=0, seed=0), run.task, run.batch(SEQUENCES, seed=0))
    for layer, kept in enumerate(frame["attention"]["layers"]):
        patterns = np.stack([view.patterns[layer] for view in views])
        assert kept["signed"]
        assert (patterns < 0).any()
        found = np.stack([inflated(store, number, "i1", 127) for number in kept["maps"]])
        scaled = patterns.reshape(len(views), -1) / np.abs(patterns).max()
        np.testing.assert_allclose(found, scaled, atol=0.5 / 127 + 1e-6)


# How many frames


@given(
    steps=st.lists(st.integers(0, 10**6), min_size=1, max_size=200, unique=True).map(sorted), most=st.integers(1, 40)
)
def test_some_steps_are_the_first_the_last_and_others_between_in_order(steps: list[int], most: int) -> None:
    chosen = _spread(steps, most)
    assert len(chosen) == min(most, len(steps))
    assert chosen == sorted({*chosen} & {*steps})
    assert chosen[-1] == steps[-1]
    if most > 1:
        assert chosen[0] == steps[0]
        places = [steps.index(step) for step in chosen]
        gaps = {later - earlier for earlier, later in pairwise(places)}
        assert not gaps or max(gaps) - min(gaps) <= 1  # evenly


@pytest.mark.parametrize(
    ("seeds", "steps", "most", "each"),
    [(1, 100, FRAMES, 30), (3, 100, FRAMES, 10), (3, 4, FRAMES, 4), (3, 100, 8, 2), (4, 5, 3, 1)],
)
def test_seeds_share_the_frames_of_a_page(seeds: int, steps: int, most: int, each: int) -> None:
    run = Standing(seeds=seeds, steps=steps)
    found, _ = frames_of(run, Store(), most)
    shown = min(seeds, most)
    assert len(found["frames"]) == shown * each <= most
    assert {seed: len(chosen) for seed, chosen in found["steps"].items()} == dict.fromkeys(range(shown), each)
    for seed, chosen in found["steps"].items():
        assert chosen[-1] == run.all_steps[-1]
        assert each == 1 or chosen[0] == 0
        assert all(f"{seed}/{step}" in found["frames"] for step in chosen)
    assert [*found["sequences"]] == [*range(shown)]


def test_large_frames_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    run, store = Standing(seeds=2, steps=20), Store()
    frames_of(run, store, 2)  # the last of each seed
    monkeypatch.setattr(frames, "BYTES", 5 * store.raw_bytes // 2)  # of both seeds together, five frames
    found, _ = frames_of(run, Store())
    assert found["steps"] == {0: [0, 190], 1: [0, 190]}
    monkeypatch.setattr(frames, "BYTES", 1)
    assert frames_of(run, Store())[0]["steps"] == {0: [190], 1: [190]}  # there is always the last


def test_a_model_with_many_weights_and_pairs_has_few_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Standing(seeds=1, steps=20)
    weights = sum(parameter.numel() for parameter in run.model(step=0, seed=0).parameters())
    pairs = sum(len(view.margins) for view in memory_views(run.model(step=0, seed=0), run.task).values())
    monkeypatch.setattr(frames, "WORK", 5 * (weights + PAIR * pairs))
    found, _ = frames_of(run, Store())
    assert found["steps"] == {0: [0, 50, 100, 140, 190]}
    assert [*found["frames"]] == [f"0/{step}" for step in found["steps"][0]]


def test_what_a_page_shows_does_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(0, 1000)  # a machine on which everything takes a quarter of an hour
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert len(frames_of(Standing(seeds=1, steps=20), Store())[0]["frames"]) == 20


def test_a_seed_without_a_checkpoint_has_no_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Standing(seeds=2, steps=3)
    monkeypatch.setattr(run, "steps_of", lambda seed: [0, 10, 20] if seed else [])
    assert frames_of(run, Store())[0]["steps"] == {1: [0, 10, 20]}


# Long sequences


def test_a_long_sequence_is_cut_and_its_attention_is_that_of_the_whole() -> None:
    run, store = Standing(steps=1, task__seq_len=POSITIONS + 44), Store()
    found, _ = frames_of(run, store)
    (frame,) = found["frames"].values()
    n = len(found["sequences"][0])
    assert 1 <= n < SEQUENCES  # two maps of 256 × 256 each
    whole = run.batch(SEQUENCES, seed=0).part(0, n)
    assert whole.tokens.shape[1] == 300
    views = sequence_views(run.model(step=0, seed=0), run.task, whole)
    names = store.to_json()["names"]
    for i, view in enumerate(views):
        sequence = found["sequences"][0][i]
        assert names[sequence["tokens"]] == [*view.tokens[:POSITIONS]]
        assert sequence["part_of"] == view.part_of[:POSITIONS].tolist()
        assert sequence["asked"] == view.asked[:POSITIONS].astype(int).tolist()
        for layer, (n_queries, number) in sequence["right_keys"].items():
            kept = inflated(store, number, "u1").reshape(n_queries, POSITIONS)
            np.testing.assert_array_equal(kept, view.right_keys[layer][:POSITIONS, :POSITIONS])
        for layer, kept in enumerate(frame["attention"]["layers"]):
            cut = view.patterns[layer][:, :POSITIONS, :POSITIONS]
            assert kept["queries"] == POSITIONS
            np.testing.assert_allclose(
                inflated(store, kept["maps"][i], "u1", 255), cut.flatten(), atol=0.5 / 255 + 1e-6
            )


def test_a_sequence_with_one_question_at_its_end_is_not_cut() -> None:
    run = Standing("factual/quick", steps=1, **{**FEW_FACTS, "task__seq_len": POSITIONS + 4})
    store = Store()
    found, _ = frames_of(run, store)
    (frame,) = found["frames"].values()
    assert len(store.to_json()["names"][found["sequences"][0][0]["tokens"]]) == POSITIONS + 4
    assert frame["attention"]["layers"][0]["queries"] == 1
    assert len(found["sequences"][0]) == SEQUENCES  # a map of one row takes little room


def test_a_long_sequence_of_several_layers_is_cut_to_its_end_where_that_is_asked() -> None:
    sizes = {**FEW_FACTS, "task__seq_len": POSITIONS + 4, "model__n_layers": 2, "model__attention__residual": True}
    run, store = Standing("factual/quick", steps=1, **sizes), Store()
    found, newest = frames_of(run, store)
    (frame,) = found["frames"].values()
    sequence = found["sequences"][0][0]
    assert (sequence["before"], sequence["after"]) == (4, 0)
    assert len(store.to_json()["names"][sequence["tokens"]]) == POSITIONS
    assert [layer["queries"] for layer in frame["attention"]["layers"]] == [POSITIONS, 1]
    assert example_of(newest.sequences[0]).before == 4 + POSITIONS - WINDOW


def test_a_batch_can_be_cut_where_every_position_is_asked() -> None:
    run = Standing()
    batch = run.batch(5, seed=0)
    short = batch.first_positions(3)
    assert (short.last, short.tokens.shape) == (3, (5, 3))
    assert torch.equal(short.targets, batch.targets[:, :3])
    assert {name: values.shape for name, values in short.roles.items()} == dict.fromkeys(batch.roles, (5, 3))
    assert torch.equal(batch.at_positions(batch.roles["all"]), batch.roles["all"])


def test_a_role_of_the_last_positions_is_false_before_them() -> None:
    run = Standing("factual/quick", **FEW_FACTS)
    batch = run.batch(4, seed=0)
    assert batch.at_positions(batch.roles["fact"]).tolist() == [[False] * 7 + [True]] * 4
