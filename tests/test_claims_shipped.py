"""The claims that ship ask for what their runs measure: a misspelt metric should not be found only after minutes."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import small_sizes, tiny
from toytf.claims import check_claims, load_claim
from toytf.claims.verdict import FEWEST_SEEDS
from toytf.config.plugins import ExperimentConfig, plugins
from toytf.config.shipped import claim_files
from toytf.engines import EngineOptions
from toytf.experiments.capacity.config import CapacityConfig
from toytf.experiments.filling.config import FillingConfig
from toytf.experiments.filling.curves import ACCURACY, LEARNED, RULES
from toytf.measurement import KINDS, flat, reference_name
from toytf.runs import Run

pytestmark = pytest.mark.repeats_runs  # test_metric_names.py checks the shapes of each kind


@pytest.fixture(scope="module")
def measured(made: Callable[[ExperimentConfig], Run]) -> Callable[[str, str], set[str]]:
    """The metrics that a run of a claim has, by a run as small as can be."""

    @cache
    def names(claim: str, run: str) -> set[str]:
        config = load_claim(claim_files()[claim])[1][run]
        done = made(tiny(config))
        if isinstance(config, CapacityConfig):
            return _with_sizes(done, small_sizes(config))
        if isinstance(config, FillingConfig):
            at_sizes = ({"size": {config.case_sizes[0]: size}} for size in config.case_sizes)
            return _breaks(done, config).union(*(_with_sizes(done, given) for given in at_sizes))
        return {*done.history.columns, *done.summary}

    return names


def _breaks(run: Run, config: FillingConfig) -> set[str]:
    """Where curves may break, which they need not do in so few sizes."""
    memories = {about.at["memory"] for about in run.columns.values() if "memory" in about.at}
    ways = [(setting, rule) for setting in config.settings for rule in (LEARNED, ACCURACY, *RULES)]
    return {f"break/{memory}_{setting}_{rule}" for memory in memories for setting, rule in ways}


def _with_sizes(run: Run, given: dict[str, dict[Any, Any]]) -> set[str]:
    """The metrics of a run, had it had other sizes."""
    found: set[str] = set()
    columns = run.columns
    for name in run.history.columns:
        kind = next((kind for kind in KINDS if name.startswith(reference_name(kind, ""))), None)
        about = columns.get(name if kind is None else name.removeprefix(reference_name(kind, "")))
        if about is not None:
            at = {factor: given.get(factor, {}).get(value, value) for factor, value in about.at.items()}
            other = flat(replace(about, at=at))
            found.add(other if kind is None else reference_name(kind, other))
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("name", claim_files())
def test_a_shipped_claim_asks_for_what_its_runs_measure(name: str, measured: Callable[[str, str], set[str]]) -> None:
    claim, configs = load_claim(claim_files()[name])
    for expectation in claim.expect:
        asked = [*expectation.places().values()]
        if isinstance(expectation.value, str):
            asked.append((expectation.of or expectation.run, expectation.value))
        for run, metric in asked:
            assert metric.removeprefix("onset/").removeprefix("halfway/") in measured(name, run)
    used = {run for expectation in claim.expect for run in expectation.runs()}
    assert used == set(configs)  # no run for nothing


@pytest.mark.parametrize("name", claim_files())
def test_a_shipped_claim_has_the_seeds_that_its_verdict_needs(name: str) -> None:
    """With fewer than five, what is random can be confirmed in no seed by seed comparison, and hardly on average."""
    claim, configs = load_claim(claim_files()[name])
    for expectation in claim.expect:
        assert expectation.exact or all(len(configs[run].seeds) >= FEWEST_SEEDS for run in expectation.runs())


@pytest.mark.parametrize("name", claim_files())
def test_every_shipped_claim_has_a_smaller_version_for_a_quick_check(name: str) -> None:
    (whole, configs), (small, fewer) = (load_claim(claim_files()[name], quick=quick) for quick in (False, True))
    assert {run: len(config.seeds) for run, config in fewer.items()} == dict.fromkeys(fewer, whole.quick.seeds)
    assert set(fewer) <= set(configs)
    assert 0 < len(small.expect) <= len(whole.expect)


@pytest.mark.slow
def test_no_confirmed_claim_is_refuted_by_its_quick_check(tmp_path: Path) -> None:
    """All claims that ship, in some ten minutes on two cores; docs/claims.json has the verdicts of whole checks."""
    recorded = json.loads((Path(__file__).parent.parent / "docs" / "claims.json").read_text())
    confirmed = {told["name"] for told in recorded if told["verdict"] == "confirmed"}
    outcomes = check_claims([], tmp_path, EngineOptions("process", 2), quick=True)
    assert [outcome.name for outcome in outcomes if outcome.name in confirmed and outcome.verdict == "refuted"] == []


def test_the_areas_of_claims_are_folders_of_unlike_names() -> None:
    files = claim_files()
    folder = next(iter(files.values())).parent.parent
    assert len(files) == len(list(folder.glob("*/*.yaml")))
    assert {path.parent.name for path in files.values()} == {path.name for path in folder.iterdir() if path.is_dir()}
    assert not set(files) & {path.parent.name for path in files.values()}


def test_the_benchmarks_are_found() -> None:
    found = plugins("benchmarks")
    assert {"data", "solver"} <= set(found)
    assert all(callable(measure) for measure in found.values())
    assert Path(found["solver"].__code__.co_filename).name == "solver.py"
