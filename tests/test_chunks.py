"""Chunks and tables change how the loss of a step is computed, not what it is."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from toytf.build import build_model, build_task
from toytf.chunks import chunk_size, chunks
from toytf.config.plugins import load_config
from toytf.evaluation import plain_forward, role_metrics
from toytf.measurement import as_row
from toytf.models.config import CACHED
from toytf.models.tables import fast_forward
from toytf.training.freezing import freeze
from toytf.training.learner import SeedLearner, build_optimizer
from toytf.updates import updates


def make_learner(**train: Any) -> SeedLearner:
    settings = {"train.batch_size": 10, "train.optimizer": {"kind": "sgd", "lr": 0.1}}
    overrides = {"task.seq_len": 12, "task.n_tokens": 20, "model.d_model": 32, **settings}
    config: Any = load_config("configs/quickstart.yaml", {**overrides, **{f"train.{k}": v for k, v in train.items()}})
    task = build_task(config.task, torch.device("cpu"))
    learner = SeedLearner(build_model(config.model, task, 0), task, [], config.train, 0)
    freeze(config.model, learner.parameters, 0)
    return learner


def gradients(learner: SeedLearner) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
    return learner.backward(0), {name: parameter.grad for name, parameter in learner.parameters.items()}


@pytest.mark.parametrize("forward", ["fast", "plain"])
@pytest.mark.parametrize("chunk", [1, 3, 5, 10, 99])
def test_loss_and_gradients_do_not_depend_on_the_chunks(forward: str, chunk: int) -> None:
    # 3 leaves a shorter last chunk, and chunks have different numbers of scored positions. Single precision.
    loss, found = gradients(make_learner(forward=forward, chunk=chunk))
    expected_loss, expected = gradients(make_learner(forward="plain", chunk=10))
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=0)
    assert {name for name, g in found.items() if g is None} == {name for name, g in expected.items() if g is None}
    for name, g in expected.items():
        if g is not None:
            assert (found[name] - g).abs().max() <= 1e-5 * g.abs().max(), name


def test_a_training_is_the_same_by_tables_and_by_the_plain_forward() -> None:
    losses = {}
    for forward in ("fast", "plain"):
        learner = make_learner(forward=forward, chunk=4 if forward == "fast" else None)
        optimizer = build_optimizer(learner, learner.parameters.values())
        losses[forward] = [loss for _, loss in updates(optimizer, learner.backward, 10)]
    torch.testing.assert_close(torch.cat(losses["fast"]), torch.cat(losses["plain"]), rtol=1e-4, atol=0)


def test_evaluation_is_the_same_by_tables_and_by_the_plain_forward() -> None:
    learner = make_learner()
    batch = learner.sample(0)
    fast, plain = (as_row(role_metrics(learner.model, batch, forward)) for forward in (fast_forward, plain_forward))
    assert fast == pytest.approx(plain, rel=1e-5)


class Operations(TorchDispatchMode):
    """The names of all operations, and the size of the largest tensor that one returns."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            self.largest = max(self.largest, result.numel())
        return result


def test_activations_have_the_size_of_a_chunk() -> None:
    # x [b, T, d] is the largest of this model: 12 positions, 32 dimensions. Tables of the weights are as large as two.
    for chunk, sequences in {2: 2, 10: 10}.items():
        with Operations() as seen:
            gradients(make_learner(chunk=chunk))
        assert sequences * 12 * 32 <= seen.largest <= max(2 * sequences * 12 * 32, 32 * 12 * 10)


def test_chunks_fit_the_cache_of_a_cpu_and_a_gpu_has_none() -> None:
    model = make_learner().model
    assert chunk_size(model, 12) == CACHED // (12 * 32)
    assert chunk_size(model.to("meta"), 12) is None


def test_chunks_are_the_batch_in_order() -> None:
    batch = make_learner().sample(0)
    parts = list(chunks(batch, 4))
    assert [len(part.tokens) for part in parts] == [4, 4, 2]
    assert torch.equal(torch.cat([part.tokens for part in parts]), batch.tokens)
    assert torch.equal(torch.cat([part.roles["trigger"] for part in parts]), batch.roles["trigger"])
