"""Tiny runs of the experiments on memories alone."""

import json
from collections.abc import Callable
from typing import Any

import pytest

import toytf

QUIET: dict[str, Any] = {"device": "cpu", "threads": 1, "logging": {"wandb": "off"}}


@pytest.fixture(scope="session")
def run_quietly(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., toytf.Run]:
    """A run on one thread, without wandb: `run_quietly(experiment="capacity", rules=[…], …)`.

    One that was made before is given again, unless it is to be made `anew`.
    """
    made: dict[str, toytf.Run] = {}

    def run(*, anew: bool = False, page: bool = True, **config: Any) -> toytf.Run:
        name = json.dumps(config, sort_keys=True)
        if anew or name not in made:
            made[name] = toytf.run({**QUIET, **config}, out=tmp_path_factory.mktemp("runs") / "run", page=page)
        return made[name]

    return run
