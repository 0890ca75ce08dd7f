"""The experiment `filling`: a training at every size and setting, and where recall breaks as the load grows.

The load of a matrix is p / p_c, the pairs that it should hold over the pairs that fit (`toytf.memory.limits`). A case
is trained in memory, without checkpoints; after its last step the probes compare what was learned with what the rules
make of the same vectors.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pandas as pd
import torch

from toytf.build import build_model, build_probe, build_task, pick_device
from toytf.engines import ONE_BY_ONE, EngineOptions
from toytf.errors import UserError, nearest, shortened
from toytf.experiments.filling.config import FillingConfig, Number
from toytf.experiments.filling.curves import LEARNED, RULES, crossing, finite, learned_recalls, recalls
from toytf.experiments.filling.figures import filling_figures
from toytf.experiments.study import Study
from toytf.experiments.train.config import TrainExperimentConfig
from toytf.holder import Holder, by_name
from toytf.measurement import Group, Headline, Measurement
from toytf.memory.association import Readable
from toytf.memory.limits import store_easiest, train_matrix
from toytf.memory.problem import StorageProblem
from toytf.memory.rank import decide_rank
from toytf.memory.solver import Status, decide
from toytf.randomness import generator
from toytf.runs import Run
from toytf.task import EVAL
from toytf.training.driver import Trainer, drive, every
from toytf.training.freezing import trainable_ever
from toytf.training.learner import SeedLearner
from toytf.words import listed

LOAD = "Load, pairs over capacity,"
OTHERS = {
    "accuracy": ("the accuracy of the model", "the accuracy of the model", "the larger the better"),
    "hebbian": ("the Hebbian matrix", "recall of the Hebbian matrix", "learned recall should last longer"),
    "least_squares": ("least squares", "recall of least squares", "learned recall should last longer"),
    "bare": ("training on the pairs alone", "recall after training on the pairs alone", "what at most 1,000 steps of "
             "Adam store without a transformer"),
    "best": ("the best matrix", "recall of the best matrix", "near 1, the capacity limit"),
}  # fmt: skip
"""What breaks besides learned recall: of what it is, what falls, and how that is read."""

BREAK = Group(
    "break", "Load p / p_c at which recall falls below 0.99", "Recall of the best weights breaks near 1, the "
    "capacity limit. What breaks earlier leaves room unused. `_half`: below 0.5.",
    headline=(
        Headline("*_learned", "load at which learned recall breaks: {memory}, {setting}"),
        *(Headline(f"*_{rule}", f"the same for {of}: {{memory}}, {{setting}}", 1) for rule, (of, *_) in OTHERS.items()),
    ),
    meanings=(
        ("*_half", f"{LOAD} at which this recall or accuracy falls below 0.5; the larger, the more is stored."),
        ("*_learned", f"{LOAD} at which learned recall falls below 0.99; the larger the better, up to about 1."),
        *((f"*_{rule}", f"{LOAD} at which {it} falls below 0.99; {says}.") for rule, (_, it, says) in OTHERS.items()),
    ),
)  # fmt: skip
BREAK_SIZE = Group(
    "break_size", "Size at which learned recall falls below 0.99", "Size, from little load to much, at which learned "
    "recall of this memory falls below 0.99; the later, the more it holds.",
    headline=(Headline("*", "size at which learned recall breaks: {memory}, {setting}", 2),),
)  # fmt: skip
STORABLE = Group(
    "storable", "Can any matrix hold all pairs?", "Whether any matrix holds all pairs: 1 if one was found, 0 if there "
    "is a certificate that none does with a margin above 0.01 of a generic score.",
    headline=(Headline("*", "fraction of seeds with a matrix that holds all pairs: {memory}", 3),),
)  # fmt: skip
MOST = Group(
    "most", "Largest fraction of the pairs that one matrix was found to recall", "Largest fraction of the pairs that "
    "one matrix was found to recall; 1 as long as all can be stored, beyond that the hardest for a trained "
    "matrix are given up.", headline=(),
)  # fmt: skip
BARE = Group(
    "bare", "Recall after training on the pairs alone", "Fraction of the pairs recalled after at most 1,000 steps of "
    "Adam on all of them at once, without a transformer around the matrix; 1 if all are stored.", headline=(),
)  # fmt: skip
STEPS = Group(
    "trained", "Training steps with a finite loss", "Training steps with a finite loss; fewer than asked for if the "
    "training diverged.", format="whole", place="full", headline=(),
)  # fmt: skip

WHOLE = 0.99
"""Recall below which a memory is broken."""

LEVELS = {False: WHOLE, True: 0.5}
"""The levels of `break/…`, and of `break/…_half`."""

LOOK_EVERY = 50
"""Steps between looks at the loss, which wait for the device."""

BARE_STEPS = 1000
"""Steps of a training on the pairs alone, at most: it ends when all are recalled."""

ITERATIONS = 1000
"""Steps of the solver that looks for a matrix, or for a certificate that there is none of a margin above 0.01."""


@dataclass(frozen=True)
class Case:
    """Which parts learn, and the size that decides the load."""

    setting: str
    size: Number


class Filling(Study[Case]):
    """Train every case, then ask the probes what its matrices hold."""

    config: FillingConfig

    def cases(self) -> Iterator[Case]:
        """Every setting, from little load to much."""
        for setting in self.config.settings:
            for size in self.config.case_sizes:
                yield Case(setting, size)

    def run(self, run: Run, engine: EngineOptions = ONE_BY_ONE) -> None:
        """As every study; mistakes that only building shows come first."""
        for setting in self.config.settings:
            seed = self.config.seeds[0]
            training = self.config.training(setting, self.config.case_sizes[0], seed)
            learner = build_learner(training, seed)
            trainable_ever(training.model, learner.parameters, training.train.steps)
            known = [*_contents(learner)]
            for name in self.config.memories or ():
                if name not in known:
                    raise UserError(f'memories: this model should hold no "{shortened(name)}": {nearest(name, known)}')
        super().run(run, engine)

    def measure(self, case: Case, seed: int) -> Iterator[Measurement]:
        """What the probes find after training, and accuracy and loss by role; of a diverged training nothing."""
        training = self.config.training(case.setting, case.size, seed)
        learner = build_learner(training, seed)
        before = {
            name: [part.memory.detach().clone() if isinstance(part.memory, torch.Tensor) else None for part in parts]
            for name, parts in _contents(learner).items()
        }
        steps = train_finitely(learner)
        yield STEPS.measurement(steps)
        if steps < training.train.steps:
            return
        after = _contents(learner)
        frozen = {name for name, parts in after.items() if training.train.steps and _same(parts, before.get(name, []))}
        followed = {*(self.config.memories or after)} - frozen
        evaluation = learner.evaluate(learner.config.steps)
        found = [one for one in evaluation.measurements if one.quantity.group.name == EVAL.name]
        found += [one for result in evaluation.results.values() for one in result.measurements]
        for measured in found:
            quantity = measured.quantity
            if quantity.at.get("memory", "") in ("", *followed):
                # In no short table: there are too many of them, and the breaks say what they say together.
                yield replace(measured, quantity=replace(quantity, group=replace(quantity.group, headline=())))
        for name, parts in after.items():
            if name in followed:
                can, trained = storable(parts), train_alone(parts, seed)
                yield STORABLE.measurement(can, memory=name)
                yield MOST.measurement(1.0 if can == 1 else most_recalled(parts, trained), memory=name)
                yield BARE.measurement(recall(parts, trained), ideal=1.0, memory=name)

    def conclude(self, table: pd.DataFrame) -> Iterator[Measurement]:
        """Where the curves of one seed break."""
        found = recalls(table, self.config.train.loss)
        order = {size: i for i, size in enumerate(self.config.case_sizes)}
        for named, curve in found.groupby(["memory", "setting", "rule"], sort=False):
            memory, setting, rule = map(str, cast(tuple[Any, ...], named))
            points = finite(zip(curve["load"], curve["recall"], strict=True))
            for half, level in LEVELS.items():
                yield BREAK.measurement(
                    crossing(points, level), memory=memory, setting=setting, rule=rule, half=half or None
                )
        learned = learned_recalls(table, self.config.train.loss)
        for named, curve in learned.groupby(["memory", "setting"], sort=False):
            memory, setting = map(str, cast(tuple[Any, ...], named))
            place = crossing(finite(zip(curve["size"].map(order), curve["recall"], strict=True)), WHOLE)
            size = None
            if place is not None:  # between two of the list
                low, high = self.config.case_sizes[int(place) : int(place) + 2]
                size = low + (place - int(place)) * (high - low)
            yield BREAK_SIZE.measurement(size, memory=memory, setting=setting)

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Recall, margins, spectra and which pairs are lost, against the load."""
        yield from filling_figures(run.table, self.config.train.loss)

    def findings(self, run: Run) -> Iterator[str]:
        """Where recall breaks in each setting beside the limit, and what breaks first."""
        found = recalls(run.table, self.config.train.loss)
        if found.empty:
            yield from super().findings(run)
            return
        for memory, rows in [*found.groupby("memory", sort=False)][:3]:
            by_setting = [
                f"{_where(curve)} ({setting})"
                for setting, curve in rows[rows["rule"] == LEARNED].groupby("setting", sort=False)
            ]
            first = rows[rows["setting"] == rows["setting"].iloc[0]]
            by_rule = [
                f"{RULES[str(rule)]} {_where(first[first['rule'] == rule])}"
                for rule in RULES
                if (first["rule"] == rule).any()
            ]
            yield (
                f"Recall of {memory} falls below 99 % {listed(by_setting)}; {', '.join(by_rule)}. The capacity limit "
                "is load 1."
            )
        yield from self._first_to_break(learned_recalls(run.table, self.config.train.loss))

    def _first_to_break(self, learned: pd.DataFrame) -> Iterator[str]:
        """Which memory is the first to lose pairs where several are learned together."""
        for setting, rows in learned.groupby("setting", sort=False):
            n = rows["memory"].nunique()
            for size in self.config.case_sizes if n > 1 else ():
                recall = rows[rows["size"] == size].groupby("memory", sort=False)["recall"].mean().to_dict()
                broken = {str(memory): value for memory, value in recall.items() if value < WHOLE}
                if broken:
                    first = min(broken, key=broken.__getitem__)
                    yield (
                        f"What breaks first, trained as {setting}: {first}, which recalls {broken[first]:.0%} of its "
                        f"pairs at {self.config.varied} = {size:g}, where {len(broken)} of {n} memories are broken."
                    )
                    break


