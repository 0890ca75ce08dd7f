"""The table of rules: what it says of each is true, and a rule needs nothing but its entry."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

import toytf
from toytf.memory import RULES, Association, AssociationStream, MLPMemory, Rule, RuleInputs, Trained
from toytf.memory.builders import AdamOptions
from toytf.randomness import generator

D, N, WIDTH = 6, 5, 3

FIRST, SECOND = (AssociationStream(0, D, D, purpose=part).prefix(N).keys for part in ("first", "second"))
PAIRS = Association((FIRST + SECOND) / 2**0.5, AssociationStream(0, D, D).prefix(N).values, torch.arange(N))

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def inputs(width: int = WIDTH, *, in_parts: bool = True, **options: Any) -> RuleInputs:
    """What a rule gets here: five pairs whose keys are sums of two parts."""
    parts = (FIRST, SECOND) if in_parts else None
    return RuleInputs(PAIRS, generator(0, "rules"), width, parts, **options)


def outputs(rule: Rule, width: int) -> Tensor:
    memory = rule.build(inputs(width))
    return PAIRS.keys @ memory.T if isinstance(memory, Tensor) else memory(PAIRS.keys)


# --- what an entry says is true


def test_a_rule_is_found_by_its_name() -> None:
    assert all(rule.name == name and rule.says for name, rule in RULES.items())


@every_rule
def test_every_rule_builds_a_memory(rule: Rule) -> None:
    assert PAIRS.scores(rule.build(inputs())).isfinite().all()


@every_rule
def test_the_width_changes_only_rules_that_have_one(rule: Rule) -> None:
    narrow, wide = (outputs(rule, width) for width in (2, WIDTH))
    assert torch.equal(narrow, wide) == (rule.width == "none")


@every_rule
def test_a_width_is_the_rank_of_a_matrix_or_the_number_of_hidden_units(rule: Rule) -> None:
    memory = rule.build(inputs(WIDTH))
    assert isinstance(memory, MLPMemory if rule.width == "hidden" else Tensor)
    if isinstance(memory, MLPMemory):
        assert memory.W_in.shape == memory.W_out.shape == (WIDTH, D)
    elif rule.width == "rank":
        assert int(torch.linalg.matrix_rank(memory)) == WIDTH


@every_rule
def test_only_rules_for_pairs_need_the_parts_of_the_keys(rule: Rule) -> None:
    given = inputs(in_parts=False)
    if rule.pairs:
        with pytest.raises(ValueError, match="keys that are sums of two parts"):
            rule.build(given)
    else:
        assert PAIRS.scores(rule.build(given)).isfinite().all()


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.searches], ids=lambda rule: rule.name)
def test_a_search_tells_what_its_memory_recalls(rule: Rule) -> None:
    found = rule.attempts([inputs()])[0]
    assert isinstance(found, Trained)
    assert found.recall == float(PAIRS.recall(found.memory)) == 1  # five pairs fit


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.searches], ids=lambda rule: rule.name)
def test_a_search_that_is_all_or_nothing_counts_a_part_as_nothing(rule: Rule) -> None:
    """Sixty pairs are far more than a 6 × 6 matrix, or three hidden units, can store."""
    many = AssociationStream(0, D, D).prefix(60)
    found = rule.attempts([RuleInputs(many, generator(0, "many"), WIDTH, adam=AdamOptions(steps=100))])[0]
    assert float(many.recall(found.memory)) > 0
    assert (found.recall == 0) == rule.all_or_nothing


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.step], ids=lambda rule: rule.name)
def test_a_gradient_step_from_zero_is_what_its_rule_builds(rule: Rule) -> None:
    assert torch.equal(rule.stepped(PAIRS, torch.zeros(D, D)), rule.build(inputs()))


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES.values() if rule.theory == "best_weights"], ids=lambda rule: rule.name
)
def test_the_best_weights_store_what_is_far_below_their_capacity(rule: Rule) -> None:
    assert float(PAIRS.recall(rule.build(inputs()))) == 1


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.decoupled], ids=lambda rule: rule.name)
def test_own_rivals_change_what_is_stored_but_not_the_builder(rule: Rule, tmp_path: Path) -> None:
    (twin,) = (other for other in RULES.values() if rule.builder.endswith(f":{other.name}"))
    kinds: dict[str, tuple[dict[str, Any], str]] = {
        "capacity": ({"dimensions": [6]}, "group == 'capacity' and not variant"),
        "storage": ({"dimension": 6, "n": 8}, "group == 'margin' and measure == 'min'"),
    }
    for experiment in rule.experiments:
        size, measured = kinds[experiment]
        run = toytf.run(
            {
                "experiment": experiment, "rules": [twin.name, rule.name], "seeds": [0, 1], **size,
                "device": "cpu", "threads": 1, "logging": {"wandb": "off"},
            },
            out=tmp_path / experiment,
            page=False,
        )  # fmt: skip
        shared, own = run.table.query(measured).groupby("rule", sort=False)["value"]
        assert shared[1].tolist() != own[1].tolist()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pairs": True}, "rule mine: the experiment capacity has no keys that are sums of two parts"),
        ({"decoupled": True, "search": "trained"}, "rule mine: only one_shot and certified rules of a matrix can have"),
        ({"decoupled": True, "step": "mine:step"}, "can have own rivals"),
    ],
)
def test_an_entry_that_no_experiment_could_run_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Rule("mine", "", "mine:build", **options)


def test_the_table_of_rules_is_read_without_torch() -> None:
    program = "import sys; from toytf.memory import RULES; assert RULES and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


# --- a rule needs nothing but its entry


MINE = """
import sys
from toytf.memory import RULES, Rule

