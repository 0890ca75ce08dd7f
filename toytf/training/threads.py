"""How many CPU threads a training is worth, from its sizes alone. Imports no torch."""

from toytf.config.plugins import TaskSizes
from toytf.models.config import ModelConfig
from toytf.training.config import TrainConfig

WORTH_TWO = 2**32
"""Multiplications of a step from which on a second thread pays: it is then no slower beside a busy process either.

Smaller steps spend too much of their time on waiting for each other's threads.
"""


def threads_for(config: TrainConfig, model: ModelConfig, task: TaskSizes) -> int:
    """Two threads if a step has many multiplications, about B T d (d + T) in each layer, else one."""
    T, d = task.n_positions, model.d_model
    of_layer = T * d * (d + T)
    return 2 if config.batch_size * model.n_layers * of_layer >= WORTH_TWO else 1
