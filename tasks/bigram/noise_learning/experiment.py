"""The experiment `noise_learning`: what one gradient step learns of the noise, in feed-forward and in attention.

Contexts of T tokens end in the trigger q. After every q comes the noise token τ with probability α, else the output o
of that context; any other token is followed by a uniform one. With N = 8, q = 0, τ = 8 and o = 3:

    context   5 0 3 7 0 8 2 0      answer 3 (or 8)
                q o     τ   q

One layer with uniform attention, logits = U (W_V A + W_F e_q), starts from zero and takes one step on the mean loss of
m contexts. Vectors are orthonormal, so matrices are written in the basis of the tokens: W[k, j] = u_kᵀ W e_j.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks.bigram.noise_learning.config import NoiseLearningConfig
from toytf import theory
from toytf.experiments.study import Study
from toytf.figures import scaling_curves, series
from toytf.fits import power_law
from toytf.measurement import Group, Headline, Measurement, Quantity, flat
from toytf.randomness import generator
from toytf.runs import Run
from toytf.stopping import check_stop
from toytf.tidy import over_seeds

NOISE_RECALL = Group(
    "noise_recall", "Recall of the noise token after one step",
    "The feed-forward part (FF) recalls it after a few samples; attention (V) needs about as many samples as there "
    "are tokens.",
    variants=("contexts",),
    headline=(),
    meanings=(
        ("FF_*", "How often one step on m samples makes the feed-forward part answer the trigger with the noise token; "
         "near 1 from a few samples on."),
        ("V_*", "Fraction of the tokens that attention answers with the noise token after one step on m samples; 1 "
         "takes about as many as there are tokens."),
    ),
)  # fmt: skip
ENTRY = Group(
    "entry", "Entries of the first gradient step",
    "The noise token stands out most in the feed-forward part; in attention its entries are N times as small.",
    format="power",
    headline=(),
    meanings=(
        ("FF_noise_*", "Entry of the first feed-forward step from the trigger to the noise token; close to theory, and "
         "the largest of the three."),
        ("V_noise_*", "Mean entry of the first step on W_V from any token to the noise token; close to theory, about N "
         "times smaller than in feed-forward."),
        ("V_copy_*", "Mean entry of the first step on W_V from a token to itself, less those to other tokens; close to "
         "theory, above 0 if copying begins."),
    ),
)  # fmt: skip
CV = Group(
    "cv", "Relative spread of the noise row of W_V", "Standard deviation over mean of the noise row of W_V after one "
    "step; attention tells noise from other tokens where it is well below 1.", headline=(),
)  # fmt: skip
SAMPLES_NEEDED = Group(
    "samples_needed", "Samples needed to learn the noise",
    "The smallest number of samples at which recall reaches the level and stays there.",
    format="whole",
    headline=(
        Headline("FF_*", "samples that feed-forward needs, noise {alpha}, N = {n_tokens}"),
        Headline("V_*", "samples that attention needs, noise {alpha}, N = {n_tokens}"),
    ),
    meanings=(
        ("FF_*", "Samples from which on one step teaches the noise to the feed-forward part; few, and about as many "
         "for any number of tokens."),
        ("V_*", "Samples from which on one step teaches the noise to attention; about proportional to the number of "
         "tokens."),
    ),
)  # fmt: skip
TOKEN_EXPONENT = Group(
    "token_exponent", "Exponent b in growth ∝ N^b with the number of tokens N",
    "About 0 for the samples that the feed-forward part needs; about 1 for those of attention and its squared spread.",
    variants=("error",),
    headline=(
        Headline("needed_FF_*", "exponent b in samples ∝ N^b, feed-forward, noise {alpha}"),
        Headline("needed_V_*", "exponent b in samples ∝ N^b, attention, noise {alpha}"),
    ),
    meanings=(
        ("*/error", "Standard error of this exponent; the smaller, the better the power law fits."),
        ("cv2_*", "Exponent b in (relative spread of the noise row of W_V)² ∝ N^b with N tokens; about 1 by theory."),
        ("needed_FF_*", "Exponent b in samples ∝ N^b that the feed-forward part needs to learn the noise among N "
         "tokens; about 0 by theory."),
        ("needed_V_*", "Exponent b in samples ∝ N^b that attention needs to learn the noise among N tokens; about 1 by "
         "theory."),
    ),
)  # fmt: skip

TRIGGER = 0
PARTS = {"FF": "feed-forward", "V": "attention"}
"""The feed-forward matrix W_F and the value matrix W_V."""

ENTRIES_AT_ONCE = 2**23
"""Entries of matrices, or tokens of contexts, that are held in memory together."""


@dataclass(frozen=True)
class Setting:
    """A noise probability α and a vocabulary of N tokens."""

    alpha: float
    n_tokens: int


@dataclass(frozen=True, eq=False)
class Contexts:
    """Contexts that end in the trigger, and what follows each."""

    tokens: Int[Tensor, "repeat m T"]
    answers: Int[Tensor, "repeat m"]


class NoiseLearning(Study[Setting]):
    """Steps on few and many samples for every noise probability and vocabulary, and how the samples needed grow."""

    config: NoiseLearningConfig

    def cases(self) -> Iterator[Setting]:
        """Every noise probability with every vocabulary."""
        for alpha in self.config.noise_probabilities:
            yield from (Setting(alpha, n_tokens) for n_tokens in self.config.n_tokens)

    def measure(self, case: Setting, seed: int) -> Iterator[Measurement]:
        """The recall of both parts after a step on each number of samples; entries of the step on the most."""
        N, T, alpha = case.n_tokens, self.config.seq_len, case.alpha
        for m in sorted(self.config.samples):
            steps = _take_steps(self.config, case, m, seed)
            predicted = {"FF": theory.feed_forward_recall(N, alpha, m), "V": theory.attention_recall(N, T, alpha, m)}
            for part in PARTS:
                recall = float(steps[part].mean())
                yield NOISE_RECALL.measurement(recall, part, contexts=m, theory=predicted[part], chance=1 / (N + 1))
        step = theory.noise_step(N, T, alpha)
        entries = {"FF_noise": step.feed_forward_noise, "V_noise": step.attention_noise, "V_copy": step.attention_copy}
        for entry, value in entries.items():
            yield ENTRY.measurement(float(steps[entry].mean()), entry, theory=value)
        mean = float(steps["V_noise"].mean())
        if mean > 0:  # the noise has shown up
            spread = math.sqrt(float(steps["variance"].mean())) / mean
            yield CV.measurement(spread, theory=theory.relative_spread(N, T, alpha, max(self.config.samples)))

    def conclude(self, table: pd.DataFrame) -> Iterator[Measurement]:
        """The samples needed, and the powers of N that they and cv² grow with.

        A seed in which some recall never gets to the level has neither the number nor the power, only those of theory.
        """
        recalls = table[table["group"] == NOISE_RECALL.name].groupby(["name", "alpha", "n_tokens"])
        found = []
        for case, part in itertools.product(self.cases(), PARTS):
            rows = recalls.get_group((part, case.alpha, case.n_tokens))
            measured, predicted = (
                samples_needed(rows["contexts"].tolist(), rows[kind].tolist(), self.config.level)
                for kind in ("value", "theory")
            )
            found.append({"part": part, **asdict(case), "value": measured, "theory": predicted})
            yield SAMPLES_NEEDED.measurement(measured, part, theory=predicted, **asdict(case))
        needed = pd.DataFrame(found).astype({"value": float, "theory": float})
        yield from self._powers(needed, "needed", ["part", "alpha"])
        spreads = table[table["group"] == CV.name]
        squared = {kind: spreads[kind] ** 2 for kind in ("value", "theory")}
        yield from self._powers(spreads.assign(**squared), "cv2", ["alpha"])

    def _powers(self, table: pd.DataFrame, name: str, by: Sequence[str]) -> Iterator[Measurement]:
        """The power of N, by theory alone where something was not reached; none where a vocabulary is missing."""

        def fit(rows: pd.DataFrame) -> list[Measurement]:
            return [*power_law(rows, TOKEN_EXPONENT, x="n_tokens", by=by, name=name)]

        for _, rows in table.groupby([*by], sort=False):
            if len(rows) == len(self.config.n_tokens):
                in_theory = rows.assign(value=rows["theory"])
                yield from fit(rows) or (replace(power, value=None) for power in fit(in_theory))

    def findings(self, run: Run) -> Iterator[str]:
        """From how many samples one step learns the noise, for each noise probability over all vocabularies."""
        config, summary = self.config, run.summary
        tokens = _span([float(n) for n in config.n_tokens])
        for alpha in config.noise_probabilities:
            words = []
            for part, called in PARTS.items():
                at = [{"alpha": alpha, "n_tokens": n} for n in config.n_tokens]
                needed = [summary.get(flat(Quantity(SAMPLES_NEEDED, part, one))) for one in at]
                known = [value for value in needed if value is not None]
                beyond = f"more than {max(config.samples)}" if len(known) < len(needed) else ""
                words.append(f"{called} needs {' or '.join(filter(None, [_span(known), beyond]))}")
            yield f"To learn noise of probability {alpha:g} in one step, {' samples, '.join(words)} ({tokens} tokens)."

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Recall of the noise against samples, one figure for each noise probability; spread against the vocabulary."""
        table = over_seeds(run.table)
        recalls = table[table["group"] == NOISE_RECALL.name].sort_values("name", kind="stable")
        for alpha in self.config.noise_probabilities:
            curves = series(
                recalls[recalls["alpha"] == alpha], "contexts", lambda row: f"{PARTS[row.name]}, N = {row.n_tokens}"
            )
            title = f"Recall of the noise token after one step, α = {alpha}"
            yield (
                f"noise_recall_a{alpha}",
                scaling_curves(curves, title, x="samples m", y="recall of the noise token", guides={}, log_y=False),
            )
        spreads = table[table["group"] == CV.name].sort_values("n_tokens")
        if len(spreads):
            m = max(self.config.samples)
            squared = {kind: spreads[kind] ** 2 * m for kind in ("value", "theory")}
            spread = 2 * spreads["value"] * spreads["spread"] * m
            curves = series(spreads.assign(**squared, spread=spread), "n_tokens", lambda row: f"α = {row.alpha}")
            title = f"Spread of the noise row of W_V, m = {m}"
            yield "cv", scaling_curves(curves, title, x="tokens N", y="m · (relative spread)²", guides={})


