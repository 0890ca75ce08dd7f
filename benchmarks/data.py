"""Drawing sequences: a whole batch at once by alias tables, against a plain Python loop over the tokens."""

import numpy as np
import torch
from jaxtyping import Int

from tasks.bigram.config import BigramConfig
from tasks.bigram.task import BigramTask
from tasks.factual.config import FactualConfig
from tasks.factual.task import FactualTask
from toytf.bench import in_turns
from toytf.randomness import generator
from toytf.task import Task

BATCH, LOOP_BATCH = 512, 8
"""Sequences that are drawn at once, and one by one."""


def loop_bigram(task: BigramTask, rng: np.random.Generator) -> Int[np.ndarray, "length"]:
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


def loop_factual(task: FactualTask, rng: np.random.Generator) -> Int[np.ndarray, "length"]:
    """One sequence of T tokens that ends with the end token, and its answer, token by token."""
    s = int(rng.choice(len(task.subjects), p=task.subject_distribution))
    r = int(rng.choice(len(task.relations), p=task.relation_distribution))
    at_subject, at_relation = rng.choice(task.n_positions - 1, size=2, replace=False)
    z = []
    for t in range(task.n_positions - 1):
        if t == at_subject:
            z.append(task.subjects[s])
        elif t == at_relation:
            z.append(task.relations[r])
        else:
            z.append(int(rng.choice(task.noise)))
    return np.array([*z, task.end, task.table.answers[s, r]])


def measure() -> dict[str, float]:
    """How many times as many tokens a second are drawn at once as one by one, on one thread.

    ratio: bigram_ratio, with five fixed triggers and T = 256; factual_ratio: the table of configs/factual/quick.yaml,
    with T = 32. …_tokens_per_second: of those drawn at once, in batches of 512.
    """
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    bigram = BigramTask(BigramConfig(kind="bigram"), cpu)
    factual = FactualTask(FactualConfig(kind="factual"), cpu)
    rng, stream = np.random.default_rng(0), generator(0, "benchmark")
    tasks: dict[str, Task] = {"bigram": bigram, "factual": factual}
    one_by_one = {"bigram": lambda: loop_bigram(bigram, rng), "factual": lambda: loop_factual(factual, rng)}
    found: dict[str, float] = {}
    for name, task in tasks.items():
        ways = {
            "batch": lambda task=task: task.sample(BATCH, stream),
            "loop": lambda draw=one_by_one[name]: [draw() for _ in range(LOOP_BATCH)],
        }
        seconds = in_turns(ways, rounds=8, calls=3)
        found[f"{name}_ratio"] = seconds["loop"] / LOOP_BATCH / (seconds["batch"] / BATCH)
        found[f"{name}_tokens_per_second"] = BATCH * task.n_positions / seconds["batch"]
    return {"ratio": found["bigram_ratio"], **found}
