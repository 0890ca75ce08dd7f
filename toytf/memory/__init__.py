"""Associative memories alone: what a matrix should store, how well it does, and the rules that build one."""

from typing import TYPE_CHECKING

from toytf._lazy import lazy
from toytf.memory.association import Association, exact
from toytf.memory.constructions import bi_whitened, hebbian, low_rank, pseudo_inverse, ridge

if TYPE_CHECKING:
    from toytf.memory.gradients import gradient_step, noisy_gradient_step
    from toytf.memory.mlp import MLPMemory, hermite, hermite_coefficient, mlp_hermite, mlp_least_squares, mlp_pairs
    from toytf.memory.problem import StorageProblem
    from toytf.memory.rank import decide_rank
    from toytf.memory.solver import Decision, Status, decide, max_margin, maximise_margin
    from toytf.memory.stream import AssociationStream
    from toytf.memory.trained import Trained, train_linear, train_low_rank, train_mlp

__all__ = [
    "Association",
    "AssociationStream",
    "Decision",
    "MLPMemory",
    "Status",
    "StorageProblem",
    "Trained",
    "bi_whitened",
    "decide",
    "decide_rank",
    "exact",
    "gradient_step",
    "hebbian",
    "hermite",
    "hermite_coefficient",
    "low_rank",
    "max_margin",
    "maximise_margin",
    "mlp_hermite",
    "mlp_least_squares",
    "mlp_pairs",
    "noisy_gradient_step",
    "pseudo_inverse",
    "ridge",
    "train_linear",
    "train_low_rank",
    "train_mlp",
]

__getattr__ = lazy(
    __name__,
    {
        "AssociationStream": "toytf.memory.stream",
        "Decision": "toytf.memory.solver",
        "MLPMemory": "toytf.memory.mlp",
        "Status": "toytf.memory.solver",
        "StorageProblem": "toytf.memory.problem",
        "Trained": "toytf.memory.trained",
        "decide": "toytf.memory.solver",
        "decide_rank": "toytf.memory.rank",
        "gradient_step": "toytf.memory.gradients",
        "hermite": "toytf.memory.mlp",
        "hermite_coefficient": "toytf.memory.mlp",
        "max_margin": "toytf.memory.solver",
        "maximise_margin": "toytf.memory.solver",
        "mlp_hermite": "toytf.memory.mlp",
        "mlp_least_squares": "toytf.memory.mlp",
        "mlp_pairs": "toytf.memory.mlp",
        "noisy_gradient_step": "toytf.memory.gradients",
        "train_linear": "toytf.memory.trained",
        "train_low_rank": "toytf.memory.trained",
        "train_mlp": "toytf.memory.trained",
    },
)
