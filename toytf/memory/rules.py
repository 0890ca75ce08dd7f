"""The rules that make a memory of associations: one table of what each of them is. Imports no torch.

A new rule is one entry of `RULES`, and its builder: a function from `RuleInputs` to a memory, which may be wherever
the mathematics of the rule does. Configs, experiments, tables and figures read the rest from the entry.

    Rule("hebbian", "W = Σ u_{f(z)} e_zᵀ", theory="hebbian")
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from toytf.config.plugins import imported

if TYPE_CHECKING:
    from torch import Tensor

    from toytf.memory.association import Association, Readable
    from toytf.memory.builders import RuleInputs
    from toytf.memory.trained import Trained


@dataclass(frozen=True)
class Rule:
    """A way to make a memory of pairs."""

    name: str
    """The same in configs, tables and figures."""
    says: str
    """Its formula, or what it does, in one line."""
    builder: str = ""
    """A function from RuleInputs to a memory as "module:name"; to a Trained, if the rule is searched. If it is trained,
    from several RuleInputs of one size to a list of Trained. Default: that of its name in `toytf.memory.builders`."""
    width: Literal["none", "rank", "hidden"] = "none"
    """What the width in a config means to it: nothing, the rank of a matrix, or the number of hidden units."""
    search: Literal["one_shot", "certified", "searched", "trained"] = "one_shot"
    """one_shot: a formula, whose recall varies from draw to draw. certified: the solver decides whether any matrix
    stores the pairs. searched: stores all pairs or is not found, which proves nothing. trained: recalls a fraction."""
    decoupled: bool = False
    """Does every key have rivals of its own? Else all keys share the values."""
    pairs: bool = False
    """Is it for keys that are sums of two parts?"""
    theory: Literal["none", "best_weights", "hebbian", "trained_hidden"] = "none"
    """Whose capacity, margins, scores and spectrum theory knows: those of the best weights, or of the Hebbian rule. Of
    trained hidden units only a line is known, which others drew through what they measured."""
    experiments: tuple[Literal["capacity", "storage"], ...] = ("capacity", "storage")
    """Which experiments may use it."""
    step: str = ""
    """If it is a gradient step: the formula from an Association and W to the next W, as "module:name"."""

    def __post_init__(self) -> None:
        if self.pairs and "capacity" in self.experiments:
            raise ValueError(f"rule {self.name}: the experiment capacity has no keys that are sums of two parts")
        if self.decoupled and (self.searches or self.pairs or self.step):
            raise ValueError(f"rule {self.name}: only one_shot and certified rules of a matrix can have own rivals")

    @property
    def searches(self) -> bool:
        """Does it look for a memory, so that not finding one proves nothing?"""
        return self.search in ("searched", "trained")

    @property
    def all_or_nothing(self) -> bool:
        """Does it store all pairs, or else none?"""
        return self.search in ("certified", "searched")

    def build(self, inputs: "RuleInputs") -> "Readable":
        """The memory that it makes of the pairs; if it searches, the best that it found."""
        memory: Readable = self.attempts([inputs])[0].memory if self.searches else self._builder(inputs)
        return memory

    def attempts(self, inputs: "Sequence[RuleInputs]") -> "list[Trained]":
        """If it searches: the best memory found for each of several inputs of one size, and how much that recalls."""
        build = self._builder
        found: list[Trained] = build(inputs) if self.search == "trained" else [build(one) for one in inputs]
        return found

    @property
    def _builder(self) -> "Callable[..., Any]":
        return imported(self.builder or f"toytf.memory.builders:{self.name}")

    def stepped(self, association: "Association", W: "Tensor") -> "Tensor":
        """W after the step of its formula, if it is a gradient step."""
        after: Tensor = imported(self.step)(association, W)
        return after


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        # decided or searched
        Rule("optimum", "any W, decided with a certificate", search="certified", theory="best_weights"),
        Rule(
            "optimum_decoupled", "the same, every key with rivals of its own",
            builder="toytf.memory.builders:optimum", search="certified", decoupled=True, theory="best_weights",
        ),
        Rule("low_rank_optimum", "any W of rank m, searched", width="rank", search="searched", theory="best_weights"),
        # matrices by a formula: X has the keys as rows, Y the value of each, U all values
        Rule("hebbian", "W = Σ u_{f(z)} e_zᵀ", theory="hebbian"),
        Rule(
            "hebbian_decoupled", "the same, every key with rivals of its own",
            builder="toytf.memory.builders:hebbian", decoupled=True, theory="hebbian",
        ),
        Rule("pseudo_inverse", "W = Yᵀ X (XᵀX)⁺"),
        Rule("ridge", "W = Yᵀ X (XᵀX + λI)⁻¹"),
        Rule("bi_whitened", "W = (UᵀU)⁺ Yᵀ X (XᵀX)⁺"),
        Rule("gradient_step", "one step on the cross-entropy from W = 0", step="toytf.memory.gradients:gradient_step"),
        Rule("low_rank", "W = W_1ᵀ W_1 Σ u_{f(z)} e_zᵀ, W_1 random", width="rank"),
        # two layers by a formula: the hidden units W are random
        Rule("mlp_h1", "Vᵀ h_1(We), V = Σ h_1(W e_z) u_{f(z)}ᵀ / m", width="hidden"),
        Rule("mlp_h2", "the same with h_2", width="hidden"),
        Rule("mlp_h3", "the same with h_3", width="hidden"),
        Rule("mlp_relu", "Vᵀ relu(We), V as for h_2", width="hidden"),
        Rule("mlp_least_squares", "Vᵀ relu(We), V by least squares", width="hidden"),
        # trained
        Rule("trained_linear", "Adam on the cross-entropy", search="trained", theory="best_weights"),
        Rule("trained_low_rank", "Adam on two factors", width="rank", search="trained", theory="best_weights"),
        Rule("trained_mlp", "Adam on both layers, ReLU", width="hidden", search="trained", theory="trained_hidden"),
        # whose capacity is that of another rule, or was never asked for
        Rule("max_margin", "the W of largest margin", theory="best_weights", experiments=("storage",)),
        Rule(
            "max_margin_decoupled", "the same, every key with rivals of its own",
            builder="toytf.memory.builders:max_margin", decoupled=True, theory="best_weights",
            experiments=("storage",),
        ),
        Rule(
            "low_rank_max_margin", "the W of rank m of the largest margin found", width="rank",
            theory="best_weights", experiments=("storage",),
        ),
        Rule(
            "noisy_gradient_step", "the step for noisy keys, which writes the mean of each class",
            experiments=("storage",), step="toytf.memory.gradients:noisy_gradient_step",
        ),
        Rule(
            "pairs_ordered", "Vᵀ relu(We), V from ordered products of the parts", width="hidden", pairs=True,
            experiments=("storage",),
        ),
        Rule("pairs_unordered", "the same without ordering", width="hidden", pairs=True, experiments=("storage",)),
        Rule(
            "pairs_h2", "ordered products, h_2 in place of relu", width="hidden", pairs=True,
            experiments=("storage",),
        ),
        Rule("pairs_joint", "Vᵀ h_2(We) of the whole key", width="hidden", pairs=True, experiments=("storage",)),
    )
}  # fmt: skip
"""The rules by name."""
