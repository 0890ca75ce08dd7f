"""The config of the experiment `train`."""

import json
import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from toytf.config.compose import overlay
from toytf.config.plugins import AnyProbe, AnyTask, ExperimentConfig, TaskConfig, default_probes
from toytf.config.sections import auto_or_up_to, validate
from toytf.errors import UserError, nearest, shortened
from toytf.experiments.seeded import SeededConfig
from toytf.models.config import ModelConfig, cached_chunk
from toytf.training.config import TrainConfig
from toytf.training.stacking import threads_for, worth_stacking

MOST_STACKED = 1024


class TrainExperimentConfig(SeededConfig):
    """Train a model on a task, once per seed, and probe it during training."""

    implementation: ClassVar[str] = "toytf.experiments.train.experiment:Training"
    trains_model: ClassVar[bool] = True

    experiment: Literal["train"]
    task: AnyTask
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    probes: tuple[AnyProbe, ...] = Field(default_factory=default_probes)
    """What is measured besides losses and accuracies (default: `limits`, what the matrices hold and could hold)."""
    evaluate_on: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Other data to evaluate on, by name: what each changes in the task, such as {clean: {noise: {probability: 0}}}.
    Metric names carry the name after an @: `eval@clean/in_context_accuracy`."""

    stack: Annotated[Literal["auto"] | int, auto_or_up_to(MOST_STACKED)] = "auto"
    """How many seeds train as one tensor program. auto: as many as pay, which are several if a step is small; only the
    config decides. config.yaml of the run has the number, because the last bits of a sum depend on whether it is 1."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "TrainExperimentConfig":
        roles = self.task.roles
        if self.train.loss not in roles:
            raise ValueError(
                f'train.loss = "{self.train.loss}" is not a role of this task: {nearest(self.train.loss, roles)}'
            )
        try:
            tasks = {"": self.task} | {f"evaluate_on.{name}: ": task for name, task in self.evaluation_tasks.items()}
        except UserError as error:
            raise ValueError(str(error)) from None
        for where, task in tasks.items():
            if task.files() != self.task.files():
                raise ValueError(f"{where}{' and '.join(task.files())} cannot be changed here: use that of the task")
            for probe in self.probes:
                try:
                    probe.check_fits(task)
                except UserError as error:
                    raise ValueError(f"{where}{error}") from None
        if self.train.compile and self.stack not in ("auto", 1):
            raise ValueError(f"stack = {self.stack} cannot be compiled: leave out stack, or train.compile")
        if self.train.forward == "right_attention":
            unfit = {
                f"stack = {self.stack}": self.stack not in ("auto", 1),
                "train.compile": self.train.compile,
                "linear attention": self.model.attention.kind == "linear",
            }
            for what in (name for name, there in unfit.items() if there):
                raise ValueError(f"train.forward = right_attention does not go with {what}: leave out one of them")
        kinds = [probe.kind for probe in self.probes]
        if len(set(kinds)) < len(kinds):
            raise ValueError(f"probes: {max(kinds, key=kinds.count)} is listed twice")
        return self

    def needs(self) -> float:
        """Weights with what trains them, the sequences, and activations of a chunk, if the task tells its sizes."""
        task, model, train = self.task.sizes(), self.model, self.train
        if task is None:
            return 0.0
        T, d, L, heads = task.n_positions, model.d_model, model.n_layers, model.attention.n_heads
        in_heads = heads * (d if "joint" in (model.attention.kq, model.attention.ov) else model.d_head)
        queries, logits = (L - 1) * T + task.n_asked, task.n_asked * task.n_outputs
        patterns = heads * T * queries
        parameters = d * (task.n_tokens + task.n_outputs + T + L * (4 * in_heads + 2 * model.width))
        activations = patterns + logits + T * L * (in_heads + 2 * d) + queries * model.width
        cached = cached_chunk(model, T, task.n_asked) if self.device.startswith("cpu") else train.batch_size
        chunk = min(train.chunk or cached, train.batch_size)
        evaluated = 16 * T + 3 * logits + (2 * patterns if any(probe.reads_batch for probe in self.probes) else 0)
        trained = 4 * parameters + 3 * chunk * activations + 16 * T * train.batch_size
        return 4.0 * (self.n_stacked * trained + train.evaluation.sequences * evaluated)

    @property
    def worth_threads(self) -> int:
        """Two if a training step is large, as far as the task tells its sizes."""
        sizes = self.task.sizes()
        return 1 if sizes is None else threads_for(self.train, self.model, sizes)

    @property
    def worth_stacking(self) -> int:
        """How many trainings of this shape pay as one tensor program, as far as the task tells its sizes."""
        sizes = self.task.sizes()
        return 1 if sizes is None else worth_stacking(self.train, self.model, sizes)

    @property
    def n_stacked(self) -> int:
        """How many seeds train as one tensor program."""
        return min(self.worth_stacking, len(self.seeds)) if self.stack == "auto" else self.stack

    @property
    def stack_key(self) -> str | None:
        """Equal for configs that can be stacked: seeds, learning rate, weight decay and initial weights may differ."""
        content = self.model_dump(mode="json", exclude={"logging", "seeds", "stack"})
        for field in ("lr", "weight_decay"):
            content["train"]["optimizer"].pop(field)
        for part in ("attention", "feed_forward"):
            content["model"][part].pop("init")
        for field in ("init", "ideal_memories", "beta"):
            content["model"].pop(field)
        return json.dumps(content, sort_keys=True)

    def resolved(self, before: ExperimentConfig | None = None) -> Self:
        """The same, with `stack: auto` replaced by a number, too.

        A run that goes on keeps its number: how many are in a stack changes nothing, only whether there is one.
        """
        stack = self.n_stacked
        if isinstance(before, TrainExperimentConfig) and (self.stack == "auto" or min(stack, before.n_stacked) > 1):
            stack = before.n_stacked
        return super().resolved(before).model_copy(update={"stack": stack})

    @property
    def evaluation_tasks(self) -> dict[str, TaskConfig]:
        """The task as each entry of `evaluate_on` changes it."""
        tasks = {}
        for name, changes in self.evaluate_on.items():
            if not re.fullmatch("[a-z][a-z0-9_]{0,59}", name):
                raise UserError(
                    f'evaluate_on: "{shortened(name)}" cannot be a name: use at most 60 lowercase letters, digits and _'
                )
            changed = overlay(self.task.model_dump(), changes)
            tasks[name] = validate(TypeAdapter(type(self.task)), changed, f"evaluate_on.{name}")
        return tasks
