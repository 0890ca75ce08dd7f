"""A claim's verdict: the logic as a table, and a tiny claim from its file to claims.json and the exit code."""

import json
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
import yaml

from toytf.claims import Claim, Expectation, check_claims, compare, load_claim
from toytf.claims.verdict import limits, outcome_of
from toytf.errors import UserError
from toytf.report.verdicts import evidence

if TYPE_CHECKING:
    from conftest import Ended

CONTRACT = {"name", "source", "statement", "predicted", "measured", "spread", "tolerance", "verdict"}
NAN = float("nan")


# --- the logic. t(0.975, 4) = 2.776, sd = 0.0791 and √5 give the mean 0.5 of these five seeds a doubt of 0.0982.

FIVE = [0.4, 0.45, 0.5, 0.55, 0.6]
DOUBT = 2.776445 * 0.1 * math.sqrt(5 / 8) / math.sqrt(5)


@pytest.mark.parametrize(
    ("measured", "expected", "verdict"),
    [
        # the mean over seeds holds or fails by more than the doubt, or by less
        (FIVE, {"comparison": ">=", "value": 0.40}, "confirmed"),
        (FIVE, {"comparison": ">", "value": 0.40}, "confirmed"),
        (FIVE, {"comparison": ">=", "value": 0.41}, "not reached"),
        (FIVE, {"comparison": ">=", "value": 0.59}, "not reached"),
        (FIVE, {"comparison": ">=", "value": 0.60}, "refuted"),
        (FIVE, {"comparison": "<=", "value": 0.60}, "confirmed"),
        (FIVE, {"comparison": "<=", "value": 0.59}, "not reached"),
        (FIVE, {"comparison": "<", "value": 0.41}, "not reached"),
        (FIVE, {"comparison": "<", "value": 0.40}, "refuted"),
        # more seeds, less doubt: t(0.975, 9) = 2.262 and sd = 0.0745 give 0.0533
        (FIVE * 2, {"comparison": ">=", "value": 0.44}, "confirmed"),
        (FIVE * 2, {"comparison": ">=", "value": 0.56}, "refuted"),
        # a range: mean ± doubt lies inside of it, outside, or across its edge
        (FIVE, {"comparison": "==", "value": 0.5, "tolerance": 0.099}, "confirmed"),
        (FIVE, {"comparison": "==", "value": 0.5, "tolerance": 0.098}, "not reached"),
        (FIVE, {"comparison": "==", "value": 0.7, "tolerance": 0.11}, "not reached"),
        (FIVE, {"comparison": "==", "value": 0.7, "tolerance": 0.10}, "refuted"),
        (FIVE, {"comparison": "==", "value": 0.3, "tolerance": 0.10}, "refuted"),
        # the tolerance moves the bar
        (FIVE, {"comparison": ">=", "value": 0.45, "tolerance": 0.05}, "confirmed"),
        (FIVE, {"comparison": ">=", "value": 0.65, "tolerance": 0.05}, "refuted"),
        (FIVE, {"comparison": "<=", "value": 0.55, "tolerance": 0.05}, "confirmed"),
        (FIVE, {"comparison": "<=", "value": 0.35, "tolerance": 0.05}, "refuted"),
        # every seed by itself: refuted where a fair coin would not fail so often, p = 1/32 for five of five
        (FIVE, {"comparison": ">=", "value": 0.4, "over": "every"}, "confirmed"),
        (FIVE, {"comparison": ">=", "value": 0.4, "tolerance": 0.1, "over": "every"}, "confirmed"),
        (FIVE, {"comparison": ">", "value": 0.4, "over": "every"}, "not reached"),
        (FIVE, {"comparison": ">=", "value": 0.6, "over": "every"}, "not reached"),  # holds in one
        (FIVE, {"comparison": ">=", "value": 0.61, "over": "every"}, "refuted"),
        (FIVE[:4], {"comparison": ">=", "value": 0.1, "over": "every"}, "not reached"),  # p = 1/16
        (FIVE[:4], {"comparison": ">=", "value": 0.9, "over": "every"}, "not reached"),
        (FIVE * 2, {"comparison": ">=", "value": 0.56, "over": "every"}, "not reached"),  # fails in 8 of 10: p = 0.055
        ([*FIVE, *FIVE[:4]], {"comparison": ">=", "value": 0.56, "over": "every"}, "refuted"),  # in 8 of 9: p = 0.02
        (FIVE, {"comparison": "==", "value": 0.5, "tolerance": 0.09, "over": "every"}, "not reached"),
        (FIVE, {"comparison": "==", "value": 0.5, "tolerance": 0.11, "over": "every"}, "confirmed"),
        # seeds that agree leave no doubt, although the mean of six 0.4 is 0.4000000000000001 in floating point
        ([0.4] * 6, {"comparison": ">=", "value": 0.4}, "confirmed"),
        ([0.4] * 6, {"comparison": "<=", "value": 0.4}, "confirmed"),
        ([0.4] * 6, {"comparison": "==", "value": 0.4}, "confirmed"),
        ([0.4] * 6, {"comparison": ">", "value": 0.4}, "not reached"),
        ([0.4] * 6, {"comparison": ">", "value": 0.41}, "refuted"),
        # one seed says nothing, unless nothing is random
        ([0.5], {"comparison": ">=", "value": 0.1}, "not reached"),
        ([0.5], {"comparison": ">=", "value": 0.9}, "not reached"),
        ([0.5], {"comparison": ">=", "value": 0.5, "exact": True}, "confirmed"),
        ([0.5], {"comparison": ">=", "value": 0.51, "exact": True}, "refuted"),
        ([0.5], {"comparison": "==", "value": 0.5, "exact": True, "over": "every"}, "confirmed"),
        # a seed without the metric
        ([*FIVE, NAN], {"comparison": ">=", "value": 0.1}, "not reached"),
        ([*FIVE, NAN], {"comparison": ">=", "value": 0.9}, "not reached"),
    ],
)
def test_a_number_is_confirmed_or_refuted_or_not_reached(
    measured: list[float], expected: dict[str, Any], verdict: str
) -> None:
    expectation = Expectation(run="r", metric="m", **expected)
    finding = compare(expectation, pd.DataFrame({"m": measured}))
    assert finding.verdict == verdict
    assert finding.predicted == expected["value"]
    assert finding.tolerance == expected.get("tolerance", 0)


