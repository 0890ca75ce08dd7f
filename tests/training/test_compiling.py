"""A compiled training has the numbers of one that is not."""

import shutil
import subprocess
import sys

import pytest
import torch

from toytf.errors import UserError
from toytf.training.compiling import COMPILER, check_compiler

STEPS = """
import sys
import torch
from toytf.build import build_model, build_task
from toytf.config.plugins import load_config
from toytf.training.freezing import freeze
from toytf.training import compiling
from toytf.training.learner import SeedLearner, build_optimizer
from toytf.updates import updates

torch.set_num_threads(1)
backend, *names = sys.argv[1:]
if backend != "inductor":
    compiling.check_compiler = lambda device: None
    real = torch.compile
    torch.compile = lambda function, mode, **options: real(function, backend=backend, **options)
small = {"train.batch_size": 16, "train.evaluation.sequences": 8}
for name in names:
    losses = {}
    for compile in (False, True):
        config = load_config(name, {**small, "train.compile": compile})
        task = build_task(config.task, torch.device("cpu"))
        learner = SeedLearner(build_model(config.model, task, 0), task, [], config.train, 0)
        freeze(config.model, learner.parameters, 0)
        optimizer = build_optimizer(learner, learner.parameters.values())
        losses[compile] = torch.cat([loss for _, loss in updates(optimizer, learner.backward, 5)])
    torch.testing.assert_close(losses[True], losses[False], rtol=1e-5, atol=0)
"""


def run_steps(backend: str, *names: str) -> None:
    # In a process of its own: the shape checks of the tests cannot be traced, and users run without them.
    subprocess.run([sys.executable, "-c", STEPS, backend, *names], check=True, timeout=300)


@pytest.mark.heavy
def test_steps_through_the_captured_graph_are_the_same() -> None:
    """Forward and backward as the graphs that a compiler would be given, with a trained relu part too."""
    run_steps("aot_eager", "quickstart", "factual/quick")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no C++ compiler")
def test_compiled_steps_are_the_same() -> None:
    run_steps("inductor", "quickstart", "factual/quick", "bigram/noisy", "bigram/muon")


def test_without_a_compiler_a_training_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match="needs a C\\+\\+ compiler"):
        check_compiler(torch.device("cpu"))
    check_compiler(torch.device("cuda"))
