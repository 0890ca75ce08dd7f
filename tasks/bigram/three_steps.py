"""The experiment `three_steps`: an induction head by one gradient step on each of three matrices.

Bietti et al. 2023, §5: from zero, one step on W_OV2, then on W_KQ2, then on W_KQ1, each on fresh sequences.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tasks.bigram.memories import previous_position
from tasks.bigram.three_steps_config import ThreeStepsConfig
from tasks.bigram.three_steps_model import Vectors, Weights, axes, axes_of_a_stream, forward, negative_gradient, sample
from toytf import theory
from toytf.errors import Interrupted, RunFailed
from toytf.experiments.jobs import Rows, run_jobs
from toytf.experiments.process import cpu_threads
from toytf.memory import Association
from toytf.models.laws import draw_vectors
from toytf.randomness import generator
from toytf.runs import Run

CHUNK = 2**21
"""Numbers in the activations of one chunk of sequences, at most: memory does not grow with the samples."""


STEPS = ("W_OV2", "W_KQ2", "W_KQ1")
"""The matrices in the order of their steps."""


def run_three_steps(config: ThreeStepsConfig, run: Run) -> None:
    """The three steps for every number of samples and every seed."""
    jobs = {f"accuracy/read_out{config.suffix(n)}": partial(_measure, config, n) for n in config.samples}
    run_jobs(config, run, jobs)


def draw(config: ThreeStepsConfig, seed: int) -> Vectors:
    """The vectors of a seed; orthonormal ones are axes, the same for every seed."""
    N, T, residual = config.n_tokens, config.seq_len, config.model == "residual"
    if config.dimension is None:
        return axes_of_a_stream(N, T, config.device) if residual else axes(N, T, config.device)
    random, d = generator(seed, "vectors"), config.dimension
    e, second, u, p = (
        draw_vectors("normal_over_d", n, d, random, what="embedding").to(config.device)
        for n in (N, d if residual else N, N, T)
    )
    return Vectors(e, e @ second.T, u, p, remap=second) if residual else Vectors(e, second, u, p)


def read(name: str, W: Float[Tensor, "d_left d_right"], vectors: Vectors) -> Float[Tensor, "row column"]:
    """The entries that the theorem is about: u_jᵀ W e_k, e_kᵀ W ẽ_j, p_tᵀ W p_r."""
    v = vectors
    left, right = {"W_OV2": (v.u, v.e), "W_KQ2": (v.e, v.e_tilde), "W_KQ1": (v.p, v.p)}[name]
    return left @ W @ right.T


def right_entries(name: str, entries: Float[Tensor, "row column"]) -> Float[Tensor, "right"]:
    """What a matrix should store: the diagonal of tokens, or (t, t−1) of positions for t = 2 … T−1."""
    return entries.diagonal(-1)[:-1] if name == "W_KQ1" else entries.diagonal()


def association(name: str, vectors: Vectors) -> Association:
    """The pairs a matrix should recall: W_KQ1 among the keys r ≤ t for t = 2 … T−1, as T never holds an answer."""
    if name == "W_KQ1":
        every = previous_position(vectors.p, causal=True)
        assert every.candidates is not None
        return Association(every.keys[:-1], every.values, every.targets[:-1], candidates=every.candidates[:-1])
    values = vectors.u if name == "W_OV2" else vectors.e_tilde
    return Association(vectors.e, values, torch.arange(len(vectors.e), device=vectors.e.device))


def recall(name: str, W: Float[Tensor, "d_left d_right"], vectors: Vectors) -> float:
    """The fraction of pairs whose score is the largest; a query stands on the left of W_KQ, an input right of W_OV."""
    return float(association(name, vectors).recall(W if name == "W_OV2" else W.T))


def predicted(config: ThreeStepsConfig, name: str) -> Float[np.ndarray, "row column"]:
    """The population signal of a step, entry by entry."""
    N, T = config.n_tokens, config.seq_len
    if name == "W_OV2":
        return theory.output_signal(N, T).matrix()
    if name == "W_KQ2":
        return theory.trigger_signal(N, T, config.beta_1, remapped=_remapped(config)).matrix()
    return theory.position_signal(T, config.beta_1, config.beta_2)


def rate(config: ThreeStepsConfig, name: str) -> float:
    """The learning rate that gives a memory its gain, by the theory."""
    N, T, beta_1, beta_2 = config.n_tokens, config.seq_len, config.beta_1, config.beta_2
    if name == "W_OV2":
        return theory.output_rate(N, T, beta_1)
    if name == "W_KQ2":
        return theory.trigger_rate(N, T, beta_1, beta_2, remapped=_remapped(config))
    return theory.position_rate(T, beta_1, beta_2, config.read_out.W_KQ1)


def steps(config: ThreeStepsConfig, samples: int, seed: int, vectors: Vectors) -> Iterator[tuple[str, Tensor, Weights]]:
    """The three steps, one after the other: the matrix, its signal G, and the weights after W = η G."""
    weights = Weights.zero(vectors)
    for name in STEPS:
        batches = _batches(config, samples, vectors, seed, name)
        G = negative_gradient(name, weights, vectors, batches)
        weights = replace(weights, **{name: rate(config, name) * G})
        yield name, G, weights


def _measure(config: ThreeStepsConfig, samples: int, seeds: Sequence[int], stopping: Callable[[], bool]) -> Rows:
    for seed in seeds:
        row: dict[str, float] = {}
        with cpu_threads(config.threads):
            vectors = draw(config, seed)
            for number, (name, G, weights) in enumerate(steps(config, samples, seed, vectors), start=1):
                if stopping():
                    raise Interrupted("stopped")
                if not bool(G.isfinite().all()):
                    raise RunFailed(f"the gradient of {name} is not finite: the gains before it are too large")
                row |= _signals(config, name, G, vectors) | _recall(name, G, vectors)
                row |= _accuracy(config, seed, weights, vectors, f"step{number}")
            row |= _accuracy(config, seed, _read_out(config, weights, vectors), vectors, "read_out")
        yield seed, {f"{metric}{config.suffix(samples)}": value for metric, value in row.items()}


def _signals(config: ThreeStepsConfig, name: str, G: Tensor, vectors: Vectors) -> dict[str, float]:
    """The entries of a step beside their law: the mean of the right ones, of the others, and all of them."""
    measured, law = read(name, G, vectors).cpu().double(), torch.as_tensor(predicted(config, name))
    right, right_law = right_entries(name, measured), right_entries(name, law)
    row = _beside(name, float(right.mean()), float(right_law.mean()))
    if name == "W_KQ1":
        for t, (entry, entry_law) in enumerate(zip(right.tolist(), right_law.tolist(), strict=True), start=2):
            row |= _beside(f"{name}/t{t}", entry, entry_law)
        from_3 = (right / right_law)[1:]
        row |= {f"over_theory/{name}_min": float(from_3.min()), f"over_theory/{name}_max": float(from_3.max())}
    else:
        off = ~torch.eye(config.n_tokens, dtype=torch.bool)
        row |= {f"signal/{name}_off": float(measured[off].mean()), f"theory/signal/{name}_off": float(law[off].mean())}
    seen = torch.ones_like(law, dtype=torch.bool)
    both = torch.stack([measured, law])[:, seen.tril() if name == "W_KQ1" else seen]  # no query sees the future
    correlation = both.corrcoef()[0, 1].nan_to_num()  # 0 if no entry differs from another
    row |= {f"correlation/{name}": float(correlation), f"ideal/correlation/{name}": 1.0}
    if name == "W_OV2" and vectors.remap is not None:
        remapped = float((vectors.u @ G @ vectors.e_tilde.T).diagonal().mean())
        row |= _beside(f"{name}_remapped", remapped, theory.remapped_signal(config.n_tokens, config.seq_len).diagonal)
    return row


def _beside(name: str, measured: float, law: float) -> dict[str, float]:
    """A signal, its law and their ratio."""
    return {f"signal/{name}": measured, f"theory/signal/{name}": law, f"over_theory/{name}": measured / law}


def _recall(name: str, W: Tensor, vectors: Vectors) -> dict[str, float]:
    return {
        f"recall/{name}": recall(name, W, vectors),
        f"ideal/recall/{name}": 1.0,
        f"chance/recall/{name}": association(name, vectors).chance,
    }


def _accuracy(config: ThreeStepsConfig, seed: int, weights: Weights, vectors: Vectors, when: str) -> dict[str, float]:
    """Accuracy on fresh sequences, and how far attention of layer 2 is from uniform."""
    right, largest = (torch.zeros((), device=vectors.e.device) for _ in range(2))
    for tokens, answers in _batches(config, config.evaluation_samples, vectors, seed, "evaluation"):
        logits, attention = forward(weights, vectors, tokens)
        right += (logits.argmax(1) == answers).sum()
        largest += attention.amax(1).sum()
    row = {
        f"accuracy/{when}": float(right) / config.evaluation_samples,
        f"chance/accuracy/{when}": 1 / config.n_tokens,
        f"attention/largest_{when}": float(largest) / config.evaluation_samples,
        f"chance/attention/largest_{when}": 1 / config.seq_len,
    }
    if when == "read_out" and config.model == "clean":
        row[f"theory/accuracy/{when}"] = theory.induction_ceiling(config.seq_len)
    return row


def _read_out(config: ThreeStepsConfig, weights: Weights, vectors: Vectors) -> Weights:
    """W_KQ2 and W_KQ1 scaled until what they should store has the given mean score; a sign is kept."""
    scaled = {}
    for name in ("W_KQ2", "W_KQ1"):
        W = getattr(weights, name)
        mean = right_entries(name, read(name, W, vectors)).mean().abs()
        scaled[name] = W * (getattr(config.read_out, name) / mean.clamp(min=torch.finfo(W.dtype).tiny))
    return replace(weights, **scaled)


def _batches(
    config: ThreeStepsConfig, n: int, vectors: Vectors, seed: int, purpose: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """n fresh sequences, a chunk at a time."""
    widest = max(vectors.e.shape[1], vectors.e_tilde.shape[1], config.n_tokens)
    chunk = max(CHUNK // (config.seq_len * widest), 1)
    for start in range(0, n, chunk):
        random = generator(seed, purpose, start, device=config.device)
        yield sample(min(chunk, n - start), config.n_tokens, config.seq_len, random)


def _remapped(config: ThreeStepsConfig) -> float:
    return theory.remapped_gain(config.seq_len) if config.model == "residual" else 0.0
