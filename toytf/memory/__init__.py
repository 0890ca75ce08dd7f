"""Associative memories alone: what a matrix should store, how well it does, and the rules that build one."""

from typing import TYPE_CHECKING

from toytf._lazy import lazy

if TYPE_CHECKING:
    from toytf.memory.association import Association, exact
    from toytf.memory.builders import RuleInputs
    from toytf.memory.constructions import bi_whitened, hebbian, low_rank, pseudo_inverse, ridge
    from toytf.memory.gradients import gradient_step, noisy_gradient_step
    from toytf.memory.mlp import MLPMemory, hermite, hermite_coefficient, mlp_hermite, mlp_least_squares, mlp_pairs
    from toytf.memory.particles import Particles
    from toytf.memory.problem import StorageProblem
    from toytf.memory.rank import decide_rank
    from toytf.memory.readout import ReadOut, read_out, storage_exponent
    from toytf.memory.rules import RULES, Rule
    from toytf.memory.sharpness import sharpness_of, sharpnesses
    from toytf.memory.solver import Decision, Status, decide, max_margin, maximise_margin, settle
    from toytf.memory.stream import AssociationStream
    from toytf.memory.trained import Trained, train_linear, train_low_rank, train_mlp

__all__ = [
    "RULES",
    "Association",
    "AssociationStream",
    "Decision",
    "MLPMemory",
    "Particles",
    "ReadOut",
    "Rule",
    "RuleInputs",
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
    "read_out",
    "ridge",
    "settle",
    "sharpness_of",
    "sharpnesses",
    "storage_exponent",
    "train_linear",
    "train_low_rank",
    "train_mlp",
]

__getattr__ = lazy(
    __name__,
    {
        "RULES": "toytf.memory.rules",
        "Association": "toytf.memory.association",
        "AssociationStream": "toytf.memory.stream",
        "Decision": "toytf.memory.solver",
        "MLPMemory": "toytf.memory.mlp",
        "Particles": "toytf.memory.particles",
        "ReadOut": "toytf.memory.readout",
        "Rule": "toytf.memory.rules",
        "RuleInputs": "toytf.memory.builders",
        "Status": "toytf.memory.solver",
        "StorageProblem": "toytf.memory.problem",
        "Trained": "toytf.memory.trained",
        "bi_whitened": "toytf.memory.constructions",
        "decide": "toytf.memory.solver",
        "decide_rank": "toytf.memory.rank",
        "exact": "toytf.memory.association",
        "gradient_step": "toytf.memory.gradients",
        "hebbian": "toytf.memory.constructions",
        "hermite": "toytf.memory.mlp",
        "hermite_coefficient": "toytf.memory.mlp",
        "low_rank": "toytf.memory.constructions",
        "max_margin": "toytf.memory.solver",
        "maximise_margin": "toytf.memory.solver",
        "mlp_hermite": "toytf.memory.mlp",
        "mlp_least_squares": "toytf.memory.mlp",
        "mlp_pairs": "toytf.memory.mlp",
        "noisy_gradient_step": "toytf.memory.gradients",
        "pseudo_inverse": "toytf.memory.constructions",
        "read_out": "toytf.memory.readout",
        "ridge": "toytf.memory.constructions",
        "settle": "toytf.memory.solver",
        "storage_exponent": "toytf.memory.readout",
        "sharpness_of": "toytf.memory.sharpness",
        "sharpnesses": "toytf.memory.sharpness",
        "train_linear": "toytf.memory.trained",
        "train_low_rank": "toytf.memory.trained",
        "train_mlp": "toytf.memory.trained",
    },
)
