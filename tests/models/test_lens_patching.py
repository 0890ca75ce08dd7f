"""Tools of TransformerLens on toys: activation patching and head detection find what the construction put there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformer_lens import patching
from transformer_lens.head_detector import detect_head

from tests.models.toys import SHAPES, N, T, build, some_tokens
from toytf.build import build_model, build_task
from toytf.config.plugins import load_config
from toytf.models import HookedToyTransformer, ToyTransformer
from toytf.randomness import generator

pytestmark = pytest.mark.usefixtures("no_gradients")
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def induction() -> ToyTransformer:
    """The ideal construction for random triggers, so that W_KQ2 holds every token; n_ctx = 66."""
    config: Any = load_config(CONFIGS / "bigram/ideal.yaml", {"task.triggers": "random", "task.seq_len": 66})
    return build_model(config.model, build_task(config.task, torch.device("cpu")), seed=0)


def test_patching_the_only_changed_position_restores_everything():
    lens = HookedToyTransformer(build(SHAPES["full"]))
    clean = some_tokens()[:1]
    corrupted = clean.clone()
    corrupted[0, 4] = (clean[0, 4] + 1) % N
    clean_logits, cache = lens.run_with_cache(clean)
    at_start = lens(corrupted)

    def restored(logits: torch.Tensor) -> torch.Tensor:
        change = clean_logits[0, -1, 0] - at_start[0, -1, 0]
        return (logits[0, -1, 0] - at_start[0, -1, 0]) / change

    patched = patching.get_act_patch_resid_pre(lens, corrupted, cache, restored)
    # Layer 1 sees the changed token in one position only; layer 2 sees its effect there and later, never before.
    expected = torch.zeros(T)
    expected[4] = 1
    torch.testing.assert_close(patched[0], expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(patched[1, :4], torch.zeros(4), rtol=0, atol=1e-3)


def test_patching_the_only_head_at_every_position_restores_everything():
    # The stream of the last position comes from its own token, which is not changed, and from the one head.
    lens = HookedToyTransformer(build({"n_layers": 1, "attention": {"kq": "joint"}}))
    clean = some_tokens()[:1]
    corrupted = clean.clone()
    corrupted[0, 4] = (clean[0, 4] + 1) % N
    clean_logits, cache = lens.run_with_cache(clean)
    distance = (lens(corrupted) - clean_logits)[0, -1].norm()
    assert distance > 0

    def left(logits: torch.Tensor) -> torch.Tensor:
        return (logits - clean_logits)[0, -1].norm() / distance

    patched = patching.get_act_patch_attn_head_out_all_pos(lens, corrupted, cache, left)
    assert float(patched[0, 0]) == pytest.approx(0, abs=1e-5)


def test_the_ideal_construction_carries_the_output_through_the_second_head(induction: ToyTransformer):
    """… q o … q → o. With o changed to o', the second head alone brings o back; the first carries q as before."""
    lens = HookedToyTransformer(induction)
    clean = torch.randperm(65, generator=generator(0, "clean"))[None, :40]
    clean[0, -1] = q = clean[0, 10]
    o, other = int(clean[0, 11]), int(clean[0, 20])
    corrupted = clean.clone()
    corrupted[0, 11] = other
    corrupted[0, 20] = o
    clean_logits, cache = lens.run_with_cache(clean)
    corrupted_logits = lens(corrupted)
    assert clean_logits[0, -1].argmax() == o
    assert corrupted_logits[0, -1].argmax() == other
    assert q != o

    def advantage(logits: torch.Tensor) -> torch.Tensor:
        return logits[0, -1, o] - logits[0, -1, other]

    def restored(logits: torch.Tensor) -> torch.Tensor:
        start = advantage(corrupted_logits)
        return (advantage(logits) - start) / (advantage(clean_logits) - start)

    heads = patching.get_act_patch_attn_head_out_all_pos(lens, corrupted, cache, restored)
    # What the second head carries is all but the crosstalk of order 1/√d = .04 that the first leaves in the stream.
    assert float(heads[1, 0]) == pytest.approx(1, abs=0.2)
    assert abs(float(heads[0, 0])) < 0.2
    stream = patching.get_act_patch_resid_pre(lens, corrupted, cache, restored)
    assert stream[1].argmax() == 11
    assert float(stream[1, 11]) > 0.7


def test_head_detection_finds_the_induction_circuit(induction: ToyTransformer):
    lens = HookedToyTransformer(induction)
    half = torch.randperm(65, generator=generator(0, "half"))[:32]
    sequence = torch.cat([half, half])  # 64 < n_ctx = 66: detection needs room
    previous = detect_head(lens, sequence, "previous_token_head")[:, 0]
    matching = detect_head(lens, sequence, "induction_head")[:, 0]
    # Attention on the previous position is .98 at d = 512; the first of 64 rows has none.
    assert float(previous[0]) > 0.85
    assert float(previous[1]) < 0.2
    # Only the second half has something to match: at most one half.
    assert float(matching[1]) > 0.4
    assert float(matching[0]) < 0.1