def test_a_finding_has_what_its_verdict_rests_on() -> None:
    """Mean, standard deviation and error, doubt and the seeds themselves; or in how many seeds it holds, and p."""
    seeds = pd.DataFrame({"m": FIVE}, index=[7, 8, 9, 10, 11])
    mean = compare(Expectation(run="r", metric="m", comparison=">", value=0.41), seeds)
    assert (mean.run, mean.metric, mean.n, mean.seeds) == ("r", "m", 5, "7..11")
    assert mean.measured == pytest.approx(0.5)
    assert mean.spread == pytest.approx(0.1 * math.sqrt(5 / 8))
    assert mean.standard_error == pytest.approx(0.1 * math.sqrt(1 / 8))
    assert mean.doubt == pytest.approx(DOUBT)
    assert (mean.held, mean.p) == (None, None)
    every = compare(Expectation(run="r", metric="m", comparison=">", value=0.41, over="every"), seeds)
    assert (every.held, every.p, every.doubt) == (4, 6 / 32, None)  # four or five of five fair coins
    never = compare(Expectation(run="r", metric="m", comparison=">", value=0.7, over="every"), seeds)
    assert (never.verdict, never.held, never.p) == ("refuted", 0, 1 / 32)  # five fair coins on one side
    alone = compare(Expectation(run="r", metric="m", comparison=">", value=0.41), seeds[:1])
    assert (alone.n, alone.spread, alone.standard_error, alone.doubt) == (1, None, None, None)


@pytest.mark.parametrize(
    ("finding", "shown"),
    [
        ({"n": 8, "doubt": 0.031}, "8, doubt 0.031"),
        ({"n": 1, "doubt": 0.0}, "exact"),
        ({"n": 1}, "1"),
        ({"n": 12, "held": 10, "p": 79 / 4096}, "10 of 12, p = 0.019"),
        ({"n": 0}, "0"),
    ],
)
def test_a_table_says_how_sure_a_finding_is(finding: dict[str, Any], shown: str) -> None:
    assert evidence(**{"doubt": None, "held": None, "p": None} | finding) == shown


