"""The experiment `noise_learning`: what one gradient step learns of the noise, in feed-forward and in attention.

Contexts of T tokens end in the trigger q. After every q comes the noise token τ with probability α, else the output o
of that context; any other token is followed by a uniform one. With N = 8, q = 0, τ = 8 and o = 3:

    context   5 0 3 7 0 8 2 0      answer 3 (or 8)
                q o     τ   q

One layer with uniform attention, logits = U (W_V A + W_F e_q), starts from zero and takes one step on the mean loss of
m contexts. Vectors are orthonormal, so matrices are written in the basis of the tokens: W[k, j] = u_kᵀ W e_j.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks.bigram.noise_config import NoiseLearningConfig
from toytf import theory
from toytf.errors import Interrupted
from toytf.experiments.jobs import Rows, run_jobs
from toytf.experiments.process import cpu_threads
from toytf.randomness import generator
from toytf.runs import Run

TRIGGER = 0
PARTS = ("FF", "V")
"""The feed-forward matrix W_F and the value matrix W_V."""

ENTRIES_AT_ONCE = 2**23
"""Entries of matrices, or tokens of contexts, that are held in memory together."""


@dataclass(frozen=True)
class Setting:
    """A noise probability α and a vocabulary of N tokens: what a row of the result table is about."""

    alpha: float
    n_tokens: int

    @property
    def name(self) -> str:
        """Such as `a0.5_N128`."""
        return f"a{self.alpha}_N{self.n_tokens}"

    def recall_name(self, part: str, m: int) -> str:
        """The metric of a part after a step on m samples."""
        return f"noise_recall/{part}_{self.name}/m{m}"


@dataclass(frozen=True, eq=False)
class Contexts:
    """Contexts that end in the trigger, and what follows each."""

    tokens: Int[Tensor, "repeat m T"]
    answers: Int[Tensor, "repeat m"]


def settings(config: NoiseLearningConfig) -> Iterator[Setting]:
    """Every noise probability with every vocabulary."""
    for alpha in config.noise_probabilities:
        yield from (Setting(alpha, n_tokens) for n_tokens in config.n_tokens)


def run_noise_learning(config: NoiseLearningConfig, run: Run) -> None:
    """Take the steps for every setting and number of samples, then find the samples needed and how they grow with N."""
    most = max(config.samples)
    jobs = {setting.recall_name("FF", most): partial(_measure, config, setting) for setting in settings(config)}
    run_jobs(config, run, jobs, partial(_conclude, config))


def draw_contexts(setting: Setting, seq_len: int, repeats: int, m: int, random: torch.Generator) -> Contexts:
    """z_1 … z_{T−1} a chain as drawn above, z_T = q, and what follows it; q = 0, τ = N, o uniform over N tokens."""
    N, shape = setting.n_tokens, (repeats, m)
    outputs = torch.randint(N, shape, generator=random, device=random.device)

    def after_trigger() -> Tensor:
        noisy = torch.rand(shape, generator=random, device=random.device) < setting.alpha
        return torch.where(noisy, N, outputs)

    tokens = torch.randint(N, (seq_len, *shape), generator=random, device=random.device)
    for t in range(1, seq_len - 1):
        tokens[t] = torch.where(tokens[t - 1] == TRIGGER, after_trigger(), tokens[t])
    tokens[-1] = TRIGGER
    return Contexts(tokens.permute(1, 2, 0), after_trigger())


def feed_forward_step(answers: Int[Tensor, "repeat m"], n_values: int) -> Float[Tensor, "repeat n_values"]:
    """The only column of −∇W_F that is not 0, that of the trigger.

    −∇W_F = (1/m) Σ_i (onehot(y_i) − 1/n_values) e_qᵀ
    """
    repeats, m = answers.shape
    return _counts(_rows(answers, n_values), repeats, n_values) / m - 1 / n_values


def attention_step(contexts: Contexts, n_values: int) -> Float[Tensor, "repeat n_values n_values"]:
    """−∇W_V at zero, from how often token j stands in the contexts of answer k.

    −∇W_V = (1/m) Σ_i (onehot(y_i) − 1/n_values) A_iᵀ,   A_i = (1/T) Σ_t onehot(z_it)
    """
    repeats, m, T = contexts.tokens.shape
    cells = _rows(contexts.answers, n_values)[..., None] * n_values + contexts.tokens
    joint = _counts(cells, repeats, n_values, n_values) / (m * T)
    return joint - joint.sum(1, keepdim=True) / n_values


def _rows(answers: Int[Tensor, "repeat m"], n_values: int) -> Int[Tensor, "repeat m"]:
    """The number of an answer's row, if the matrices of all repeats stand below each other."""
    return torch.arange(len(answers), device=answers.device)[:, None] * n_values + answers


def _counts(cells: Int[Tensor, "*shape"], *shape: int) -> Float[Tensor, "..."]:
    """How often each cell of a table of this shape is named."""
    counted = torch.bincount(cells.flatten(), minlength=math.prod(shape)).view(shape)
    return counted.cpu().double()  # not every device has float64


def recalled(scores: Float[Tensor, "repeat n_values *keys"]) -> Float[Tensor, "repeat"]:
    """The fraction of keys for which the noise token, the last value, scores above all others; a tie does not count."""
    right = scores[:, -1] > scores[:, :-1].amax(1)
    return right.double().flatten(1).mean(1) if right.ndim > 1 else right.double()