def build_learner(training: TrainExperimentConfig, seed: int) -> SeedLearner:
    """The model of a training, freshly drawn, on its task, with its probes."""
    task = build_task(training.task, pick_device(training.device))
    model = build_model(training.model, task, seed)
    probes = [build_probe(probe) for probe in training.probes]
    for probe in probes:
        probe.check(model, task)
    return SeedLearner(model, task, probes, training.train, seed)


def train_finitely(learner: SeedLearner) -> int:
    """Train to the end, or until a loss or a weight is not finite; the steps up to the last look that found none."""
    trainer, looks = Trainer(learner, learner.config), every(LOOK_EVERY, learner.config.steps)
    drive(trainer, stop_when=lambda step: looks(step) and trainer.diverged() != [None])
    return trainer.step if trainer.diverged() == [None] else max(0, trainer.step - 1) // LOOK_EVERY * LOOK_EVERY


def storable(parts: Iterable[Holder]) -> float | None:
    """1 if matrices were found that recall all pairs, None if neither that is known nor that none do.

    0 if there is a certificate that none do with a margin above 0.01 of a generic score (`decide`).
    """
    statuses = set()
    for part in parts:
        found = None if part.rank is None else decide_rank(part.association, part.rank).status
        if found is not Status.FEASIBLE:  # what no matrix of full rank holds, none of a lower rank does
            free = decide(StorageProblem.of(part.association), iterations=ITERATIONS)[0].status
            found = free if part.rank is None or free is Status.INFEASIBLE else Status.UNKNOWN
        statuses.add(found)
    if Status.INFEASIBLE in statuses:
        return 0.0
    return 1.0 if statuses == {Status.FEASIBLE} else None