EARLIER = [5.0, 5.0, 6.0, 4.0, 5.0]  # a difference of 5 ± 0.7, with a doubt of 0.88


@pytest.mark.parametrize(
    ("left", "right", "over", "verdict"),
    [
        ([10, 20, 30, 40, 50], EARLIER, "every", "confirmed"),
        ([10, 20, 30, 40, 50], EARLIER, "mean", "confirmed"),  # seeds are paired: they scatter more than they differ
        ([10, 20, 30, 40, 50], [5, 5, 6, 4, -1], "every", "not reached"),  # one seed the other way round
        ([10, 20, 30, 40, 50], [9, -8, 8, -8, 0.5], "mean", "not reached"),
        ([10, 20, 30, 40, 50], [-5, -5, -6, -4, -5], "every", "refuted"),
        ([10, 20, 30, 40, 50], [-5, -5, -6, -4, -5], "mean", "refuted"),
        ([10, 20, 30, 40, NAN], EARLIER, "every", "not reached"),
        ([10, 20, 30, 40, 50], [5, 5, 6, 4, NAN], "every", "not reached"),  # the later one never came in a seed
    ],
)
def test_two_metrics_are_compared_seed_by_seed(left: list[float], right: list[float], over: str, verdict: str) -> None:
    """right: how much later the other metric is than left."""
    late = [a + b for a, b in zip(left, right, strict=True)]
    expectation = Expectation(run="r", metric="onset/a", comparison="<", value="onset/b", over=over)
    finding = compare(expectation, pd.DataFrame({"onset/a": left, "onset/b": late}))
    assert finding.verdict == verdict
    if verdict != "not reached":
        assert finding.predicted == pytest.approx(sum(late) / 5)


def test_a_metric_of_another_run_is_compared_seed_by_seed() -> None:
    fast, slow = (pd.DataFrame({"halfway/a": steps}) for steps in ([10.0, 11.0] * 3, [20.0, 21.0] * 3))
    expectation = Expectation(run="fast", metric="halfway/a", comparison="<", value="halfway/a", of="slow")
    finding = compare(expectation, fast, slow)
    assert finding.verdict == "confirmed"
    assert (finding.measured, finding.predicted, finding.expected) == (10.5, 20.5, "< halfway/a of slow")
    assert compare(expectation, fast, None).verdict == "not reached"


@pytest.mark.parametrize(("factor", "verdict"), [(2.2, "confirmed"), (2.0, "refuted"), (1.8, "refuted")])
def test_a_metric_is_compared_with_a_multiple_of_another(factor: float, verdict: str) -> None:
    seeds = pd.DataFrame({"a": [2.0, 4.0, 6.0] * 2, "b": [1.0, 2.0, 3.0] * 2})
    expectation = Expectation(run="r", metric="a", comparison="<", value="b", factor=factor, over="every")
    finding = compare(expectation, seeds)
    assert finding.verdict == verdict
    assert finding.predicted == pytest.approx(2 * factor)
    assert finding.expected == f"< {factor:g} × b"


def test_a_metric_that_lacks_a_seed_is_not_reached_whatever_it_is_compared_with() -> None:
    seeds = pd.DataFrame({"onset/a": [10.0, NAN, 10.0], "onset/b": [20.0, 20.0, 20.0]})
    for one, other in (("a", "b"), ("b", "a")):
        expectation = Expectation(run="r", metric=f"onset/{one}", comparison="<", value=f"onset/{other}")
        assert compare(expectation, seeds).verdict == "not reached"


def test_a_misspelt_onset_is_a_mistake() -> None:
    expectation = Expectation(run="r", metric="onset/recall/W_KQ9", comparison="<", value=100)
    with pytest.raises(UserError, match=r"W_KQ9.*did you mean"):
        compare(expectation, pd.DataFrame({"recall/W_KQ1": [0.1], "onset/recall/W_KQ1": [10]}))


