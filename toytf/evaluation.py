"""Loss and accuracy by role, and the probes, on a held-out batch."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from toytf.chunks import chunk_size, chunks
from toytf.errors import UserError
from toytf.measurement import Measurement, Quantity, Reference, check_measured
from toytf.memory.association import right_and_rivals
from toytf.models.tables import fast_forward
from toytf.models.transformer import ToyTransformer
from toytf.observed import observed
from toytf.probe import Probe, ProbeResult
from toytf.sharing import at_hand, shared, sharing
from toytf.task import EVAL, Answers, Batch, Task
from toytf.timing import spent_on

Forward = Callable[[ToyTransformer, Tensor, int], Tensor]
"""From a model, tokens [b t] and a number of positions to the logits at the last of them, [b last output]."""

LOGITS = 2**20
"""Logits that losses and accuracies are taken of at a time on a CPU (4 MB)."""

NOTHING = Reference()


def plain_forward(model: ToyTransformer, tokens: Int[Tensor, "b t"], last: int) -> Float[Tensor, "b last output"]:
    """The one forward that can be hooked, as `fast_forward` cannot."""
    logits: Tensor = model(tokens, last=last)
    return logits


def token_loss(
    logits: Float[Tensor, "b t output"], batch: Batch, answers: Answers | None = None
) -> Float[Tensor, "b t"]:
    """Cross-entropy −log p(target) at every position that is asked, or that of a set of answers."""
    if answers is None:
        flat, targets = logits.flatten(0, 1), batch.targets.flatten()
        return torch.nn.functional.cross_entropy(flat, targets, reduction="none").view_as(batch.targets)
    right, candidates = answers.right, answers.candidates
    of_right = logits.gather(-1, batch.targets[..., None])[..., 0] if right is None else _logsumexp(logits, right)
    return (logits.logsumexp(-1) if candidates is None else _logsumexp(logits, candidates)) - of_right


def _logsumexp(logits: Float[Tensor, "b t output"], among: Bool[Tensor, "b #t output"]) -> Float[Tensor, "b t"]:
    """ln Σ_{y among} e^logit_y, as max − max ln p: torch's own takes several times as long if most are left out."""
    left = logits.masked_fill(~among, -torch.inf)
    return left.amax(-1) - left.log_softmax(-1).amax(-1)


def token_accuracy(
    logits: Float[Tensor, "b t output"], batch: Batch, answers: Answers | None = None
) -> Float[Tensor, "b t"]:
    """1 where the target is likelier than any other output, or an answer than any other candidate; 0 elsewhere.

    A tie is an error: a model that says nothing knows nothing.
    """
    right, candidates = (None, None) if answers is None else (answers.right, answers.candidates)
    left = logits if candidates is None else logits.masked_fill(~candidates, -torch.inf)
    if right is None:
        own, rivals = right_and_rivals(left, batch.targets)
    else:
        own, rivals = left.masked_fill(~right, -torch.inf).amax(-1), left.masked_fill(right, -torch.inf)
    return (own > rivals.amax(-1)).to(logits.dtype)


def role_mean(values: Float[Tensor, "b t"], role: Bool[Tensor, "b t"]) -> Float[Tensor, ""]:
    """Mean over the positions of a role, by multiplication so that no shape depends on data; 0 if there are none."""
    return (values * role).sum() / role.sum().clamp(min=1)


