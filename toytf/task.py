"""What a task is: a distribution over sequences that knows its roles, its floors and the memories that solve it."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from toytf.errors import UserError, nearest, shortened
from toytf.measurement import Group, Headline, Measurement, Reference, Scalar
from toytf.memory import Association, hebbian
from toytf.memory.duals import dual_matrix
from toytf.models.transformer import Slot, ToyTransformer

if TYPE_CHECKING:
    from toytf.grafts import Graft
    from toytf.holder import Holder
    from toytf.views.facts import FactSheet

EVAL = Group(
    "eval", "Accuracy and loss by role", "How well each kind of position is predicted, next to ideal and chance.",
    timed="halfway",
    meanings=(
        ("*_accuracy*", "Accuracy on the positions of this role; higher is better, up to the ideal."),
        ("*_loss*", "Mean cross-entropy on the positions of this role, in nats; lower is better, down to the ideal."),
    ),
)  # fmt: skip
FLOOR = Group(
    "floor", "What trivial heuristics reach", "A model that is no better than these has not learned the task.",
    place="last", curve=False, variants=("heuristic",), short=True,
    meanings=(
        ("*_accuracy/*", "Accuracy of a simple rule that does not solve the task; a model that has learned it is "
         "above."),
        ("*_loss/*", "Loss of a simple rule that does not solve the task, in nats; a model that has learned it is "
         "below."),
    ),
)  # fmt: skip
DATA = Group(
    "data", "The held-out sequences", place="last", curve=False, headline=(),
    meanings=(("*", "What the held-out sequences are like, which helps to read the other metrics."),),
)  # fmt: skip


def meanings_by_role(texts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Sentences about accuracy and loss for measurements of EVAL, by role.

    Of two roles of which one ends like the other, such as `context` and `in_context`, the longer comes first: before a
    role there may be factors of a study.
    """
    return tuple(
        meaning
        for role in sorted(texts, key=len, reverse=True)
        for meaning in (
            (f"*{role}_accuracy*", f"Accuracy on {texts[role]}; higher is better, up to the ideal."),
            (f"*{role}_loss*", f"Loss on {texts[role]}, in nats; lower is better, down to the ideal."),
        )
    )


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences with what is known about them.

    targets[b, t] is what position t should predict; roles[name][b, t] says whether it belongs to that role; latents are
    the task's own facts, one row a sequence, such as the triggers. If only the last positions of a sequence are asked,
    targets and roles have only those.
    """

    tokens: Int[Tensor, "batch position"]
    targets: Int[Tensor, "batch asked"]
    roles: Mapping[str, Bool[Tensor, "batch asked"]]
    latents: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: "Sequence[Batch]") -> "Batch":
        """The sequences of several batches of one task."""
        if len(parts) == 1:
            return parts[0]
        roles = {name: torch.cat([part.roles[name] for part in parts]) for name in parts[0].roles}
        latents = {name: torch.cat([part.latents[name] for part in parts]) for name in parts[0].latents}
        tokens, targets = torch.cat([part.tokens for part in parts]), torch.cat([part.targets for part in parts])
        return cls(tokens, targets, roles, latents)

    def of_each(self, n_members: int, size: int | None) -> "Iterator[Batch]":
        """Of a batch in which as many sequences of each member follow each other: so many of each at a time."""
        each = len(self.tokens) // n_members
        if size is None or size >= each:
            yield self
            return
        for start in range(0, each, size):
            i = torch.arange(start, min(start + size, each), device=self.tokens.device)
            chosen = (torch.arange(n_members, device=i.device)[:, None] * each + i).flatten()
            roles = {name: values[chosen] for name, values in self.roles.items()}
            latents = {name: values[chosen] for name, values in self.latents.items()}
            yield Batch(self.tokens[chosen], self.targets[chosen], roles, latents)

    @property
    def last(self) -> int:
        """How many positions are asked, counted from the end."""
        return self.targets.shape[1]

    def at_positions(self, asked: Bool[Tensor, "batch asked"]) -> Bool[Tensor, "batch position"]:
        """A role at all positions: those before the ones that are asked have none."""
        return torch.nn.functional.pad(asked, (self.tokens.shape[1] - self.last, 0))

    def first_positions(self, n: int) -> "Batch":
        """The sequences cut after n positions, of a batch in which all are asked."""
        roles = {name: values[:, :n] for name, values in self.roles.items()}
        return Batch(self.tokens[:, :n], self.targets[:, :n], roles, self.latents)

    def part(self, start: int, stop: int) -> "Batch":
        """The sequences from start to before stop."""
        roles, latents = (
            {name: values[start:stop] for name, values in named.items()} for named in (self.roles, self.latents)
        )
        return Batch(self.tokens[start:stop], self.targets[start:stop], roles, latents)


@dataclass(frozen=True, eq=False)
class Answers:
    """What counts as right in a role where it is not just the target: a set of outputs, chosen among candidates.

    loss = −ln (Σ_{y right} p(y) / Σ_{y candidate} p(y));   accuracy: is the likeliest candidate right?
    """

    right: Bool[Tensor, "batch #asked output"] | None = None
    """None: the target."""
    candidates: Bool[Tensor, "batch #asked output"] | None = None
    """None: all outputs."""


@dataclass(frozen=True, eq=False)
class Annotation:
    """How a person reads sequences: which tokens play a part in them, and where each layer should look."""

    parts: Mapping[str, Bool[Tensor, "batch position"]]
    """The positions of each part, by what it is in a phrase; of a position with several parts, the first counts."""
    right_keys: Mapping[int, Bool[Tensor, "batch query position"]] = field(default_factory=dict)
    """By layer, from 0: where a query should attend, of all positions or of the last ones; nowhere if that is open.

    `train.forward=right_attention` trains with it: then it must not depend on what is to be predicted, unless a context
    determines that."""


@dataclass(frozen=True, eq=False)
class Memory:
    """An Association that a model should hold, and the slot that should hold it.

    conditional[z, y], if given, is the p(y|z) to be stored instead of one answer; views are the same memory under
    other criteria, such as a causal mask, each with the factors that say which.
    """

    association: Association
    slot: Slot
    conditional: Float[Tensor, "n m"] | None = None
    views: Sequence[tuple[Mapping[str, Scalar], Association]] = ()
    job: str = ""
    """What it is for, in a phrase: `copy the attended token to the output`."""
    job_weighted: str = ""
    """What recall says if pairs count by their weights, where that is of interest."""
    beside_keys: Float[Tensor, "k d_in"] | None = None
    """What else can be in the stream that keys are read from; None: nothing."""
    beside_values: Float[Tensor, "v d_out"] | None = None
    """What else can be where values are read; None: nothing."""
    unlimited: str = ""
    """Why any number of such pairs fits, in a phrase: `the values are a linear map of the keys`; empty: it does not."""

    def matrix(self, rule: str) -> Float[Tensor, "d_out d_in"]:
        """The ideal matrix: Σ_z u_{f(z)} e_zᵀ by the rule `hebbian`, the same of dual vectors by `least_squares`."""
        if rule == "hebbian":
            return hebbian(self.association)
        if rule == "least_squares":
            return dual_matrix(self.association, self.beside_keys, self.beside_values)
        raise ValueError(f'no rule for an ideal matrix is called "{rule}": hebbian or least_squares')


def _shape(values: Tensor) -> str:
    return "x".join(map(str, values.shape)) or "()"


class Task(ABC):
    """A distribution over token sequences, on one device."""

    n_positions: int
    token_names: tuple[str, ...]
    output_names: tuple[str, ...]
    solution: tuple[str, ...] = ()
    """The memories that together solve the task; the ideal construction needs room for each."""
    goal: str = "all"
    """The role in which it shows whether they do."""
    ideal_rule: str = "hebbian"
    """The rule by which `ideal` writes matrices, `hebbian` or `least_squares`."""
    ideal_needs_residual: bool = True
    """Does `ideal` write memories that read what residual paths pass on?"""
    graft_rules: tuple[str, ...] = ("hebbian", "least_squares")
    """The rules by which there are ideal parts for a trained model."""
    role_phrases: Mapping[str, str] = {}
    """What is asked in the roles that the end of a run tells of: {"fact": "facts"}, as in `98 % of the facts`.

    Each stands alone; one that begins as that of the goal does, up to a comma, is shortened in the table.
    """
    role_texts: Mapping[str, str] = {}
    """What each role is about, for the sentences that explain its metrics: {"fact": "facts"}, as in `Loss on facts`."""

    def __init__(self, config: Any, device: torch.device) -> None:
        self.config = config
        self.device = device

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator) -> Batch:
        """Draw n fresh sequences; the generator lives on the task's device."""

    def sample_each(self, n: int, generators: Sequence[torch.Generator]) -> Batch:
        """What `sample` draws by each of several generators, one after the other; a task may do them all at once."""
        return Batch.joined([self.sample(n, random) for random in generators])

    def answers(self, role: str, batch: Batch) -> Answers | None:
        """What counts as right in a role; None: that the target is the likeliest of all outputs."""
        return None

    def references(self) -> Mapping[tuple[str, str], Reference]:
        """The ideal and the chance value of accuracy and loss, by role and quantity: ("all", "accuracy")."""
        return {}

    def floors(self) -> Sequence[Measurement]:
        """What trivial heuristics reach: measurements of FLOOR at a role, a quantity and a heuristic."""
        return ()

    def statistics(self, batch: Batch) -> Sequence[Measurement]:
        """Facts about a batch that explain its metrics: measurements of DATA."""
        return ()

    @property
    def about(self) -> str:
        """What the task is, in a sentence or two for someone who does not know it."""
        return (type(self.config).__doc__ or self.config.kind).strip().partition("\n")[0]

    def annotate(self, batch: Batch) -> Annotation:
        """The parts that tokens play, and where layers should look; by default, only where something is asked."""
        return Annotation({"asked": batch.at_positions(batch.roles[self.goal])})

    def check_goal(self) -> None:
        """Refuse a goal that is no role of this task, before something is measured there."""
        if self.goal not in self.config.roles:
            raise UserError(
                f'task {self.config.kind}: its goal "{self.goal}" is not one of its roles: '
                f"{nearest(self.goal, self.config.roles)}"
            )

    def check_batch(self, batch: Batch, n: int) -> None:
        """Refuse what `sample(n)` gave if it is not what the task itself says: its sizes, its roles, its vocabulary."""
        says = f"task {self.config.kind}: sample({n}) gave"
        if not isinstance(batch, Batch):
            raise UserError(f"{says} a {type(batch).__name__}, expected a Batch")
        tokens, targets = batch.tokens, batch.targets
        if tokens.ndim != 2 or len(tokens) != n or tokens.shape[1] > self.n_positions:
            expected = f"{n} sequences of at most {self.n_positions} tokens"
            raise UserError(f"{says} tokens of the shape {_shape(tokens)}, expected {expected}")
        if targets.ndim != 2 or len(targets) != n or not 0 < targets.shape[1] <= tokens.shape[1]:
            expected = f"{_shape(tokens)}, or less if only the last positions are asked"
            raise UserError(f"{says} targets of the shape {_shape(targets)}, expected {expected}")
        for what, ids, names in (("token", tokens, self.token_names), ("target", targets, self.output_names)):
            wrong = ids[(ids < 0) | (ids >= len(names))]
            if len(wrong):
                raise UserError(f"{says} the {what} {int(wrong[0])}, expected 0 to {len(names) - 1}")
        for role in self.config.roles:
            if role not in batch.roles:
                has = ", ".join(batch.roles) or "none"
                raise UserError(f'{says} no role "{role}", which its config names: it has {has}')
        for role, asked in batch.roles.items():
            if asked.shape != targets.shape or asked.dtype != torch.bool:
                what = f"{_shape(asked)} of {asked.dtype}, expected {_shape(targets)} of torch.bool, as the targets"
                raise UserError(f'{says} the role "{role}" as {what}')
        if not any(asked.any() for asked in batch.roles.values()):
            raise UserError(f"{says} no position that is asked in any role")

    def check_memories(self, names: Collection[str], known: Collection[str]) -> None:
        """Refuse a name in `model.ideal_memories` that is no memory of the ideal construction."""
        for name in names:
            if name not in known:
                raise UserError(
                    f'model.ideal_memories: no memory of task {self.config.kind} is called "{shortened(name)}": '
                    f"{nearest(name, known)}"
                )

    def role_phrase(self, role: str) -> str:
        """What is asked in a role, in words."""
        return self.role_phrases.get(role, "answers" if role == "all" else f"answers of role {role}")

    @property
    def headline(self) -> tuple[Headline, ...]:
        """Accuracies that the short table shows: at the goal, and in the other roles that have a phrase."""
        return tuple(
            Headline(f"{role}_accuracy", f"accuracy on {phrase}", int(role != self.goal))
            for role, phrase in self.short_phrases.items()
        )

    @property
    def short_phrases(self) -> dict[str, str]:
        """The phrases of the goal and of other roles that have one; `the same, …` where one begins like the goal's."""
        at_goal = self.role_phrase(self.goal)
        shown = {role: self.role_phrase(role) for role in dict.fromkeys([self.goal, *self.role_phrases])}
        return {
            role: f"the same{phrase.removeprefix(at_goal)}" if phrase.startswith(f"{at_goal}, ") else phrase
            for role, phrase in shown.items()
        }

    @property
    def role_meanings(self) -> tuple[tuple[str, str], ...]:
        """What the accuracies and losses of the roles mean; of a role without a text, what can be said of any."""
        return (*meanings_by_role(self.role_texts), *EVAL.meanings)

    def rivals(self, batch: Batch) -> Mapping[str, Int[Tensor, "batch position"]]:
        """Named answers other than the target whose probability is of interest, such as a noise token."""
        return {}

    def memories(self, model: ToyTransformer) -> Mapping[str, Memory]:
        """The named memories that would solve the task, in the vectors of this model; only those it has room for."""
        return {}

    def holders(self, model: ToyTransformer) -> "Sequence[Holder]":
        """Which parts of the model should hold a memory, and what was learned there."""
        from toytf.holder import holders, memories

        return [*holders(memories(model, self), model)]

    def facts(self, model: ToyTransformer) -> "FactSheet | None":
        """What the model knows, fact by fact; None of a task that is not about facts."""
        return None

    def ideal_memories(self, model: ToyTransformer) -> dict[str, Memory]:
        """The memories that `ideal` writes: those of the solution or, if it names none, all with single answers."""
        from toytf.holder import fitting

        return {
            name: memory
            for name, memory in fitting(self, model).items()
            if (name in self.solution if self.solution else memory.conditional is None)
        }

    @torch.no_grad()
    def ideal(self, model: ToyTransformer, beta: Mapping[str, float], only: Collection[str] | None = None) -> None:
        """Write the memories into the model, each by the rule `ideal_rule`, scaled to give a stored pair the score β.

        Hebbian:        W = β Σ_z u_{f(z)} e_zᵀ / (⟨|u|²⟩ ⟨|e|²⟩)
        least squares:  W = β Σ_z ũ_{f(z)} ẽ_zᵀ, with dual vectors (see `Memory.matrix`)

        Feed-forward parts are silenced.

        With `only`, these memories are written and nothing else is touched.
        """
        for layer in range(model.config.n_layers):
            feed_forward = model.feed_forward(layer)
            if feed_forward is not None and only is None:
                (feed_forward.W_in if feed_forward.W_out is None else feed_forward.W_out).zero_()
        memories = self.ideal_memories(model)
        if only is not None:
            self.check_memories(only, self.solution or memories)
        missing = [name for name in self.solution if name not in memories and (only is None or name in only)]
        if missing or not memories:
            what = ", ".join(missing) or "any memory"
            raise UserError(f"model.init = ideal: this model has no room for {what} of task {self.config.kind}")
        residual = model.config.attention.residual and model.config.feed_forward.residual
        if model.config.norm != "none" or (self.ideal_needs_residual and not residual):
            needed = "model.norm = none" + (" and residual connections" if self.ideal_needs_residual else "")
            raise UserError(f"model.init = ideal: the construction needs {needed}")
        for name in beta:
            if name not in memories:
                raise UserError(f'model.beta: no memory is called "{name}": {nearest(name, memories)}')
        for name, memory in memories.items():
            if only is not None and name not in only:
                continue
            stored = memory.association
            norms = stored.keys.square().sum(1).mean() * stored.values.square().sum(1).mean()
            if norms == 0:
                raise UserError(f"model.init = ideal: {name} reads or gives nothing but zeros in this model")
            unit = beta.get(name, 1.0) / norms if self.ideal_rule == "hebbian" else beta.get(name, 1.0)
            model.write(memory.slot, (unit * memory.matrix(self.ideal_rule)).T)

    def grafts(self, model: ToyTransformer, rule: str, strength: float = 1.0) -> "Sequence[Graft]":
        """Ideal parts for a trained model by one of the `graft_rules`, each of the size of the learned one it replaces.

        Raises UserError if the model can take none of them.
        """
        from toytf.grafts import matrix_grafts

        return matrix_grafts(self, model, rule, strength)

    def graft_accuracy(
        self, model: ToyTransformer, batch: Batch, rule: str, ideal: Collection[str], strength: float = 1.0
    ) -> float | None:
        """The accuracy at the goal that theory predicts with these memories ideal; None if it predicts nothing."""
        return None