def test_an_onset_that_came_in_no_seed_is_not_reached() -> None:
    expectation = Expectation(run="r", metric="onset/recall/W_KQ1", comparison="<", value=100)
    finding = compare(expectation, pd.DataFrame({"recall/W_KQ1": [0.1, 0.1]}))
    assert (finding.verdict, finding.measured, finding.spread) == ("not reached", None, None)


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [([0.5] * 4, "not reached"), ([0.5] * 5, "confirmed"), ([0.5, math.inf, 0.5, 0.5, 0.5], "not reached")],
    ids=["four alike", "five alike", "infinite"],
)
def test_a_few_seeds_that_agree_by_chance_leave_doubt(measured: list[float], verdict: str) -> None:
    expectation = Expectation(run="r", metric="m", comparison=">", value=0.4)
    assert compare(expectation, pd.DataFrame({"m": measured})).verdict == verdict


def test_a_metric_that_one_seed_lacks_is_not_reached_in_all_seeds() -> None:
    seeds = pd.DataFrame({"m": [1.0, NAN, 1.0]}, index=[3, 4, 5])
    finding = compare(Expectation(run="r", metric="m", comparison=">", value=0.5), seeds)
    assert (finding.verdict, finding.measured, finding.n, finding.seeds) == ("not reached", None, 3, "3..5")


def test_a_run_that_gave_nothing_is_not_reached() -> None:
    finding = compare(Expectation(run="r", metric="m", comparison="<", value=100), None)
    assert (finding.verdict, finding.predicted, finding.measured) == ("not reached", 100, None)


@pytest.mark.parametrize(
    "expected",
    [{"metric": "recall/W_OV", "value": 0.5}, {"metric": "m", "value": "recall/W_OV"}],
    ids=["left", "right"],
)
def test_an_unknown_metric_is_answered_with_the_nearest(expected: dict[str, Any]) -> None:
    expectation = Expectation(run="r", comparison=">=", **expected)
    with pytest.raises(UserError, match=r'"recall/W_OV".*did you mean "recall/W_OV2"\?'):
        compare(expectation, pd.DataFrame({"m": [1.0], "recall/W_OV2": [1.0]}))


def test_a_quick_check_confirms_without_doubt_and_refutes_only_what_is_exact() -> None:
    def judge(seeds: list[float], **more: Any) -> str:
        expectation = Expectation(run="r", metric="m", comparison=">=", **more)
        return compare(expectation, pd.DataFrame({"m": seeds}), quick=True).verdict

    assert judge([0.5], value=0.4) == judge([0.5], value=0.4, over="every") == "confirmed"
    assert judge([0.5], value=0.9) == judge(FIVE, value=0.9) == judge(FIVE, value=0.9, over="every") == "not reached"
    assert judge([0.5], value=0.9, exact=True) == "refuted"


def test_a_metric_that_a_study_left_out_is_not_reached_and_the_note_says_so() -> None:
    content = {
        "title": "t", "kind": "published", "source": "s", "statement": "s", "minutes": 1,
        "runs": {"study": {"experiment": "capacity"}},
        "expect": [
            {"run": "study", "metric": "capacity/optimum_d4", "comparison": ">", "value": 1, "exact": True},
            {"run": "study", "metric": "capacity/optimum_d4/infeasible", "comparison": ">", "value": 1},
        ],
    }  # fmt: skip
    seeds = {"study": pd.DataFrame({"capacity/optimum_d4": [7.0]})}
    judge = partial(outcome_of, "n", Claim.model_validate(content), seeds, {}, "As it was.")
    outcome = judge(studies=["study"])
    assert [finding.verdict for finding in outcome.findings] == ["confirmed", "not reached"]
    assert (outcome.verdict, outcome.measured) == ("not reached", None)
    assert outcome.note.startswith('As it was. a claim expects the metric "capacity/optimum_d4/infeasible"')
    with pytest.raises(UserError, match="which its run does not have"):
        judge()


# --- limits of infinite size


def sized(**more: Any) -> Expectation:
    fields = {"run": "r", "metric": "m_d{size}", "comparison": "==", "value": 2, "sizes": [16, 32, 64], **more}
    return Expectation(**fields)