@torch.no_grad()
def role_metrics(
    model: ToyTransformer, batch: Batch, forward: Forward = fast_forward, task: Task | None = None
) -> list[Measurement]:
    """Loss and accuracy of the roles that occur in the batch.

    task: says what counts as right in each role, and what it can be read against; by default, the target must be the
    likeliest output.
    """
    size = chunk_size(model, batch.last)
    if size is not None:
        size = min(size, max(1, LOGITS // (batch.last * model.unembed.W_U.shape[1])))
    totals = torch.zeros(len(batch.roles), 3, device=model.device)  # losses, how many are right, how many there are
    seen = at_hand(observed, model, batch) if forward is fast_forward else None
    logits = None if seen is None else iter(torch.split(seen.logits[:, -batch.last :], size or len(batch.tokens)))
    for part in chunks(batch, size):
        here = forward(model, part.tokens, part.last) if logits is None else next(logits)
        by_target = token_loss(here, part), token_accuracy(here, part)
        for i, (name, role) in enumerate(part.roles.items()):
            answers = None if task is None else task.answers(name, part)
            loss, right = by_target
            if answers is not None:
                loss, right = token_loss(here, part, answers), token_accuracy(here, part, answers)
            totals[i] += torch.stack([(loss * role).sum(), (right * role).sum(), role.sum().to(loss.dtype)])
    means = totals / totals[:, 2:].clamp(min=1)
    known = {} if task is None else task.references()
    group = EVAL if task is None else replace(EVAL, headline=task.headline, meanings=task.role_meanings)
    return [
        Measurement(
            Quantity(group, at={"role": role, "quantity": quantity}), value, known.get((role, quantity), NOTHING)
        )
        for role, (loss, accuracy, occurs) in zip(batch.roles, means.tolist(), strict=True)
        for quantity, value in (("loss", loss), ("accuracy", accuracy))
        if occurs
    ]


@torch.no_grad()
def goal_metrics(model: ToyTransformer, task: Task, batch: Batch) -> dict[str, float]:
    """`accuracy`, `loss`, `p_correct` and `p_<rival>` for the rivals that the task names, at the task's goal.

    Nothing if no position of the batch belongs to that role.
    """
    role = batch.roles[task.goal]
    if not role.any():
        return {}
    seen = at_hand(observed, model, batch)
    if seen is not None:
        logits = seen.logits[:, -batch.last :]
    else:
        parts = chunks(batch, chunk_size(model, batch.last))
        logits = torch.cat([fast_forward(model, part.tokens, part.last) for part in parts])
    p = logits.softmax(-1)
    values = {
        "accuracy": token_accuracy(logits, batch),
        "loss": token_loss(logits, batch),
        "p_correct": p.gather(2, batch.targets[..., None])[..., 0],
    }
    values |= {f"p_{name}": p.gather(2, rival[..., None])[..., 0] for name, rival in task.rivals(batch).items()}
    return {name: float(role_mean(value, role)) for name, value in values.items()}


@shared
def at_goal(model: ToyTransformer, task: Task, batch: Batch) -> dict[str, float]:
    """`goal_metrics` of the model as it is, which a changed one is compared with."""
    return goal_metrics(model, task, batch)


def checked(probe: Probe, look: Callable[[], object]) -> ProbeResult:
    """What a probe finds when it looks; refuses what cannot be written down, and a change of torch for all others."""
    whose, dtype = f'probe "{probe.config.kind}"', torch.get_default_dtype()
    try:
        found = look()
        if torch.get_default_dtype() != dtype:
            raise UserError(f"{whose} changed the default dtype of torch to {torch.get_default_dtype()}")
    finally:
        torch.set_default_dtype(dtype)
    if not isinstance(found, ProbeResult):
        raise UserError(f"{whose} returned a {type(found).__name__}, expected a ProbeResult")
    check_measured(found.measurements, whose)
    return found


def measure(
    model: ToyTransformer,
    task: Task,
    probes: Iterable[Probe],
    batch: Batch,
    forward: Forward = fast_forward,
    *,
    glance: bool = False,
) -> tuple[list[Measurement], dict[str, ProbeResult]]:
    """All measurements of a model on a batch, and what each probe found; probes share what they compute.

    glance: only what probes measure at the evaluations before the last.
    """
    results: dict[str, ProbeResult] = {}
    with sharing():
        with spent_on("probes"):
            for probe in probes:
                results[probe.config.kind] = checked(
                    probe, partial(probe.glance if glance else probe, model, task, batch)
                )
        measured = [*role_metrics(model, batch, forward, task), *task.statistics(batch)]
    return [*measured, *(found for result in results.values() for found in result.measurements)], results
