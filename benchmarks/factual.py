"""Factual recall, forward and backward: by token counts, against attention of the last query and of all queries.

And an evaluation with all probes of facts, against training steps.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from toytf.bench import best_seconds
from toytf.build import build_probe
from toytf.config.plugins import load_config
from toytf.models.config import ModelConfig
from toytf.models.counts import count_forward
from toytf.models.transformer import ToyTransformer
from toytf.randomness import generator

from .training import learner_of, step_of

N_TOKENS, N_OUTPUTS, T, BATCH = 129, 256, 32, 1024
"""32 subjects, 32 relations, 64 noise tokens and the end of the sequence; 8 answers a relation."""

MANY_FACTS = {"task.n_subjects": 1250, "task.n_relations": 4, "task.n_answers": 1250}
"""A table of 5,000 facts and 5,000 answers, which is the largest that probes have to look at."""

MODEL = ModelConfig.model_validate(
    {
        "d_model": 128,
        "n_layers": 1,
        "embedding": "normal_over_d",
        "position": "none",
        "unembedding": "normal_over_d",
        "attention": {"n_heads": 8, "d_head": 16, "residual": False, "init": "normal_over_out"},
        "feed_forward": {"kind": "relu", "width": 256, "bias": True, "init": "normal_over_d"},
    }
)


def measure() -> dict[str, float]:
    """Seconds for the cross-entropy at the last position and its gradients, with one thread and frozen embeddings.

    ratio: the last query alone against counts; ratio_full: all queries against counts. ratio_step, steps_per_second: a
    whole training step of configs/factual/quick.yaml. evaluation_in_steps, evaluation_seconds: an evaluation with all
    its probes, with 5,000 facts.
    """
    torch.set_num_threads(1)
    sizes = {"n_tokens": N_TOKENS, "n_positions": T, "n_outputs": N_OUTPUTS}
    model = ToyTransformer(MODEL, **sizes, generator=generator(0, "model"))
    model.embed.requires_grad_(False)
    model.unembed.requires_grad_(False)
    tokens = torch.randint(N_TOKENS - 1, (BATCH, T), generator=generator(0, "tokens"))
    tokens[:, -1] = N_TOKENS - 1
    answers = torch.randint(N_OUTPUTS, (BATCH,), generator=generator(0, "answers"))

    def step(logits: Callable[[], Tensor]) -> Callable[[], None]:
        def work() -> None:
            model.zero_grad()
            cross_entropy(logits()[:, -1], answers).backward()  # type: ignore[no-untyped-call]

        return work

    counts = step(lambda: count_forward(model, tokens))
    last = step(lambda: model(tokens, last=1))
    full = step(lambda: model(tokens))
    repeats = {counts: 10, last: 2, full: 1}
    best = dict.fromkeys(repeats, float("inf"))
    for _ in range(6):  # in turns, so that a busy moment of the machine meets all
        best = {work: min(seconds, best_seconds(work, repeats[work])) for work, seconds in best.items()}
    return {
        "ratio": best[last] / best[counts],
        "ratio_full": best[full] / best[counts],
        "seconds_by_counts": best[counts],
        **_training_step(),
        **_evaluation(),
    }


def _training_step(steps: int = 20) -> dict[str, float]:
    """A whole step of configs/factual/quick.yaml, with data and update, and two threads: fast against plain."""
    torch.set_num_threads(2)
    config: Any = load_config("configs/factual/quick.yaml")
    fast, plain = step_of(learner_of(config)), step_of(learner_of(config, forward="plain"))

    def several() -> None:
        for _ in range(steps):
            fast()

    best, best_plain = float("inf"), float("inf")
    for _ in range(8):
        best, best_plain = min(best, best_seconds(several, 1) / steps), min(best_plain, best_seconds(plain, 2))
    return {"ratio_step": best_plain / best, "steps_per_second": 1 / best}


def _evaluation() -> dict[str, float]:
    """An evaluation of 5,000 facts with all probes of configs/factual/quick.yaml, on one thread: in training steps."""
    torch.set_num_threads(1)
    config: Any = load_config("configs/factual/quick.yaml", MANY_FACTS)
    learner = learner_of(config)
    learner.probes = tuple(build_probe(probe) for probe in config.probes)
    step, best, best_step = step_of(learner), float("inf"), float("inf")
    for _ in range(3):
        best = min(best, best_seconds(lambda: learner.evaluate(config.train.steps), 1))
        best_step = min(best_step, best_seconds(step, 5))
    return {"evaluation_in_steps": best / best_step, "evaluation_seconds": best}
