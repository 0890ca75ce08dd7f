"""Tiny runs of the experiments on memories alone."""

from collections.abc import Callable
from typing import Any

import pytest

import toytf

QUIET: dict[str, Any] = {"device": "cpu", "threads": 1, "logging": {"wandb": "off"}}


@pytest.fixture(scope="session")
def run_quietly(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., toytf.Run]:
    """A run on one thread, without wandb: `run_quietly(experiment="capacity", rules=[…], …)`."""

    def run(**config: Any) -> toytf.Run:
        return toytf.run({**QUIET, **config}, out=tmp_path_factory.mktemp("runs") / "run")

    return run
