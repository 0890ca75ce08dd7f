"""Benchmarks: operations are counted, ways have their turns, names are checked, and the page shows every number."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from toytf.benchmarks.data import loop_factual
from toytf.benchmarks.neighbour import BUSY, spinning
from toytf.benchmarks.operations import product_operations
from toytf.benchmarks.training import learner_of, step_of

from docs.generate import DOCS, MEASURED
from tasks.factual.config import FactualConfig
from tasks.factual.task import FactualTask
from toytf import bench
from toytf.config.plugins import load_config, plugins

if TYPE_CHECKING:
    from conftest import Ended

BENCHMARKS: dict[str, Any] = plugins("benchmarks")
LAST = {name: numbers for name, numbers in json.loads(MEASURED.read_bytes()).items() if name != "machine"}


# --- operations


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.ones(shape, requires_grad=True) for shape in shapes]


A, B, OUT = (torch.ones(shape) for shape in ((3, 4, 5), (3, 5, 6), (3, 4, 6)))
ONE = 2 * 4 * 5 * 6
PRODUCTS: dict[str, tuple[Callable[[], object], int]] = {
    "mm": (lambda: A[0] @ B[0], ONE),
    "mm out": (lambda: torch.mm(A[0], B[0], out=OUT[0]), ONE),
    "addmm": (lambda: torch.addmm(OUT[0], A[0], B[0]), ONE),
    "addmm in place": (lambda: OUT[0].addmm_(A[0], B[0], beta=0.5), ONE),
    "bmm": (lambda: A @ B, 3 * ONE),
    "bmm out": (lambda: torch.bmm(A, B, out=OUT), 3 * ONE),
    "baddbmm": (lambda: torch.baddbmm(OUT, A, B, beta=0.5), 3 * ONE),
    "baddbmm in place": (lambda: OUT.baddbmm_(A, B), 3 * ONE),
    "baddbmm out": (lambda: torch.baddbmm(OUT, A, B, out=OUT), 3 * ONE),
    "addbmm": (lambda: torch.addbmm(OUT[0], A, B), 3 * ONE),
    "einsum": (lambda: torch.einsum("bij,bjk->ik", A, B), 3 * ONE),
    "linear": (lambda: torch.nn.functional.linear(A[0], B[0].T), ONE),
    "no product": (lambda: (A * 2).softmax(-1).sum(), 0),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_counts_two_operations_for_each_of_its_terms(name: str) -> None:
    work, operations = PRODUCTS[name]
    assert product_operations(work) == operations


def test_gradients_count_a_product_for_each_factor() -> None:
    a, b = tensors((4, 5), (5, 6))
    assert product_operations(lambda: (a @ b).sum().backward()) == 3 * ONE
    assert product_operations(lambda: (a.detach() @ b).sum().backward()) == 2 * ONE


class ByHand(torch.autograd.Function):
    """A product with gradients written down, in tensors that are there already."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return torch.mm(grad, b.T, out=torch.empty_like(a)), torch.zeros_like(b).addmm_(a.T, grad)


def test_gradients_that_are_written_by_hand_are_seen() -> None:
    a, b = tensors((4, 5), (5, 6))
    assert product_operations(lambda: ByHand.apply(a, b).sum().backward()) == 3 * ONE


def test_attention_in_one_operation_counts_its_products() -> None:
    """Q Kᵀ and A V; for gradients the scores again, and a product for each of the four factors."""
    n, keys, d = 7, 9, 8
    q, k, v = tensors((1, 2, n, d), (1, 2, keys, d), (1, 2, keys, d))
    one = 2 * 2 * n * keys * d
    assert product_operations(lambda: scaled_dot_product_attention(q, k, v).sum().backward()) == 7 * one


# --- turns


def test_every_way_has_its_turn_in_every_round() -> None:
    called: list[str] = []
    ways = {name: (lambda name=name: called.append(name)) for name in ("first", "second", "third")}
    seconds = bench.in_turns(ways, rounds=4, calls=2)
    assert list(seconds) == list(ways)
    assert all(value >= 0 for value in seconds.values())
    assert Counter(called) == dict.fromkeys(ways, 1 + 4 * 2)  # once to warm up
    assert called[3:9] == ["first"] * 2 + ["second"] * 2 + ["third"] * 2


