"""How vectors and weights are drawn at the start."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.errors import UserError
from toytf.models.config import VectorDistribution, WeightDistribution


def draw_vectors(
    distribution: VectorDistribution, n: int, d: int, generator: torch.Generator, *, what: str, first_axis: int = 0
) -> Float[Tensor, "n d"]:
    """n vectors of R^d; `what` names them in an error; one-hot vectors use the axes from `first_axis` on."""
    needed = first_axis + n if distribution == "one_hot" else n
    if distribution in ("one_hot", "orthonormal") and needed > d:
        raise UserError(f'{what} = "{distribution}" needs d_model ≥ {needed}, got {d}')
    match distribution:
        case "sphere":
            return torch.nn.functional.normalize(torch.randn(n, d, generator=generator), dim=1)
        case "orthonormal":
            return _orthonormal(d, generator)[:n].contiguous()
        case "one_hot":
            return torch.eye(d)[first_axis : first_axis + n].clone()
        case _:
            return _entries(distribution, (n, d), d, generator)


def draw_weights(
    distribution: WeightDistribution, shape: tuple[int, int, int], fan_in: int, generator: torch.Generator
) -> Float[Tensor, "head d_in d_out"]:
    """A weight matrix per head; fan_in is the length d of the vectors it reads, d_out of those it gives."""
    if distribution == "orthonormal":
        heads, d_in, d_out = shape
        squares = [_orthonormal(max(d_in, d_out), generator)[:d_in, :d_out] for _ in range(heads)]
        return torch.stack(squares)
    if distribution == "normal_over_out":
        return _entries("normal_over_d", shape, shape[-1], generator)
    return _entries(distribution, shape, fan_in, generator)


def sinusoidal(n: int, d: int) -> Float[Tensor, "n d"]:
    """p_t = (sin(t ω_i), cos(t ω_i))_i with ω_i = 10000^(−2i/d) (Vaswani et al. 2017)."""
    rates = torch.exp(-math.log(10_000) * torch.arange(0, d, 2) / d)
    angles = torch.arange(n)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :d].clone()


def _entries(distribution: str, shape: tuple[int, ...], d: int, generator: torch.Generator) -> Tensor:
    match distribution:
        case "normal":
            return torch.randn(shape, generator=generator)
        case "normal_over_d":
            return torch.randn(shape, generator=generator) / math.sqrt(d)
        case "uniform_over_d":
            return torch.rand(shape, generator=generator).mul(2).sub(1).div(math.sqrt(d))
        case "zeros":
            return torch.zeros(shape)
    raise ValueError(f"unknown distribution {distribution!r}")


def _orthonormal(d: int, generator: torch.Generator) -> Float[Tensor, "d d"]:
    """A random rotation, uniform over the orthogonal group (the signs of R make the QR factor unique)."""
    Q, R = torch.linalg.qr(torch.randn(d, d, generator=generator))
    rotation: Tensor = Q * R.diagonal().sign()
    return rotation