def test_a_limit_is_where_a_line_in_one_over_size_ends_in_every_seed() -> None:
    """2 + 8/d in one seed and 2.2 + 4/d in the other: 2 and 2.2 at d = ∞, whatever the slopes."""
    seeds = pd.DataFrame({f"m_d{d}": [2 + 8 / d, 2.2 + 4 / d] * 3 for d in (16, 32, 64)})
    found = limits(sized(), {"r": seeds})
    assert found is not None
    assert found["m_d{size}"].tolist() == pytest.approx([2.0, 2.2] * 3)
    finding = compare(sized(tolerance=0.22), found)  # a doubt of 2.57 · 0.110 / √6 = 0.115
    assert (finding.verdict, finding.measured) == ("confirmed", pytest.approx(2.1))
    assert finding.expected == "== 2.0 for size → ∞, from 16, 32, 64"
    assert compare(sized(value=2.5), found).verdict == "refuted"


def test_a_limit_may_be_taken_over_runs_and_needs_all_of_them() -> None:
    runs = {f"d{d}": pd.DataFrame({"m": [1 - 1 / d]}) for d in (16, 32, 64)}
    expectation = sized(run="d{size}", metric="m")
    found = limits(expectation, runs)
    assert found is not None
    assert found["m"].tolist() == pytest.approx([1.0])
    del runs["d32"]
    assert limits(expectation, runs) is None


# --- a claim, end to end