def most_recalled(parts: Sequence[Holder], first: Sequence[torch.Tensor]) -> float:
    """The largest fraction of all pairs that matrices of the same shape and rank were found to recall.

    first: what to begin with (`store_easiest`).
    """
    return recall(parts, [store_easiest(part.association, W, part.rank) for part, W in zip(parts, first, strict=True)])


def train_alone(parts: Iterable[Holder], seed: int) -> list[torch.Tensor]:
    """Matrices of the same shape and rank after Adam on the pairs alone."""
    return [
        train_matrix(part.association, generator(seed, "pairs alone", part.name, i), part.rank, steps=BARE_STEPS)
        for i, part in enumerate(parts)
    ]


def recall(parts: Sequence[Holder], memories: Iterable[Readable]) -> float:
    """The fraction of the pairs of all parts that these recall."""
    recalled = [int(part.association.recalled(memory).sum()) for part, memory in zip(parts, memories, strict=True)]
    return sum(recalled) / sum(len(part.association.keys) for part in parts)


@torch.no_grad()
def _contents(learner: SeedLearner) -> dict[str, list[Holder]]:
    """The parts that should hold each memory: the whole where there is one, else all heads."""
    return {name: wholes for name, (wholes, _) in by_name(learner.task.holders(learner.model)).items()}


def _same(parts: Sequence[Holder], before: Sequence[torch.Tensor | None]) -> bool:
    """Are these the matrices that there were before training? Heads may have come to hold something, or nothing."""
    return len(parts) == len(before) and all(
        then is not None and isinstance(part.memory, torch.Tensor) and torch.equal(part.memory, then)
        for part, then in zip(parts, before, strict=True)
    )


def _where(curve: pd.DataFrame) -> str:
    """Where a curve, averaged over seeds, falls below 0.99: `at load 0.31`, `nowhere` or `at every load`."""
    means = curve.groupby("size", sort=False)[["load", "recall"]].mean()
    points = sorted(finite(zip(means["load"], means["recall"], strict=True)))
    at = crossing(points, WHOLE)
    if at is not None:
        return f"at load {at:.2f}"
    return f"nowhere up to {points[-1][0]:.2f}" if points[0][1] >= WHOLE else f"from load {points[0][0]:.2f} on"
