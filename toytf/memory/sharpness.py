"""Sharpness: the largest eigenvalue of the Hessian of the cross-entropy, by Lanczos, without the Hessian.

    H = Σ_x p(x) (e_x e_xᵀ) ⊗ Uᵀ (diag π_x − π_x π_xᵀ) U,   π_x = softmax(U W e_x)

A step of gradient descent is stable along a direction if η λ / 2 < 1 (Cabannes, Simsek, Bietti 2024). H does not depend
on the labels.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.particles import Particles

ITERATIONS = 60
"""Products with the Hessian at most; the largest eigenvalue has long settled."""

FEWEST = 12
"""Products at least, unless the directions are used up sooner: a search may stand still before it finds the largest."""

SETTLED = 1e-10
"""How little a product may add before the search is over, relative to the eigenvalue."""


def sharpness_of(association: Association, W: Float[Tensor, "d_out d_in"]) -> float:
    """λ_max of the Hessian of the loss of a matrix; weights of the association are the frequencies p."""
    return float(sharpnesses(Particles.of([association], [W]))[0])


def sharpnesses(particles: Particles, iterations: int = ITERATIONS) -> Float[Tensor, "b"]:
    """λ_max of the Hessian of every system where it is now."""
    E, U, p = particles.keys, particles.values, particles.p[..., None]
    pi = particles.scores.softmax(2)

    def product(V: Float[Tensor, "b d_out d_in"]) -> Float[Tensor, "b d_out d_in"]:
        """H V = Uᵀ (diag(p) J(E Vᵀ Uᵀ))ᵀ E,   J_x r = π_x ∘ (r − π_x·r)."""
        r = E @ V.mT @ U.mT
        return U.mT @ (p * pi * (r - (pi * r).sum(2, keepdim=True))).mT @ E

    start = torch.cos(torch.arange(U.shape[2] * E.shape[2], dtype=E.dtype, device=E.device) ** 2)
    return largest_eigenvalue(product, start.reshape(1, U.shape[2], E.shape[2]).expand(len(E), -1, -1), iterations)


def largest_eigenvalue(
    product: Callable[[Float[Tensor, "b ..."]], Float[Tensor, "b ..."]],
    start: Float[Tensor, "b ..."],
    iterations: int = ITERATIONS,
) -> Float[Tensor, "b"]:
    """The largest eigenvalue of some symmetric operators without a negative one, by Lanczos.

    start: what the search of each begins with. Every new direction is made orthogonal to all before it, twice, so that
    no eigenvalue is found again. Where the directions are used up, zeros follow, which the maximum does not notice.
    """
    b, n = len(start), start[0].numel()
    basis = [_unit(start.reshape(b, n))]
    iterations = min(iterations, n)
    T = start.new_zeros(b, iterations, iterations)
    largest = start.new_zeros(b)
    for k in range(iterations):
        image = product(basis[k].reshape(start.shape)).reshape(b, n)
        T[:, k, k] = (image * basis[k]).sum(1)
        before, largest = largest, torch.linalg.eigvalsh(T[:, : k + 1, : k + 1])[:, -1]
        known = torch.stack(basis, 1)
        for _ in range(2):
            image = image - ((known @ image[..., None]) * known).sum(1)
        beta = image.norm(dim=1)
        if k + 1 == iterations or bool((beta <= SETTLED * largest).all()):
            break
        if k >= FEWEST and bool((largest - before <= SETTLED * largest).all()):
            break
        T[:, k, k + 1] = T[:, k + 1, k] = torch.where(beta > SETTLED * largest, beta, 0.0)
        basis.append(torch.where((beta > SETTLED * largest)[:, None], _unit(image), 0.0))
    return largest


def _unit(vectors: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    return torch.nn.functional.normalize(vectors, dim=1, eps=torch.finfo(vectors.dtype).tiny)
