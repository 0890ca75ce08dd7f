"""The figures of the experiment `noise_learning`."""

from collections.abc import Iterator
from typing import Any

from tasks.bigram.noise_learning import PARTS, Setting, settings
from toytf.figures import PowerLaw, power_laws
from toytf.runs import Run

LABELS = {"FF": "feed-forward", "V": "attention"}


def noise_figures(run: Run) -> Iterator[tuple[str, Any]]:
    """Recall of the noise against samples, one figure for each noise probability; spread against the vocabulary."""
    config, summary = run.config, run.summary
    for alpha in config.noise_probabilities:
        recalls: dict[str, PowerLaw] = {}
        for part in PARTS:
            for n_tokens in config.n_tokens:
                law = recalls.setdefault(f"{LABELS[part]}, N = {n_tokens}", PowerLaw())
                for m in sorted(config.samples):
                    name = Setting(alpha, n_tokens).recall_name(part, m)
                    law.add(m, summary[name], summary.get(f"{name}/std"), summary[f"theory/{name}"])
        title = f"Recall of the noise token after one step, α = {alpha}"
        yield f"noise_recall_a{alpha}", power_laws(recalls, title, x="samples m", y="recall", guides={}, log_y=False)
    m = max(config.samples)
    spreads: dict[str, PowerLaw] = {}
    for setting in settings(config):
        name = f"cv/{setting.name}"
        if name in summary:
            cv, std = summary[name], summary.get(f"{name}/std")
            squared = None if std is None else 2 * cv * std * m
            predicted = summary[f"theory/{name}"] ** 2 * m
            spreads.setdefault(f"α = {setting.alpha}", PowerLaw()).add(setting.n_tokens, cv**2 * m, squared, predicted)
    if spreads:
        title = f"Spread of the noise row of W_V, m = {m}"
        yield "cv", power_laws(spreads, title, x="tokens N", y="m · (relative spread)²", guides={})
