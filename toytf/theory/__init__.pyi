from toytf.theory._domain import rank_fits
from toytf.theory.crosstalk import attention_mass, attention_race, copy_accuracy, previous_mass, trigger_noise
from toytf.theory.dimension import (
    StatisticalDimension,
    dimension_bound,
    dimension_curve,
    statistical_dimension,
)  # fmt: skip
from toytf.theory.fact_capacity import (
    FACTS_PER_PARAMETER,
    additive_dimension,
    attention_and_mlp_suffice,
    attention_suffices,
    recall_parameters,
)  # fmt: skip
from toytf.theory.fact_stages import (
    plateau_length,
    relation_rate,
    relations_first,
    stage_time,
    subject_rate,
    token_rate,
)  # fmt: skip
from toytf.theory.frequencies import sampling_floor, unseen_mass, zipf
from toytf.theory.hebbian import hebbian_accuracy, hebbian_capacity
from toytf.theory.induction import (
    TokenSignal,
    induction_ceiling,
    output_rate,
    output_signal,
    position_rate,
    position_signal,
    remapped_gain,
    remapped_signal,
    trigger_rate,
    trigger_signal,
    trigger_strength,
)  # fmt: skip
from toytf.theory.information import bits_of_facts, bits_to_store, pairs_within
from toytf.theory.margins import loss_law, margin_step, pair_sharpness, pair_step, strengths_after
from toytf.theory.matrix_capacity import asymptotic_capacity, capacity, load, maximal_margin
from toytf.theory.noise import NoiseStep, attention_recall, feed_forward_recall, noise_step, relative_spread
from toytf.theory.part_capacity import (
    BITS_PER_PARAMETER,
    HIDDEN_LOAD,
    MATRIX_LOAD,
    TRAINED_RECALL,
    mlp_capacity,
    selector_capacity,
)  # fmt: skip
from toytf.theory.schemes import power_exponent, scheme_error, tail_error, threshold_exponent
from toytf.theory.scores import ScoreDistribution, extreme_level, hebbian_scores, optimum_scores
from toytf.theory.spectra import fourth_moment_hebbian, gaussian_singular_values, hebbian_singular_values, top_energy

__all__ = [
    "BITS_PER_PARAMETER", "FACTS_PER_PARAMETER", "HIDDEN_LOAD", "MATRIX_LOAD", "TRAINED_RECALL", "NoiseStep",
    "ScoreDistribution", "StatisticalDimension", "TokenSignal", "additive_dimension", "asymptotic_capacity",
    "attention_and_mlp_suffice", "attention_mass", "attention_race", "attention_recall", "attention_suffices",
    "bits_of_facts", "bits_to_store", "capacity", "copy_accuracy", "dimension_bound", "dimension_curve",
    "extreme_level", "feed_forward_recall", "fourth_moment_hebbian", "gaussian_singular_values", "hebbian_accuracy",
    "hebbian_capacity", "hebbian_scores", "hebbian_singular_values", "induction_ceiling", "load", "loss_law",
    "margin_step", "maximal_margin", "mlp_capacity", "noise_step", "optimum_scores", "output_rate", "output_signal",
    "pair_sharpness", "pair_step", "pairs_within", "plateau_length", "position_rate", "position_signal",
    "power_exponent", "previous_mass", "rank_fits", "recall_parameters", "relation_rate", "relations_first",
    "relative_spread", "remapped_gain", "remapped_signal", "sampling_floor", "scheme_error", "selector_capacity",
    "stage_time", "statistical_dimension", "strengths_after", "subject_rate", "tail_error", "threshold_exponent",
    "token_rate", "top_energy", "trigger_noise", "trigger_rate", "trigger_signal", "trigger_strength",
    "unseen_mass", "zipf",
]  # fmt: skip
