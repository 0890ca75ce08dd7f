"""docs/results.md, metrics.md and performance.md are what `make docs` writes, from claims and benchmarks that ship."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from docs import generate
from toytf.claims import load_claim
from toytf.config.shipped import claim_files
from toytf.errors import UserError

OUTCOMES = {outcome["name"]: outcome for outcome in json.loads(generate.CLAIMS.read_bytes())}


@pytest.mark.parametrize(
    ("document", "page"),
    [
        ("results.md", generate.results_page),
        ("metrics.md", generate.metrics_page),
        ("performance.md", generate.performance_page),
    ],
)
def test_a_generated_document_is_up_to_date(document: str, page: Callable[[], str]) -> None:
    written = (generate.DOCS / document).read_text(encoding="utf-8")
    assert written == page(), f"docs/{document} is out of date: run `make docs`"


def test_every_claim_that_ships_has_a_result_and_nothing_else_has() -> None:
    assert list(OUTCOMES) == sorted(claim_files())


@pytest.mark.parametrize("name", OUTCOMES)
def test_results_belong_to_the_expectations_as_they_are_now(name: str) -> None:
    """The words of a claim can be edited alone; after a change of what it expects it must be checked again."""
    findings = OUTCOMES[name]["findings"]
    compared = [tuple(found[part] for part in ("run", "metric", "expected", "tolerance")) for found in findings]
    assert compared == generate.expectations(load_claim(claim_files()[name])[0])
    assert OUTCOMES[name]["verdict"] == min((found["verdict"] for found in findings), key=generate.VERDICTS.index)


def test_claims_that_were_not_confirmed_come_first() -> None:
    page = generate.results_page()
    failed = [f"\n### {name}\n" for name, outcome in OUTCOMES.items() if outcome["verdict"] != "confirmed"]
    others = [f"\n### {name}\n" for name, outcome in OUTCOMES.items() if outcome["verdict"] == "confirmed"]
    assert max(map(page.index, failed)) < min(map(page.index, others))


def test_a_new_check_replaces_results_and_leaves_out_what_belongs_to_its_machine(tmp_path: Path) -> None:
    name = "bigram/ideal"
    fresh = {**OUTCOMES[name], "verdict": "refuted", "runs": {"d512": str(tmp_path)}, "note": "as it was worded then"}
    (tmp_path / "claims.json").write_text(json.dumps([fresh]), encoding="utf-8")
    merged = {outcome["name"]: outcome for outcome in generate.outcomes([tmp_path / "claims.json"])}
    assert merged == {**OUTCOMES, name: {**OUTCOMES[name], "verdict": "refuted"}}


def test_a_quick_check_never_becomes_a_result(tmp_path: Path) -> None:
    hasty = {**OUTCOMES["bigram/ideal"], "quick": True}
    (tmp_path / "claims.json").write_text(json.dumps([hasty]), encoding="utf-8")
    with pytest.raises(UserError, match="bigram/ideal: a quick check is no result"):
        generate.outcomes([tmp_path / "claims.json"])


def test_every_metric_that_small_runs_have_is_in_a_group_that_is_listed() -> None:
    lines = generate.METRIC_NAMES.read_text(encoding="utf-8").splitlines()
    names = {line.split()[0] for line in lines if line and not line.startswith("#")}
    listed = {name for one in generate.declared() for name in one.names}
    assert {name for name in names if "@" not in name} <= listed
    assert {name.partition("@")[0] for name in names if "@" in name} <= {one.group.name for one in generate.declared()}