@pytest.fixture
def claim(tiny_config: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write a claim about runs of tiny.yaml: `claim("name", [expectation, …], run={…changes})`."""

    def write(name: str, expect: list[dict[str, Any]], **runs: dict[str, Any]) -> Path:
        content = {
            "title": "A tiny claim",
            "kind": "published",
            "source": "Nobody 2024, §1",
            "statement": "A loss is positive.",
            "minutes": 0.1,
            "seeds": [0, 1],
            "runs": {run: {"base": str(tiny_config), **changes} for run, changes in runs.items()},
            "expect": expect,
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


POSITIVE = {"run": "tiny", "metric": "eval/all_loss", "comparison": ">", "value": 0}
NEGATIVE = {"run": "tiny", "metric": "eval/all_loss", "comparison": "<", "value": 0}
UNREACHED = {"run": "tiny", "metric": "eval/all_loss", "comparison": ">", "value": 0, "over": "every"}  # with two seeds


def test_a_claim_gives_its_verdict_in_the_terminal_in_a_file_and_by_its_exit_code(
    claim: Callable[..., Path], invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    out = tmp_path / "out"
    files = {
        "positive": claim("positive", [POSITIVE], tiny={}),
        "negative": claim("negative", [POSITIVE, UNREACHED, NEGATIVE], tiny={}),
        "unreached": claim("unreached", [POSITIVE, UNREACHED], tiny={}),
    }
    assert load_claim(files["positive"])[1] == load_claim(files["negative"])[1]

    first = invoke("claims", files["positive"], "--out", out)
    assert first.code == 0, first.err
    assert first.out.splitlines()[-1] == str(out / "claims.json")
    assert re.search(r"positive.*Nobody 2024, §1.*eval/all_loss.*confirmed", first.out)
    (told,) = json.loads((out / "claims.json").read_text())
    assert set(told) >= CONTRACT
    assert (told["name"], told["source"]) == ("positive", "Nobody 2024, §1")
    assert (told["statement"], told["verdict"]) == ("A loss is positive.", "confirmed")
    assert (told["predicted"], told["tolerance"]) == (0, 0)
    assert told["measured"] > 0
    assert told["spread"] > 0
    assert (out / "claims.html").is_file()
    assert not [*out.rglob("report.html")]  # `toytf inspect` makes the page of a run when it is asked

    (metrics,) = (out / "runs").glob("*/metrics.jsonl")
    before = metrics.stat().st_mtime_ns
    second = invoke("claims", *files.values(), "--out", out)
    assert second.code == 1
    assert "Traceback" not in second.err
    verdicts = {entry["name"]: entry["verdict"] for entry in json.loads((out / "claims.json").read_text())}
    assert verdicts == {"positive": "confirmed", "negative": "refuted", "unreached": "not reached"}
    assert [path.parent.name for path in (out / "runs").glob("*/metrics.jsonl")] == [metrics.parent.name]
    assert metrics.stat().st_mtime_ns == before  # three claims about one config share its run, and it is kept


def test_a_quick_check_has_fewer_seeds_and_the_runs_that_are_left(
    claim: Callable[..., Path], invoke: "Callable[..., Ended]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = claim("smaller", [POSITIVE, POSITIVE | {"run": "long"}], tiny={"seeds": [4, 7]}, long={})
    content = yaml.safe_load(path.read_text())
    content["quick"] = {"skip": ["long"], "change": {"tiny": {"train": {"steps": 1}}}}
    path.write_text(yaml.safe_dump(content))
    (whole, configs), (small, fewer) = (load_claim(path, quick=quick) for quick in (False, True))
    assert (len(whole.expect), configs["tiny"].seeds, configs["long"].seeds) == (2, (4, 7), (0, 1))
    assert (len(small.expect), [*fewer]) == (1, ["tiny"])
    assert (fewer["tiny"].seeds, fewer["tiny"].train.steps) == ((4,), 1)

    monkeypatch.chdir(tmp_path)
    ended = invoke("claims", path, "--quick")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1] == "runs/claims-quick/claims.json"
    assert "A quick check has fewer seeds" in ended.out
    assert "A quick check has fewer seeds" in Path("runs/claims-quick/claims.html").read_text()
    (told,) = json.loads(Path("runs/claims-quick/claims.json").read_text())
    assert (told["quick"], told["verdict"], len(told["findings"])) == (True, "confirmed", 1)


def test_a_claim_of_a_run_that_diverges_is_not_reached(claim: Callable[..., Path], tmp_path: Path) -> None:
    changes = {"train": {"steps": 5, "loss": "all", "optimizer": {"kind": "sgd", "lr": 1e30}}}
    path = claim("diverging", [POSITIVE | {"run": "wild"}], wild=changes)
    (outcome,) = check_claims([str(path)], tmp_path / "out")
    assert (outcome.verdict, outcome.measured) == ("not reached", None)
    assert "wild: training diverged" in outcome.note
    (told,) = json.loads((tmp_path / "out" / "claims.json").read_text())
    assert (told["verdict"], told["measured"], told["spread"]) == ("not reached", None, None)


@pytest.mark.heavy
@pytest.mark.repeats_runs
def test_claims_that_run_at_once_get_the_same_verdicts_in_the_same_order(
    claim: Callable[..., Path], invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    """One claim shares a run with another, and the run of a third diverges."""
    wild = {"train": {"steps": 5, "loss": "all", "optimizer": {"kind": "sgd", "lr": 1e30}}}
    files = [
        claim("positive", [POSITIVE], tiny={}, longer={"train": {"steps": 3}}),
        claim("diverging", [POSITIVE | {"run": "wild"}], wild=wild),
        claim("negative", [NEGATIVE], tiny={}),
    ]
    one, at_once = tmp_path / "one", tmp_path / "at_once"
    assert invoke("claims", *files, "--out", one).code == 1
    ended = invoke("claims", *files, "--out", at_once, "--jobs", 2)
    assert ended.code == 1
    verdicts, alone = (
        [told | {"seconds": 0} for told in json.loads((out / "claims.json").read_text().replace(str(out), ""))]
        for out in (at_once, one)
    )
    assert verdicts == alone
    assert [told["verdict"] for told in verdicts] == ["confirmed", "not reached", "refuted"]
    assert len([*(at_once / "runs").iterdir()]) == 3
    assert re.search(r"^diverging: wild failed after \d+ s; . runs? left", ended.err, re.MULTILINE)
    assert re.search(r"^positive: (tiny|longer) done after \d+ s; . runs? left", ended.err, re.MULTILINE)
    assert re.search(r"^\w+: \w+ (done|failed) after \d+ s; 1 run left, about 1 minute$", ended.err, re.MULTILINE)
    assert re.search(r"^\w+: (confirmed|refuted|not reached); 0 claims left$", ended.err, re.MULTILINE)

    again = invoke("claims", *files[::2], "--out", at_once, "--jobs", 2)
    assert " after " not in again.err  # no job: what is finished is read
    assert "positive: confirmed; 1 claim left\nnegative: refuted; 0 claims left\n" in again.err


@pytest.mark.heavy
def test_a_mistake_ends_claims_that_run_at_once_with_2_and_what_the_others_did_is_kept(
    claim: Callable[..., Path], invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    """The misspelt claim is done in seconds, while the other one trains for minutes."""
    files = [
        claim("long", [POSITIVE], tiny={"train": {"steps": 10**6}}),
        claim("misspelt", [POSITIVE | {"metric": "eval/al_loss"}], tiny={"train": {"steps": 200}}),
    ]
    ended = invoke("claims", *files, "--out", tmp_path / "out", "--jobs", 2)
    assert (ended.code, ended.out) == (2, "")
    assert 'did you mean "eval/all_loss"?' in ended.err.splitlines()[-1]
    unfinished = [run for run in (tmp_path / "out" / "runs").iterdir() if not (run / "summary.json").exists()]
    assert [any((run / "checkpoints").iterdir()) for run in unfinished] == [True]


def test_a_metric_that_no_run_has_ends_with_2_and_one_line(
    claim: Callable[..., Path], invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    path = claim("misspelt", [POSITIVE | {"metric": "eval/al_loss"}], tiny={"train": {"steps": 0}})
    ended = invoke("claims", path, "--out", tmp_path / "out")
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(r'toytf: .*"eval/al_loss".*did you mean "eval/all_loss"\?.*', ended.err.splitlines()[-1])
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"expect": [POSITIVE | {"run": "tinny"}]}, 'no run of this claim is called "tinny": did you mean "tiny"?'),
        ({"expect": [POSITIVE | {"comparison": "=>"}]}, 'expect.0.comparison = "=>"'),
        ({"expect": [POSITIVE | {"tolerence": 1}]}, 'did you mean "tolerance"?'),
        ({"expect": [POSITIVE | {"of": "tinny"}]}, 'no run of this claim is called "tinny": did you mean "tiny"?'),
        ({"expect": [POSITIVE | {"of": "tiny"}]}, '"of: tiny" needs a metric as value'),
        ({"expect": [POSITIVE | {"factor": 2}]}, '"factor: 2" needs a metric as value, got 0'),
        ({"expect": [POSITIVE | {"exact": True}]}, "tiny has several seeds, so that eval/all_loss is not exact"),
        ({"kind": "folklore"}, 'kind = "folklore"'),
        ({"seeds": [1, 1]}, "seeds"),
        ({"expect": [POSITIVE | {"sizes": [1, 2, 3]}]}, "sizes need {size} in run or metric, got tiny: eval/all_loss"),
        ({"expect": [POSITIVE | {"metric": "m{size}", "sizes": [1, 2]}]}, "a limit needs at least 3 different sizes"),
        ({"expect": [POSITIVE | {"metric": "m{size}", "sizes": [1, 2, 3], "value": "m"}]}, "sizes need a number as"),
        ({"quick": {"skip": ["tinny"]}}, 'no run of this claim is called "tinny": did you mean "tiny"?'),
        ({"quick": {"change": {"tinny": {}}}}, 'no run of this claim is called "tinny": did you mean "tiny"?'),
        ({"quick": {"skip": ["tiny"]}}, "quick.skip leaves nothing to be checked"),
        ({"expect": []}, "expect"),
        ({"runs": {}}, "runs"),
        ({"runs": {"tiny": {"experiment": "train", "task": "bigran"}}}, "runs.tiny: "),
        ({"runs": {"tiny": {"base": "nowhere.yaml"}}}, "nowhere.yaml"),
        ({"minutes": 0}, "minutes"),
        ({"sauce": "x"}, 'did you mean "source"?'),
        ({"runs": {"tiny": None}}, "runs.tiny"),
    ],
)
def test_a_mistake_in_a_claim_is_answered_with_one_line(
    change: dict[str, Any], says: str, claim: Callable[..., Path]
) -> None:
    path = claim("wrong", [POSITIVE], tiny={})
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    with pytest.raises(UserError) as caught:
        load_claim(path)
    assert len(str(caught.value).splitlines()) == 1
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_runs_that_are_compared_must_have_the_same_seeds(claim: Callable[..., Path]) -> None:
    compared = POSITIVE | {"value": "eval/all_loss", "of": "other"}
    load_claim(claim("paired", [compared], tiny={}, other={"train": {"steps": 1}}))
    with pytest.raises(UserError, match="tiny and other are compared seed by seed, but have different seeds"):
        load_claim(claim("unpaired", [compared], tiny={}, other={"seeds": [1, 2]}))
