"""The experiment noise_learning: feed-forward learns the noise from O(1) samples, attention from O(N)."""

import json
import math
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
import torch

import toytf
from tasks.bigram.noise_learning import experiment as noise_learning
from tasks.bigram.noise_learning.config import NoiseLearningConfig
from tasks.bigram.noise_learning.experiment import (
    TRIGGER,
    Contexts,
    NoiseLearning,
    Setting,
    attention_step,
    draw_contexts,
    feed_forward_step,
    recalled,
    samples_needed,
)
from toytf import theory
from toytf.config.plugins import load_config
from toytf.errors import Interrupted
from toytf.measurement import as_row
from toytf.randomness import generator
from toytf.stopping import stop_on_interrupt

if TYPE_CHECKING:
    from conftest import EndsTheSame, Refused

QUIET: dict[str, Any] = {"experiment": "noise_learning", "device": "cpu", "threads": 1, "logging": {"wandb": "off"}}
TINY: dict[str, Any] = {"n_tokens": [4, 8], "seq_len": 6, "samples": [16, 2], "repeats": 2, "seeds": [0, 1], **QUIET}


def contexts_of(alpha: float, n_tokens: int, m: int, repeats: int, seq_len: int = 32) -> Contexts:
    return draw_contexts(Setting(alpha, n_tokens), seq_len, repeats, m, generator(0, "test", n_tokens, m))


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    """Eight repeats at 1024 samples, N = 32 … 256, and some smaller samples."""
    sizes = {"n_tokens": [32, 64, 128, 256], "samples": [4, 16, 32, 64, 128, 1024], "repeats": 8, "seeds": [0]}
    return toytf.run({**QUIET, **sizes}, out=tmp_path_factory.mktemp("learned") / "run")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    return toytf.run(TINY, out=tmp_path_factory.mktemp("tiny") / "run")


# --- the contexts


def test_contexts_end_in_the_trigger_and_noise_follows_only_triggers() -> None:
    contexts = contexts_of(0.5, 5, 200, 2, seq_len=12)
    tokens = contexts.tokens
    assert tokens.shape == (2, 200, 12)
    assert (tokens[..., -1] == TRIGGER).all()
    before, noise = tokens[..., :-1], tokens[..., 1:] == 5
    assert noise.any()
    assert (before[noise] == TRIGGER).all()


def test_a_context_has_one_output_and_the_answer_is_it_or_noise() -> None:
    contexts = contexts_of(0.4, 5, 400, 1, seq_len=12)
    for tokens, answer in zip(contexts.tokens[0].tolist(), contexts.answers[0].tolist(), strict=True):
        follow = {tokens[t + 1] for t in range(10) if tokens[t] == TRIGGER} | {answer}
        assert len(follow - {5}) <= 1


def test_noise_comes_with_its_probability_and_tokens_are_uniform() -> None:
    contexts = contexts_of(0.2, 10, 4000, 10, seq_len=8)
    # 40 000 answers: standard errors 0.002 and, of a share of 0.08, 0.0014; four of them.
    assert float((contexts.answers == 10).double().mean()) == pytest.approx(0.2, abs=0.008)
    shares = torch.bincount(contexts.answers.flatten(), minlength=11)[:10] / contexts.answers.numel()
    torch.testing.assert_close(shares, torch.full((10,), 0.08), atol=0.006, rtol=0)
    first = torch.bincount(contexts.tokens[..., 0].flatten(), minlength=11) / contexts.answers.numel()
    torch.testing.assert_close(first[:10], torch.full((10,), 0.1), atol=0.006, rtol=0)
    assert first[10] == 0


# --- the step