def _span(values: Sequence[float]) -> str:
    """`8 to 16`, or the only value."""
    ends = dict.fromkeys(f"{value:.0f}" for value in (min(values), max(values))) if values else {}
    return " to ".join(ends)


def samples_needed(samples: Sequence[int], recalls: Sequence[float], level: float) -> float | None:
    """The smallest number from which on the recall is at least the level; None where even the largest is not enough."""
    needed = None
    for m, recall in sorted(zip(samples, recalls, strict=True), reverse=True):
        if recall < level:
            break
        needed = float(m)
    return needed


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
    """−∇W_V at zero, from how often token j is in the contexts of answer k.

    −∇W_V = (1/m) Σ_i (onehot(y_i) − 1/n_values) A_iᵀ,   A_i = (1/T) Σ_t onehot(z_it)
    """
    repeats, m, T = contexts.tokens.shape
    cells = _rows(contexts.answers, n_values)[..., None] * n_values + contexts.tokens
    joint = _counts(cells, repeats, n_values, n_values) / (m * T)
    return joint - joint.sum(1, keepdim=True) / n_values


def _rows(answers: Int[Tensor, "repeat m"], n_values: int) -> Int[Tensor, "repeat m"]:
    """The number of an answer's row, if the matrices of all repeats are one below the other."""
    return torch.arange(len(answers), device=answers.device)[:, None] * n_values + answers


