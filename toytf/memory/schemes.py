"""How strongly each input is stored: q(z) of W = Σ_z q(z) u_{f(z)} e_zᵀ, from how often it was met.

    counts        q = c(z)/n, population p(z)       one large gradient step from W = 0
    seen          q = 1{c(z) ≥ 1}, population 1     single examples with very large steps
    at_least      q = 1{c(z) ≥ s}
    top           q = 1 for the P most frequent, P = ⌊share · d⌋ or ⌊share · d²⌋
    power         q = (c(z)/n)^ρ                    steps of moderate size

(Cabannes, Dohmatob, Bietti 2024.) This module imports no torch, so that configs can name schemes.
"""

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, model_validator

from toytf.config.sections import Config

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class CountsScheme(Config):
    """Every input by its frequency, q = c(z)/n."""

    kind: Literal["counts"] = "counts"


class SeenScheme(Config):
    """Every input that was met alike."""

    kind: Literal["seen"] = "seen"


class AtLeastScheme(Config):
    """Every input that was met `count` times at least."""

    kind: Literal["at_least"] = "at_least"
    count: PositiveInt = 3


class TopScheme(Config):
    """The most frequent of the inputs that were met, alike: at least one, at most all."""

    kind: Literal["top"] = "top"
    share: PositiveFloat = 0.125
    """How many, as a multiple of d, or of d² with `squared`."""
    squared: bool = False

    def stored(self, d: int) -> int:
        """P, at least one."""
        size = d**2 if self.squared else d
        return max(1, math.floor(self.share * size + 1e-9))  # 0.57 · 100 is 57, whatever its rounding


class PowerScheme(Config):
    """Every input by a power of its frequency, q = (c(z)/n)^ρ."""

    kind: Literal["power"] = "power"
    rho: Annotated[float, Field(gt=0, le=16)] | Literal["best"] = "best"
    """best: 1/(2α), which falls as fast with d as a threshold."""

    @model_validator(mode="after")
    def _not_counts(self) -> "PowerScheme":
        if self.rho == 1:
            raise ValueError("rho = 1 is the scheme counts: write counts")
        return self

    def exponent(self, alpha: float) -> float | None:
        """ρ; None where `best` has no meaning, since all inputs are equally frequent."""
        if self.rho != "best":
            return self.rho
        return 1 / (2 * alpha) if alpha > 0 else None


def _named(given: Any) -> Any:
    return {"kind": given} if isinstance(given, str) else given


Scheme = Annotated[
    CountsScheme | SeenScheme | AtLeastScheme | TopScheme | PowerScheme,
    Field(discriminator="kind"),
    BeforeValidator(_named, json_schema_input_type=str | dict[str, Any]),
]


def scheme_name(scheme: Scheme) -> str:
    """What a scheme is called in the names of metrics: `counts`, `at_least3`, `top0.125d`, `power0.5`."""
    match scheme:
        case AtLeastScheme():
            return f"at_least{scheme.count}"
        case TopScheme():
            return f"top{scheme.share:g}d{'2' if scheme.squared else ''}"
        case PowerScheme():
            return f"power_{scheme.rho}" if scheme.rho == "best" else f"power{scheme.rho:g}"
    return scheme.kind


def scheme_phrase(scheme: Scheme) -> str:
    """What a scheme stores, in words: `all alike`."""
    match scheme:
        case SeenScheme():
            return "all alike"
        case AtLeastScheme():
            return f"only what was met {scheme.count} times or more"
        case TopScheme():
            size, whole = "d²" if scheme.squared else "d", round(1 / scheme.share)
            is_part = whole > 1 and abs(scheme.share * whole - 1) < 5e-3  # d/12 for one twelfth, up to its rounding
            return f"only the {f'{size}/{whole}' if is_part else f'{scheme.share:g} {size}'} most frequent"
        case PowerScheme():
            return f"by frequency to the power {'1/(2α)' if scheme.rho == 'best' else f'{scheme.rho:g}'}"
    return "by frequency"


def strengths(
    scheme: Scheme, counts: "Float[Tensor, 'N']", *, samples: int | None, alpha: float, d: int
) -> "Float[Tensor, 'N']":
    """q(z) of every input, met c(z) times in n samples; samples = None: counts are the frequencies p(z) themselves.

    Of inputs that were met as often, a threshold takes the earlier ones. Without samples nothing is stored.
    """
    met = counts > 0
    frequencies = counts if samples is None else counts / max(samples, 1)
    match scheme:
        case SeenScheme():
            return met.to(counts.dtype)
        case AtLeastScheme():
            return (met if samples is None else counts >= scheme.count).to(counts.dtype)
        case TopScheme():
            order = counts.argsort(descending=True, stable=True)[: scheme.stored(d)]
            q = counts.new_zeros(len(counts))
            q[order] = 1.0
            return q * met
        case PowerScheme():
            rho = scheme.exponent(alpha)
            return met.to(counts.dtype) if rho is None else frequencies**rho * met
    return frequencies


def depends_on_dimension(scheme: Scheme) -> bool:
    """Does what is stored depend on d?"""
    return isinstance(scheme, TopScheme)