def test_the_best_round_counts() -> None:
    numbers = {"a": iter([3.0, 1.0, 2.0]), "b": iter([5.0, 6.0, 4.0])}
    ways = {name: (lambda each=each: next(each)) for name, each in numbers.items()}
    assert bench.least_in_turns(ways, rounds=3) == {"a": 1.0, "b": 4.0}


# --- what is timed


def test_steps_go_on_with_the_training_and_its_data() -> None:
    changes = {"task.n_subjects": 4, "task.n_relations": 2, "model.d_model": 8, "train.batch_size": 8}
    config: Any = load_config("configs/factual/quick.yaml", changes)
    learner, asked = learner_of(config, steps=5), list[int]()
    assert learner.config.steps == 5
    sample = learner.sample
    learner.sample = lambda step: asked.append(step) or sample(step)  # type: ignore[method-assign]
    step = step_of(learner)
    for _ in range(3):
        before = [parameter.detach().clone() for parameter in learner.parameters.values()]
        step()
        assert any(not torch.equal(*pair) for pair in zip(before, learner.parameters.values(), strict=True))
    assert asked == [0, 1, 2]


def test_the_loop_over_tokens_asks_for_a_fact_among_noise() -> None:
    task = FactualTask(FactualConfig(kind="factual", n_subjects=4, n_relations=3, seq_len=6), torch.device("cpu"))
    rng, places = np.random.default_rng(0), set()
    for _ in range(200):
        *tokens, end, answer = loop_factual(task, rng).tolist()
        (s,) = [z for z in tokens if z in task.subjects]
        (r,) = [z - len(task.subjects) for z in tokens if z in task.relations]
        assert sum(z in task.noise for z in tokens) == task.n_positions - 3
        assert (end, answer) == (task.end, task.table.answers[s, r])
        places.add(tokens.index(s))
    assert places == set(range(task.n_positions - 1))


def test_a_busy_neighbour_ends_with_its_time() -> None:
    with pytest.raises(KeyError), spinning() as process:
        assert process.poll() is None
        raise KeyError
    assert process.returncode is not None


def test_a_busy_neighbour_does_not_outlive_the_process_that_started_it() -> None:
    """If that is killed, it cannot clean up: here a stranger's number stands for a parent that is gone."""
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid() + 1)])
    assert process.wait(timeout=60) == 0


# --- the command


def test_names_that_do_not_exist_are_refused_in_one_line(invoke: "Callable[..., Ended]") -> None:
    ended = invoke("bench", "step")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith('toytf: benchmark "step" does not exist: did you mean "steps"?')
    assert ended.err.count("\n") == 1


def test_the_file_has_every_ratio_and_the_machine_in_words(
    invoke: "Callable[..., Ended]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"one": lambda: {"ratio": 2.0, "one_seconds": 0.5}, "two": lambda: {"ratio": 3.0}}
    monkeypatch.setattr(bench, "plugins", lambda group: known)
    ended = invoke("bench", "--json", tmp_path / "measured.json")
    assert (ended.code, ended.out) == (0, "one: ratio 2  one_seconds 0.5\ntwo: ratio 3\n")
    written = json.loads((tmp_path / "measured.json").read_bytes())
    machine = written.pop("machine")
    assert written == {"one": {"ratio": 2.0, "one_seconds": 0.5}, "two": {"ratio": 3.0}}
    assert machine == bench.machine()
    assert all(isinstance(value, str) and value for value in machine.values())


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_says_what_it_measures_and_what_its_keys_mean(name: str) -> None:
    measure = BENCHMARKS[name]
    assert (sys.modules[measure.__module__].__doc__ or "").strip()
    explained = measure.__doc__ or ""
    assert "ratio:" in explained
    for key in LAST[name]:
        of_every_case = [f"…_{part}" for part in (key.partition("_")[2], key.rpartition("_")[2])]
        assert any(name in explained for name in (key, *of_every_case)), key


# --- the page


def test_the_page_shows_every_number_of_every_benchmark() -> None:
    template = (DOCS / "performance.template").read_text(encoding="utf-8")
    shown = {field for _, field, _, _ in Formatter().parse(template) if field and not field.startswith("machine")}
    assert shown == {f"{name}[{key}]" for name, numbers in LAST.items() for key in numbers}
    assert set(LAST) == set(BENCHMARKS)
    assert all(next(iter(numbers)) == "ratio" for numbers in LAST.values())
