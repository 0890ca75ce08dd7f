"""The rules that build a matrix from an Association."""

from jaxtyping import Float
from torch import Tensor

from toytf.memory.association import Association


def hebbian(association: Association) -> Float[Tensor, "d_out d_in"]:
    """Store every pair as an outer product.

    W = Σ_z u_{f(z)} e_zᵀ

    Every pair counts once, whatever its weight: the weights say how often a key is asked for, not how strongly it is
    stored (Bietti et al. 2023, §4).
    """
    return association.values[association.targets].T @ association.keys
