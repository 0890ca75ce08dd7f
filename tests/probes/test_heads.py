"""Which head is which: the scores of TransformerLens, patterns by hand, and the ideal construction."""

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import torch
import yaml
from transformer_lens.head_detector import detect_head

import toytf
from probes.config import HeadsProbeConfig
from probes.heads import Heads, detect_head_score, detection_patterns, mass_on_pattern, uniform_attention
from tasks.bigram.config import BigramConfig
from tasks.bigram.task import BigramTask
from toytf.build import build_model, build_task
from toytf.config.plugins import load_config
from toytf.models import HookedToyTransformer, ToyTransformer
from toytf.models.config import ModelConfig
from toytf.probe import ProbeResult
from toytf.randomness import generator
from toytf.task import Batch

CONFIGS = Path(__file__).parents[2] / "configs"
KINDS = ("previous_token", "duplicate_token", "induction")
B, T, N = 5, 24, 8
TASK = BigramTask(BigramConfig(kind="bigram", seq_len=T, n_tokens=N, n_triggers=3), torch.device("cpu"))


def probe(model: ToyTransformer, tokens: torch.Tensor) -> ProbeResult:
    """The probe sees tokens only: no role, no latent, and targets that mean nothing."""
    return Heads(HeadsProbeConfig(kind="heads"))(model, TASK, Batch(tokens, torch.zeros_like(tokens), roles={}))


def build(shape: dict[str, Any]) -> ToyTransformer:
    config = ModelConfig.model_validate({"d_model": 12, "embedding": "normal", **shape})
    return ToyTransformer(config, n_tokens=N, n_positions=T, n_outputs=N, generator=generator(0, "model"))


def some_tokens(n_tokens: int = N, length: int = T - 1) -> torch.Tensor:
    """TransformerLens' detection needs sequences shorter than the context."""
    return torch.randint(n_tokens, (B, length), generator=generator(0, "tokens"))


class Scripted(ToyTransformer):
    """A model whose attention patterns are given, to test the probe alone."""

    def __init__(self, *patterns: torch.Tensor) -> None:
        config = ModelConfig(d_model=4, n_layers=len(patterns))
        super().__init__(config, n_tokens=N, n_positions=T, n_outputs=N, generator=generator(0))
        self.patterns = patterns

    def observe(self, tokens: torch.Tensor, *names: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return torch.zeros(*tokens.shape, N), dict(zip(names, self.patterns, strict=True))


@pytest.fixture(scope="module")
def ideal() -> ToyTransformer:
    """The ideal construction at d = 256 for random triggers, so that W_KQ2 holds every token; n_ctx = 32."""
    small = {"model.d_model": 256, "task.seq_len": 32, "task.triggers": "random"}
    config: Any = load_config(CONFIGS / "bigram/ideal.yaml", small)
    return build_model(config.model, build_task(config.task, torch.device("cpu")), seed=0)


@pytest.fixture(scope="module")
def sequences() -> torch.Tensor:
    """Sequences of 31 for the ideal construction, drawn by its task."""
    config = BigramConfig(kind="bigram", seq_len=32, triggers="random")
    return BigramTask(config, torch.device("cpu")).sample(32, generator(0, "batch")).tokens[:, :-1]


# TransformerLens

SHAPES: dict[str, dict[str, Any]] = {
    "joint": {"attention": {"kq": "joint", "ov": "joint"}},
    "several_heads": {"n_layers": 3, "norm": "layer", "attention": {"n_heads": 3}, "feed_forward": {"kind": "relu"}},
    "one_layer": {"n_layers": 1, "attention": {"n_heads": 2}},
    "no_positions": {"position": "none", "attention": {"n_heads": 2}},
}


def assert_equal_to_transformer_lens(model: ToyTransformer, tokens: torch.Tensor) -> None:
    result, lens = probe(model, tokens), HookedToyTransformer(model)
    expected = {
        f"heads/L{layer}H{head}_{kind}/detect_head": float(score)
        for kind in KINDS
        for layer, scores in enumerate(detect_head(lens, list(tokens), f"{kind}_head", error_measure="mul"))
        for head, score in enumerate(scores)
    }
    assert len(expected) == 3 * model.config.n_layers * model.config.attention.n_heads
    found = {name: value for name, value in result.metrics.items() if name.endswith("/detect_head")}
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_every_score_of_a_random_model_is_that_of_transformer_lens(shape: str):
    assert_equal_to_transformer_lens(build(SHAPES[shape]), some_tokens())


@torch.no_grad()
def test_every_score_of_the_ideal_construction_is_that_of_transformer_lens(
    ideal: ToyTransformer, sequences: torch.Tensor
):
    assert_equal_to_transformer_lens(ideal, sequences[:8])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_mass_is_the_score_of_transformer_lens_over_its_ideal(shape: str):
    """Attention sums to 1 in every row, so counting only the queries that have a place divides by their fraction."""
    result = probe(build(SHAPES[shape]), some_tokens())
    for name in [name for name in result.metrics if not name.endswith("/detect_head")]:
        theirs = f"{name}/detect_head"
        for value, mine in (
            (result.metrics[theirs], result.metrics[name]),
            (result.references[theirs].chance, result.references[name].chance),
        ):
            assert mine == pytest.approx(value / result.references[theirs].ideal, abs=1e-6)


# By hand


def test_the_patterns_of_a_sequence_are_those_of_the_definitions():
    """a b b a b, from 0: the second b has itself as what followed the first b."""
    patterns = detection_patterns(torch.tensor([[0, 1, 1, 0, 1]]))
    places = {kind: [tuple(place) for place in pattern[0].nonzero().tolist()] for kind, pattern in patterns.items()}
    assert places == {
        "previous_token": [(1, 0), (2, 1), (3, 2), (4, 3)],
        "duplicate_token": [(2, 1), (3, 0), (4, 1), (4, 2)],
        "induction": [(2, 2), (3, 1), (4, 2), (4, 3)],
    }


def test_a_pattern_by_hand_scores_exactly():
    """a b a b: queries 2 and 3 have a place; the head attends to it by 1/2 and 1/4."""
    attention = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [0.5, 0.25, 0.25, 0], [0, 0.25, 0, 0.75]])[None, None]
    duplicate = detection_patterns(torch.tensor([[0, 1, 0, 1]]))["duplicate_token"]
    assert mass_on_pattern(attention, duplicate).tolist() == [(0.5 + 0.25) / 2]
    assert detect_head_score(attention, duplicate).tolist() == [(0.5 + 0.25) / 4]