def _counts(cells: Int[Tensor, "*shape"], *shape: int) -> Float[Tensor, "..."]:
    """How often each cell of a table of this shape is named."""
    counted = torch.bincount(cells.flatten(), minlength=math.prod(shape)).view(shape)
    return counted.cpu().double()  # not every device has float64


def recalled(scores: Float[Tensor, "repeat n_values *keys"]) -> Float[Tensor, "repeat"]:
    """The fraction of keys for which the noise token, the last value, scores above all others; a tie does not count."""
    right = scores[:, -1] > scores[:, :-1].amax(1)
    return right.double().flatten(1).mean(1) if right.ndim > 1 else right.double()


def _take_steps(config: NoiseLearningConfig, setting: Setting, m: int, seed: int) -> dict[str, Float[Tensor, "repeat"]]:
    """For every repeat: the recall of both parts, entries of both steps, and the spread of the τ row of W_V."""
    N, n_values = setting.n_tokens, setting.n_tokens + 1
    random = generator(seed, "noise", f"a{setting.alpha}_N{N}", m, device=config.device)
    together = max(1, ENTRIES_AT_ONCE // max(n_values**2, m * config.seq_len))
    found: list[dict[str, Tensor]] = []
    for start in range(0, config.repeats, together):
        check_stop()
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
