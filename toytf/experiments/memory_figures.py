"""The figures of the experiments on memories alone."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from toytf.experiments.capacity import cases
from toytf.experiments.process import cpu_threads
from toytf.experiments.storage import build
from toytf.figures import PowerLaw, histograms, power_laws, ranked
from toytf.memory.measures import score_levels, score_samples, spectrum_laws
from toytf.runs import Run
from toytf.theory import asymptotic_capacity


def capacity_figures(run: Run) -> Iterator[tuple[str, Any]]:
    """Measured capacity with its spread and the theory's curve: against the dimension, against the width."""
    summary = run.summary
    by_size: dict[str, PowerLaw] = {}
    by_width: dict[str, PowerLaw] = {}
    for case in cases(run.config):
        name = f"capacity/{case.name}"
        if name not in summary:
            continue
        point = (summary[name], summary.get(f"{name}/std"), summary.get(f"theory/{name}"))
        rule = case.rule + (f", width {case.width}" if case.width else "")
        by_size.setdefault(rule, PowerLaw()).add((case.d_in * case.d_out) ** 0.5, *point)
        if case.width:
            by_width.setdefault(f"{case.rule}, d = {case.d_in}", PowerLaw()).add(case.width, *point)
    stored = f"associations stored (criterion: {run.config.criterion})"
    if any(len(law.x) > 1 for law in by_size.values()) or not by_width:
        best = run.config.criterion == "all" and run.config.data.n_answers is None
        guides = {"limit of the optimum: p log p = d²/2": _limit} if best else {}
        yield "capacity", power_laws(by_size, "Capacity by dimension", x="dimension d", y=stored, guides=guides)
    if any(len(law.x) > 1 for law in by_width.values()):
        yield "capacity_by_width", power_laws(by_width, "Capacity by width", x="width m", y=stored, guides={})


def _limit(d: float) -> float:
    """The p with p log p = d²/2."""
    return asymptotic_capacity(1, 1, constant=d**2 / 2)


def storage_figures(run: Run) -> Iterator[tuple[str, Any]]:
    """Scores of right values and rivals, and singular values, rule by rule, for the first seed."""
    scores, lines, spectra = {}, {}, {}
    for rule in run.config.rules:
        with cpu_threads(run.config.threads):
            association, memory = build(run.config, run.config.seeds[0], rule)
        scores[rule] = score_samples(association, memory)
        if isinstance(memory, Tensor):
            lines[rule] = score_levels(association)
            spectra[rule] = spectrum_laws(memory, len(association.keys))
    scores = {rule: samples for rule, samples in scores.items() if samples}
    if scores:
        yield "scores", histograms(scores, "Scores", lines=lines, x="score in units of a generic score")
    spectra = {rule: laws for rule, laws in spectra.items() if laws}
    if spectra:
        yield "spectrum", ranked(spectra, "Singular values of √d W / ‖W‖", measured="measured", y="singular value")
