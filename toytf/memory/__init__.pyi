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
    "RULES", "Association", "AssociationStream", "Decision", "MLPMemory", "Particles", "ReadOut", "Rule",
    "RuleInputs", "Status", "StorageProblem", "Trained", "bi_whitened", "decide", "decide_rank", "exact",
    "gradient_step", "hebbian", "hermite", "hermite_coefficient", "low_rank", "max_margin", "maximise_margin",
    "mlp_hermite", "mlp_least_squares", "mlp_pairs", "noisy_gradient_step", "pseudo_inverse", "read_out", "ridge",
    "settle", "sharpness_of", "sharpnesses", "storage_exponent", "train_linear", "train_low_rank", "train_mlp",
]  # fmt: skip