def test_the_mass_averages_queries_and_detect_head_sequences():
    """Attention need not sum to 1: twice the attention on one sequence doubles its share of the mass only."""
    tokens = torch.tensor([[0, 1, 0, 1], [0, 1, 2, 0]])  # two queries with a place, and one
    attention = uniform_attention(tokens) * torch.tensor([1.0, 2.0])[:, None, None, None]
    duplicate = detection_patterns(tokens)["duplicate_token"]
    assert mass_on_pattern(attention, duplicate).item() == pytest.approx((1 / 3 + 1 / 4 + 2 / 4) / 3)
    assert detect_head_score(attention, duplicate).item() == pytest.approx(((1 / 3 + 1 / 4) / 4 + (1 / 4) / 4) / 2)


@pytest.mark.parametrize("kind", KINDS)
def test_perfect_heads_are_ideal_and_uniform_ones_at_chance(kind: str):
    tokens = some_tokens()
    pattern = detection_patterns(tokens)[kind].float()
    pattern[..., 0] += pattern.sum(-1) == 0  # a query without a place rests on the first position
    perfect = (pattern / pattern.sum(-1, keepdim=True))[:, None]
    result = probe(Scripted(perfect, uniform_attention(tokens)), tokens)
    for variant in ("", "/detect_head"):
        reference = result.references[f"heads/L0H0_{kind}{variant}"]
        assert reference == result.references[f"heads/L1H0_{kind}{variant}"]
        assert result.metrics[f"heads/L0H0_{kind}{variant}"] == pytest.approx(reference.ideal, abs=1e-6)
        assert result.metrics[f"heads/L1H0_{kind}{variant}"] == pytest.approx(reference.chance, abs=1e-6)


def test_chance_is_counted_on_the_tokens():
    """The previous token is one of t + 1 positions; of k earlier places for a query at t (from 0), k of t + 1."""
    tokens = some_tokens()
    references = probe(build({}), tokens).references
    length = tokens.shape[1]
    expected = sum(1 / t for t in range(2, length + 1)) / (length - 1)
    assert references["heads/L0H0_previous_token"].chance == pytest.approx(expected, abs=1e-6)
    assert references["heads/L0H0_previous_token/detect_head"].ideal == pytest.approx((length - 1) / length)
    repeats = [z[:t].count(z[t]) / (t + 1) for z in tokens.tolist() for t in range(length) if z[t] in z[:t]]
    for kind in ("duplicate_token", "induction"):
        assert references[f"heads/L0H0_{kind}"].chance == pytest.approx(sum(repeats) / len(repeats), abs=1e-6)
        assert references[f"heads/L0H0_{kind}/detect_head"].ideal == pytest.approx(len(repeats) / (B * length))