def test_the_step_is_what_autograd_says_in_any_orthonormal_vectors() -> None:
    """logits = U (W_V A + W_F e_q) with different vectors for reading and writing, in float64."""
    N, n_values, m = 6, 7, 9
    contexts = contexts_of(0.4, N, m, 3, seq_len=5)
    random = generator(0, "vectors")
    e, u = (torch.linalg.qr(torch.randn(8, n_values, generator=random, dtype=torch.float64))[0].T for _ in range(2))
    W_F, W_V = feed_forward_step(contexts.answers, n_values), attention_step(contexts, n_values)
    for repeat in range(3):
        weights = [torch.zeros(8, 8, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        A = e[contexts.tokens[repeat]].mean(1)
        last = e[contexts.tokens[repeat][:, -1]]
        logits = (A @ weights[0].T + last @ weights[1].T) @ u.T
        loss = torch.nn.functional.cross_entropy(logits, contexts.answers[repeat])
        by_V, by_F = (-u @ gradient @ e.T for gradient in torch.autograd.grad(loss, weights))
        torch.testing.assert_close(W_V[repeat], by_V, atol=1e-14, rtol=0)
        torch.testing.assert_close(W_F[repeat], by_F[:, TRIGGER], atol=1e-14, rtol=0)
        assert by_F[:, 1:].abs().max() < 1e-14  # only the trigger is ever asked


def test_a_tie_is_not_recalled() -> None:
    scores = torch.tensor([[[0.0, 1.0, 2.0], [3.0, 0.0, 2.0], [1.0, 2.0, 2.0]]])  # values × keys, noise last
    assert recalled(scores).tolist() == pytest.approx([1 / 3])
    assert recalled(torch.tensor([[1.0, 2.0], [2.0, 2.0]])).tolist() == [1, 0]
    assert recalled(torch.zeros(1, 4, 5)).tolist() == [0]


def test_a_token_that_was_never_met_is_not_recalled() -> None:
    contexts = Contexts(torch.tensor([[[1, 0]]]), torch.tensor([[3]]))  # q = 0, τ = 3, token 2 not there
    assert recalled(attention_step(contexts, 4)).tolist() == [2 / 4]


def test_entries_are_those_of_the_population_on_average() -> None:
    """N = 16, T = 32, 20 × 4096 contexts. Standard errors: 0.0017 of α − 1/V; 1 % of the others.

    The population entries hold up to 1/T and 1/N: 0.1 for the row, twice that for what copying adds.
    """
    N, alpha = 16, 0.3
    contexts = contexts_of(alpha, N, 4096, 20)
    step = theory.noise_step(N, 32, alpha)
    W_F, W_V = feed_forward_step(contexts.answers, N + 1).mean(0), attention_step(contexts, N + 1).mean(0)
    assert float(W_F[N]) == pytest.approx(step.feed_forward_noise, abs=0.007)
    assert float(W_F[:N].mean()) == pytest.approx(step.feed_forward_other, abs=0.0005)
    assert float(W_V[N, 1:N].mean()) == pytest.approx(step.attention_noise, rel=0.1)
    plain = W_V[1:N, 1:N]
    off = (plain.sum() - plain.trace()) / ((N - 1) * (N - 2))
    assert float(plain.trace() / (N - 1) - off) == pytest.approx(step.attention_copy, rel=0.2)


# --- recall by number of samples


@pytest.mark.parametrize(("alpha", "n_tokens", "m"), [(0.5, 256, 8), (0.5, 32, 4), (0.2, 128, 16), (0.2, 512, 16)])
def test_the_recall_of_feed_forward_is_exactly_known(alpha: float, n_tokens: int, m: int) -> None:
    """4000 steps: four standard errors are at most 0.032."""
    answers = contexts_of(alpha, n_tokens, m, 4000, seq_len=2).answers
    measured = float(recalled(feed_forward_step(answers, n_tokens + 1)).mean())
    assert measured == pytest.approx(theory.feed_forward_recall(n_tokens, alpha, m), abs=0.032)


@pytest.mark.parametrize(
    ("alpha", "n_tokens", "feed_forward", "attention"),
    [
        (0.5, 32, (1, 1, 1), (0.87, 1, 1)),
        (0.5, 128, (1, 1, 1), (0.50, 0.98, 1)),
        (0.5, 512, (1, 1, 1), (0.25, 0.60, 0.99)),
        (0.2, 128, (0.745, 1, 1), (0.17, 0.63, 1)),
        (0.2, 512, (0.824, 1, 1), (0.10, 0.20, 0.74)),
    ],
)
def test_feed_forward_learns_from_a_few_samples_and_attention_from_many(
    alpha: float, n_tokens: int, feed_forward: tuple[float, ...], attention: tuple[float, ...]
) -> None:
    """m = 16, 64, 256 at T = 32. The recalls of attention come from a simulation of some twenty draws: good to 0.06.

    Those of feed-forward are exact; 1000 draws (only answers matter) have a standard error of 0.014 at most.
    """
    for m, of_F, of_V in zip((16, 64, 256), feed_forward, attention, strict=True):
        answers = contexts_of(alpha, n_tokens, m, 1000, seq_len=2).answers
        assert float(recalled(feed_forward_step(answers, n_tokens + 1)).mean()) == pytest.approx(of_F, abs=0.06)
        V = recalled(attention_step(contexts_of(alpha, n_tokens, m, 24), n_tokens + 1))
        assert float(V.mean()) == pytest.approx(of_V, abs=0.06)


def test_the_spread_of_the_noise_row_grows_like_the_vocabulary(learned: toytf.Run) -> None:
    """cv² m ∝ N: from 32 to 256 tokens at m = 1024, eight repeats scatter by 0.05 around 0.95."""
    assert learned.summary["token_exponent/cv2_a0.5"] == pytest.approx(1, abs=0.15)
    assert learned.summary["theory/token_exponent/cv2_a0.5"] == pytest.approx(1)
    assert learned.summary["token_exponent/cv2_a0.5/error"] < 0.15


@pytest.mark.parametrize(("n_tokens", "expected"), [(32, 0.047), (128, 0.093)])
def test_the_relative_spread_is_that_of_counts(n_tokens: int, expected: float, learned: toytf.Run) -> None:
    """√(N/(αTm)) is 0.044 and 0.088; finite sizes add 1/(αN) + 1/(2T): 8 % and 3 %. Eight rows of N: error 5 %, 3 %."""
    measured, predicted = (learned.summary[f"{prefix}cv/a0.5_N{n_tokens}"] for prefix in ("", "theory/"))
    assert predicted == pytest.approx(math.sqrt(n_tokens / (0.5 * 32 * 1024)))
    assert measured == pytest.approx(predicted * (1 + 2 / n_tokens + 1 / 64), rel=0.12)
    assert measured == pytest.approx(expected, rel=0.12)


def test_the_samples_needed_grow_with_the_vocabulary_for_attention_only(learned: toytf.Run) -> None:
    summary = learned.summary
    assert all(summary[f"samples_needed/FF_a0.5_N{n}"] <= 16 for n in (64, 128, 256))  # exactly known: above 0.997
    attention = [summary[f"samples_needed/V_a0.5_N{n}"] for n in (32, 64, 128, 256)]
    assert attention == sorted(attention)
    assert attention[-1] >= 4 * attention[0]
    assert abs(summary["token_exponent/needed_FF_a0.5"]) < 0.35  # from one size of the list to the next is 1/3
    assert summary["token_exponent/needed_V_a0.5"] > 0.5


def test_the_samples_needed_are_those_from_which_on_the_level_is_kept() -> None:
    assert samples_needed([2, 4, 8, 16], [0.1, 0.5, 0.6, 0.9], 0.5) == 4
    assert samples_needed([2, 4, 8, 16], [0.9, 0.4, 0.6, 0.9], 0.5) == 8  # a lucky draw at first does not count
    assert samples_needed([16, 2, 8, 4], [0.9, 0.6, 0.8, 0.7], 0.5) == 2  # in any order
    assert samples_needed([2, 4], [0.9, 0.4], 0.5) is None


def test_theory_is_alone_where_recall_never_reaches_the_level() -> None:
    """Feed-forward does as theory says, attention never does."""
    study = NoiseLearning(load_config(TINY))
    recalls = [
        {
            "group": "noise_recall",
            "name": part,
            "alpha": 0.5,
            "n_tokens": N,
            "contexts": m,
            "value": value,
            "theory": by,
        }
        for N in (4, 8)
        for part, m, value, by in (
            ("FF", 2, 1.0, 1.0),
            ("FF", 16, 1.0, 1.0),
            ("V", 2, 0.1, 8.0 / N - 1),
            ("V", 16, 0.2, 1.0),
        )
    ]
    found = as_row(study.conclude(pd.DataFrame(recalls)))
    assert found == {
        **{f"{kind}samples_needed/FF_a0.5_N{N}": 2 for N in (4, 8) for kind in ("", "theory/")},
        "theory/samples_needed/V_a0.5_N4": 2,
        "theory/samples_needed/V_a0.5_N8": 16,
        "token_exponent/needed_FF_a0.5": 0,
        "theory/token_exponent/needed_FF_a0.5": 0,
        "theory/token_exponent/needed_V_a0.5": pytest.approx(3),
    }


# --- the experiment


def test_every_recall_has_theory_and_chance_beside_it(tiny: toytf.Run) -> None:
    summary = tiny.summary
    for part, predicted in (
        ("FF", theory.feed_forward_recall(8, 0.5, 16)),
        ("V", theory.attention_recall(8, 6, 0.5, 16)),
    ):
        name = f"noise_recall/{part}_a0.5_N8/m16"
        assert 0 <= summary[name] <= 1
        assert summary[f"theory/{name}"] == pytest.approx(predicted)
        assert summary[f"chance/{name}"] == pytest.approx(1 / 9)
    step = theory.noise_step(8, 6, 0.5)
    assert summary["theory/entry/FF_noise_a0.5_N8"] == pytest.approx(step.feed_forward_noise)
    assert summary["theory/entry/V_noise_a0.5_N8"] == pytest.approx(step.attention_noise)
    assert summary["theory/entry/V_copy_a0.5_N8"] == pytest.approx(step.attention_copy)


def test_what_is_never_learned_has_no_number_of_samples(tmp_path: Path) -> None:
    """Of 64 tokens one context of 6 leaves most unmet."""
    run = toytf.run({**TINY, "n_tokens": [64, 128], "samples": [1, 2]}, out=tmp_path / "run")
    assert run.finished
    names = {name for name in run.summary if not name.startswith("theory/")}
    assert not any(name.startswith(("samples_needed/V", "token_exponent/needed_V")) for name in names)
    assert all(math.isfinite(value) for value in run.summary.values())


def test_a_single_vocabulary_gives_no_power(tmp_path: Path) -> None:
    run = toytf.run({**TINY, "n_tokens": [3], "seq_len": 2, "samples": [1], "repeats": 1}, out=tmp_path / "run")
    assert run.finished
    assert not any("token_exponent" in name for name in run.summary)


def test_matrices_are_held_in_memory_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_learning, "ENTRIES_AT_ONCE", 200)  # matrices have 81 entries
    run = toytf.run({**TINY, "repeats": 5, "samples": [30]}, out=tmp_path / "run")
    assert run.summary["noise_recall/FF_a0.5_N8/m30"] == 1  # in 0.999 of all draws


def test_it_stops_between_steps() -> None:
    study = NoiseLearning(load_config(TINY))
    with stop_on_interrupt(), pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGINT)
        list(study.measure(Setting(0.5, 4), 0))


