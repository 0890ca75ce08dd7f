"""The experiment `three_steps`: an induction head by one gradient step on each of three matrices.

Bietti et al. 2023, §5: from zero, one step on W_OV2, then on W_KQ2, then on W_KQ1, each on fresh sequences.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tasks.bigram.memories import previous_position
from tasks.bigram.three_steps import model
from tasks.bigram.three_steps.config import ThreeStepsConfig
from toytf import theory
from toytf.errors import RunFailed
from toytf.experiments.study import Drawn, Study
from toytf.figures import heat_maps, scaling_curves, series
from toytf.measurement import Group, Headline, Measurement, Quantity, Scalar, flat
from toytf.memory import Association
from toytf.models.distributions import draw_vectors
from toytf.randomness import generator
from toytf.report.story import against, amount, percent
from toytf.runs import Run
from toytf.stopping import check_stop
from toytf.tidy import over_seeds

SIGNAL = Group(
    "signal", "Signals: entries of the negative gradient", "Mean entry of this matrix's own step where it should "
    "store something; near theory where the theorem holds.", format="power", variants=("t",), headline=(),
    meanings=(
        ("W_OV2_remapped*", "Mean entry of the first step that stores tokens as layer 1 has moved them; near theory "
         "where the theorem holds."),
        ("*_off*", "Mean entry of this matrix's own step where it should store nothing; near theory where the theorem "
         "holds."),
        ("*/t*", "Entry of the step on W_KQ1 from position t to the one before; near theory, which falls like 1/t."),
    ),
)  # fmt: skip
OVER_THEORY = Group(
    "over_theory", "Measured / theory", "Ratio of measured to predicted mean signal of this matrix; near 1 where the "
    "theorem holds.", variants=("t",),
    headline=(
        Headline("W_OV2", "signal of W_OV2 / theory"),
        Headline("W_KQ2", "signal of W_KQ2 / theory"),
        Headline("W_KQ1", "signal of W_KQ1 / theory"),
    ),
    meanings=(
        ("W_KQ1_min*", "Smallest ratio of measured to predicted signal of W_KQ1 over the positions t ≥ 3; near 1 where "
         "the theorem holds."),
        ("W_KQ1_max*", "Largest ratio of measured to predicted signal of W_KQ1 over the positions t ≥ 3; near 1 where "
         "the theorem holds."),
        ("*/t*", "Ratio of measured to predicted signal of W_KQ1 at position t; near 1 where the theorem holds."),
    ),
)  # fmt: skip
CORRELATION = Group(
    "correlation", "Correlation with theory, entry by entry", "Correlation of the entries of this matrix's own step "
    "with those of theory; 1 if each is as predicted, less with few sequences.", headline=(),
)  # fmt: skip
RECALL = Group(
    "recall", "Recall, as a fraction of the pairs", "Fraction of its pairs that this matrix recalls after its own "
    "gradient step; 1 is all.",
    headline=(
        Headline("W_OV2", "copy the attended token: recall after step 1"),
        Headline("W_KQ2", "find the token after the trigger: recall after step 2"),
        Headline("W_KQ1", "look one position back: recall after step 3"),
    ),
)  # fmt: skip
ACCURACY = Group(
    "accuracy", "Accuracy",
    "It jumps at step 3, when all three matrices have been learned; read_out: with large gains.",
    headline=(
        Headline("step1", "accuracy after step 1"),
        Headline("step2", "accuracy after step 2"),
        Headline("step3", "accuracy after step 3"),
        Headline("read_out", "accuracy with large gains"),
    ),
    meanings=(
        ("read_out*", "Accuracy on fresh sequences after all three steps, with gains so large that attention is sharp; "
         "close to theory."),
        ("step3*", "Accuracy on fresh sequences after all three steps; it jumps here, since induction needs all three "
         "matrices."),
        ("step*", "Accuracy on fresh sequences after step 1 or 2; still low, since induction needs all three "
         "matrices."),
    ),
)  # fmt: skip
ATTENTION = Group(
    "attention", "Largest attention weight of layer 2",
    "Averaged over sequences. Chance is uniform attention; 1 is all attention on one token.",
    headline=(),
    meanings=(
        ("largest_read_out*", "Largest attention weight of layer 2 after all three steps, with large gains; near 1 if "
         "attention is sharp."),
        ("largest_step*", "Largest attention weight of layer 2 after this step; 1 if all attention is on one token."),
    ),
)  # fmt: skip

CHUNK = 2**21
"""Numbers in the activations of one chunk of sequences, at most: memory does not grow with the samples."""

STEPS = ("W_OV2", "W_KQ2", "W_KQ1")
"""The matrices in the order of their steps."""

MAX_SHOWN = 16
"""Tokens in a heat map of tokens, at most."""


@dataclass(frozen=True)
class ThreeStepsCase:
    """How many fresh sequences each of the three steps has."""

    samples: int


class ThreeSteps(Study[ThreeStepsCase]):
    """The three steps for every number of samples and every seed."""

    config: ThreeStepsConfig

    def cases(self) -> list[ThreeStepsCase]:
        """Every number of samples."""
        return [ThreeStepsCase(samples) for samples in self.config.samples]

    @property
    def plain(self) -> Mapping[str, Scalar]:
        """The largest number of samples, which is nearest to the theorem."""
        return {"samples": max(self.config.samples)}

    def measure(self, case: ThreeStepsCase, seed: int) -> Iterator[Measurement | Drawn]:
        """The signal and the recall of every step, accuracy after each and with large gains, and the signals drawn."""
        config, vectors = self.config, draw(self.config, seed)
        signals: dict[str, Tensor] = {}
        for number, (name, G, weights) in enumerate(take_steps(config, case.samples, seed, vectors), start=1):
            check_stop()
            if not bool(G.isfinite().all()):
                raise RunFailed(f"the gradient of {name} is not finite: the gains of the steps before are too large")
            signals[name] = read(name, G, vectors).cpu()
            yield from _signals(config, name, signals[name])
            if name == "W_OV2" and vectors.remap is not None:
                # what is stored of u_k ẽ_kᵀ besides, as layer 2 reads what layer 1 has moved
                remapped = float((vectors.u @ G @ vectors.e_tilde.T).diagonal().mean())
                by_theory = theory.remapped_signal(config.n_tokens, config.seq_len).diagonal
                yield from _beside("W_OV2_remapped", remapped, by_theory)
            chance = association(name, vectors).chance
            yield RECALL.measurement(recall(name, G, vectors), name, ideal=1.0, chance=chance)
            yield from _accuracy(config, seed, weights, vectors, f"step{number}")
        scaled = {}  # until what W_KQ2 and W_KQ1 should store has the given mean score; a sign is kept
        for name in ("W_KQ2", "W_KQ1"):
            W = getattr(weights, name)
            mean = right_entries(name, read(name, W, vectors)).mean().abs()
            scaled[name] = W * (getattr(config.read_out, name) / mean.clamp(min=torch.finfo(W.dtype).tiny))
        yield from _accuracy(config, seed, replace(weights, **scaled), vectors, "read_out")
        if case.samples == max(config.samples):
            title = f"Signals of the three steps ({case.samples} sequences per step, seed {seed})"
            yield Drawn("signals", partial(_signal_maps, config, signals, title))

    def findings(self, run: Run) -> Iterable[str]:
        """What each matrix recalls after its step, and the accuracy that the three reach together."""
        summary, n = run.summary, max(self.config.samples)
        recalls = {name: flat(Quantity(RECALL, name)) for name in STEPS}
        third, gains = (flat(Quantity(ACCURACY, when)) for when in ("step3", "read_out"))
        if not {*recalls.values(), third, gains} <= summary.keys():
            return super().findings(run)
        of_matrices = ", ".join(f"{name} {amount(summary, recall, percent)}" for name, recall in recalls.items())
        with_gains = f"{amount(summary, gains, percent)} with large gains{against(summary, gains, percent)}"
        return (
            f"After one gradient step each, on {n} sequences, this much is recalled: {of_matrices}.",
            f"After the third step {amount(summary, third, percent)} of the answers are right, {with_gains}.",
        )

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """The gradients of the first seed as heat maps, the 1/t decay of step 3 over seeds, and what samples bring."""
        config, kept, table = self.config, run.kept_figure("signals"), run.table
        if kept is not None:
            yield "signals", kept
        # p_tᵀ G p_{t−1} against t: over seeds, by theory at small gains, and at the gains that the first seed had
        signals = table[(table["samples"] == max(config.samples)) & (table["group"] == SIGNAL.name)]
        measured = series(over_seeds(signals[signals["variant"]]), "t", lambda _: "query t, key t−1")
        first = signals[(signals["seed"] == config.seeds[0]) & ~signals["variant"]].set_index("name")["value"]
        beta_1, beta_2 = (rate(config, name) * float(first[name]) for name in STEPS[:2])
        exact = np.diagonal(theory.position_signal(config.seq_len, max(beta_1, 0), max(beta_2, 0), linear=False), -1)
        guides = {f"at the gains {beta_1:.2f} and {beta_2:.2f} of steps 1 and 2": lambda t: float(exact[int(t) - 2])}
        title = "Step 3: the signal falls like 1/t"
        yield "positions", scaling_curves(measured, title, x="position t", y="signal", guides=guides)
        if len(config.samples) > 1:
            means = over_seeds(table).sort_values("samples", kind="stable")
            for group, title in {
                RECALL: "Recall after each step",
                ACCURACY: "Accuracy after each step and with large gains",
            }.items():
                curves = series(means[means["group"] == group.name], "samples", lambda row: str(row.name))
                x = "sequences per step"
                yield group.name, scaling_curves(curves, title, x=x, y=group.name, guides={}, log_y=False)


def draw(config: ThreeStepsConfig, seed: int) -> model.Vectors:
    """The vectors of a seed; orthonormal ones are axes, the same for every seed."""
    N, T, residual = config.n_tokens, config.seq_len, config.model == "residual"
    if config.dimension is None and residual:  # axes of one stream; W_OV1 moves e to ẽ and p to p̃
        every = torch.eye(3 * N + 2 * T, device=config.device)
        e, p, e_tilde, p_tilde, u = torch.split(every, [N, T, N, T, N])
        return model.Vectors(e, e_tilde, u, p, remap=e_tilde.T @ e + p_tilde.T @ p)
    if config.dimension is None:  # each matrix has a space of its own
        tokens = torch.eye(N, device=config.device)
        return model.Vectors(tokens, tokens, tokens, torch.eye(T, device=config.device))
    random, d = generator(seed, "vectors"), config.dimension
    e, second, u, p = (
        draw_vectors("normal_over_d", n, d, random, what="embedding").to(config.device)
        for n in (N, d if residual else N, N, T)
    )
    return model.Vectors(e, e @ second.T, u, p, remap=second) if residual else model.Vectors(e, second, u, p)


def read(name: str, W: Float[Tensor, "d_left d_right"], vectors: model.Vectors) -> Float[Tensor, "row column"]:
    """The entries that the theorem is about: u_jᵀ W e_k, e_kᵀ W ẽ_j, p_tᵀ W p_r."""
    v = vectors
    left, right = {"W_OV2": (v.u, v.e), "W_KQ2": (v.e, v.e_tilde), "W_KQ1": (v.p, v.p)}[name]
    return left @ W @ right.T


def right_entries(name: str, entries: Float[Tensor, "row column"]) -> Float[Tensor, "right"]:
    """What a matrix should store: the diagonal of tokens, or (t, t−1) of positions for t = 2 … T−1."""
    return entries.diagonal(-1)[:-1] if name == "W_KQ1" else entries.diagonal()


def association(name: str, vectors: model.Vectors) -> Association:
    """The pairs a matrix should recall: W_KQ1 among the keys r ≤ t for t = 2 … T−1, as T never holds an answer."""
    if name == "W_KQ1":
        every = previous_position(vectors.p, causal=True)
        assert every.candidates is not None
        return Association(every.keys[:-1], every.values, every.targets[:-1], candidates=every.candidates[:-1])
    values = vectors.u if name == "W_OV2" else vectors.e_tilde
    return Association(vectors.e, values, torch.arange(len(vectors.e), device=vectors.e.device))


def recall(name: str, W: Float[Tensor, "d_left d_right"], vectors: model.Vectors) -> float:
    """The fraction of pairs whose score is the largest; a query is left of W_KQ, an input right of W_OV."""
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


def take_steps(
    config: ThreeStepsConfig, samples: int, seed: int, vectors: model.Vectors
) -> Iterator[tuple[str, Tensor, model.InductionWeights]]:
    """The three steps, one after the other: the matrix, its signal G, and the weights after W = η G."""
    weights = model.InductionWeights.zero(vectors)
    for name in STEPS:
        fresh = batches(config, samples, vectors, seed, name)
        G = model.negative_gradient(name, weights, vectors, fresh)
        weights = replace(weights, **{name: rate(config, name) * G})
        yield name, G, weights


def _signals(config: ThreeStepsConfig, name: str, entries: Float[Tensor, "row column"]) -> Iterator[Measurement]:
    """The entries of a step beside theory: the mean of the right ones, of the others, and all of them."""
    measured, theoretical = entries.double(), torch.as_tensor(predicted(config, name))
    right, expected = right_entries(name, measured), right_entries(name, theoretical)
    yield from _beside(name, float(right.mean()), float(expected.mean()))
    if name == "W_KQ1":
        for t, (entry, by_theory) in enumerate(zip(right.tolist(), expected.tolist(), strict=True), start=2):
            yield from _beside(name, entry, by_theory, t=t)
        from_3 = (right / expected)[1:]
        yield OVER_THEORY.measurement(float(from_3.min()), f"{name}_min")
        yield OVER_THEORY.measurement(float(from_3.max()), f"{name}_max")
    else:
        off = ~torch.eye(config.n_tokens, dtype=torch.bool)
        yield SIGNAL.measurement(float(measured[off].mean()), f"{name}_off", theory=float(theoretical[off].mean()))
    seen = torch.ones_like(theoretical, dtype=torch.bool)
    both = torch.stack([measured, theoretical])[:, seen.tril() if name == "W_KQ1" else seen]  # no query sees the future
    correlation = both.corrcoef()[0, 1].nan_to_num()  # 0 if no entry differs from another
    yield CORRELATION.measurement(float(correlation), name, ideal=1.0)


def _beside(name: str, measured: float, expected: float, **at: int) -> Iterator[Measurement]:
    """A signal beside theory, and their ratio."""
    yield SIGNAL.measurement(measured, name, theory=expected, **at)
    yield OVER_THEORY.measurement(measured / expected, name, **at)


def _accuracy(
    config: ThreeStepsConfig, seed: int, weights: model.InductionWeights, vectors: model.Vectors, when: str
) -> Iterator[Measurement]:
    """Accuracy on fresh sequences, and how far attention of layer 2 is from uniform."""
    right, largest = (torch.zeros((), device=vectors.e.device) for _ in range(2))
    for tokens, answers in batches(config, config.evaluation_samples, vectors, seed, "evaluation"):
        logits, attention = model.forward(weights, vectors, tokens)
        right += (logits.argmax(1) == answers).sum()
        largest += attention.amax(1).sum()
    n, known = config.evaluation_samples, when == "read_out" and config.model == "clean"
    ceiling = theory.induction_ceiling(config.seq_len) if known else None
    yield ACCURACY.measurement(float(right) / n, when, theory=ceiling, chance=1 / config.n_tokens)
    yield ATTENTION.measurement(float(largest) / n, f"largest_{when}", chance=1 / config.seq_len)


def batches(
    config: ThreeStepsConfig, n: int, vectors: model.Vectors, seed: int, purpose: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """n fresh sequences, a chunk at a time."""
    widest = max(vectors.e.shape[1], vectors.e_tilde.shape[1], config.n_tokens)
    chunk = max(CHUNK // (config.seq_len * widest), 1)
    for start in range(0, n, chunk):
        random = generator(seed, purpose, start, device=config.device)
        yield model.sample_sequences(min(chunk, n - start), config.n_tokens, config.seq_len, random)


def _remapped(config: ThreeStepsConfig) -> float:
    return theory.remapped_gain(config.seq_len) if config.model == "residual" else 0.0


def _signal_maps(config: ThreeStepsConfig, signals: Mapping[str, Tensor], title: str) -> Any:
    """Measured and predicted side by side; of the tokens the first few."""
    panels = {}
    for number, name in enumerate(STEPS, start=1):
        n = config.seq_len if name == "W_KQ1" else min(MAX_SHOWN, config.n_tokens)
        names = [f"{'t' if name == 'W_KQ1' else 'k'}={i}" for i in range(1, n + 1)]
        pair = {"measured": signals[name].double().numpy(), "theory": predicted(config, name)}
        for label, matrix in pair.items():
            panels[f"Step {number}, {name}: {label}"] = (matrix[:n, :n], names, names)
    return heat_maps(panels, title, x="input or key", y="output or query")