def test_matrices_of_zeros_attend_like_chance():
    result = probe(build({"attention": {"init": "zeros", "n_heads": 2}}), some_tokens())
    for name, value in result.metrics.items():
        assert value == pytest.approx(result.references[name].chance, abs=1e-6)


def test_a_kind_without_a_place_is_left_out():
    result = probe(build({"n_layers": 1}), torch.arange(N)[None])  # no token twice
    assert set(result.metrics) == {f"heads/L0H0_previous_token{variant}" for variant in ("", "/detect_head")}
    alone = probe(build({"n_layers": 1}), torch.zeros(1, 1, dtype=torch.long))
    assert not alone.metrics
    assert isinstance(alone.figure(), go.Figure)


# The ideal construction


def test_the_construction_has_its_previous_token_head_in_layer_1(ideal: ToyTransformer, sequences: torch.Tensor):
    found = probe(ideal, sequences)
    # The right score is β = 10 with variance β²(6/d + 4T/d²) = 2.5 and a rival's is 0 with β²(4/d + 4T/d²) = 1.8, so 16
    # rivals in the mean take 16 exp(.9 − 10 + 1.3) = .01 of the mass.
    assert found.metrics["heads/L0H0_previous_token"] > 0.98
    assert found.metrics["heads/L0H0_previous_token/detect_head"] == pytest.approx(30 / 31, abs=0.02)
    for kind in KINDS[1:]:
        assert found.metrics[f"heads/L0H0_{kind}"] < 0.3


def test_the_construction_has_its_induction_head_in_layer_2(ideal: ToyTransformer, sequences: torch.Tensor):
    found = probe(ideal, sequences)
    # The first position can only attend to itself, so it looks like one whose previous token is its own: for a repeat
    # of that token it ties with the right places.
    places = detection_patterns(sequences)["induction"].sum(-1)
    ties = (sequences == sequences[:, :1]) & (places > 0)
    without_crosstalk = float((places / (places + ties.float()))[places > 0].mean())
    # The stream of layer 2 is a sum of four vectors and W_KQ2 holds N = 65, so a right score of 10 has the variance
    # β²(10/d + 16N/d²) = 5.5 and a rival's score of 0 has β²(8/d + 16N/d²) = 4.7. With 20 rivals and one to three right
    # places, .02 to .04 is lost.
    lost = without_crosstalk - found.metrics["heads/L1H0_induction"]
    assert 0 < lost < 0.05
    reference = found.references["heads/L1H0_induction/detect_head"]
    assert found.metrics["heads/L1H0_induction/detect_head"] > 0.9 * reference.ideal
    for kind in KINDS[:2]:
        assert found.metrics[f"heads/L1H0_{kind}"] < 0.3


# Figure, command, run


def test_the_figure_shows_the_mass_of_every_head_by_kind():
    model, tokens = build(SHAPES["several_heads"]), some_tokens()
    result = probe(model, tokens)
    with torch.no_grad():
        model.embed.W_E.normal_(generator=generator(1))  # the figure shows what was measured, whatever came after
    heat = result.figure().data[0]
    assert list(heat.y) == [f"L{layer}H{head}" for layer in range(3) for head in range(3)]
    assert [label.partition("<br>")[0] for label in heat.x] == list(KINDS)
    assert [list(row) for row in heat.z] == [
        [result.metrics[f"heads/{head}_{kind}"] for kind in KINDS] for head in heat.y
    ]


def test_a_finished_run_can_be_probed(tiny_run: "toytf.Run", invoke: Any):
    ended = invoke("probe", tiny_run.directory, "--probe", "heads")
    assert ended.code == 0
    assert "L0H0_previous_token" in ended.out and "L1H0_induction" in ended.out


def test_a_run_that_lists_the_probe_logs_its_references(tiny_config: Path, tmp_path: Path):
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump({"base": str(tiny_config), "probes": ["heads"]}))
    summary = toytf.run(own, out=tmp_path / "run", page=False).summary
    assert summary["ideal/heads/L0H0_previous_token"] == 1
    for kind in KINDS:
        name = f"heads/L1H0_{kind}/detect_head"
        assert 0 < summary[f"chance/{name}"] < summary[f"ideal/{name}"] < 1
