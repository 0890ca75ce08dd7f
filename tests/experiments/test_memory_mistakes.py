"""What users do wrong in a config of capacity or storage: one line, with the key and what is accepted."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Ended, Refused

CAPACITY = "experiment: capacity\nrules: [hebbian]\ndimensions: [4]\nlogging: {wandb: 'off'}\n"
STORAGE = "experiment: storage\nrules: [hebbian]\ndimension: 4\nn: 6\nlogging: {wandb: 'off'}\n"

MISTAKES: dict[str, tuple[str, list[str], list[str]]] = {
    # rules
    "unknown_rule": (CAPACITY, ["rules=[optimun]"], ['rules.0 = "optimun"', 'did you mean "optimum"?']),
    "unknown_rule_to_store": (STORAGE, ["rules=[max_margn]"], ['rules.0 = "max_margn"', 'did you mean "max_margin"?']),
    "no_rule": (CAPACITY, ["rules=[]"], ["rules", "at least 1"]),
    "no_rule_to_store": (STORAGE, ["rules=[]"], ["rules", "at least 1"]),
    "rule_twice": (CAPACITY, ["rules=[hebbian,ridge,hebbian]"], ["rules: hebbian is listed twice"]),
    "rule_of_storage": (CAPACITY, ["rules=[max_margin]"], ['rules.0 = "max_margin"', "accepted: "]),
    "decoupled_with_noise": (
        STORAGE, ["rules=[optimum_decoupled]", "noise_vectors=2"],
        ['"optimum_decoupled"', "leave out pairs and noise_vectors"],
    ),
    # sizes
    "no_dimension": (CAPACITY, ["dimensions=[]"], ["dimensions", "at least 1"]),
    "dimension_zero": (CAPACITY, ["dimensions=[0]"], ["dimensions.0 = 0", "greater than 0"]),
    "dimension_twice": (CAPACITY, ["dimensions=[4,8,4]"], ["dimensions: 4 is listed twice"]),
    "square_twice": (CAPACITY, ["dimensions=[4,[4,4]]"], ["dimensions", "listed twice"]),
    "three_sides": (CAPACITY, ["dimensions=[[4,5,6]]"], ["dimensions.0"]),
    "one_dimension_too_few_brackets": (CAPACITY, ["dimensions=4"], ["dimensions = 4", "list"]),
    "size_zero": (STORAGE, ["dimension=0"], ["dimension = 0", "greater than 0"]),
    "dimensions_in_storage": (STORAGE, ["dimensions=[4]"], ['"dimensions"', 'did you mean "dimension"?']),
    # widths
    "no_width": (CAPACITY, ["rules=[mlp_h2]"], ["widths is empty", '"mlp_h2"']),
    "no_width_to_store": (STORAGE, ["rules=[low_rank]"], ["width is missing", '"low_rank"']),
    "width_above_rank": (CAPACITY, ["rules=[low_rank]", "widths=[2,5]"], ["width = 5", "4 × 4", "at most 4"]),
    "width_above_narrow_side": (
        CAPACITY, ["rules=[low_rank]", "dimensions=[[3,9]]", "widths=[4]"], ["width = 4", "9 × 3", "at most 3"],
    ),
    "width_above_rank_to_store": (STORAGE, ["rules=[low_rank]", "width=5"], ["width = 5", "4 × 4", "at most 4"]),
    "widths_for_nothing": (CAPACITY, ["widths=[2]"], ["widths is given", "none of the rules has a width"]),
    "width_for_nothing": (STORAGE, ["width=2"], ["width is given", "none of the rules has a width"]),
    "two_kinds_of_widths": (
        CAPACITY, ["rules=[low_rank]", "widths=[2]", "width_ratios=[0.5]"],
        ["widths = [2] and width_ratios = [0.5]", "set one of them to []"],
    ),
    "ratios_for_nothing": (CAPACITY, ["width_ratios=[2]"], ["width_ratios is given", "none of the rules has a width"]),
    "ratio_above_rank": (CAPACITY, ["rules=[low_rank]", "width_ratios=[2]"], ["width = 8", "4 × 4", "at most 4"]),
    "ratio_zero": (CAPACITY, ["rules=[mlp_h2]", "width_ratios=[0]"], ["width_ratios.0 = 0", "greater than 0"]),
    "ratios_of_one_width": (
        CAPACITY, ["rules=[mlp_h2]", "width_ratios=[1,1.1]"], ["width_ratios", "one width at d = 4", "[4, 4]"],
    ),
    "width_twice": (CAPACITY, ["rules=[low_rank]", "widths=[2,2]"], ["widths: 2 is listed twice"]),
    # the criterion and the search
    "half_of_the_optimum": (
        CAPACITY, ["rules=[optimum]", "criterion=0.5"], ["criterion = 0.5", '"optimum"', "criterion: all"],
    ),
    "no_starts": (CAPACITY, ["starts=0"], ["starts = 0", "greater than 0"]),
    "criterion_above_one": (CAPACITY, ["criterion=1.5"], ["criterion = 1.5", "'all'", "less than 1"]),
    "criterion_one": (CAPACITY, ["criterion=1"], ["criterion = 1", "'all'", "less than 1"]),
    "criterion_zero": (CAPACITY, ["criterion=0"], ["criterion = 0", "'all'", "greater than 0"]),
    "criterion_by_name": (CAPACITY, ["criterion=half"], ['criterion = "half"', "all"]),
    "criterion_below_a_guess": (
        CAPACITY, ["criterion=0.4", "data.n_answers=2"], ["criterion = 0.4", "guess", "2 answers"],
    ),
    "negative_tolerance": (CAPACITY, ["tolerance=-1"], ["tolerance = -1", "greater than 0"]),
    "no_resolution": (CAPACITY, ["resolution=0"], ["resolution = 0", "greater than 0"]),
    "no_draws": (CAPACITY, ["draws=0"], ["draws = 0", "greater than 0"]),
    "no_iterations": (STORAGE, ["iterations=0"], ["iterations = 0", "greater than 0"]),
    "no_learning": (CAPACITY, ["trained.lr=0"], ["trained.lr = 0", "greater than 0"]),
    "seed_twice": (CAPACITY, ["seeds=[0,1,0]"], ["seeds: 0 is listed twice"]),
    # the data
    "unknown_distribution": (CAPACITY, ["data.distribution=gausian"], ['"gausian"', 'did you mean "gaussian"?']),
    "one_answer": (CAPACITY, ["data.n_answers=1"], ["data.n_answers = 1", "greater than or equal to 2"]),
    "three_inputs": (CAPACITY, ["data.inputs=3"], ["data.inputs = 3", "1 or 2"]),
    "inputs_of_a_matrix": (CAPACITY, ["data.inputs=2"], ["data.inputs = 2 is for rules with hidden units"]),
    "inputs_to_store": (STORAGE, ["data.inputs=2"], ['"inputs"']),
    "no_n": (STORAGE, ["n=null"], ["n is missing", "how many associations"]),
    "n_zero": (STORAGE, ["n=0"], ["n = 0", "greater than 0"]),
    "no_noise": (STORAGE, ["noise_vectors=0"], ["noise_vectors = 0", "greater than 0"]),
    "pairs_and_n": (STORAGE, ["pairs={first: 2}"], ["pairs", "leave out n"]),
    "pairs_and_noise": (STORAGE, ["pairs={first: 2}", "n=null", "noise_vectors=2"], ["pairs", "noise_vectors"]),
    "rule_of_pairs_alone": (STORAGE, ["rules=[pairs_ordered]", "width=3"], ["pairs is missing", '"pairs_ordered"']),
    "key_of_pairs": (STORAGE, ["n=null", "pairs={fist: 2}"], ['"fist" in "pairs"', 'did you mean "first"?']),
}  # fmt: skip


@pytest.mark.parametrize(("content", "overrides", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_ends_with_2_and_one_line(
    content: str, overrides: list[str], says: list[str], refused: "Refused"
) -> None:
    refused(content, overrides, says)


@pytest.mark.parametrize("name", ["unknown_rule", "dimension_zero", "criterion_above_one", "size_zero"])
def test_one_mistake_is_counted_as_one(name: str, invoke: "Callable[..., Ended]", tmp_path: Path) -> None:
    content, overrides, _ = MISTAKES[name]
    (tmp_path / "mine.yaml").write_text(content)
    assert "more)" not in invoke("run", tmp_path / "mine.yaml", *overrides, "--out", tmp_path / "run").err
