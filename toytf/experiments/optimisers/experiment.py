"""The experiment `optimisers`: memories of Zipf-distributed inputs, trained in one pass by several optimisers.

One large step from W = 0 stores inputs by their frequency; batches of one with large steps store all alike; and what a
memory of dimension d makes of either decides its error (Cabannes, Dohmatob, Bietti 2024).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from toytf import theory
from toytf.experiments.optimisers import measures
from toytf.experiments.optimisers.config import OptimisersConfig
from toytf.experiments.study import Drawn, Found, Study
from toytf.measurement import Measurement, Scalar
from toytf.memory.measures import measure_spectrum
from toytf.memory.online import OnlineMemory, random_memory
from toytf.memory.online_training import Descent, Trained, batches, population, spaced_steps, stream, train
from toytf.memory.readout import read_out
from toytf.report.story import Form, amount
from toytf.runs import Run
from toytf.tidy import over_seeds

DRAWN_OUTPUTS = 20
"""Output vectors that can be told apart in a figure."""

TOLD = 6
"""Cases that a finding lists."""


@dataclass(frozen=True)
class OptimisersCase:
    """One model, trained in one way."""

    model: str
    optimiser: str
    layer_norm: bool
    d: int
    lr: float
    batch: int | str
    samples: int | None
    steps: int | None
    n_outputs: int

    @property
    def n_steps(self) -> int:
        """How many steps it takes."""
        return self.steps or -(-(self.samples or 0) // self.size)

    @property
    def size(self) -> int:
        """Samples of a step; of the population there are none."""
        return self.batch if isinstance(self.batch, int) else self.samples or 0


class Optimisers(Study[OptimisersCase]):
    """Train every case in all seeds at once, and look at what is stored."""

    config: OptimisersConfig

    @property
    def plain(self) -> dict[str, Scalar]:
        """The matrix, and the number of answers if there is only one."""
        answers = self.config.answers
        return {"model": "matrix"} | ({"n_outputs": answers[0]} if len(answers) == 1 else {})

    def cases(self) -> Iterator[OptimisersCase]:
        """Every combination of the factors."""
        config, drawn = self.config, list[tuple[int | str, int | None, int | None]]()  # batch, samples and steps
        for size in config.batches:
            of_samples = [(size, n, None) for n in config.samples]
            drawn += [(size, None, config.steps)] if size == "population" else of_samples
        trained = product(config.answers, config.models, config.optimisers, config.layer_norm)
        for M, model, optimiser, norm in trained:
            for d, lr, (batch, n, steps) in product(config.dimensions, config.learning_rates, drawn):
                yield OptimisersCase(model, optimiser, norm, d, lr, batch, n, steps, M)

    def measure(self, case: OptimisersCase, seed: int) -> Found:
        """One case and seed."""
        ((_, _, found),) = self.seeds(case, [seed])
        return found

    def seeds(self, case: OptimisersCase, seeds: Sequence[int]) -> Iterator[tuple[int, int, Found]]:
        """Many seeds at once."""
        size = self.config.seeds_at_once(case.d, case.n_outputs, case.size)
        for start in range(0, len(seeds), size):
            some = seeds[start : start + size]
            inputs = None if case.samples is None else stream(some, self._p, case.samples)
            trained = self._trained(case, some, inputs)
            for i, seed in enumerate(some):
                own = None if inputs is None else inputs[i].numpy()
                yield seed, self.last_step, self._found(case, trained, own, i)

    def findings(self, run: Run) -> Iterable[str]:
        """Errors, if they are many the smallest of each optimiser; the schemes; and the order of learning."""
        from toytf.experiments.optimisers.figures import label_of

        def told(rows: Any, form: Form | None = None) -> str:
            each = ((amount(run.summary, str(row.metric), form), row) for row in rows.itertuples())
            return ", ".join(f"{said} for {label_of(row, self.config)}" for said, row in each)

        table = over_seeds(run.table)
        errors = table[(table["group"] == measures.ERROR.name) & ~table["variant"]]
        if 0 < len(errors) <= TOLD:
            yield f"The error is {told(errors)}."
        elif len(errors):
            best = errors.sort_values("value", kind="stable").drop_duplicates("optimiser")
            yield f"The smallest errors are {told(best)}."
        of_what = "counts" if self.config.samples else "frequency"
        for group, name, says in (
            (measures.RHO, of_what, f"Strengths q grow like {of_what}^ρ: ρ is"),
            (measures.TIME_EXPONENT, "", "Learning takes a time ∝ p^−b: b is"),
        ):
            rows = table[(table["group"] == group.name) & (table["name"] == name) & ~table["variant"]]
            if 0 < len(rows) <= TOLD:
                yield f"{says} {told(rows, _hundredths)}."

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Errors, schemes, what is learned when, and vectors in the plane."""
        from toytf.experiments.optimisers.figures import optimiser_figures

        yield from optimiser_figures(self.config, over_seeds(run.table), self._p)
        names = [f"vectors_{_file_name(self.label(case))}" for case in self.cases()]
        yield from ((name, figure) for name in names if (figure := run.kept_figure(name)) is not None)

    @cached_property
    def _p(self) -> Float[np.ndarray, "N"]:
        return theory.zipf(self.config.n_inputs, self.config.alpha)

    def _trained(
        self, case: OptimisersCase, seeds: Sequence[int], inputs: Int[torch.Tensor, "seed n"] | None
    ) -> Trained:  # fmt: skip
        config, steps = self.config, case.n_steps
        memory = random_memory(
            case.model, seeds, config.n_inputs, case.n_outputs, case.d,  # type: ignore[arg-type]
            start=config.start, sphere=config.distribution == "sphere", layer_norm=case.layer_norm,
            dtype=getattr(torch, config.precision), device=config.computed_on,
        )  # fmt: skip
        late = None if config.late is None else max(1, round(config.late.after * steps))
        descent = Descent(
            case.optimiser, case.lr, config.betas, config.momentum, late,  # type: ignore[arg-type]
            1.0 if config.late is None else config.late.factor,
        )  # fmt: skip
        data = population(memory, self._p, steps) if inputs is None else batches(memory, inputs, case.size)
        return train(memory, descent, data, spaced_steps(steps, config.evaluations))

    def _found(
        self, case: OptimisersCase, trained: Trained, inputs: Int[np.ndarray, "n"] | None, i: int
    ) -> Iterator[Measurement | Drawn]:  # fmt: skip
        """What is measured of seed number i."""
        config, p, last = self.config, self._p, trained.looks[-1]
        M = case.n_outputs
        floor = 0.0 if case.samples is None else theory.sampling_floor(p, case.samples, M)
        yield measures.ERROR.measurement(_error(p, last.recalled[i]), limit=floor, chance=1 - 1 / M)
        yield measures.LOSS.measurement(float(p @ last.losses[i]), chance=float(np.log(M)))
        if not config.inside:
            return
        yield measures.STORED.measurement(int(last.recalled[i].sum()), chance=config.n_inputs / M)
        yield from measures.by_octave(measures.BY_FREQUENCY, last.recalled[i], chance=1 / M)
        if len(trained.looks) > 1:
            for look in trained.looks:
                yield measures.CURVE.measurement(_error(p, look.recalled[i]), after=look.step)
            learned = [look.losses[i] < measures.LEARNED_LOSS for look in trained.looks]
            # e^m + (M − 1) m = 1 + M lr p t, so t ∝ 1/p; with two answers any step is enough.
            alone = 1.0 if self._undisturbed(case) and M > 2 else None
            yield from measures.learning_order(
                measures.learning_times([look.step for look in trained.looks], learned), p, alone
            )
        memory = trained.memory
        if memory.W is not None and bool(memory.W[i].isfinite().all()):
            yield from measure_spectrum(memory.W[i], config.n_inputs)
        if case.model == "matrix" and not case.layer_norm and config.start == "zeros":
            yield from self._scheme(case, memory, inputs, i)
        if case.d == 2 and case.model != "matrix" and M <= DRAWN_OUTPUTS:
            yield Drawn(f"vectors_{_file_name(self.label(case))}", lambda: self._vectors(case, memory, i))

    def _scheme(
        self, case: OptimisersCase, memory: OnlineMemory, inputs: Int[np.ndarray, "n"] | None, i: int
    ) -> Iterator[Measurement]:  # fmt: skip
        """The scheme that is stored, if it can be told from W: if vectors are independent."""
        N, W = self.config.n_inputs, memory.W
        if max(N, case.n_outputs) > case.d or W is None or not bool(W[i].isfinite().all()):
            return
        read = read_out(W[i], memory.E[i], memory.U[i])
        if not read.unique:
            return
        q = read.scheme(memory.targets)
        counts = None if inputs is None else np.bincount(inputs, minlength=N)
        alone = None
        if self._undisturbed(case):
            # The share of every input in the batch of each step.
            shares: Iterable[Float[np.ndarray, "N"]] = (self._p for _ in range(case.n_steps))
            if inputs is not None:
                parts = (inputs[start : start + case.size] for start in range(0, len(inputs), case.size))
                shares = (np.bincount(batch, minlength=N) / len(batch) for batch in parts)
            alone = theory.strengths_after(shares, case.lr, case.n_outputs)
        frequencies = ({} if counts is None else {"counts": counts}) | {"frequency": self._p}
        yield from measures.exponents(read, q, alone, frequencies)
        yield from measures.by_octave(measures.SCHEME, q, theory=alone, known=None if counts is None else counts > 0)

    def _undisturbed(self, case: OptimisersCase) -> bool:
        """Is there a theory of inputs that are learned one by one, as with orthogonal vectors?"""
        plain = case.model == "matrix" and case.optimiser == "sgd" and not case.layer_norm
        return plain and self.config.start == "zeros" and self.config.late is None

    def _vectors(self, case: OptimisersCase, memory: OnlineMemory, i: int) -> Any:
        from toytf.experiments.optimisers.figures import vectors_in_the_plane

        hidden, outputs = (vectors[i].cpu().double().numpy() for vectors in (memory.hidden().mT, memory.U))
        title = f"Trained vectors of {self.config.n_inputs} inputs and {case.n_outputs} outputs ({case.model})"
        return vectors_in_the_plane(hidden, outputs, memory.targets.cpu().numpy(), self._p, title)


def _error(p: Float[np.ndarray, "N"], recalled: Bool[np.ndarray, "N"]) -> float:
    """The frequency of what is not recalled; frequencies may sum to a little more than 1."""
    return min(1.0, float(p @ ~recalled))


def _hundredths(value: float, spread: float | None) -> str:
    return f"{value:.2f}" + ("" if spread is None else f" ± {spread:.2f}")


def _file_name(label: str) -> str:
    return label.partition("/")[2]
