"""What users do wrong in a config of dynamics: one line, with the key and what is accepted."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Ended, Refused

BASE = "experiment: dynamics\nsystem: {kind: two_particles}\nlogging: {wandb: 'off'}\n"
CIRCLE = "experiment: dynamics\nsystem: {kind: plane, angles: [0, 90]}\nlogging: {wandb: 'off'}\n"
TOKENS = "experiment: dynamics\nsystem: {kind: random}\nlogging: {wandb: 'off'}\n"

MISTAKES: dict[str, tuple[str, list[str], list[str]]] = {
    "correlation_above_one": (
        BASE, ["system.correlations=[1.5]"], ["system.correlations.0 = 1.5", "less than or equal to 1"],
    ),
    "correlation_below_minus_one": (
        BASE, ["system.correlations=[-2]"], ["system.correlations.0 = -2", "greater than or equal to -1"],
    ),
    "certain_token": (BASE, ["system.p1=[1]"], ["system.p1.0 = 1", "less than 1"]),
    "token_that_never_comes": (BASE, ["system.p1=[0]"], ["system.p1.0 = 0", "greater than 0"]),
    "no_rate": (BASE, ["learning_rates=[]"], ["learning_rates", "at least 1"]),
    "rate_zero": (BASE, ["learning_rates=[0]"], ["learning_rates.0 = 0", "greater than 0"]),
    "rate_below_zero": (BASE, ["learning_rates=[1,-1]"], ["learning_rates.1 = -1", "greater than 0"]),
    "rate_twice": (BASE, ["learning_rates=[1,1]"], ["learning_rates: 1.0 is listed twice"]),
    "no_steps": (BASE, ["steps=0"], ["steps = 0", "greater than 0"]),
    "one_point": (BASE, ["points=1"], ["points = 1", "greater than or equal to 2"]),
    "empty_batch": (BASE, ["batch_size=0"], ["batch_size = 0", "greater than 0"]),
    "report_too_late": (BASE, ["report_at=[200]"], ["report_at: there is no step 200", "steps = 100"]),
    "nothing_random": (BASE, ["seeds=[0,1]"], ["seeds: nothing is random", "only one seed"]),
    "unknown_system": (BASE, ["system.kind=three"], ['system.kind = "three"', "two_particles"]),
    "no_system": ("experiment: dynamics\n", [], ["system is missing"]),
    "key_of_another_system": (BASE, ["system.angles=[1,2]"], ['unknown key "angles" in "system"']),
    "start_of_three": (BASE, ["system.start=[1,2,3]"], ["system.start"]),
    "one_angle": (CIRCLE, ["system.angles=[10]"], ["system.angles", "at least 2"]),
    "angles_and_a_number": (CIRCLE, ["system.n_inputs=5"], ["either angles, in degrees, or n_inputs"]),
    "neither": (CIRCLE, ["system.angles=null"], ["either angles, in degrees, or n_inputs"]),
    "angle_that_is_no_number": (CIRCLE, ["system.angles=[0,nan]"], ["system.angles.1", "finite"]),
    "window_inside_out": (CIRCLE, ["window=[1,-1,0,2]"], ["window = [1.0, -1.0, 0.0, 2.0]", "left, right"]),
    "window_zero": (CIRCLE, ["window=0"], ["window = 0"]),
    "window_without_a_plane": (TOKENS, ["window=3"], ["window is for tokens in a plane"]),
    "one_value": (TOKENS, ["system.n_outputs=1"], ["system.n_outputs = 1", "greater than or equal to 2"]),
    "dimension_zero": (TOKENS, ["system.dimensions=[0]"], ["system.dimensions.0 = 0", "greater than 0"]),
    "too_few_dimensions": (
        TOKENS, ["system.embedding=orthonormal", "system.dimensions=[4]"],
        ["5 orthonormal vectors do not fit into d = 4", "at least d = 5"],
    ),
    "unknown_embedding": (TOKENS, ["system.embedding=spere"], ['"spere"', 'did you mean "sphere"?']),
}  # fmt: skip


@pytest.mark.parametrize(("content", "overrides", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_ends_with_2_and_one_line(
    content: str, overrides: list[str], says: list[str], refused: "Refused"
) -> None:
    refused(content, overrides, says)


HUGE: dict[str, tuple[str, str, str]] = {
    "tokens": (TOKENS, "system.n_inputs=1000000000", "system.n_inputs = 1,000,000,000 needs too much memory"),
    "dimension": (TOKENS, "system.dimensions=[1000000000]", "system.dimensions = 1,000,000,000 needs too much memory"),
    "values": (TOKENS, "system.n_outputs=1000000000", "system.n_outputs = 1,000,000,000 needs too much memory"),
    "steps": (BASE, "steps=100000000000", "steps = 100,000,000,000 needs too much memory"),
    "batch": (BASE, "batch_size=100000000000", "batch_size = 100,000,000,000 needs too much memory"),
}


@pytest.mark.parametrize(("content", "override", "says"), HUGE.values(), ids=HUGE)
def test_what_no_machine_can_hold_is_refused_in_one_line(
    content: str, override: str, says: str, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(content, encoding="utf-8")
    ended = invoke("run", tmp_path / "mine.yaml", override, "--out", tmp_path / "run")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"toytf: {says}")
    assert ended.err.count("\n") == 1, ended.err
