"""The gradients of a step are the same however it is taken: by tables, in chunks, at scored positions only."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from tests.models.test_tables import BY_TABLES
from toytf.build import build_model, build_task
from toytf.chunks import SCORED, SIMILAR, scored_chunks, small_chunk_size
from toytf.config.plugins import load_config
from toytf.errors import UserError
from toytf.models.config import VectorDistribution
from toytf.models.tables import tables_pay
from toytf.optimizers import AdamW
from toytf.process import cpu_threads
from toytf.task import Annotation, Batch
from toytf.training.freezing import freeze
from toytf.training.gradients import accumulate_gradients
from toytf.training.learner import SeedLearner, build_optimizer
from toytf.updates import updates

ROLES = ("all", "in_context", "untrapped", "first_seen", "global")


def parts_of(model: dict[str, Any] | None = None, **train: Any) -> tuple[Any, ...]:
    """A model in double precision, its task, a batch of ten sequences and the section `train`."""
    settings = {"train.batch_size": 10, **{f"train.{key}": value for key, value in train.items()}}
    sizes = {"task.seq_len": 12, "task.n_tokens": 10, "model.d_model": 40, "model.freeze": []}
    config: Any = load_config("configs/quickstart.yaml", {**sizes, **settings})
    built = type(config.model).model_validate({"d_model": 40, **(model or {"attention": {"kq": "joint"}})})
    task = build_task(config.task, torch.device("cpu"))
    batch = task.sample(10, torch.Generator().manual_seed(0))
    return build_model(built, task, 0).double(), task, batch, config.train


def gradients_of(parts: tuple[Any, ...]) -> dict[str, torch.Tensor | None]:
    parts[0].zero_grad()
    loss = accumulate_gradients(*parts)
    return {"loss": loss} | {name: weight.grad for name, weight in parts[0].named_parameters()}


def assert_equal(found: dict[str, torch.Tensor | None], expected: dict[str, torch.Tensor | None]) -> None:
    for name, value in expected.items():
        other = found[name]
        assert (other is None) == (value is None), name
        if value is not None and other is not None:
            assert (other - value).abs().max() <= 1e-11 * value.abs().max(), name


@pytest.mark.parametrize("shape", sorted(BY_TABLES))
@pytest.mark.parametrize("role", ["in_context", "all"])
def test_every_model_has_the_gradients_of_the_plain_forward(shape: str, role: str) -> None:
    fast = parts_of(BY_TABLES[shape], loss=role, chunk=4)
    assert tables_pay(fast[0])
    assert_equal(gradients_of(fast), gradients_of(parts_of(BY_TABLES[shape], loss=role, forward="plain")))


@pytest.mark.parametrize("chunk", [1, 3, 10, None])
@pytest.mark.parametrize("role", ROLES)
def test_every_role_has_the_gradients_of_the_plain_forward(role: str, chunk: int | None) -> None:
    expected = gradients_of(parts_of(loss=role, forward="plain"))
    assert_equal(gradients_of(parts_of(loss=role, chunk=chunk)), expected)


def test_other_devices_have_the_same_gradients(elsewhere: Callable[[], None]) -> None:
    found = gradients_of(parts_of(loss="in_context"))
    elsewhere()
    assert_equal(gradients_of(parts_of(loss="in_context")), found)


def test_a_batch_without_scored_positions_has_gradients_of_zero() -> None:
    """Not none: an optimiser with momentum moves on."""
    model, task, batch, config = parts_of(loss="in_context")
    nowhere = torch.zeros_like(batch.roles["in_context"])
    found = gradients_of((model, task, replace(batch, roles={**batch.roles, "in_context": nowhere}), config))
    assert all(value is not None and not value.any() for value in found.values())


def test_on_another_device_no_value_is_read() -> None:
    """On the meta device there are no values: whatever asked for one, or for a shape that needs one, would fail."""
    model, task, batch, config = parts_of(loss="in_context")
    moved = Batch(
        batch.tokens.to("meta"), batch.targets.to("meta"), {name: role.to("meta") for name, role in batch.roles.items()}
    )
    found = gradients_of((model.to("meta"), task, moved, config))
    assert all(value is not None and value.device.type == "meta" for value in found.values())


def test_chunks_ask_at_scored_positions_and_hold_them_all() -> None:
    _, _, batch, _ = parts_of()
    role = batch.roles["in_context"]
    parts = list(scored_chunks(batch, "in_context", 3))
    asked = [part.roles["in_context"].sum() for part, _ in parts]
    assert sum(asked) == role.sum()
    for part, where in parts:
        assert where is not None
        most = part.roles["in_context"].sum(1).max()
        assert part.targets.shape == where.shape == (len(part.tokens), most)
    # Few positions are asked in vain: without an order by number it would be as many as in the fullest sequence.
    assert sum(where.numel() for _, where in parts if where is not None) < len(role) * role.sum(1).max()


def test_chunks_of_scored_positions_are_small() -> None:
    model = parts_of()[0]
    assert small_chunk_size(model) == min(SIMILAR, SCORED // (12 * 40)) == 16


def test_chunks_side_by_side_have_the_same_gradients_and_the_same_bits_every_time() -> None:
    expected = gradients_of(parts_of(loss="in_context", chunk=2))
    with cpu_threads(2):
        found = [gradients_of(parts_of(loss="in_context", chunk=2)) for _ in range(3)]
        assert torch.get_num_threads() == 2
    assert_equal(found[0], expected)
    for other in found[1:]:
        assert all(value is None or torch.equal(value, other[name]) for name, value in found[0].items())


@pytest.mark.parametrize("forward", ["fast", "plain"])
@pytest.mark.parametrize("name", ["quickstart", "factual/quick"])
def test_trainings_on_one_thread_and_side_by_side_have_the_same_weights(name: str, forward: str) -> None:
    weights = {}
    for threads in (1, 2):
        config: Any = load_config(name, {"train.batch_size": 16, "train.chunk": 4, "train.forward": forward})
        task = build_task(config.task, torch.device("cpu"))
        learner = SeedLearner(build_model(config.model, task, 0), task, [], config.train, 0)
        freeze(config.model, learner.parameters, 0)
        with cpu_threads(threads):
            for _ in updates(build_optimizer(learner, learner.parameters.values()), learner.backward, 5):
                pass
        weights[threads] = learner.parameters
    for key, weight in weights[1].items():
        torch.testing.assert_close(weights[2][key], weight, rtol=0, atol=1e-4 * float(weight.detach().abs().max()))


@pytest.mark.parametrize("distribution", get_args(VectorDistribution))
def test_all_vectors_can_be_trained(distribution: str) -> None:
    """AdamW goes through the memory in order: what lay in another would get the gradient of another entry."""
    parts = parts_of({"d_model": 40, "embedding": distribution, "position": distribution, "unembedding": distribution})
    AdamW(parts[0].parameters(), 0.1)


def test_a_mistake_in_one_of_several_threads_is_told() -> None:
    model, task, batch, config = parts_of(loss="in_context", chunk=2)
    wrong = replace(batch, targets=batch.targets + 1000)
    with cpu_threads(2), pytest.raises((RuntimeError, IndexError)):
        accumulate_gradients(model, task, wrong, config)


# Attention that is right by construction


def test_right_attention_is_that_of_heads_that_look_where_the_task_says_and_trains_no_keys_of_layer_2() -> None:
    """From an output layer 1 looks one position back, and layer 2 evenly at the earlier outputs: written with W_OV."""
    model, task, batch, config = parts_of({"attention": {"kq": "joint"}}, loss="in_context", forward="right_attention")
    found = gradients_of((model, task, batch, config))
    x = model.embed.W_E[batch.tokens] + model.pos_embed.W_pos[: batch.tokens.shape[1]]
    own = model.observe(batch.tokens, "blocks.1.hook_resid_pre")[1]["blocks.1.hook_resid_pre"].detach()  # if open
    losses = []
    for i, t in batch.roles["in_context"].nonzero().tolist():
        tokens, target = batch.tokens[i].tolist(), int(batch.targets[i, t])
        after = [s for s in range(1, t + 1) if batch.roles["trigger"][i, s - 1]]
        stream = {s: x[i, s] + x[i, s - 1] @ model.W_OV(0)[0] for s in after}
        values = [stream[s] @ model.W_OV(1)[0] for s in after if (tokens[s - 1], tokens[s]) == (tokens[t], target)]
        answer = (stream.get(t, own[i, t]) + sum(values) / len(values)) @ model.unembed.W_U
        losses.append(-answer.log_softmax(-1)[target])
    expected = torch.stack(losses).mean()
    (gradient,) = torch.autograd.grad(expected, model.blocks[1].attn.W_O)
    loss, keys, values = (found[name] for name in ("loss", "blocks.1.attn.W_K", "blocks.1.attn.W_O"))
    assert loss is not None
    assert values is not None
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(values, gradient)
    assert keys is None or not keys.any()


def test_a_task_that_says_nothing_about_attention_is_refused() -> None:
    config: Any = load_config("association/memory", {"train.forward": "right_attention"})
    task = build_task(config.task, torch.device("cpu"))
    model = build_model(config.model, task, 0)
    task.annotate = lambda batch: Annotation({})  # as a task does that says nothing
    with pytest.raises(UserError, match="the task does not say where attention should look"):
        accumulate_gradients(model, task, task.sample(4, torch.Generator().manual_seed(0)), config.train)


def test_right_attention_is_refused_where_it_would_tell_the_answer() -> None:
    """Which earlier position holds the target tells whether noise comes next."""
    config: Any = load_config("bigram/noisy", {"train.forward": "right_attention"})
    task = build_task(config.task, torch.device("cpu"))
    batch = task.sample(4, torch.Generator().manual_seed(0))
    with pytest.raises(UserError, match="would tell the answer in a task with noise"):
        accumulate_gradients(build_model(config.model, task, 0), task, batch, config.train)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"stack": 2}, "stack = 2"),
        ({"train.compile": True}, r"train\.compile"),
        ({"model.attention.kind": "linear"}, "linear attention"),
    ],
)
def test_right_attention_does_not_go_with(other: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=f"right_attention does not go with {named}: leave out one of them"):
        load_config("quickstart", {"train.forward": "right_attention", **other})
