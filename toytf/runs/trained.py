"""A run that trained a model: its task, its weights at any checkpoint, and probes on them."""

from collections.abc import Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from toytf.build import build_evaluate_on, build_model, build_probe, build_task, pick_device
from toytf.config.plugins import probe_config
from toytf.errors import UserError, nearest
from toytf.evaluation import checked
from toytf.models.transformer import ToyTransformer
from toytf.probe import Course, CourseProbe, ProbeResult, losses_of, sharing
from toytf.randomness import generator
from toytf.runs.checkpoints import CheckpointStore
from toytf.runs.rows import read_rows
from toytf.runs.run import Run
from toytf.task import Batch, Task

if TYPE_CHECKING:
    from toytf.experiments.train.config import TrainExperimentConfig
    from toytf.models.lens import HookedToyTransformer
    from toytf.views.facts import FactSheet
    from toytf.views.memory import MemoryView
    from toytf.views.sequence import SequenceView


class TrainedRun(Run):
    """A run whose experiment trains a model on a task."""

    @classmethod
    def open(cls, directory: Path | str) -> "TrainedRun":
        """A run that exists; refused if its experiment trains no model."""
        return super().open(directory).trained

    @cached_property
    def config(self) -> "TrainExperimentConfig":
        """The validated config."""
        return cast("TrainExperimentConfig", super().config)

    @cached_property
    def task(self) -> Task:
        """The task of this run, on its device, or on what there is if this machine has no such device."""
        try:
            device = pick_device(self.config.device)
        except UserError:
            device = pick_device("auto")
        return build_task(self.config.task, device)

    @property
    def steps(self) -> list[int]:
        """The steps at which the first seed has a checkpoint."""
        return self.steps_of(self.config.seeds[0])

    @property
    def has_checkpoints(self) -> bool:
        """Has any seed a checkpoint?"""
        return any(map(self.steps_of, self.config.seeds))

    def steps_of(self, seed: int) -> list[int]:
        """The steps at which a seed has a checkpoint."""
        return CheckpointStore(self.checkpoints, seed).steps()

    def model(self, step: int | None = None, seed: int | None = None) -> ToyTransformer:
        """The model of a seed (default: the first) at a checkpoint (default: the last)."""
        seed = self._seed(seed)
        chosen = self._step(step, seed)
        ((_, model),) = CheckpointStore(self.checkpoints, seed).models(self._like, [chosen])
        return model

    def course(self, step: int | None = None, seed: int | None = None) -> Course:
        """The training of a seed (default: the first) up to a checkpoint (default: the last), checkpoint by checkpoint.

        Those that were only written because a Ctrl-C asked for it are left out: a run that was never stopped has the
        same course.
        """
        seed, train = self._seed(seed), self.config.train
        last, store = self._step(step, seed), CheckpointStore(self.checkpoints, seed)
        steps = [at for at in store.steps() if at == last or (at < last and train.checkpoints.due(at))]
        rows = [row for row in read_rows(self.metrics_file) if row["seed"] == seed and row["step"] <= last]
        return Course(lambda: store.models(self._like, steps), losses_of(train.loss, rows), train.is_plain_descent)

    @cached_property
    def _like(self) -> ToyTransformer:
        """A model of this shape, of which those of all seeds and checkpoints are copies with other weights."""
        return build_model(self.config.model, self.task, self.config.seeds[0])

    def _step(self, step: int | None, seed: int) -> int:
        """The step of a checkpoint that there is; None: of the last."""
        store = CheckpointStore(self.checkpoints, seed)
        steps = store.steps()
        lost = self.finished and step is None
        again = f": remove summary.json, then train it again: {self.resume_command}" if lost else ""
        if not steps:
            raise UserError(f"{self.directory}: no checkpoint of seed {seed}{again or ' yet'}")
        chosen = step if step is not None else self.config.train.steps if self.finished else store.newest()
        if chosen not in steps:
            there_are = ", ".join(map(str, steps))
            raise UserError(
                f"{self.directory}: no checkpoint of seed {seed} at step {chosen} (available: {there_are})"
                + (again if step is None else "")
            )
        return chosen

    def lens(self, step: int | None = None, seed: int | None = None) -> "HookedToyTransformer":
        """The same model as a TransformerLens HookedRootModule."""
        from toytf.models.lens import HookedToyTransformer

        same = self.task.token_names == self.task.output_names
        return HookedToyTransformer(self.model(step=step, seed=seed), outputs_are_tokens=same)

    def has_ended(self, seed: int) -> bool:
        """Has the training of a seed come to its last step?"""
        return bool(CheckpointStore(self.checkpoints, seed).latest() == self.config.train.steps)

    def batch(self, n: int, *, seed: int | None = None, on: str | None = None) -> Batch:
        """Fresh sequences of the task, or of an entry of `evaluate_on`; neither training nor evaluation uses them."""
        task = self._task_on(on)
        return task.sample(n, generator(self._seed(seed), "inspection", device=task.device))

    def memories(self, step: int | None = None, seed: int | None = None) -> "dict[str, MemoryView]":
        """What each matrix holds, in the coordinates of what it should hold: a view by name, each with a figure."""
        from toytf.views.memory import memory_views

        return memory_views(self.model(step, seed), self.task)

    def sequences(self, n: int = 1, step: int | None = None, seed: int | None = None) -> "list[SequenceView]":
        """What the model does with fresh sequences: attention and predictions, each with a figure by layer and head."""
        from toytf.views.sequence import sequence_views

        return sequence_views(self.model(step, seed), self.task, self.batch(n, seed=seed))

    def facts(self, step: int | None = None, seed: int | None = None) -> "FactSheet":
        """What the model knows, fact by fact; refused for a task that is not about facts."""
        found = self.task.facts(self.model(step, seed))
        if found is None:
            raise UserError(f"{self.directory}: its task ({self.config.task.kind}) is not about facts")
        return found

    def probe(
        self, kind: str, *, step: int | None = None, seed: int | None = None, on: str | None = None
    ) -> ProbeResult:
        """Run a probe on any checkpoint, with the options that this run's config gives it.

        One that looks at a whole training is given all checkpoints up to that one. on: an entry of `evaluate_on`
        instead of the task itself.
        """
        return self.probes([kind], step=step, seed=seed, on=on)[kind]

    def probes(
        self, kinds: Iterable[str], *, step: int | None = None, seed: int | None = None, on: str | None = None
    ) -> dict[str, ProbeResult]:
        """Run several probes on a checkpoint, which share what they compute."""
        task = self._task_on(on)
        own = {probe.kind: probe for probe in self.config.probes}
        chosen = [own.get(kind) or probe_config(kind) for kind in kinds]
        for config in chosen:
            config.check_fits(task.config)
        model = self.model(step=step, seed=seed)
        probes = {config.kind: build_probe(config) for config in chosen}
        for probe in probes.values():
            probe.check(model, task)
        batch = self.batch(self.config.train.evaluation.sequences, seed=seed, on=on)
        found: dict[str, ProbeResult] = {}
        with sharing():
            for kind, probe in probes.items():
                if not isinstance(probe, CourseProbe):
                    found[kind] = checked(probe, partial(probe, model, task, batch))
        for kind, probe in probes.items():  # not sharing: nobody else looks at the models of all checkpoints
            if isinstance(probe, CourseProbe):
                found[kind] = checked(probe, partial(probe.over, self.course(step, seed), task))
        return {kind: found[kind] for kind in probes}

    @cached_property
    def _evaluate_on(self) -> dict[str, Task]:
        return build_evaluate_on(self.config.evaluation_tasks, self.task)

    def _task_on(self, name: str | None) -> Task:
        if name is None:
            return self.task
        if name not in self._evaluate_on:
            there_are = nearest(name, self._evaluate_on) if self._evaluate_on else "evaluate_on is empty"
            raise UserError(f'{self.directory}: its config has no evaluate_on entry "{name}": {there_are}')
        return self._evaluate_on[name]

    def _seed(self, seed: int | None) -> int:
        seeds = self.config.seeds
        if seed is not None and seed not in seeds:
            raise UserError(f"{self.directory}: no seed {seed} (available: {', '.join(map(str, seeds))})")
        return int(seeds[0] if seed is None else seed)
