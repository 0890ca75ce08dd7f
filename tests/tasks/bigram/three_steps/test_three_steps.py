"""The three-gradient-step theorem: every signal beside its prediction, and the experiment itself."""

import json
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import toytf
from tasks.bigram.three_steps import experiment as three_steps
from tasks.bigram.three_steps.config import ReadOutConfig, ThreeStepsConfig
from tasks.bigram.three_steps.experiment import STEPS, ThreeSteps, ThreeStepsCase, batches, draw, read, take_steps
from tasks.bigram.three_steps.model import negative_gradient
from toytf import theory
from toytf.config.plugins import load_config
from toytf.errors import Interrupted, RunFailed
from toytf.experiments.study import Drawn
from toytf.measurement import Measurement
from toytf.stopping import stop_on_interrupt

if TYPE_CHECKING:
    from conftest import EndsTheSame, Refused

TINY: dict[str, Any] = {"n_tokens": 6, "seq_len": 6, "samples": [256], "evaluation_samples": 64}
QUIET: dict[str, Any] = {"device": "cpu", "threads": 1, "logging": {"wandb": "off"}}

Run = Callable[..., toytf.Run]


@pytest.fixture(scope="module")
def take(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the experiment: `take(n_tokens=…)`."""

    def run(**config: Any) -> toytf.Run:
        out = tmp_path_factory.mktemp("runs") / "run"
        return toytf.run({"experiment": "three_steps", **QUIET, **config}, out=out)

    return run


@pytest.fixture(scope="module")
def theorem(take: Run) -> toytf.Run:
    """N = 64, T = 16, 8192 sequences a step, orthonormal vectors, the clean model: all by default."""
    return take(seeds=[0, 1, 2])


@pytest.fixture(scope="module")
def residual(take: Run) -> toytf.Run:
    """N = 64, T = 16 again, with fewer sequences, because the stream has 3N + 2T axes."""
    return take(model="residual", samples=[4096], evaluation_samples=1024, seeds=[0, 1])


def configured(**config: Any) -> ThreeStepsConfig:
    loaded: ThreeStepsConfig = load_config({"experiment": "three_steps", **QUIET, **config})
    return loaded


def each(run: toytf.Run, metric: str) -> list[float]:
    """A metric, seed by seed."""
    found: list[float] = run.history[metric].dropna().tolist()
    assert len(found) == len(run.config.seeds)
    return found


# --- the theorem, N = 64, T = 16, 8192 sequences a step


def test_step_1_is_the_exact_form(theorem: toytf.Run) -> None:
    """Within 4 %: 64 entries of relative spread 0.04 each, over many seeds 0.99–1.01."""
    assert theorem.summary["theory/signal/W_OV2"] == pytest.approx(9.34e-4, rel=1e-3)
    for ratio in each(theorem, "over_theory/W_OV2"):
        assert ratio == pytest.approx(1, abs=0.04)


def test_step_2_is_as_predicted_for_many_tokens_less_what_64_cost(theorem: toytf.Run) -> None:
    """T/N = 1/4 costs 8 %: 0.90–0.93 over many seeds."""
    assert theorem.summary["theory/signal/W_KQ2"] == pytest.approx(8.90e-5, rel=1e-3)
    for ratio in each(theorem, "over_theory/W_KQ2"):
        assert 0.86 <= ratio <= 0.97


def test_step_3_falls_like_one_over_t(theorem: toytf.Run) -> None:
    """0.83–1.14 over many seeds for t ≥ 3; at t = 2 more, as attention is not uniform any more."""
    assert theorem.summary["theory/signal/W_KQ1/t2"] == pytest.approx(1.12e-3, rel=5e-3)
    assert theorem.summary["theory/signal/W_KQ1/t9"] == pytest.approx(4.4e-4, rel=5e-3)
    assert min(each(theorem, "over_theory/W_KQ1_min")) >= 0.78
    assert max(each(theorem, "over_theory/W_KQ1_max")) <= 1.20
    assert all(1.0 <= ratio <= 1.35 for ratio in each(theorem, "over_theory/W_KQ1/t2"))


def test_the_gains_that_were_reached_explain_what_step_3_is_off_by(theorem: toytf.Run) -> None:
    """The prediction at the measured gains and attention; 8192 samples leave some 5 % at a position, averaged."""
    summary = theorem.summary
    beta_1 = summary["signal/W_OV2"] * theory.output_rate(64, 16, 1)
    beta_2 = summary["over_theory/W_KQ2"]
    expected = np.diagonal(theory.position_signal(16, beta_1, beta_2, linear=False), -1)
    measured = np.array([summary[f"signal/W_KQ1/t{t}"] for t in range(2, 16)])
    np.testing.assert_allclose(measured, expected[:14], rtol=0.07)
    assert measured.mean() == pytest.approx(expected[:14].mean(), rel=0.03)


def test_every_memory_is_recalled_after_its_step(theorem: toytf.Run) -> None:
    for name in STEPS:
        assert each(theorem, f"recall/{name}") == [1.0] * 3
        assert theorem.summary[f"ideal/recall/{name}"] == 1
    assert theorem.summary["chance/recall/W_OV2"] == theorem.summary["chance/recall/W_KQ2"] == 1 / 64
    assert theorem.summary["chance/recall/W_KQ1"] == pytest.approx(np.mean([1 / t for t in range(2, 16)]))


def test_accuracy_jumps_at_step_3_and_ends_at_its_ceiling(theorem: toytf.Run) -> None:
    """About 0.07 after the first two steps; 0.57–0.64 when W_KQ2 still has gain 1; the ceiling is 1 − 1/28 = 0.964."""
    assert theorem.summary["theory/accuracy/read_out"] == pytest.approx(1 - 1 / 28)
    assert theorem.summary["chance/accuracy/read_out"] == 1 / 64
    for step in ("step1", "step2"):
        assert all(0.04 < accuracy < 0.12 for accuracy in each(theorem, f"accuracy/{step}"))
    assert all(0.5 < accuracy < 0.7 for accuracy in each(theorem, "accuracy/step3"))
    assert all(0.94 <= accuracy <= 0.98 for accuracy in each(theorem, "accuracy/read_out"))


def test_entries_off_the_diagonal_are_as_predicted_too(theorem: toytf.Run) -> None:
    """They sum to −diagonal by the softmax; entry by entry noise remains, least where each entry is seen most often."""
    for name in ("W_OV2", "W_KQ2"):
        diagonal, off = theorem.summary[f"signal/{name}"], theorem.summary[f"signal/{name}_off"]
        assert off == pytest.approx(-diagonal / 63, rel=1e-3)
        assert theorem.summary[f"theory/signal/{name}_off"] == pytest.approx(
            -theorem.summary[f"theory/signal/{name}"] / 63
        )
    assert theorem.summary["correlation/W_OV2"] > 0.85
    assert theorem.summary["correlation/W_KQ2"] > 0.9
    assert theorem.summary["correlation/W_KQ1"] > 0.98


def test_eight_sequences_a_token_are_too_few_and_32_suffice(take: Run) -> None:
    run = take(samples=[512, 2048], seeds=[0, 1], evaluation_samples=2048)
    for name in STEPS:
        assert each(run, f"recall/{name}") == [1.0] * 2
    for name in ("W_OV2", "W_KQ2"):
        assert all(0.6 < recall < 0.95 for recall in each(run, f"recall/{name}_n512"))
    assert run.summary["accuracy/read_out_n512"] < 0.85
    assert run.summary["accuracy/read_out"] > 0.94


def test_vectors_of_dimension_256_are_orthonormal_enough(take: Run) -> None:
    """N = 32, 16,384 sequences: crosstalk 1/√d = 1/16 of the norm, over 32 tokens 1 % of a mean diagonal."""
    run = take(n_tokens=32, embedding="normal_over_d", dimension=256, samples=[16384], evaluation_samples=4096)
    for name in STEPS:
        assert run.summary[f"recall/{name}"] == 1
    assert run.summary["over_theory/W_OV2"] == pytest.approx(1, abs=0.06)
    assert run.summary["over_theory/W_KQ2"] == pytest.approx(0.9, abs=0.15)
    assert 0.94 <= run.summary["accuracy/read_out"] <= 0.98


# --- the model with a residual stream


def test_a_stream_also_stores_what_layer_1_has_moved(residual: toytf.Run) -> None:
    for ratio in each(residual, "over_theory/W_OV2_remapped"):
        assert ratio == pytest.approx(1, abs=0.05)
    ratio = residual.summary["signal/W_OV2_remapped"] / residual.summary["signal/W_OV2"]
    assert ratio == pytest.approx(theory.remapped_gain(16), rel=0.05)  # finite N moves both


def test_a_stream_stores_the_trigger_with_the_help_of_both_memories(residual: toytf.Run) -> None:
    """1.15e-4 for N ≫ T; T/N = 1/4 costs 8 % here too."""
    assert residual.summary["theory/signal/W_KQ2"] == pytest.approx(1.15e-4, rel=1e-3)
    for ratio in each(residual, "over_theory/W_KQ2"):
        assert 0.86 <= ratio <= 0.97
    assert each(residual, "recall/W_OV2") == each(residual, "recall/W_KQ2") == [1.0] * 2


def test_what_all_sequences_share_saturates_attention_and_step_3_fails(residual: toytf.Run) -> None:
    """The query p_T is there in every sequence, e_q in one of N: its scores are N times as large."""
    assert residual.summary["attention/largest_step1"] == pytest.approx(1 / 16)
    assert residual.summary["attention/largest_step2"] > 0.5
    assert residual.summary["recall/W_KQ1"] < 0.6
    assert residual.summary["accuracy/read_out"] < 0.3
    assert "theory/accuracy/read_out" not in residual.summary


def test_the_token_part_of_step_2_alone_would_have_sufficed() -> None:
    """With W_KQ2 restricted to e_k ẽ_jᵀ, step 3 recalls every position at unit gain."""
    config = configured(model="residual", n_tokens=32, seq_len=10)
    vectors = draw(config, 0)
    _, (_, _, weights), _ = take_steps(config, 8192, 0, vectors)
    tokens_only = vectors.e.T @ read("W_KQ2", weights.W_KQ2, vectors) @ vectors.e_tilde
    fresh = batches(config, 8192, vectors, 0, "W_KQ1")
    G = negative_gradient("W_KQ1", replace(weights, W_KQ2=tokens_only), vectors, fresh)
    assert three_steps.recall("W_KQ1", G, vectors) == 1


# --- fields, names, resuming


CHANGES: dict[str, dict[str, Any]] = {
    "n_tokens": {"n_tokens": 7},
    "seq_len": {"seq_len": 7},
    "model": {"model": "residual"},
    "embedding": {"embedding": "normal_over_d", "dimension": 8},
    "dimension": {"embedding": "normal_over_d", "dimension": 9},
    "samples": {"samples": [257]},
    "beta_1": {"beta_1": 2},
    "beta_2": {"beta_2": 2},
    "read_out.W_KQ1": {"read_out": {"W_KQ1": 3}},
    "read_out.W_KQ2": {"read_out": {"W_KQ2": 3}},
    "evaluation_samples": {"evaluation_samples": 65},
    "seeds": {"seeds": [1]},
}
ELSEWHERE = {"experiment", "device", "threads", "logging", "read_out"}
"""Of the machine, the same for all experiments, or listed by its fields."""


def test_the_table_of_changes_has_every_field() -> None:
    nested = {f"read_out.{field}" for field in ReadOutConfig.model_fields}
    assert set(CHANGES) == set(ThreeStepsConfig.model_fields) - ELSEWHERE | nested


def test_every_field_changes_what_is_measured() -> None:
    def values(**change: Any) -> tuple[float | None, ...]:
        study = ThreeSteps(configured(**TINY | change))
        (case,), (seed,) = study.cases(), study.config.seeds
        return tuple(found.value for found in study.measure(case, seed) if isinstance(found, Measurement))

    found = {field: values(**change) for field, change in CHANGES.items()} | {"nothing": values()}
    assert len(set(found.values())) == len(found)
    assert values() == found["nothing"]


def test_metrics_of_the_most_samples_have_plain_names(take: Run) -> None:
    run = take(**TINY | {"samples": [300, 40]})
    alone = take(**TINY | {"samples": [300]})
    few = re.compile("_n40(?=/|$)")
    plain = {name for name in run.summary if not few.search(name)}
    assert plain == set(alone.summary)
    assert sorted(few.sub("", name) for name in set(run.summary) - plain) == sorted(plain)
    assert {"recall/W_OV2_n40", "signal/W_OV2_off_n40", "signal/W_KQ1_n40/t5"} <= set(run.summary)
    assert all(run.summary[name] == alone.summary[name] for name in plain)


def test_memory_does_not_grow_with_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = three_steps.model.sample_sequences

    def watched(n: int, *rest: Any) -> Any:
        asked.append(n)
        return real(n, *rest)

    monkeypatch.setattr(three_steps.model, "sample_sequences", watched)
    config = configured(n_tokens=512, seq_len=16)
    assert sum(len(answers) for _, answers in batches(config, 1000, draw(config, 0), 0, "x")) == 1000
    assert max(asked) * 512 * 16 <= three_steps.CHUNK


@pytest.fixture(scope="module")
def whole(take: Run) -> toytf.Run:
    """Two jobs of two seeds."""
    return take(**TINY | {"samples": [64, 128]}, seeds=[0, 1])


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
def test_a_run_killed_after_any_row_and_resumed_ends_the_same(
    rows: int, whole: toytf.Run, ends_the_same: "EndsTheSame"
) -> None:
    ends_the_same(whole, rows)


def test_it_stops_between_steps() -> None:
    study = ThreeSteps(configured(**TINY))
    with stop_on_interrupt(), pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGINT)
        list(study.measure(ThreeStepsCase(256), 0))


def test_gains_beyond_what_a_float_holds_end_the_run_with_a_sentence(take: Run) -> None:
    with pytest.raises(RunFailed, match="the gradient of W_KQ2 is not finite"):
        take(**TINY | {"beta_1": 1e38})


def test_a_gain_that_leaves_no_gradient_is_still_measured(take: Run) -> None:
    """Attention is saturated for good, and no entry of W_KQ1 differs from another."""
    run = take(**TINY | {"beta_2": 1e9})
    assert run.summary["recall/W_KQ1"] == run.summary["correlation/W_KQ1"] == 0


def test_the_figures_show_what_was_measured_beside_the_theory(whole: toytf.Run, theorem: toytf.Run) -> None:
    saved = {path.stem: json.loads(path.read_text()) for path in (whole.directory / "figures").glob("*.json")}
    assert set(saved) == {"signals", "positions", "recall", "accuracy"}
    titles = [annotation["text"] for annotation in saved["signals"]["layout"]["annotations"]]
    assert titles == [f"Step {i}, {name}: {side}" for i, name in enumerate(STEPS, 1) for side in ("measured", "theory")]
    assert {trace["name"] for trace in saved["recall"]["data"]} == set(STEPS)
    assert {path.stem for path in (theorem.directory / "figures").glob("*.json")} == {"signals", "positions"}


def test_the_heat_maps_are_those_of_the_first_seed_at_the_most_samples(whole: toytf.Run) -> None:
    (drawn,) = (found for found in ThreeSteps(whole.config).measure(ThreeStepsCase(128), 0) if isinstance(found, Drawn))
    maps, table = drawn.draw(), whole.table
    assert maps.to_json() == (whole.directory / "figures" / "signals.json").read_text()
    for panel, name in zip(maps.data[::2], STEPS, strict=True):
        entries = np.diagonal(panel.z, -1)[:-1] if name == "W_KQ1" else np.diagonal(panel.z)
        measured = table[(table["metric"] == f"signal/{name}") & (table["seed"] == 0)]["value"]
        assert entries.mean() == pytest.approx(measured.item())
    assert not any(isinstance(found, Drawn) for found in ThreeSteps(whole.config).measure(ThreeStepsCase(64), 0))


def test_the_steps_are_not_taken_again_for_the_page(take: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    real = three_steps.take_steps

    def watched(config: ThreeStepsConfig, samples: int, seed: int, vectors: Any) -> Any:
        taken.append(seed)
        return real(config, samples, seed, vectors)

    monkeypatch.setattr(three_steps, "take_steps", watched)
    take(**TINY, seeds=[3, 1])
    assert taken == [3, 1]


MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "dimension_of_axes": (["dimension=8"], ["dimension = 8", "orthonormal", "embedding: normal_over_d"]),
    "no_dimension": (["embedding=normal_over_d"], ["dimension is missing", "normal_over_d"]),
    "unknown_embedding": (["embedding=orthonormel"], ['embedding = "orthonormel"', 'did you mean "orthonormal"?']),
    "unknown_model": (["model=residul"], ['model = "residul"', 'did you mean "residual"?']),
    "short": (["seq_len=4"], ["seq_len = 4", "greater than or equal to 5"]),
    "two_tokens": (["n_tokens=2"], ["n_tokens = 2", "greater than or equal to 3"]),
    "no_samples": (["samples=[]"], ["samples", "at least 1"]),
    "samples_zero": (["samples=[0]"], ["samples.0 = 0", "greater than 0"]),
    "samples_twice": (["samples=[8,16,8]"], ["samples: 8 is listed twice"]),
    "no_gain": (["beta_1=0"], ["beta_1 = 0", "greater than 0"]),
    "negative_gain": (["read_out.W_KQ1=-1"], ["read_out.W_KQ1 = -1", "greater than 0"]),
    "gain_of_another": (["read_out.W_OV2=1"], ['"W_OV2" in "read_out"', "W_KQ2"]),
    "nobody_to_ask": (["evaluation_samples=0"], ["evaluation_samples = 0", "greater than 0"]),
}


@pytest.mark.parametrize(("overrides", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_ends_with_2_and_one_line(overrides: list[str], says: list[str], refused: "Refused") -> None:
    refused("experiment: three_steps\nlogging: {wandb: 'off'}\n", overrides, says)
