"""Bigram data: all sequences at once by alias tables, against one `rng.choice` per token in Python."""

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.bigram.config import BigramConfig
from tasks.bigram.task import BigramTask
from toytf.bench import best_seconds
from toytf.randomness import generator


def loop_sequence(task: BigramTask, rng: np.random.Generator) -> NDArray[np.int64]:
    """One sequence of T + 1 tokens, token by token: the definition of the task, as slow as it reads."""
    unigram, bigram = task.unigram.double().numpy(), task.bigram.double().numpy()
    output = task.output_distribution.double().numpy()
    unigram, bigram, output = (p / p.sum(-1, keepdims=True) for p in (unigram, bigram, output))
    n = len(unigram)
    fixed = task.fixed_triggers
    k = task.config.n_triggers
    triggers = rng.choice(n, size=k, p=unigram, replace=False) if fixed is None else fixed.numpy()
    output_of = {int(trigger): int(rng.choice(n, p=output[trigger])) for trigger in triggers}
    z = [int(rng.choice(n, p=unigram))]
    while len(z) < task.config.seq_len + 1:
        z.append(output_of[z[-1]] if z[-1] in output_of else int(rng.choice(n, p=bigram[z[-1]])))
    return np.array(z)


def measure() -> dict[str, float]:
    """Tokens per second of both, with five fixed triggers, T = 256 and batches of 512, on one thread."""
    torch.set_num_threads(1)
    task = BigramTask(BigramConfig(kind="bigram"), torch.device("cpu"))
    rng = np.random.default_rng(0)
    T, batch, loop_batch = task.config.seq_len, 512, 8
    stream = generator(0, "benchmark")
    task.sample(batch, stream)  # warm up
    fast = slow = 0.0
    for _ in range(5):  # in turns, so that a busy moment of the machine meets both
        fast = max(fast, batch * T / best_seconds(lambda: task.sample(batch, stream), repeats=5))
        slow = max(
            slow, loop_batch * T / best_seconds(lambda: [loop_sequence(task, rng) for _ in range(loop_batch)], 1)
        )
    return {"ratio": fast / slow, "tokens_per_second": fast, "loop_tokens_per_second": slow}