def _measure(config: NoiseLearningConfig, setting: Setting, seeds: Sequence[int], stopping: Callable[[], bool]) -> Rows:
    references = {}
    for m in config.samples:
        by_part = {
            "FF": theory.feed_forward_recall(setting.n_tokens, setting.alpha, m),
            "V": theory.attention_recall(setting.n_tokens, config.seq_len, setting.alpha, m),
        }
        for part, predicted in by_part.items():
            references[f"theory/{setting.recall_name(part, m)}"] = predicted
            references[f"chance/{setting.recall_name(part, m)}"] = 1 / (setting.n_tokens + 1)
    for seed in seeds:
        row: dict[str, float] = {}
        for m in sorted(config.samples):
            with cpu_threads(config.threads):
                steps = _take_steps(config, setting, m, seed, stopping)
            row |= {setting.recall_name(part, m): float(steps[part].mean()) for part in PARTS}
        yield seed, row | references | _entries(config, setting, steps)  # the steps on the most samples


def _take_steps(
    config: NoiseLearningConfig, setting: Setting, m: int, seed: int, stopping: Callable[[], bool]
) -> dict[str, Float[Tensor, "repeat"]]:
    """For every repeat: the recall of both parts, entries of both steps, and the spread of the τ row of W_V."""
    N, n_values = setting.n_tokens, setting.n_tokens + 1
    random = generator(seed, "noise", setting.name, m, device=config.device)
    together = max(1, ENTRIES_AT_ONCE // max(n_values**2, m * config.seq_len))
    found: list[dict[str, Tensor]] = []
    for start in range(0, config.repeats, together):
        if stopping():
            raise Interrupted("stopped")
        contexts = draw_contexts(setting, config.seq_len, min(together, config.repeats - start), m, random)
        W_F, W_V = feed_forward_step(contexts.answers, n_values), attention_step(contexts, n_values)
        plain = W_V[:, 1:N, 1:N]  # neither the trigger nor the noise
        copied = plain.diagonal(dim1=1, dim2=2).sum(1)
        others = (plain.sum((1, 2)) - copied) / (N - 2)
        noise_row = W_V[:, N, 1:N]
        found.append(
            {
                "FF": recalled(W_F),
                "V": recalled(W_V),
                "FF_noise": W_F[:, N],
                "V_noise": noise_row.mean(1),
                "V_copy": (copied - others) / (N - 1),
                "variance": noise_row.var(1),
            }
        )
    return {name: torch.cat([part[name] for part in found]).cpu() for name in found[0]}


def _entries(config: NoiseLearningConfig, setting: Setting, steps: dict[str, Tensor]) -> dict[str, float]:
    """Entries of the steps, and the relative spread of the τ row; no spread where the noise has not shown up."""
    law = theory.noise_step(setting.n_tokens, config.seq_len, setting.alpha)
    predicted = {"FF_noise": law.feed_forward_noise, "V_noise": law.attention_noise, "V_copy": law.attention_copy}
    row = {}
    for entry, value in predicted.items():
        row[f"entry/{entry}_{setting.name}"] = float(steps[entry].mean())
        row[f"theory/entry/{entry}_{setting.name}"] = value
    mean = float(steps["V_noise"].mean())
    if mean > 0:
        row[f"cv/{setting.name}"] = math.sqrt(float(steps["variance"].mean())) / mean
        spread = theory.relative_spread(setting.n_tokens, config.seq_len, setting.alpha, max(config.samples))
        row[f"theory/cv/{setting.name}"] = spread
    return row


def _conclude(config: NoiseLearningConfig, seeds: pd.DataFrame) -> pd.DataFrame:
    """The samples needed, and the powers of N that they and cv² grow with: least squares in logarithms, by seed.

    A seed in which some recall never gets to the level has neither the number nor the power.
    """
    found: dict[str, pd.Series] = {}
    for prefix in ("", "theory/"):
        for setting in settings(config):
            for part in PARTS:
                needed = _samples_needed(config, setting, part, seeds, prefix)
                found[f"{prefix}samples_needed/{part}_{setting.name}"] = needed
        for alpha in config.noise_probabilities:
            names = [Setting(alpha, n_tokens).name for n_tokens in config.n_tokens]
            spreads = [seeds.get(f"{prefix}cv/{name}", pd.Series(np.nan, seeds.index)) ** 2 for name in names]
            found[f"{prefix}token_exponent/cv2_a{alpha}"] = _power_of_tokens(config, spreads)
            for part in PARTS:
                needed_by_size = [found[f"{prefix}samples_needed/{part}_{name}"] for name in names]
                found[f"{prefix}token_exponent/needed_{part}_a{alpha}"] = _power_of_tokens(config, needed_by_size)
    return pd.DataFrame(found, index=seeds.index)


def _samples_needed(
    config: NoiseLearningConfig, setting: Setting, part: str, seeds: pd.DataFrame, prefix: str
) -> pd.Series:
    """The smallest m from which on the recall is at least the level: NaN where even the largest does not do."""
    needed = pd.Series(np.nan, seeds.index)
    enough = pd.Series(True, seeds.index)
    for m in sorted(config.samples, reverse=True):
        enough &= seeds[prefix + setting.recall_name(part, m)] >= config.level
        needed[enough] = float(m)
    return needed


def _power_of_tokens(config: NoiseLearningConfig, values: Sequence[pd.Series]) -> pd.Series:
    """The slope of log value against log N, for the seeds that have them all; NaN for others, and for a single N."""
    table = pd.concat(values, axis=1)
    slopes = pd.Series(np.nan, table.index)
    complete = table.notna().all(axis=1)
    if len(config.n_tokens) > 1 and complete.any():
        slopes[complete] = np.polyfit(np.log(config.n_tokens), np.log(table[complete].to_numpy().T), 1)[0]
    return slopes
