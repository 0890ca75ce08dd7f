"""What a forward of the view returns: logits, a loss where there is one, or the stream before a layer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import toytf
from tests.models.toys import B, N, T, build, some_tokens
from toytf.build import build_model, build_task
from toytf.config.plugins import load_config
from toytf.errors import UserError
from toytf.models import HookedToyTransformer
from toytf.randomness import generator

pytestmark = pytest.mark.usefixtures("no_gradients")
CONFIGS = Path(__file__).parents[2] / "configs"


# The loss


def test_the_loss_is_the_cross_entropy_of_the_next_token(lens: HookedToyTransformer):
    tokens = some_tokens()
    logits = lens(tokens)
    of_each = cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    torch.testing.assert_close(lens(tokens, return_type="loss"), of_each.mean())
    torch.testing.assert_close(lens(tokens, return_type="loss", loss_per_token=True), of_each)
    both = lens(tokens, return_type="both")
    assert torch.equal(both.logits, logits)
    assert torch.equal(both.loss, lens(tokens, return_type="loss"))
    _, loss = lens(tokens, "both", True)
    torch.testing.assert_close(loss, of_each)


def test_hooks_act_on_the_loss_and_its_gradient_can_be_cached(lens: HookedToyTransformer):
    tokens = some_tokens()
    flat = [("blocks.1.hook_resid_post", lambda value, hook: 0 * value)]
    loss = lens.run_with_hooks(tokens, return_type="loss", fwd_hooks=flat)
    assert float(loss) == pytest.approx(torch.tensor(N).log().item())  # equal logits
    with torch.enable_grad():
        loss, cache = lens.run_with_cache(tokens, return_type="loss", incl_bwd=True)
    assert torch.equal(loss, lens(tokens, return_type="loss"))
    assert cache["blocks.0.hook_resid_pre_grad"].norm() > 0


@pytest.mark.parametrize("return_type", ["loss", "both"])
def test_outputs_that_are_no_tokens_have_no_next_token_loss(return_type: str):
    lens = HookedToyTransformer(build({}, n_outputs=N + 4))
    for ask in (lens, lens.run_with_cache, lens.run_with_hooks):
        with pytest.raises(UserError, match=f"the {N + 4} outputs .* are not its {N} tokens; use the logits and"):
            ask(some_tokens(), return_type=return_type)
    assert lens(some_tokens()).shape == (B, T, N + 4)


@pytest.mark.parametrize(
    ("config", "changes", "has_loss"),
    [
        ("bigram/ideal.yaml", {}, True),
        ("bigram/noisy.yaml", {"task.noise.token": "extra"}, True),  # the further token is an output, too
        ("factual/quick.yaml", {}, False),  # tokens are subjects, relations and noise, outputs are answers
    ],
)
def test_the_tasks_that_ship_have_a_loss_where_they_predict_tokens(
    config: str, changes: dict[str, Any], has_loss: bool
):
    loaded: Any = load_config(CONFIGS / config, changes)
    task = build_task(loaded.task, torch.device("cpu"))
    lens = HookedToyTransformer(build_model(loaded.model, task, seed=0))
    batch = task.sample(4, generator(0, "batch"))
    if has_loss:
        everywhere = cross_entropy(lens(batch.tokens)[:, :-1].flatten(0, 1), batch.targets[:, :-1].flatten())
        torch.testing.assert_close(lens(batch.tokens, return_type="loss"), everywhere)
    else:
        with pytest.raises(UserError, match="no next-token loss"):
            lens(batch.tokens, return_type="loss")


def test_as_many_outputs_as_tokens_are_still_no_tokens(tmp_path: Path):
    """Two subjects, two relations, one noise token and the end; three answers for each relation."""
    changes = {
        "task": {"kind": "factual", "n_subjects": 2, "n_relations": 2, "n_answers": 3, "n_noise": 1, "seq_len": 4},
        "train.steps": 0,
        "probes": [],
        "logging.wandb": "off",
    }
    run = toytf.run(CONFIGS / "factual/quick.yaml", changes, out=tmp_path / "run", page=False)
    lens = run.lens()
    assert lens.cfg.d_vocab == lens.cfg.d_vocab_out == 6
    with pytest.raises(UserError, match="no next-token loss"):
        lens(run.batch(2).tokens, return_type="loss")


def test_a_single_token_has_no_next():
    with pytest.raises(UserError, match="at least 2 tokens, got 1"):
        HookedToyTransformer(build({}))(some_tokens()[:, :1], return_type="loss")


# Other arguments


@pytest.mark.parametrize("return_type", ["los", "predictions", ""])
def test_an_unknown_return_type_is_refused_with_those_there_are(return_type: str):
    with pytest.raises(UserError, match=r"return_type = .*: .*None, both, logits, loss"):
        HookedToyTransformer(build({}))(some_tokens(), return_type=return_type)


@pytest.mark.parametrize("name", ["start_at_layer", "prepend_bos", "attention_mask", "past_kv_cache"])
def test_an_argument_that_toys_lack_is_refused_by_name(name: str):
    lens = HookedToyTransformer(build({}))
    for ask in (lens, lens.run_with_cache, lens.run_with_hooks):
        with pytest.raises(UserError, match=f"^{name}: .*return_type, loss_per_token and stop_at_layer"):
            ask(some_tokens(), **{name: None})


@pytest.mark.parametrize(
    ("stop", "last"),
    [
        (0, None),
        (-2, None),
        (1, "blocks.0.hook_resid_post"),
        (-1, "blocks.0.hook_resid_post"),
        (2, "blocks.1.hook_resid_post"),
    ],
)
def test_a_forward_can_stop_before_a_layer(lens: HookedToyTransformer, stop: int, last: str | None):
    _, whole = lens.run_with_cache(some_tokens())
    stream, cache = lens.run_with_cache(some_tokens(), stop_at_layer=stop)
    assert torch.equal(stream, whole["resid_pre", 0] if last is None else whole[last])
    layers = [f"blocks.{layer}." for layer in range(stop % 2 if stop < 0 else stop)]
    assert set(cache.keys()) == {name for name in whole if name.startswith(("hook_", *layers))}


@pytest.mark.parametrize("stop", [-3, 3])
def test_a_forward_cannot_stop_where_there_is_no_layer(stop: int):
    with pytest.raises(UserError, match=f"stop_at_layer = {stop}: this model has 2 layers .accepted: -2 to 2"):
        HookedToyTransformer(build({}))(some_tokens(), stop_at_layer=stop)


def test_a_stream_has_no_loss():
    with pytest.raises(UserError, match="stop_at_layer returns the residual stream"):
        HookedToyTransformer(build({}))(some_tokens(), return_type="loss", stop_at_layer=1)
