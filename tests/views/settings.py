"""Tasks with models to look at: as a config has them, as small as can be."""

from typing import Any

import torch

from toytf.build import build_model, build_task
from toytf.config.plugins import load_config
from toytf.models import ToyTransformer

IDEAL = {"task__seq_len": 32, "model__d_model": 256}
"""Of bigram/ideal: wide enough that all pairs are recalled."""
FEW_FACTS = {"task__n_subjects": 6, "task__n_relations": 4, "task__n_answers": 3, "task__seq_len": 8}


def setting(name: str, **overrides: Any) -> tuple[Any, ToyTransformer]:
    """The task and the first model of a config that ships: `setting("quickstart", model__d_model=16)`."""
    config: Any = load_config(f"configs/{name}.yaml", {key.replace("__", "."): to for key, to in overrides.items()})
    task = build_task(config.task, torch.device("cpu"))
    return task, build_model(config.model, task, 0)
