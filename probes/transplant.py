"""Whether a learned part *is* its memory: the causal test.

If the task is solved as before with an ideal part in place of the learned one, what that one holds beyond its memory
was not needed; if it is solved worse, it was. The task says what the ideal parts are (`Task.grafts`).
"""

import copy
from collections.abc import Sequence

import torch

from probes.config import TransplantProbeConfig
from toytf.errors import UserError, nearest
from toytf.evaluation import at_goal, goal_metrics
from toytf.grafts import Graft
from toytf.measurement import Group, Headline, Measurement, Reference
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task

TRANSPLANT = Group(
    "transplant", "Accuracy with ideal parts in the trained model", "If accuracy stays the same with an ideal "
    "part, all that the model needs of the learned one is its memory; if it falls, the model needs more; if it rises, "
    "the learned one was weak. Ideal parts are plain sums, unless another rule is named.",
    variants=("rule",), section="interventions",
    headline=(
        Headline("ideal_all", "accuracy with all ideal matrices in the trained model", 1),
        Headline("ideal_all/least_squares", "accuracy with all ideal matrices, by least squares", 1),
    ),
    meanings=(
        ("learned*", "Accuracy at the task's goal of the model as it was trained; those with ideal parts are compared "
         "with it."),
        ("ideal_all_but_*", "Accuracy with all ideal parts but this one, which stays as learned; near that with all "
         "ideal ones if the learned part does its job."),
        ("ideal_all*", "Accuracy with ideal parts in place of all that solve the task; near that of the trained model "
         "if it needs nothing but these memories."),
        ("ideal_*", "Accuracy with an ideal part in place of this one; near that of the trained model if it needs "
         "nothing of the part but its memory."),
    ),
)  # fmt: skip

PLAIN = "hebbian"
"""The rule that goes without saying in the names of metrics."""


class Transplant(Probe):
    """The accuracy at the task's goal with ideal parts in place of learned ones.

    `transplant/learned`                   no part is ideal
    `transplant/ideal_<memory>`            this one is
    `transplant/ideal_all`                 all are that solve the task together
    `transplant/ideal_all_but_<memory>`    the same with one learned part put back

    These are ideal by the Hebbian rule; variants are those of other rules, such as `/least_squares`. For facts,
    `/construction` is the construction that `model.init: ideal` writes, in vectors of its own: `ideal_all_but_FF1/
    construction` is a learned feed-forward part in an ideal model. Only a part whose memories have single answers can
    be replaced; the rest of the model, layer norms included, stays as learned.
    """

    config: TransplantProbeConfig

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a model that can take no ideal part."""
        task.check_goal()
        self._grafts(model, task)

    def _grafts(self, model: ToyTransformer, task: Task) -> dict[str, Sequence[Graft]]:
        """The ideal parts by rule: those that were asked for, or all that the model can take."""
        found: dict[str, Sequence[Graft]] = {}
        asked, reason = self.config.rules, ""
        for rule in asked or task.graft_rules:
            if rule not in task.graft_rules:
                raise UserError(
                    f'probe transplant: task {task.config.kind} has no ideal parts by the rule "{rule}": '
                    f"{nearest(rule, task.graft_rules)}"
                )
            try:
                found[rule] = task.grafts(model, rule, self.config.strength)
            except UserError as refused:
                reason = reason or str(refused)
                if asked:
                    break
        if not found or (asked and reason):
            raise UserError(f"probe transplant: {reason}")
        return found

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure a copy of the model on the batch, with one set of ideal parts after the other."""
        diverged = not all(bool(weights.isfinite().all()) for weights in model.parameters())
        if diverged or not batch.roles[task.goal].any():
            return ProbeResult()
        trial, learned = copy.deepcopy(model), model.state_dict()
        known = task.references().get((task.goal, "accuracy"), Reference())
        levels = {"ideal": known.ideal, "chance": known.chance}
        found = [TRANSPLANT.measurement(at_goal(model, task, batch)["accuracy"], "learned", **levels)]
        for rule, grafts in self._grafts(model, task).items():

            def measure(chosen: Sequence[Graft], name: str, memory: str | None = None, rule: str = rule) -> Measurement:
                trial.load_state_dict(learned)
                for graft in chosen:
                    graft.implant(trial)
                value = goal_metrics(trial, task, batch)["accuracy"]
                ideal = [memory for graft in chosen for memory in graft.memories]
                theory = task.graft_accuracy(model, batch, rule, ideal, self.config.strength)
                measured = TRANSPLANT.measurement(value, name, **levels, theory=theory, memory=memory)
                return measured.placed({"rule": rule}, plain=("rule",) if rule == PLAIN else ())

            found += [measure([graft], "ideal", graft.name) for graft in grafts]
            together = [graft for graft in grafts if set(graft.memories) & set(task.solution)] or [*grafts]
            found.append(measure(together, "ideal_all"))
            for graft in together:
                others = [other for other in together if other is not graft]
                found.append(measure(others, "ideal_all_but", graft.name))
        return ProbeResult(found)
