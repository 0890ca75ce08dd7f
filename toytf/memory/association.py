"""What a matrix should store, and how well any matrix stores it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Readable = Tensor | Callable[[Tensor], Tensor]
"""A matrix W [d_out d_in], or any map from keys [n d_in] to outputs [n d_out] (a feed-forward layer)."""


@dataclass(frozen=True, eq=False)
class Association:
    """Pairs z → f(z): the memory is asked with the key e_z and should answer with the value u_{f(z)}.

    keys[z] = e_z; values[y] = u_y; targets[z] = f(z); weights[z] = how often key z occurs (any scale; None: not known);
    candidates[z, y] = may y compete for key z (None: all may). The names say which pair is which.
    """

    keys: Float[Tensor, "n d_in"]
    values: Float[Tensor, "m d_out"]
    targets: Int[Tensor, "n"]
    weights: Float[Tensor, "n"] | None = None
    candidates: Bool[Tensor, "n m"] | None = None
    key_names: tuple[str, ...] | None = None
    value_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        n, m = len(self.keys), len(self.values)
        lengths = {
            "targets": (len(self.targets), n),
            "weights": (n if self.weights is None else len(self.weights), n),
            "key_names": (n if self.key_names is None else len(self.key_names), n),
            "value_names": (m if self.value_names is None else len(self.value_names), m),
        }
        for name, (got, expected) in lengths.items():
            if got != expected:
                raise ValueError(f"Association.{name} has {got} entries, expected {expected}")
        if n and not bool(((self.targets >= 0) & (self.targets < m)).all()):
            raise ValueError(f"Association.targets must be from 0 to {m - 1}, one of its {m} values")
        if n and self.candidates is not None and not bool(self.candidates.gather(1, self.targets[:, None]).all()):
            raise ValueError("Association.candidates must include the target of every key")

    def require_finite(self) -> None:
        """Refuse vectors that are not numbers: no rule makes anything of them."""
        for name, rows in (("keys", self.keys), ("values", self.values)):
            bad = ~rows.isfinite().all(1)
            if bool(bad.any()):
                raise ValueError(f"{name} of an association must be finite, but row {int(bad.nonzero()[0, 0])} is not")

    @property
    def chance(self) -> float:
        """The recall of a guess among the candidates: mean_z 1 / #candidates(z)."""
        if self.candidates is None:
            return 1 / len(self.values)
        return float((1 / self.candidates.sum(1)).mean())

    def scores(self, memory: Readable) -> Float[Tensor, "n m"]:
        """u_yᵀ W e_z for every key z and value y; −∞ where y may not compete."""
        outputs = self.keys @ memory.T if isinstance(memory, Tensor) else memory(self.keys)
        scores = outputs @ self.values.T
        return scores if self.candidates is None else scores.masked_fill(~self.candidates, -torch.inf)

    def margins(self, memory: Readable) -> Float[Tensor, "n"]:
        """u_{f(z)}ᵀ W e_z − max_{y ≠ f(z)} u_yᵀ W e_z for every key z."""
        return margins_of(self.scores(memory), self.targets)

    def recalled(self, memory: Readable) -> Bool[Tensor, "n"]:
        """Is f(z) = argmax_y u_yᵀ W e_z, that is, is the margin positive? A tie is not recalled."""
        return self.margins(memory) > 0

    def recall(self, memory: Readable, *, weighted: bool = False) -> Float[Tensor, ""]:
        """The fraction of pairs recalled; weighted: of occurrences, Σ_z w_z 1{z recalled} / Σ_z w_z."""
        right = self.recalled(memory).to(self.keys.dtype)
        if not weighted:
            return right.mean()
        if self.weights is None:
            raise ValueError("weighted recall needs an Association with weights")
        return (right * self.weights).sum() / self.weights.sum()

    def failures(self, memory: Readable, limit: int = 10) -> list[str]:
        """The pairs not recalled, worst margin first, as "key → answer, should be target"."""
        margins, answers = self.margins(memory), self.scores(memory).argmax(1).tolist()
        targets, worst_first = self.targets.tolist(), margins.argsort().tolist()
        wrong = worst_first[: min(limit, int((margins <= 0).sum()))]
        return [
            f"{self.key_name(z)} → {self.value_name(answers[z])}, should be {self.value_name(targets[z])}"
            for z in wrong
        ]

    def some(self, chosen: Int[Tensor, "k"]) -> "Association":
        """Some of the pairs, against all their rivals."""
        names = None if self.key_names is None else tuple(self.key_names[z] for z in chosen.tolist())
        weights, candidates = (None if part is None else part[chosen] for part in (self.weights, self.candidates))
        return Association(
            self.keys[chosen], self.values, self.targets[chosen], weights, candidates, names, self.value_names
        )  # fmt: skip

    def key_name(self, z: int) -> str:
        """The name of key z, or its number."""
        return self.key_names[z] if self.key_names else str(z)

    def value_name(self, y: int) -> str:
        """The name of value y, or its number."""
        return self.value_names[y] if self.value_names else str(y)


def right_and_rivals(
    scores: Float[Tensor, "..."], targets: Int[Tensor, "..."], dim: int = -1
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """The right value's score, and all scores with −∞ in its place; dim: the axis of values, which targets lack."""
    at = targets.unsqueeze(dim)
    return scores.gather(dim, at).squeeze(dim), scores.scatter(dim, at, -torch.inf)


def margins_of(scores: Float[Tensor, "..."], targets: Int[Tensor, "..."], dim: int = -1) -> Float[Tensor, "..."]:
    """s_{z f(z)} − max_{y ≠ f(z)} s_zy for every z; infinite if there is no other y."""
    right, rivals = right_and_rivals(scores, targets, dim)
    return right - rivals.amax(dim)


def exact(X: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """X in float64, without its history, on the CPU since not every device has float64."""
    return X.detach().cpu().double()
