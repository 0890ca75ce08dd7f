"""A claim's verdict: the logic as a table, and a tiny claim from its file to claims.json and the exit code."""

import json
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

if TYPE_CHECKING:
    from conftest import Ended

CONTRACT = {"name", "source", "statement", "predicted", "measured", "spread", "tolerance", "verdict"}
NAN = float("nan")


# --- the logic. Samples have mean 0.5 and standard deviation 0.1 (n − 1 in the denominator) unless said otherwise.

AROUND_HALF = [0.4, 0.5, 0.6]


@pytest.mark.parametrize(
    ("measured", "expected", "verdict"),
    [
        # the mean over seeds
        (AROUND_HALF, {"comparison": ">=", "value": 0.45}, "confirmed"),
        (AROUND_HALF, {"comparison": ">=", "value": 0.5}, "confirmed"),
        (AROUND_HALF, {"comparison": ">", "value": 0.5}, "not reached"),
        (AROUND_HALF, {"comparison": ">=", "value": 0.55}, "not reached"),  # short by half a spread
        (AROUND_HALF, {"comparison": ">=", "value": 0.65}, "refuted"),  # short by 1.5 spreads
        (AROUND_HALF, {"comparison": "<=", "value": 0.55}, "confirmed"),
        (AROUND_HALF, {"comparison": "<=", "value": 0.5}, "confirmed"),
        (AROUND_HALF, {"comparison": "<", "value": 0.5}, "not reached"),
        (AROUND_HALF, {"comparison": "<=", "value": 0.45}, "not reached"),
        (AROUND_HALF, {"comparison": "<=", "value": 0.35}, "refuted"),
        # every seed by itself
        (AROUND_HALF, {"comparison": ">=", "value": 0.4, "over": "every"}, "confirmed"),
        (AROUND_HALF, {"comparison": ">=", "value": 0.45, "over": "every"}, "not reached"),  # the mean holds
        (AROUND_HALF, {"comparison": ">=", "value": 0.55, "over": "every"}, "not reached"),
        (AROUND_HALF, {"comparison": ">=", "value": 0.65, "over": "every"}, "refuted"),
        (AROUND_HALF, {"comparison": "<", "value": 0.61, "over": "every"}, "confirmed"),
        # the tolerance moves the bar, for the comparison and for how far it was missed
        (AROUND_HALF, {"comparison": ">=", "value": 0.55, "tolerance": 0.06}, "confirmed"),
        (AROUND_HALF, {"comparison": "<=", "value": 0.45, "tolerance": 0.06}, "confirmed"),
        (AROUND_HALF, {"comparison": ">=", "value": 0.65, "tolerance": 0.1}, "not reached"),
        (AROUND_HALF, {"comparison": ">=", "value": 0.75, "tolerance": 0.1}, "refuted"),
        (AROUND_HALF, {"comparison": ">=", "value": 0.45, "tolerance": 0.06, "over": "every"}, "confirmed"),
        # equality
        (AROUND_HALF, {"comparison": "==", "value": 0.55, "tolerance": 0.06}, "confirmed"),
        (AROUND_HALF, {"comparison": "==", "value": 0.45, "tolerance": 0.06}, "confirmed"),
        (AROUND_HALF, {"comparison": "==", "value": 0.55}, "not reached"),
        (AROUND_HALF, {"comparison": "==", "value": 0.65}, "refuted"),
        (AROUND_HALF, {"comparison": "==", "value": 0.35}, "refuted"),
        (AROUND_HALF, {"comparison": "==", "value": 0.5, "tolerance": 0.05, "over": "every"}, "not reached"),
        (AROUND_HALF, {"comparison": "==", "value": 0.5, "tolerance": 0.11, "over": "every"}, "confirmed"),
        ([1.0, 1.0], {"comparison": "==", "value": 1, "over": "every"}, "confirmed"),
        # equal seeds meet the bar they stand on, although the mean of three 0.4 is 0.4000000000000001 in floating point
        ([0.4] * 3, {"comparison": ">=", "value": 0.4}, "confirmed"),
        ([0.4] * 3, {"comparison": "<=", "value": 0.4}, "confirmed"),
        ([0.4] * 3, {"comparison": "==", "value": 0.4}, "confirmed"),
        # one seed has no spread, so any miss refutes
        ([0.5], {"comparison": ">=", "value": 0.5}, "confirmed"),
        ([0.5], {"comparison": ">=", "value": 0.51}, "refuted"),
        # too few seeds to tell, whatever they say
        (AROUND_HALF, {"comparison": ">=", "value": 0.4, "seeds": 3}, "confirmed"),
        (AROUND_HALF, {"comparison": ">=", "value": 0.4, "seeds": 4}, "not reached"),
        (AROUND_HALF, {"comparison": ">=", "value": 0.9, "seeds": 4}, "not reached"),
        # a seed without the metric
        ([0.5, NAN, 0.5], {"comparison": ">=", "value": 0.1}, "not reached"),
        ([0.5, NAN, 0.5], {"comparison": ">=", "value": 0.9}, "not reached"),
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


def test_a_finding_has_the_mean_and_the_standard_deviation_of_the_seeds() -> None:
    expectation = Expectation(run="r", metric="m", comparison=">=", value=0.4)
    finding = compare(expectation, pd.DataFrame({"m": AROUND_HALF}))
    assert (finding.run, finding.metric) == ("r", "m")
    assert finding.measured == pytest.approx(0.5)
    assert finding.spread == pytest.approx(0.1)
    assert compare(expectation, pd.DataFrame({"m": [0.5]})).spread is None


@pytest.mark.parametrize(
    ("left", "right", "over", "verdict"),
    [
        ([10, 20, 30], [15, 25, 35], "every", "confirmed"),
        ([10, 30, 30], [15, 25, 35], "every", "not reached"),  # one seed the other way round, the mean holds
        ([10, 30, 30], [15, 25, 35], "mean", "confirmed"),
        ([50, 60, 70], [10, 20, 30], "every", "refuted"),  # later by 40 steps at a spread of 10
        ([20, 60, 100], [10, 50, 90], "every", "refuted"),  # seeds are paired: later by 10 in each of them
        ([20, 20, 20], [10, 10, 30], "every", "not reached"),  # later by 3 in the mean, at a spread of 12
        ([10, 20, NAN], [15, 25, 35], "every", "not reached"),
        ([10, 20, 30], [15, 25, NAN], "every", "not reached"),  # the later one never came in a seed
    ],
)
def test_two_metrics_are_compared_seed_by_seed(left: list[float], right: list[float], over: str, verdict: str) -> None:
    expectation = Expectation(run="r", metric="onset/a", comparison="<", value="onset/b", over=over)
    finding = compare(expectation, pd.DataFrame({"onset/a": left, "onset/b": right}))
    assert finding.verdict == verdict
    if verdict != "not reached" and not pd.isna(right).any():
        assert finding.predicted == pytest.approx(sum(right) / 3)


def test_a_metric_of_another_run_is_compared_seed_by_seed() -> None:
    fast, slow = (pd.DataFrame({"halfway/a": steps}) for steps in ([10.0, 30.0], [20.0, 25.0]))
    fields = {"run": "fast", "metric": "halfway/a", "value": "halfway/a", "of": "slow"}
    in_mean, in_every = (
        compare(Expectation(**fields, comparison="<", over=over), fast, slow) for over in ("mean", "every")
    )
    assert (in_mean.verdict, in_every.verdict) == ("confirmed", "not reached")
    assert (in_mean.measured, in_mean.predicted, in_mean.expected) == (20, 22.5, "< halfway/a of slow")
    assert compare(Expectation(**fields, comparison="<"), fast, None).verdict == "not reached"


def test_a_misspelt_onset_is_a_mistake() -> None:
    expectation = Expectation(run="r", metric="onset/recall/W_KQ9", comparison="<", value=100)
    with pytest.raises(UserError, match=r"W_KQ9.*did you mean"):
        compare(expectation, pd.DataFrame({"recall/W_KQ1": [0.1], "onset/recall/W_KQ1": [10]}))


def test_an_onset_that_came_in_no_seed_is_not_reached() -> None:
    expectation = Expectation(run="r", metric="onset/recall/W_KQ1", comparison="<", value=100)
    finding = compare(expectation, pd.DataFrame({"recall/W_KQ1": [0.1, 0.1]}))
    assert (finding.verdict, finding.measured, finding.spread) == ("not reached", None, None)


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


def test_a_quick_check_confirms_with_few_seeds_but_never_refutes_with_them() -> None:
    hits, misses = (Expectation(run="r", metric="m", comparison=">=", value=value, seeds=3) for value in (0.4, 0.9))
    one, three = (pd.DataFrame({"m": seeds}) for seeds in ([0.5], AROUND_HALF))
    assert compare(hits, one, quick=True).verdict == "confirmed"
    assert compare(misses, one, quick=True).verdict == "not reached"
    assert compare(misses, three, quick=True).verdict == "refuted"
    assert compare(hits, one).verdict == "not reached"


def test_a_metric_that_a_study_left_out_is_not_reached_and_the_note_says_so() -> None:
    content = {
        "title": "t", "source": "s", "statement": "s", "minutes": 1, "runs": {"study": {"experiment": "capacity"}},
        "expect": [
            {"run": "study", "metric": "capacity/optimum_d4", "comparison": ">", "value": 1},
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
    seeds = pd.DataFrame({f"m_d{d}": [2 + 8 / d, 2.2 + 4 / d] for d in (16, 32, 64)}, index=[0, 1])
    found = limits(sized(), {"r": seeds})
    assert found is not None
    assert found["m_d{size}"].tolist() == pytest.approx([2.0, 2.2])
    finding = compare(sized(tolerance=0.11), found)
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
            "source": "Nobody 2024, §1",
            "statement": "A loss is positive.",
            "minutes": 0.1,
            "runs": {run: {"base": str(tiny_config), **changes} for run, changes in runs.items()},
            "expect": expect,
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


POSITIVE = {"run": "tiny", "metric": "eval/all_loss", "comparison": ">", "value": 0}
NEGATIVE = {"run": "tiny", "metric": "eval/all_loss", "comparison": "<", "value": 0}
UNREACHED = {"run": "tiny", "metric": "eval/all_loss", "comparison": ">", "value": 0, "seeds": 9}


def test_a_claim_gives_its_verdict_in_the_terminal_in_a_file_and_by_its_exit_code(
    claim: Callable[..., Path], invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    out = tmp_path / "out"
    files = {
        "positive": claim("positive", [POSITIVE], tiny={"seeds": [0, 1]}),
        "negative": claim("negative", [POSITIVE, UNREACHED, NEGATIVE], tiny={"seeds": [0, 1]}),
        "unreached": claim("unreached", [POSITIVE, UNREACHED], tiny={"seeds": [0, 1]}),
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
    path = claim("smaller", [POSITIVE | {"seeds": 2}, POSITIVE | {"run": "long"}], tiny={"seeds": [4, 7]}, long={})
    content = yaml.safe_load(path.read_text())
    content["quick"] = {"skip": ["long"], "change": {"tiny": {"train": {"steps": 1}}}}
    path.write_text(yaml.safe_dump(content))
    (whole, configs), (small, fewer) = (load_claim(path, quick=quick) for quick in (False, True))
    assert (len(whole.expect), whole.expect[0].seeds, configs["tiny"].seeds) == (2, 2, (4, 7))
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
    verdicts = json.loads((at_once / "claims.json").read_text().replace(str(at_once), str(one)))
    assert verdicts == json.loads((one / "claims.json").read_text())
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
