"""What a page says of a run before its results: its title, an example, the model in a line, and where it comes from."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import toytf
from tests.views.settings import FEW_FACTS, setting
from toytf.build import build_model, build_task
from toytf.config.plugins import load_config
from toytf.randomness import generator
from toytf.report.portrait import EXAMPLES, WINDOW, example_of, model_line, provenance_of, title_of
from toytf.runs.provenance import Origin, add_start
from toytf.views.sequence import SequenceView, sequence_views

# The title


def test_the_title_is_that_of_the_config_and_without_one_the_name_of_the_run(tmp_path: Path) -> None:
    directory = tmp_path / "my run"
    directory.mkdir()
    assert title_of(toytf.Run(directory)) == "my run"
    add_start(directory, Origin(None, "toytf run mine.yaml"), "cpu")
    assert title_of(toytf.Run(directory)) == "my run"
    add_start(directory, Origin("Three matrices learn an induction head.", None), "cpu")
    assert title_of(toytf.Run(directory)) == "Three matrices learn an induction head."


def test_a_run_of_a_file_without_a_comment_has_its_name_as_title(tiny_run: toytf.Run) -> None:
    assert title_of(tiny_run) == "tiny"


# The example


def sequence(asked: list[bool], before: int = 0) -> SequenceView:
    """A sequence of numbered tokens, of which the last ones are asked or not; every answer is numbered as its token."""
    n, T = len(asked), before + len(asked)
    return SequenceView(
        tuple(f"z{t}" for t in range(T)), ("even", "odd"), np.arange(T) % 2, np.array(asked, dtype=bool),
        tuple(f"y{before + q}" for q in range(n)), (), {}, ("y",), np.zeros((n, 1), dtype=int), np.ones((n, 1)),
        np.ones(n),
    )  # fmt: skip


@given(asked=st.lists(st.booleans(), min_size=1, max_size=120), before=st.integers(0, 60))
def test_an_example_is_a_short_piece_with_questions_and_their_answers(asked: list[bool], before: int) -> None:
    view = sequence(asked, before)
    found, T = example_of(view), len(view.tokens)
    assert len(found.tokens) == min(T, WINDOW)
    assert found.before + len(found.tokens) + found.after == T
    for t, token in enumerate(found.tokens, start=found.before):
        assert (token.name, token.part) == (f"z{t}", t % 2)
        assert token.answer == (f"y{t}" if t >= before and asked[t - before] else None)
    answers = [token.answer for token in found.tokens if token.answer is not None]
    assert bool(answers) == any(asked)


def test_the_first_questions_are_shown_and_what_comes_before_them() -> None:
    asked = [t in (50, 52, 55, 58, 90) for t in range(100)]
    found = example_of(sequence(asked))
    assert (found.before, len(found.tokens), found.after) == (26, 32, 42)
    assert [token.name for token in found.tokens if token.answer] == ["z50", "z52", "z55"]
    assert sum(asked) > EXAMPLES


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("quickstart", {"model__d_model": 16}),
        ("factual/quick", {"model__d_model": 16}),
        ("factual/quick", FEW_FACTS),
        ("bigram/long_sequences", {"model__d_model": 16}),
    ],
)
def test_an_example_of_a_task_has_a_question_and_its_right_answer(name: str, fields: dict[str, Any]) -> None:
    task, model = setting(name, **fields)
    batch = task.sample(1, generator(0, "batch"))
    (view,) = sequence_views(model, task, batch)
    found = example_of(view)
    assert len(found.tokens) <= WINDOW
    first = batch.tokens.shape[1] - batch.last
    asked = [(t, token.answer) for t, token in enumerate(found.tokens, start=found.before) if token.answer is not None]
    assert asked
    for t, answer in asked:
        assert batch.roles[task.goal][0, t - first]
        assert answer == task.output_names[batch.targets[0, t - first]]
    assert {view.parts[token.part] for token in found.tokens if token.part >= 0} <= {*found.parts}


# The model


def line_of(name: str, **overrides: Any) -> tuple[str, dict[str, int]]:
    """The line of a config that ships, and the parameters of its model by name."""
    config: Any = load_config(f"configs/{name}.yaml", {key.replace("__", "."): to for key, to in overrides.items()})
    model = build_model(config.model, build_task(config.task, torch.device("cpu")), 0)
    run: Any = SimpleNamespace(config=config, model=lambda: model)
    return model_line(model, run.config.train.steps), {
        name: weights.numel() for name, weights in model.named_parameters()
    }


def test_the_model_of_the_quickstart_trains_three_matrices_of_its_parameters() -> None:
    line, sizes = line_of("quickstart")
    trained = sum(sizes[name] for name in ("blocks.0.attn.W_K", "blocks.1.attn.W_K", "blocks.1.attn.W_O"))
    assert trained == 3 * 128**2
    assert sum(sizes.values()) == (65 + 64 + 65) * 128 + 6 * 128**2  # vectors; W_K, W_V, W_O of two layers
    assert line == (
        "2 layers of attention with 1 head each, width 128, no feed-forward part, no LayerNorm; "
        f"{trained:,} of {sum(sizes.values()):,} parameters are trained "
        "(blocks.0.attn.W_K, blocks.1.attn.W_K, blocks.1.attn.W_O)."
    )


def test_the_model_of_facts_has_hidden_units_and_frozen_vectors() -> None:
    line, sizes = line_of("factual/quick")
    trained = sum(n for name, n in sizes.items() if name.startswith("blocks."))
    assert trained == 4 * 8 * 8 * 32 + 2 * 32 * 64 + 64  # W_Q, W_K, W_V, W_O of eight heads; W_in, W_out and a bias
    assert sum(sizes.values()) == trained + (65 + 128) * 32
    assert line == (
        "1 layer of attention with 8 heads, width 32, a feed-forward part of 64 hidden units, no LayerNorm; "
        f"{trained:,} of {sum(sizes.values()):,} parameters are trained."
    )


SMALL = {"task__seq_len": 8, "model__d_model": 16}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model__attention__kind": "linear"}, "2 layers of linear attention with 1 head each"),
        ({"model__norm": "layer"}, "no feed-forward part, LayerNorm; "),
        ({"model__feed_forward__kind": "linear"}, "width 16, a linear feed-forward part, no"),
        ({"model__feed_forward__kind": "relu"}, "width 16, a feed-forward part of 64 hidden units, no"),
        (
            {"model__feed_forward": {"kind": "relu", "layers": [1]}},
            "width 16, a feed-forward part of 64 hidden units in layer 2, no",
        ),
        ({"model__feed_forward": {"kind": "linear", "layers": [1]}}, ", a linear feed-forward part in layer 2, "),
        ({"model__feed_forward": {"kind": "relu", "layers": []}}, "width 16, no feed-forward part, no"),
        ({"train__steps": 0}, "; 0 of 3,744 parameters are trained."),
    ],
)  # fmt: skip
def test_the_line_says_what_else_a_model_has(changes: dict[str, Any], says: str) -> None:
    assert says in line_of("quickstart", **SMALL, **changes)[0]


def test_what_is_trained_later_counts_and_what_would_be_after_the_end_does_not() -> None:
    frozen = ["embed.W_E", "pos_embed.W_pos", "unembed.W_U", "blocks.0.*"]
    for start, more in ((299, 3 * 16**2), (300, 0)):  # of 300 steps
        line, sizes = line_of("quickstart", **SMALL, model__freeze=frozen, model__unfreeze={start: ["blocks.0.*"]})
        own = sum(n for name, n in sizes.items() if name.startswith("blocks.1."))
        assert f"; {own + more:,} of {sum(sizes.values()):,} parameters are trained" in line


# Where it comes from


def test_a_run_made_now_tells_command_time_and_versions(tiny_run: toytf.Run) -> None:
    said = dict(provenance_of(tiny_run))
    assert [*said] == ["command", "started", "toytf", "device", "time"]
    assert said["command"].startswith("toytf run ")
    assert said["command"].endswith("tiny.yaml train.steps=2 --out tiny")  # no folders of this machine
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", said["started"])
    assert said["toytf"].startswith(toytf.__version__)
    assert said["toytf"].endswith(f", torch {torch.__version__}")
    assert said["device"] == "cpu"
    timing = json.loads((tiny_run.directory / "timing.json").read_bytes())
    (shown,) = re.findall(r"^([\d.,]+) seconds$", said["time"])
    assert float(shown) == pytest.approx(sum(timing.values()) - timing["page"], abs=0.5)


def test_a_run_of_an_earlier_version_says_that_its_origin_is_not_known(tiny_run: toytf.Run, tmp_path: Path) -> None:
    for name in ("config.yaml", "timing.json"):
        shutil.copy(tiny_run.directory / name, tmp_path)
    said = dict(provenance_of(toytf.Run(tmp_path)))
    assert [*said] == ["provenance", "time"]
    assert said["provenance"].startswith("not known: ")


@pytest.mark.parametrize("timing", ["", "[1, 2]", '{"train": "long"}', '{"train": null}', "3", "[" * 10**5])
def test_damaged_timings_are_left_out(timing: str, tmp_path: Path) -> None:
    (tmp_path / "timing.json").write_text(timing)
    assert "time" not in dict(provenance_of(toytf.Run(tmp_path)))


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.04, "0.0 seconds"), (9.96, "10.0 seconds"), (4321.2, "4,321 seconds")]
)
def test_seconds_are_whole_from_ten_on(seconds: float, said: str, tmp_path: Path) -> None:
    (tmp_path / "timing.json").write_text(json.dumps({"train": seconds / 2, "evaluate": seconds / 2}))
    assert dict(provenance_of(toytf.Run(tmp_path)))["time"] == said


def test_a_continued_run_tells_its_first_start_and_how_often_it_went_on(tmp_path: Path) -> None:
    add_start(tmp_path, Origin(None, "toytf run first.yaml"), "cpu")
    started = dict(provenance_of(toytf.Run(tmp_path)))["started"]
    for times, said in ((1, "1 time"), (2, "2 times")):
        add_start(tmp_path, Origin(None, f"toytf run --resume {times}"), None)
        found = dict(provenance_of(toytf.Run(tmp_path)))
        assert found["started"] == f"{started}, continued {said}"
        assert found["command"] == "toytf run first.yaml"
