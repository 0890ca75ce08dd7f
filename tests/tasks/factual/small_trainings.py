"""Trainings on tables of facts, as small as can be, for the experiments that take many of them."""

import json
from typing import Any

import toytf

SMALL: dict[str, Any] = {
    "goal": 0.8,
    "initializations": 2,
    "prune_at": 0.5,
    "learning_rates": [5e-2],
    "steps": 40,
    "batch_size": 64,
    "check_every": 10,
    "check_sequences": 250,
    "seq_len": 4,
    "device": "cpu",
    "threads": 1,
    "logging": {"wandb": "off"},
}
CHANGES: dict[str, Any] = {
    "goal": 0.05,
    "initializations": 4,  # the best of more
    "prune_at": 1.0,  # one that was behind may win
    "learning_rates": [2e-2],
    "steps": 20,
    "batch_size": 32,
    "check_every": 1,  # the best of more looks
    "check_sequences": 200,
    "seq_len": 6,
    "seeds": [-1, 3],  # a table has no negative seed: it is drawn all the same
}
"""Other values of the fields that the experiments share: each changes what is measured."""


def values(run: toytf.Run, group: str) -> list[float]:
    """The values of a group in the order of the rows: no names and no seeds, which tell the config."""
    rows = map(json.loads, run.metrics_file.read_text().splitlines())
    return [value for row in rows for name, value in row.items() if name.partition("/")[0] == group]
