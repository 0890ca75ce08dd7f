"""How many trainings of one shape are worth stacking, and how many threads one is worth, from sizes alone.

Imports no torch.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from toytf.config.plugins import TaskSizes
from toytf.models.config import ModelConfig
from toytf.models.fast_options import fast_paths, is_recall_network
from toytf.training.config import TrainConfig

T = TypeVar("T")

MOST = 16
"""Members of a stack: more of them bring little, since by then nearly all of a step is arithmetic."""

SMALL = 2**24
"""Multiplications of a step up to which stacking pays on a CPU.

Small steps spend their time on starting operations, which a stack does once for all members. Measured gains: 4 at 2^20,
2 at 2^22, 1.4 at 2^24, 1.1 at 2^27.
"""


def worth_stacking(config: TrainConfig, model: ModelConfig, task: TaskSizes) -> int:
    """How many trainings should be one tensor program: several if a step is small, else one.

    A compiled step starts its operations at once, and is not stacked; nor is one by token counts that is faster alone,
    nor one that looks where the task says.
    """
    if (
        config.compile
        or config.forward == "right_attention"
        or (_by_counts(config, model, task) and not _counts_stack(model))
    ):
        return 1
    return MOST if step_size(config, model, task) <= SMALL else 1


def step_size(config: TrainConfig, model: ModelConfig, task: TaskSizes) -> int:
    """Multiplications in the forward of a step, roughly: of each sequence by its token counts, or by its positions."""
    d, width, in_heads = model.d_model, model.width, model.attention.n_heads * model.d_head
    if _by_counts(config, model, task):
        return config.batch_size * (in_heads * (task.n_tokens + d) + d * (2 * width + task.n_outputs))
    of_position = d * (d + task.n_positions) + 2 * d * width
    return config.batch_size * task.n_positions * model.n_layers * of_position


def _by_counts(config: TrainConfig, model: ModelConfig, task: TaskSizes) -> bool:
    return config.forward == "fast" and task.n_asked == 1 and "counts" in fast_paths(model)


def _counts_stack(model: ModelConfig) -> bool:
    """Is the forward by counts written down for stacks (`stacked_count_forward`), not only mapped over members?"""
    frozen = all(any(fnmatchcase(name, given) for given in model.freeze) for name in ("embed.W_E", "unembed.W_U"))
    return (frozen and is_recall_network(model)) or (
        not model.has_feed_forward(0) and model.attention.ov == "factored" and model.attention.kind == "softmax"
    )


def even_parts(items: Sequence[T], n_parts: int) -> Iterator[Sequence[T]]:
    """Items in so many parts of nearly the same size."""
    for part in range(n_parts):
        start, stop = (len(items) * end // n_parts for end in (part, part + 1))
        yield items[start:stop]


WORTH_TWO = 2**32
"""Multiplications of a step from which on a second thread pays: it is then no slower beside a busy process either.

Smaller steps spend too much of their time on waiting for each other's threads.
"""


def threads_for(config: TrainConfig, model: ModelConfig, task: TaskSizes) -> int:
    """Two threads if a step has many multiplications, about B T d (d + T) in each layer, else one."""
    T, d = task.n_positions, model.d_model
    of_layer = T * d * (d + T)
    return 2 if config.batch_size * model.n_layers * of_layer >= WORTH_TWO else 1
