"""Learned matrices beside the ideal ones: 1 for the Hebbian matrix, 0 for a random one, and the worst pairs."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import toytf
from probes.alignment import signal_to_crosstalk
from probes.matrices import cosine
from tasks.bigram.task import BigramTask
from toytf.build import build_model, build_probe, build_task
from toytf.config.plugins import load_config, plugins
from toytf.memory import Association
from toytf.models import Slot, ToyTransformer
from toytf.probe import ProbeResult
from toytf.randomness import generator

CONFIGS = Path(__file__).parents[2] / "configs"
MEMORIES = ("W_KQ1", "W_KQ2", "W_OV2")
ONE_HOT = {"model__d_model": 65, "model__embedding": "one_hot", "model__unembedding": "one_hot"}


def setting(path: str = "bigram/ideal.yaml", seed: int = 0, **overrides: Any) -> tuple[BigramTask, ToyTransformer]:
    """A model of d = 64 on sequences of 32."""
    small = {"model.d_model": 64, "task.seq_len": 32}
    config: Any = load_config(CONFIGS / path, small | {key.replace("__", "."): v for key, v in overrides.items()})
    task: Any = build_task(config.task, torch.device("cpu"))
    return task, build_model(config.model, task, seed)


def probe(task: BigramTask, model: ToyTransformer, **fields: Any) -> ProbeResult:
    config = plugins("probes")["alignment"](kind="alignment", **fields)
    return build_probe(config)(model, task, task.sample(2, generator(0, "batch")))


def of(result: ProbeResult, name: str) -> float:
    return result.metrics[f"alignment/{name}"]


# The scale from ideal to chance


def test_the_ideal_matrices_are_aligned_with_themselves():
    result = probe(*setting())
    for name in MEMORIES:
        ratio = f"alignment/{name}_signal_to_crosstalk"
        assert of(result, f"{name}_cosine") == pytest.approx(1, abs=1e-5)
        assert result.metrics[ratio] == pytest.approx(result.references[ratio].ideal, rel=1e-4)
    assert {(reference.ideal, reference.chance) for n, reference in result.references.items() if "cosine" in n} == {
        (1.0, 0.0)
    }


def test_a_random_matrix_is_aligned_by_chance():
    """cos = 0 ± σ, σ = |Uᵀ M*ᵀ E| / (|U| |E| |M*|) for a W of independent entries.

    With random vectors |Uᵀ M*ᵀ E|² ∝ ⟨λ³⟩² and |M*|² ∝ ⟨λ²⟩², λ distributed by Marchenko and Pastur with c = n/d, so
    σ = (1 + 3c + c²) / ((1 + c) n).
    """
    d, n = 64, 65
    c = n / d
    spread = (1 + 3 * c + c**2) / ((1 + c) * n)
    found = [probe(*setting("quickstart.yaml", seed, task__seq_len=n + 1)) for seed in range(5)]
    for name in ("W_KQ1", "W_OV2"):
        cosines = np.array([of(result, f"{name}_cosine") for result in found])
        assert np.abs(cosines).max() < 4 * spread
        assert np.abs(cosines.mean()) < 4 * spread / math.sqrt(len(found))


def test_the_ideal_matrix_has_the_signal_to_crosstalk_of_theory():
    """d / √(n + 2d) for n pairs of independent vectors in d dimensions.

    The crosstalk is the mean of 65 · 64 squares; few per cent remain, since they share 65 vectors.
    """
    d, n = 128, 65
    ratios = []
    for seed in range(4):
        task, model = setting(seed=seed, model__d_model=d)
        reference = probe(task, model).references["alignment/W_OV2_signal_to_crosstalk"]
        ratios.append(reference.ideal)
    assert np.mean(ratios) == pytest.approx(d / math.sqrt(n + 2 * d), rel=0.05)


@given(scale=st.floats(1e-3, 1e3), sign=st.sampled_from([-1, 1]))
def test_only_the_sign_of_the_scale_counts(scale: float, sign: int):
    a = Association(*torch.randn(2, 9, 16, generator=generator(0, "vectors")), torch.arange(9))
    W = torch.randn(16, 16, generator=generator(0, "W"))
    M, ideal = a.scores(W), a.scores(torch.eye(16))
    assert cosine(sign * scale * M, ideal) == pytest.approx(sign * cosine(M, ideal), rel=1e-4)
    assert signal_to_crosstalk(a, sign * scale * W) == pytest.approx(sign * signal_to_crosstalk(a, W), rel=1e-3)


def test_only_candidates_count():
    """Scores 2 3 / 1 6, the 3 may not compete: signal (2 + 6)/2, one rival and so no spread; with it, |3 − 1|/2."""
    vectors, targets = torch.eye(2), torch.arange(2)
    W = torch.tensor([[2.0, 1.0], [3.0, 6.0]])
    every = Association(vectors, vectors, targets)
    causal = Association(vectors, vectors, targets, candidates=torch.ones(2, 2, dtype=torch.bool).tril())
    assert signal_to_crosstalk(every, W) == pytest.approx(4 / 1)
    assert signal_to_crosstalk(causal, W) is None
    assert cosine(every.scores(W), every.scores(torch.eye(2))) == pytest.approx(8 / math.sqrt(50 * 2))
    assert cosine(causal.scores(W), causal.scores(torch.eye(2))) == pytest.approx(8 / math.sqrt(41 * 2))


def test_a_silent_model_has_no_metrics():
    silent = {"init": "zeros", "kq": "joint", "ov": "joint"}
    result = probe(*setting("quickstart.yaml", model__attention=silent))
    assert result.metrics == result.references == result.failures == {}
    assert isinstance(result.figure(), go.Figure)


# What is most wrong, by name


def test_the_pairs_that_are_most_wrong_are_named():
    task, model = setting("quickstart.yaml", **ONE_HOT, model__position="none", model__attention={"ov": "joint"})
    W = 2 * torch.eye(65)
    W[2, 1] = 3.0  # t prefers e to itself by 1
    model.write(Slot("OV", 1), W)
    result = probe(task, model, worst=1)
    unit = math.sqrt(65 * 4 + 9) / 65
    assert result.failures["alignment/W_OV2_cosine"] == [f"t → t: margin {-1 / unit:.2f} behind e"]
    assert of(result, "W_OV2_cosine") == pytest.approx(2 * 65 / math.sqrt(65 * (65 * 4 + 9)))
    # One rival of 65 · 64 has the score 3; the ideal has no crosstalk to be measured in.
    p = 1 / (65 * 64)
    assert of(result, "W_OV2_signal_to_crosstalk") == pytest.approx(2 / (3 * math.sqrt(p * (1 - p))))
    assert result.references["alignment/W_OV2_signal_to_crosstalk"].ideal is None


def distribution_model(kind: str, log_p: torch.Tensor) -> tuple[BigramTask, ToyTransformer]:
    """A feed-forward part whose answers are log_p: linear, or x⁺ W − x⁻ W, which is x W as well."""
    feed_forward = {"kind": kind, "width": 130 if kind == "relu" else None}
    task, model = setting("quickstart.yaml", **ONE_HOT, model__position="none", model__feed_forward=feed_forward)
    part = model.feed_forward(1)
    assert part is not None
    with torch.no_grad():
        if part.W_out is None:
            part.W_in.copy_(log_p)
        else:
            part.W_in.copy_(torch.cat([torch.eye(65), -torch.eye(65)], 1))
            part.W_out.copy_(torch.cat([log_p, -log_p]))
    return task, model


@pytest.mark.parametrize("kind", ["linear", "relu"])
def test_a_distribution_is_compared_as_probabilities(kind: str):
    p = setting("quickstart.yaml")[0].bigram
    log_p = p.clamp(min=1e-30).log()
    assert of(probe(*distribution_model(kind, log_p)), "FF2_cosine") == pytest.approx(1, abs=1e-5)
    uniform = probe(*distribution_model(kind, torch.zeros(65, 65)))
    used = p[5:].double()  # rows of the triggers are not asked for
    expected = float(used.sum() / (used.norm() * math.sqrt(60 * 65)))
    reference = uniform.references["alignment/FF2_cosine"]
    assert (of(uniform, "FF2_cosine"), reference.chance) == pytest.approx((expected, expected), abs=1e-5)
    assert reference.ideal == 1
    assert "alignment/FF2_signal_to_crosstalk" not in uniform.metrics


@pytest.mark.parametrize("kind", ["linear", "relu"])
def test_the_rows_of_a_distribution_that_are_most_wrong_are_named(kind: str):
    task = setting("quickstart.yaml")[0]
    log_p = task.bigram.clamp(min=1e-30).log()
    log_p[7] = torch.where(torch.arange(65) == 3, 5.0, 0.0)
    task, model = distribution_model(kind, log_p)
    row, says, likeliest = (task.token_names[i] for i in (7, 3, int(task.bigram[7].argmax())))
    p = task.bigram[7].double()
    said = log_p[7].double().log_softmax(0)
    divergence = float((torch.special.xlogy(p, p) - p * said).sum())
    result = probe(task, model, worst=2)
    worst, second = result.failures["alignment/FF2_cosine"]
    assert worst == f"{row}: KL {divergence:.2f}, says {says}, likeliest is {likeliest}"
    assert "KL 0.00" in second or "KL -0.00" in second


# Figures and runs


def test_the_figure_shows_learned_beside_ideal_by_name():
    task, model = setting()
    figure = probe(task, model).figure()
    titles = [title.text for title in figure.layout.annotations]
    assert titles == [f"{name}, {which}" for name in MEMORIES for which in ("learned", "ideal")]
    for learned, ideal in zip(figure.data[::2], figure.data[1::2], strict=True):
        assert np.abs(np.asarray(learned.z)).max() == pytest.approx(1)
        np.testing.assert_allclose(learned.z, ideal.z, atol=1e-4)  # the model is ideal
    assert "t=2, t=1" in figure.data[0].customdata[0][0]


def test_a_figure_of_many_positions_stays_small():
    figure = probe(*setting(task__seq_len=200)).figure()
    assert all(np.asarray(heat.z).shape in ((64, 64), (5, 5)) for heat in figure.data)
    assert "64" in figure.layout.title.text
    positions = np.asarray(figure.data[0].z)
    assert np.diag(positions).min() > np.abs(positions - np.diag(np.diag(positions))).mean()


def test_a_finished_run_can_be_probed(tiny_run: "toytf.Run", invoke: Any):
    result = tiny_run.probe("alignment")
    assert set(result.metrics) == {
        f"alignment/{name}_{measure}" for name in MEMORIES for measure in ("cosine", "signal_to_crosstalk")
    }
    ended = invoke("probe", tiny_run.directory, "--probe", "alignment")
    assert ended.code == 0
    assert "W_OV2_signal_to_crosstalk" in ended.out and " behind t=" in ended.out
