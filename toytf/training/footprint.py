"""The memory of a training, from its config. Imports no torch."""

from toytf.config.footprint import FLOAT, INT, Need
from toytf.config.plugins import TaskSizes
from toytf.models.config import ModelConfig, cached_chunk
from toytf.training.config import SgdConfig, TrainConfig

HELD = 3
"""How often an activation is there while gradients are taken: before and after a function, and its gradient."""


def training_needs(
    config: TrainConfig, model: ModelConfig, task: TaskSizes, *, on_cpu: bool, observed: bool, stacked: int = 1
) -> list[Need]:
    """Weights and optimiser, sequences, activations of one chunk, and what an evaluation looks at.

    observed: do probes look at the attention patterns of all held-out sequences? stacked: models that train together.
    """
    T, d, L, heads = task.n_positions, model.d_model, model.n_layers, model.attention.n_heads
    sizes = {"model.d_model": d, "model.n_layers": L, "model.attention.n_heads": heads, **task.keys}
    if model.feed_forward.width is not None:
        sizes["model.feed_forward.width"] = model.width
    chunk = config.chunk or (cached_chunk(model, T, task.n_asked) if on_cpu else config.batch_size)
    n, evaluated = min(chunk, config.batch_size) * stacked, config.evaluation.sequences
    queries = (L - 1) * T + task.n_asked
    copies = 2 + (1 if isinstance(config.optimizer, SgdConfig) else 2)
    patterns, logits = heads * T * queries, task.n_asked * task.n_outputs
    stream = T * (heads * model.d_head + 2 * d) * L + queries * model.width
    of_evaluation = 8 * INT * T + HELD * FLOAT * logits + (2 * FLOAT * patterns if observed else 0)
    parameters = model.n_parameters(task.n_tokens, T, task.n_outputs)
    return [
        Need("weights, gradients and the optimiser", copies * FLOAT * parameters * stacked, sizes),
        Need(
            "the sequences of a step",
            8 * INT * stacked * config.batch_size * T,
            {"train.batch_size": config.batch_size, **task.keys},
        ),
        Need("activations of a step", HELD * FLOAT * n * (patterns + stream + logits), sizes),
        Need("an evaluation", evaluated * of_evaluation, {"train.evaluation.sequences": evaluated, **sizes}),
    ]