RULES["mine"] = Rule("mine", "three times the Hebbian matrix", "mine:build", theory="hebbian")

def build(inputs):
    from toytf.memory import hebbian
    return 3 * hebbian(inputs.association)

if __name__ == "__main__":
    from toytf.cli import main
    for name in ("capacity", "storage"):
        sys.argv = ["toytf", "run", name + ".yaml", "--out", name]
        try:
            main()
        except SystemExit as ended:
            assert not ended.code
"""


@pytest.fixture(scope="module")
def with_mine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of two runs in a process that has one more rule, and what they printed."""
    folder = tmp_path_factory.mktemp("mine")
    quiet = {"rules": ["hebbian", "mine"], "device": "cpu", "threads": 1, "logging": {"wandb": "off"}}
    configs: dict[str, Any] = {
        "capacity": {"experiment": "capacity", "dimensions": [4, 5, 6], "draws": 4, **quiet},
        "storage": {"experiment": "storage", "dimension": 6, "n": 8, **quiet},
    }
    for name, config in configs.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    (folder / "mine.py").write_text(MINE)
    ended = subprocess.run([sys.executable, "mine.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return folder, ended.stdout


def summary(folder: Path, experiment: str) -> dict[str, float]:
    content: dict[str, float] = json.loads((folder / experiment / "summary.json").read_text())
    return content


@pytest.mark.parametrize("experiment", ["capacity", "storage"])
def test_a_new_rule_has_the_metrics_of_the_old_ones_and_their_values(
    experiment: str, with_mine: tuple[Path, str]
) -> None:
    """Neither capacity nor any measure depends on the scale of W, so that mine has the numbers of the Hebbian rule."""
    found = summary(with_mine[0], experiment)
    hebbian = {name: value for name, value in found.items() if "/hebbian" in name}
    mine = {name.replace("/hebbian", "/mine"): value for name, value in hebbian.items()}
    assert len(mine) > 20
    assert {name: found[name] for name in mine} == pytest.approx(mine, rel=1e-5)
    assert set(found) == set(hebbian) | set(mine)


@pytest.mark.parametrize("experiment", ["capacity", "storage"])
def test_a_new_rule_is_in_the_table_and_on_the_page(experiment: str, with_mine: tuple[Path, str]) -> None:
    folder, printed = with_mine
    row = {"capacity": "mine_d4", "storage": "mine_correct_mean"}[experiment]
    assert row in printed
    assert row in (folder / experiment / "report.html").read_text(encoding="utf-8").replace("<wbr>", "")


def test_a_new_rule_is_in_the_figures(with_mine: tuple[Path, str]) -> None:
    figures = {path.stem: path.read_text() for path in with_mine[0].glob("*/figures/*.json")}
    assert {"capacity", "scores_mine", "spectrum_mine"} <= set(figures)
    assert '"mine"' in figures["capacity"]
    assert "theory: mine" in figures["capacity"]
