"""The figures of the experiment `three_steps`: what was measured beside what the theorem says."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from tasks.bigram.three_steps import STEPS, draw, predicted, rate, read, right_entries, steps
from tasks.bigram.three_steps_config import ThreeStepsConfig
from toytf import theory
from toytf.experiments.process import cpu_threads
from toytf.figures import PowerLaw, heat_maps, power_laws
from toytf.runs import Run

READINGS = ("step1", "step2", "step3", "read_out")

SHOWN = 16
"""Tokens in a heat map of tokens, at most."""


def three_steps_figures(run: Run) -> Iterator[tuple[str, Any]]:
    """The gradients of the first seed as heat maps, the 1/t law of step 3 over seeds, and the dependence on samples."""
    config: ThreeStepsConfig = run.config
    seed, samples = config.seeds[0], max(config.samples)
    with cpu_threads(config.threads):
        vectors = draw(config, seed)
        signals = {name: read(name, G, vectors).cpu() for name, G, _ in steps(config, samples, seed, vectors)}
    about = f"({samples} sequences a step, seed {seed})"
    yield "signals", _matrices(config, signals, f"Signals of the three steps {about}")
    yield "positions", _positions(run, signals)
    if len(config.samples) > 1:
        yield "recall", _by_samples(run, "recall", STEPS, "Recall after each step")
        yield "accuracy", _by_samples(run, "accuracy", READINGS, "Accuracy after each step and with large gains")


def _matrices(config: ThreeStepsConfig, signals: dict[str, Tensor], title: str) -> Any:
    """Measured and predicted side by side; of the tokens the first few."""
    panels = {}
    for number, name in enumerate(STEPS, start=1):
        n = config.seq_len if name == "W_KQ1" else min(SHOWN, config.n_tokens)
        names = [f"{'t' if name == 'W_KQ1' else 'k'}={i}" for i in range(1, n + 1)]
        pair = {"measured": signals[name].double().numpy(), "theory": predicted(config, name)}
        for label, matrix in pair.items():
            panels[f"Step {number}, {name}: {label}"] = (matrix[:n, :n], names, names)
    return heat_maps(panels, title, x="input or key", y="output or query")


def _positions(run: Run, signals: dict[str, Tensor]) -> Any:
    """p_tᵀ G p_{t−1} against t: measured over seeds, the law of small gains, and the law at the gains there were."""
    config: ThreeStepsConfig = run.config
    measured = PowerLaw()
    for t in range(2, config.seq_len):
        name = f"signal/W_KQ1/t{t}"
        measured.add(t, run.summary[name], run.summary.get(f"{name}/std"), run.summary[f"theory/{name}"])
    beta_1, beta_2 = (rate(config, name) * float(right_entries(name, signals[name]).mean()) for name in STEPS[:2])
    exact = np.diagonal(theory.position_signal(config.seq_len, max(beta_1, 0), max(beta_2, 0), linear=False), -1)
    guides = {f"at the gains {beta_1:.2f} and {beta_2:.2f} of steps 1 and 2": lambda t: float(exact[int(t) - 2])}
    title = "Step 3: the signal falls like 1/t"
    return power_laws({"t asks for t−1": measured}, title, x="position t", y="signal", guides=guides)


def _by_samples(run: Run, group: str, names: tuple[str, ...], title: str) -> Any:
    config: ThreeStepsConfig = run.config
    curves: dict[str, PowerLaw] = {name: PowerLaw() for name in names}
    for samples in sorted(config.samples):
        for name, curve in curves.items():
            metric = f"{group}/{name}{config.suffix(samples)}"
            curve.add(
                samples, run.summary[metric], run.summary.get(f"{metric}/std"), run.summary.get(f"theory/{metric}")
            )
    return power_laws(curves, title, x="sequences of each step", y=group, guides={}, log_y=False)
