"""The end-of-run table: measured, and beside it what it can be read against."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from toytf.summary import REFERENCES

GROUPS = {
    "eval": "Accuracy and loss by role",
    "recall": "Recall, as a fraction of the pairs",
    "kl": "Divergence from the law to be stored (nats)",
    "attention": "Attention",
    "facts": "Facts over all pairs",
    "ownership": "Which tokens heads attend to",
    "key_gap": "Score of a token above all noise, by the head that attends to it most",
    "value_memory": "What the values of subjects and relations say",
    "additivity": "Logits as a sum over subject and relation",
    "fact_storage": "Accuracy by path",
    "fact_margin": "Margin of the right answer over the mean answer by path (logits)",
    "pair_memory": "The feed-forward part as a memory of pairs",
    "value_alignment": "Values against the construction (cosine)",
    "ratio": "Facts against sizes",
    "theorem": "Conditions of the theorems with constants 1 (1: they hold)",
    "stage": "Step at which a part of the facts is learned (half of its loss is gone)",
    "plateau": "The plateau at H(a|r), where answers are made up",
    "closest": "Smallest distance of the answers from what one part tells (total variation)",
    "tail": "In the end the loss falls like 1/t to the power of",
    "probability": "Where the probability lies",
    "tv": "Distance of the answers from p(a|r), p(a|s), p(a) (total variation)",
    "weights": "Attention w by kind of token",
    "conserved": "Drift of w² − ΣW²",
    "capacity": "Associations or facts stored",
    "over_theory": "Measured / theory",
    "load": "p log p / (d_in d_out)",
    "exponent": "Capacity grows like dimension to the power of",
    "width_exponent": "Capacity grows like width to the power of",
    "parameter_exponent": "Facts grow like parameters to the power of",
    "feed_forward_gain": "Facts per parameter with hidden units / with attention alone",
    "trainings": "Trainings that a search took",
    "failed": "Searches that found nothing (1: this one)",
    "facts_per_parameter": "Associations or facts per parameter",
    "bits_per_parameter": "Bits per parameter",
    "margin": "Margins (in standard deviations of a score)",
    "scores": "Scores (in standard deviations of a score)",
    "spectrum": "Singular values of √d W / |W|",
    "utilisation": "Stored / capacity of such a matrix",
    "lemma": "Largest difference from autograd",
    "accuracy": "Accuracy",
    "signal": "Signals: entries of the negative gradient",
    "correlation": "Correlation with theory, entry by entry",
    "noise": "Noise against context",
    "noise_margin": "Margin of the noise token in the feed-forward part (logits)",
    "noise_recall": "Recall of the noise token after one step",
    "samples_needed": "Samples needed to learn the noise",
    "cv": "Relative spread of the noise row of W_V",
    "entry": "Entries of the first gradient step",
    "token_exponent": "Grows like the number of tokens N to the power of",
    "truncated": "Accuracy with one matrix truncated",
    "transplant": "Accuracy with ideal matrices in the trained model",
    "alignment": "Learned against ideal matrix",
    "heads": "Attention on the pattern of a kind of head",
    "onset": "Step of onset (first evaluation above chance + 0.1)",
    "halfway": "Step at half of the way to the ideal",
    "floor": "What trivial heuristics reach",
    "data": "The held-out sequences",
}

WHOLE = ("onset", "halfway", "samples_needed", "stage", "trainings")
"""Groups of whole numbers."""

TINY = ("signal", "entry")
"""Groups of numbers that are small whatever they mean."""

BACKGROUND = (*REFERENCES, "train", "norm", "grad_norm")
"""Groups that are shown beside others or only logged."""


@dataclass(frozen=True)
class TableRow:
    """One metric beside what it can be read against; None where there is no such value."""

    name: str
    measured: float
    spread: float | None
    references: tuple[float | None, ...]
    """One for each of `columns`."""

    def cells(self) -> tuple[str, ...]:
        """Name, measured ± spread, references."""
        shown = {**dict.fromkeys(WHOLE, whole), **dict.fromkeys(TINY, power)}.get(group_and_test(self.name)[0], number)
        measured = shown(self.measured) + (f" ± {shown(self.spread)}" if self.spread is not None else "")
        references = ("–" if value is None else shown(value) for value in self.references)
        return self.name.partition("/")[2], measured, *references


def is_variant(name: str) -> bool:
    """Is this `<group>/<metric>/<variant>`? The short views leave variants of a metric to the full table.

    So they do with the steps at half of the way, of which there is one for every role.
    """
    if name.startswith("halfway/"):
        return True
    return group_and_test(name)[0] != "floor" and name.removeprefix("onset/").count("/") > 1


def group_and_test(name: str) -> tuple[str, str]:
    """The group of a metric and its test: `eval` and `clean` of `eval@clean/in_context_accuracy`."""
    group, _, test = name.partition("/")[0].partition("@")
    return group, test


def number(value: float | None) -> str:
    """Three decimals, fewer for a large number, a power of ten for a tiny one; a dash for none."""
    if value is None:
        return "–"
    if 0 < abs(value) < 5e-4:
        return power(value)
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"


def whole(value: float) -> str:
    """A number of steps or samples."""
    return f"{value:.0f}"


def power(value: float) -> str:
    """A number as a multiple of a power of ten."""
    return f"{value:.1e}"


def columns(summary: Mapping[str, float]) -> tuple[str, ...]:
    """The kinds of reference that a summary has."""
    groups = {name.partition("/")[0] for name in summary}
    return tuple(kind for kind in REFERENCES if kind in groups)


def summary_table(summary: Mapping[str, float], *, variants: bool = True) -> dict[str, list[TableRow]]:
    """The rows of a summary by group title, those of tests after the task's; groups unknown here come last of each."""
    groups: dict[tuple[str, str], list[TableRow]] = {}
    kinds = columns(summary)
    for name, value in summary.items():
        group, test = group_and_test(name)
        if name.endswith("/std") or group in BACKGROUND or (is_variant(name) and not variants):
            continue
        references = tuple(summary.get(f"{kind}/{name}") for kind in kinds)
        row = TableRow(name, value, summary.get(f"{name}/std"), references)
        groups.setdefault((test, group), []).append(row)
    known = [*GROUPS]
    in_order = sorted(groups, key=lambda key: (key[0], known.index(key[1]) if key[1] in known else len(known)))
    return {
        GROUPS.get(group, group) + (f" ({test})" if test else ""): sorted(groups[test, group], key=_natural)
        for test, group in in_order
    }


def _natural(row: TableRow) -> list[str | int]:
    """Sort d8 before d16: digits compare as numbers."""
    parts = re.split(r"(\d+)", row.name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)]
