"""The systems of the experiment `dynamics`: which tokens there are, how frequent they are, and where W starts."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from toytf import theory
from toytf.experiments.dynamics.config import DynamicsConfig, PlaneConfig, RandomConfig, TwoParticlesConfig
from toytf.experiments.seeded import with_float64
from toytf.memory import Association
from toytf.randomness import generator


@dataclass(frozen=True)
class System:
    """One setting of the tokens; what a kind of system does not have is None."""

    correlation: float | None = None
    p: float | None = None
    """The frequency of the first of two tokens."""
    d: int | None = None


def systems(config: DynamicsConfig) -> Iterator[System]:
    """All settings."""
    match config.system:
        case TwoParticlesConfig() as two:
            yield from (System(correlation=a, p=p) for a in two.correlations for p in two.p1)
        case RandomConfig() as random:
            yield from (System(d=d) for d in random.dimensions)
        case PlaneConfig():
            yield System()


def tokens(config: DynamicsConfig, system: System, seed: int) -> Association:
    """The tokens of a seed: vectors, answers, and frequencies as weights, in float64."""
    match config.system:
        case TwoParticlesConfig():
            a, p = system.correlation or 0.0, system.p or 0.0
            keys = torch.tensor([[1, 0], [a, math.sqrt(1 - a**2)]], dtype=torch.float64)
            found = keys, torch.eye(2), torch.tensor([p, 1 - p], dtype=torch.float64)
        case PlaneConfig() as plane:
            if plane.angles is None:
                drawn = torch.rand(plane.n_tokens, generator=generator(seed, "angles"), dtype=torch.float64)
                angles = 2 * math.pi * drawn
            else:
                angles = torch.deg2rad(torch.tensor(plane.angles, dtype=torch.float64))
            keys = torch.stack([angles.cos(), angles.sin()], 1)
            found = keys, torch.eye(2), torch.as_tensor(theory.zipf(plane.n_tokens, plane.alpha))
        case RandomConfig() as random:
            N, M, d = random.n_inputs, random.n_outputs, system.d or 1
            keys, values = _vectors(random, seed, "keys", N, d), _vectors(random, seed, "values", M, d)
            found = keys, values, torch.as_tensor(theory.zipf(N, random.alpha))
    keys, values, p_of = (part.double().to(with_float64(config.device)) for part in found)
    targets = torch.arange(len(keys), device=keys.device) % len(values)
    return Association(keys, values, targets, p_of)


def start(config: DynamicsConfig, system: System, seed: int) -> Float[Tensor, "d_out d_in"]:
    """W at the start; in a plane, ±γ/2 are its rows."""
    if isinstance(config.system, RandomConfig):
        d, scale = system.d or 1, config.system.start_scale
        W = torch.randn(d, d, generator=generator(seed, "start"), dtype=torch.float64)
        return scale * W / math.sqrt(d)
    return planar_matrix(torch.tensor(config.system.start, dtype=torch.float64))


def planar_matrix(gamma: Float[Tensor, "2"]) -> Float[Tensor, "2 2"]:
    """The W whose two rows differ by γ."""
    return torch.stack([gamma / 2, -gamma / 2])


def signed(association: Association) -> Float[Tensor, "n 2"]:
    """The tokens of a plane so that all margins are z_x · γ: those of the second value turned around."""
    return association.keys * (1 - 2 * association.targets[:, None])


def _vectors(random: RandomConfig, seed: int, purpose: str, rows: int, d: int) -> Float[Tensor, "rows d"]:
    if random.embedding == "orthonormal":
        return torch.eye(rows, d, dtype=torch.float64)
    drawn = torch.randn(rows, d, generator=generator(seed, purpose), dtype=torch.float64)
    return torch.nn.functional.normalize(drawn, dim=1) if random.embedding == "sphere" else drawn / math.sqrt(d)
