"""What a model does at the goal of a task, by brute force."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.bigram.config import BigramConfig
from tasks.bigram.task import BigramTask
from toytf import evaluation as evaluate
from toytf.errors import UserError
from toytf.evaluation import goal_metrics, role_metrics, token_accuracy, token_loss
from toytf.measurement import as_row
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.randomness import generator
from toytf.task import Answers, Batch, Task

N, T = 9, 12


class Uniform(Task):
    """Uniform tokens; every position asks for its own. Says nothing of goals or rivals."""

    def sample(self, n: int, generator: torch.Generator) -> Batch:
        tokens = torch.randint(N, (n, T), generator=generator)
        return Batch(tokens, tokens, {"all": torch.ones_like(tokens, dtype=torch.bool)})


class Rivalled(Uniform):
    """Asked at even positions, against the next token and the one after it."""

    goal = "even"

    def sample(self, n: int, generator: torch.Generator) -> Batch:
        batch = super().sample(n, generator)
        even = (torch.arange(T) % 2 == 0).expand(n, T)
        return Batch(batch.tokens, batch.targets, {**batch.roles, "even": even})

    def rivals(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"next": (batch.targets + 1) % N, "second": (batch.targets + 2) % N}


def bigram(**fields: Any) -> BigramTask:
    return BigramTask(
        BigramConfig.model_validate({"kind": "bigram", "seq_len": T, "n_tokens": N, "n_triggers": 3, **fields}),
        torch.device("cpu"),
    )


def make_model(n: int = N) -> ToyTransformer:
    config = ModelConfig(d_model=16, unembedding="normal")
    return ToyTransformer(config, n_tokens=n, n_positions=T, n_outputs=n, generator=generator(0, "model"))


def by_brute_force(model: ToyTransformer, task: Task, batch: Batch) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    rivals = {name: rival.tolist() for name, rival in task.rivals(batch).items()}
    with torch.no_grad():
        logits = model(batch.tokens)
    for b, row in enumerate(batch.roles[task.goal].tolist()):
        for t in (t for t, asked in enumerate(row) if asked):
            scores, target = logits[b, t].tolist(), int(batch.targets[b, t])
            total = sum(math.exp(score) for score in scores)
            p = [math.exp(score) / total for score in scores]
            found.setdefault("accuracy", []).append(float(max(range(len(p)), key=p.__getitem__) == target))
            found.setdefault("loss", []).append(-math.log(p[target]))
            found.setdefault("p_correct", []).append(p[target])
            for name, rival in rivals.items():
                found.setdefault(f"p_{name}", []).append(p[rival[b][t]])
    return {name: sum(values) / len(values) for name, values in found.items()}


TASKS: dict[str, tuple[Task, set[str]]] = {
    "silent": (Uniform(None, torch.device("cpu")), set()),
    "rivalled": (Rivalled(None, torch.device("cpu")), {"p_next", "p_second"}),
    "bigram": (bigram(), set()),
    "noisy": (bigram(n_tokens=N - 1, noise={"probability": 0.5, "token": "extra"}), {"p_noise"}),
}


@pytest.mark.parametrize(("task", "rivals"), TASKS.values(), ids=TASKS)
def test_metrics_at_the_goal_are_means_over_its_positions(task: Task, rivals: set[str]) -> None:
    model, batch = make_model(), task.sample(16, generator(0, "batch"))
    expected = by_brute_force(model, task, batch)
    assert set(expected) == {"accuracy", "loss", "p_correct"} | rivals
    assert goal_metrics(model, task, batch) == pytest.approx(expected, abs=1e-5)


def test_the_goal_is_every_position_and_there_are_no_rivals_unless_the_task_says_so() -> None:
    task = TASKS["silent"][0]
    assert task.goal == "all"
    assert task.rivals(task.sample(1, generator(0, "batch"))) == {}


def test_the_goal_of_a_task_is_one_of_its_roles() -> None:
    assert BigramTask.goal in BigramConfig.roles


def test_a_goal_that_is_no_role_is_refused_with_a_sentence() -> None:
    task = bigram()
    task.check_goal()
    task.goal = "in_contxt"
    with pytest.raises(UserError, match='goal "in_contxt" is not one of its roles: did you mean "in_context"'):
        task.check_goal()


# Roles


@pytest.mark.parametrize("task", [TASKS["rivalled"][0], TASKS["noisy"][0]], ids=["rivalled", "noisy"])
def test_roles_are_measured_in_chunks_of_logits_which_changes_nothing(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence at a time; sums in another order differ by rounding."""
    model, batch = make_model(), task.sample(16, generator(0, "batch"))
    whole = as_row(role_metrics(model, batch))
    monkeypatch.setattr(evaluate, "LOGITS", 1)
    assert as_row(role_metrics(model, batch)) == pytest.approx(whole, rel=1e-6)


def test_the_loss_of_a_set_and_its_gradient_are_those_of_sums_of_probabilities() -> None:
    """−ln(Σ_right p / Σ_candidates p), logits far apart or equal; its gradient: p_candidates − p_right."""
    logits = torch.tensor([[[2.0, 2.0, -1.0, 300.0, 0.5]], [[0.0, -400.0, -400.0, 1.0, 3.0]]], requires_grad=True)
    right = torch.tensor([[[1, 1, 0, 0, 0]], [[0, 1, 1, 0, 0]]]).bool()
    candidates = torch.tensor([[[1, 1, 1, 0, 0]], [[1, 1, 1, 1, 0]]]).bool()
    batch = Batch(torch.zeros(2, 1, dtype=torch.long), torch.zeros(2, 1, dtype=torch.long), {})
    exact = logits.detach().double()

    def among(given: Tensor) -> Tensor:
        return exact.masked_fill(~given, -torch.inf)

    loss = token_loss(logits, batch, Answers(right, candidates))
    expected = among(candidates).logsumexp(-1) - among(right).logsumexp(-1)
    torch.testing.assert_close(loss, expected.float(), rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    expected = among(candidates).softmax(-1) - among(right).softmax(-1)
    torch.testing.assert_close(gradient, expected.float(), rtol=1e-6, atol=1e-6)


def test_a_tie_is_an_error_wherever_the_target_is() -> None:
    """Of equal logits an argmax would name the first output, and be right on what has that as its answer."""
    targets = torch.tensor([[0, 1, 2, 0]])
    batch = Batch(targets, targets, {})
    logits = torch.tensor([[[0.0, 0, 0], [1, 1, 0], [0, 0, 1], [2, 1, 1]]])
    assert token_accuracy(logits, batch).tolist() == [[0, 0, 1, 1]]
    first_two = torch.tensor([True, True, False]).expand_as(logits)
    assert token_accuracy(logits, batch, Answers(right=first_two)).tolist() == [[0, 1, 0, 1]]
    assert token_accuracy(logits, batch, Answers(candidates=first_two)).tolist() == [[0, 0, 0, 1]]
    only = torch.nn.functional.one_hot(targets, 3).bool()  # without a rival every answer is right
    assert token_accuracy(logits, batch, Answers(candidates=only)).tolist() == [[1, 1, 1, 1]]
