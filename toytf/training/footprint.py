"""The memory of a training, from its config. Imports no torch."""

from toytf.config.footprint import FLOAT, INT, Need
from toytf.config.plugins import TaskSizes
from toytf.models.config import ModelConfig, cached_chunk
from toytf.training.config import MuonConfig, SgdConfig, TrainConfig

HELD = 3
"""How often an activation is there while gradients are taken: before and after a function, and its gradient."""

ORTHOGONALISED = 7
"""How often a matrix is there while its update is orthogonalised: gradients, products, and what they are summed to."""


def training_needs(
    config: TrainConfig, model: ModelConfig, task: TaskSizes, *, on_cpu: bool, observed: bool, stacked: int = 1
) -> list[Need]:
    """Weights and optimiser, sequences, activations of one chunk, and what an evaluation looks at.

    observed: do probes look at the attention patterns of all held-out sequences? stacked: models that train together.
    """
    T, d, L, heads = task.n_positions, model.d_model, model.n_layers, model.attention.n_heads
    sizes = {"model.d_model": d, "model.n_layers": L, "model.attention.n_heads": heads}
    if model.attention.d_head is not None:
        sizes["model.attention.d_head"] = model.attention.d_head
    if model.feed_forward.width is not None:
        sizes["model.feed_forward.width"] = model.width
    positions = {key: value for key, value in task.keys.items() if key.endswith("seq_len")}
    chunk = config.chunk or (cached_chunk(model, T, task.n_asked) if on_cpu else config.batch_size)
    n = min(chunk * (stacked if config.chunk else 1), stacked * config.batch_size)
    together = {"stack": stacked} if stacked > 1 else {}
    chunked = {"train.chunk": n} if config.chunk else {} if on_cpu else {"train.batch_size": n}
    queries = (L - 1) * T + task.n_asked
    copies = 2 + (1 if isinstance(config.optimizer, SgdConfig) else 2)
    stream = n * T * (heads * model.d_head + 2 * d) * L + n * queries * model.width
    parameters = model.n_parameters(task.n_tokens, T, task.n_outputs)
    of_heads = heads * max(d if "joint" in (model.attention.kq, model.attention.ov) else 0, model.d_head)
    update = ORTHOGONALISED * d * max(of_heads, model.width) if isinstance(config.optimizer, MuonConfig) else 0
    evaluated = config.evaluation.sequences
    patterns = 2 * FLOAT * evaluated * heads * T * queries if observed else 0
    return [
        Need(
            "weights, gradients and the optimiser",
            copies * FLOAT * parameters * stacked,
            {**sizes, **task.keys, **together},
        ),
        Need("the orthogonalised update of a matrix", FLOAT * update * stacked, {**sizes, **together}),
        Need("the causal masks", L * T * T, positions),
        Need(
            "the sequences of a step",
            8 * INT * stacked * config.batch_size * T,
            {"train.batch_size": config.batch_size, **positions, **together},
        ),
        Need("attention patterns of a step", HELD * FLOAT * n * heads * T * queries, {**chunked, **sizes, **positions}),
        Need("activations of a step", HELD * FLOAT * stream, {**chunked, **sizes, **positions}),
        Need("the logits of a step", HELD * FLOAT * n * task.n_asked * task.n_outputs, {**chunked, **task.keys}),
        Need(
            "the sequences and logits of an evaluation",
            evaluated * (8 * INT * T + HELD * FLOAT * task.n_asked * task.n_outputs),
            {"train.evaluation.sequences": evaluated, **task.keys},
        ),
        Need(
            "attention patterns of an evaluation",
            patterns,
            {"train.evaluation.sequences": evaluated, **sizes, **positions},
        ),
    ]