def test_a_resumed_run_ends_the_same(tiny: toytf.Run, ends_the_same: "EndsTheSame") -> None:
    assert len(tiny.history) == 6  # two vocabularies and the fits, two seeds
    for rows in (0, 1, 3, 5):
        ends_the_same(tiny, rows)


CHANGES: dict[str, Any] = {
    "n_tokens": [4, 9],
    "seq_len": 7,
    "noise_probabilities": [0.6],
    "samples": [16, 3],
    "repeats": 3,
    "level": 0.3,
    "seeds": [2, 3],
}


def test_the_table_of_changes_has_every_field() -> None:
    assert set(CHANGES) == set(NoiseLearningConfig.model_fields) - {"experiment", "device", "threads", "logging"}


def measured(run: toytf.Run, *groups: str) -> list[float]:
    """The values of these groups in the order of the rows: no names, no seeds and no theory, which tell the config."""
    rows = map(json.loads, run.metrics_file.read_text().splitlines())
    return [value for row in rows for name, value in row.items() if name.partition("/")[0] in groups]


@pytest.mark.parametrize("field", CHANGES)
def test_every_field_changes_what_is_measured(field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With random numbers by the seed alone: in the experiment they also depend on how a setting is called."""
    monkeypatch.setattr(noise_learning, "generator", lambda seed, *_, device: generator(seed, "test", device=device))
    plain, changed = (
        toytf.run({**TINY, **change}, out=tmp_path / name)
        for name, change in {"plain": {}, "changed": {field: CHANGES[field]}}.items()
    )
    groups = ("samples_needed",) if field == "level" else ("noise_recall", "entry", "cv")
    assert measured(changed, *groups) != measured(plain, *groups)


def test_the_figures_show_both_parts_and_the_spread(learned: toytf.Run) -> None:
    saved = {path.stem: path.read_text() for path in (learned.directory / "figures").glob("*.json")}
    assert set(saved) == {"noise_recall_a0.5", "cv"}
    for label in ("feed-forward, N = 32", "attention, N = 256", "theory: attention, N = 256"):
        assert label in saved["noise_recall_a0.5"]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("n_tokens=[2]", ["n_tokens.0 = 2", "greater than or equal to 3"]),
        ("n_tokens=[]", ["n_tokens", "at least 1"]),
        ("n_tokens=[8,4,8]", ["n_tokens: 8 is listed twice"]),
        ("samples=[0]", ["samples.0 = 0", "greater than 0"]),
        ("samples=[4,4]", ["samples: 4 is listed twice"]),
        ("noise_probabilities=[1.0]", ["noise_probabilities.0 = 1.0", "less than 1"]),
        ("noise_probabilities=[0.5,0.2,0.5]", ["noise_probabilities: 0.5 is listed twice"]),
        ("noise_probabilities=[0.01]", ["0.01 is not above the uniform probability of 32 + 1 tokens", "1/33"]),
        ("seq_len=1", ["seq_len = 1", "greater than or equal to 2"]),
        ("repeats=0", ["repeats = 0", "greater than 0"]),
        ("level=1", ["level = 1", "less than 1"]),
        ("sample=[4]", ['"sample"', 'did you mean "samples"?']),
    ],
)
def test_a_mistake_is_answered_with_one_line(override: str, says: list[str], refused: "Refused") -> None:
    refused("experiment: noise_learning\n", [override], says)
