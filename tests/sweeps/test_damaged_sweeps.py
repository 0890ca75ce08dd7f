"""A damaged sweep directory is used where it is whole, and named where it is not: no traceback, no wrong number."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

import toytf
from toytf.errors import UserError
from toytf.experiments.cases import FoundAtStep
from toytf.experiments.study import Study
from toytf.sweeps.opened import Failure

if TYPE_CHECKING:
    from conftest import Ended

pytestmark = pytest.mark.repeats_runs

STUDY = {"experiment": "storage", "rules": ["hebbian"], "dimension": 4, "device": "cpu", "logging": {"wandb": "off"}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three studies of a few pairs, of which the last failed."""
    sweep = toytf.sweep(STUDY, {"n": [4, 6, 8]}, out=tmp_path_factory.mktemp("whole") / "sweep", jobs=1)
    lost = sweep.members[2].id
    shutil.rmtree(sweep.directory / "runs" / lost)
    sweep.write_failures({lost: Failure("RunFailed", "it was too much")})
    return toytf.sweep(sweep.directory / "sweep.yaml", resume=True, jobs=1).directory


Damage = Callable[[Path], object]


def _in(name: str, change: Callable[[Any], object]) -> Damage:
    def damage(sweep: Path) -> None:
        content = json.loads((sweep / name).read_text(encoding="utf-8"))
        change(content)
        (sweep / name).write_text(json.dumps(content), encoding="utf-8")

    return damage


def _without_checksums(damage: Damage) -> Damage:
    """Somebody removed the checksums, too."""
    return lambda sweep: ((sweep / "checksums.json").unlink(), damage(sweep))


def _first_run(sweep: Path) -> Path:
    return min((sweep / "runs").iterdir())


OTHER = {"a list": "[1, 2]", "a number": "3", "a text": '"abc"', "torn": '{"a', "empty": ""}
OF_A_MEMBER: dict[str, Any] = {
    "id": ["../../..", 5], "point": ["first"], "at": [[4]], "seed": ["zero", 0.5], "known": [[1]],
}  # fmt: skip
OF_A_FAILURE: dict[str, Any] = {"message": [["a", "b"], None], "error": [3], "traceback": [{}]}

NAMED: dict[str, tuple[str, Damage]] = {
    **{
        f"{name} is {what}": (name, lambda sweep, name=name, text=text: (sweep / name).write_text(text))
        for name in ("plan.json", "errors.json", "sweep.yaml", "checksums.json")
        for what, text in OTHER.items()
    },
    **{
        f"{key} of a run in the plan is {value}": (
            "plan.json",
            _without_checksums(
                _in("plan.json", lambda plan, key=key, value=value: plan["runs"][0].update({key: value}))
            ),
        )
        for key, values in OF_A_MEMBER.items()
        for value in values
    },
    **{
        f"{key} of a failure is {value}": (
            "errors.json",
            _in("errors.json", lambda told, key=key, value=value: next(iter(told.values())).update({key: value})),
        )
        for key, values in OF_A_FAILURE.items()
        for value in values
    },
    "the plan lost its runs": ("plan.json", _in("plan.json", lambda plan: plan["runs"].clear())),
    "a point is another": ("plan.json", _in("plan.json", lambda plan: plan["runs"][0]["at"].update(n=5))),
    "sweep.yaml is gone": ("sweep.yaml", lambda sweep: (sweep / "sweep.yaml").unlink()),
    "a run has no config": ("config.yaml", lambda sweep: (_first_run(sweep) / "config.yaml").unlink()),
    "the config of a run is empty": ("config.yaml", lambda sweep: (_first_run(sweep) / "config.yaml").write_text("")),
    "a run has no columns": ("columns.json", lambda sweep: (_first_run(sweep) / "columns.json").unlink()),
    "the summary of a run is empty": (
        "summary.json",
        lambda sweep: (_first_run(sweep) / "summary.json").write_text(""),
    ),
}
MENDED: dict[str, Damage] = {
    "table.csv is torn": lambda sweep: (sweep / "table.csv").write_text("run,n"),
    "plan.json is gone": lambda sweep: (sweep / "plan.json").unlink(),
    "checksums.json is gone": lambda sweep: (sweep / "checksums.json").unlink(),
    "a run has no summary": lambda sweep: (_first_run(sweep) / "summary.json").unlink(),
    "a run is gone": lambda sweep: shutil.rmtree(_first_run(sweep)),
    "a run has no checksums": lambda sweep: (_first_run(sweep) / "checksums.json").unlink(),
    "a failure has another field": _in("errors.json", lambda told: next(iter(told.values())).update(step=3)),
}


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "sweep"))


def _read(sweep: Path) -> None:
    opened = toytf.open_sweep(sweep)
    assert (len(opened.table), len(opened.failed), len(opened.points), len(opened.figures())) >= (1, 1, 1, 1)
    assert opened._repr_html_()


@pytest.mark.parametrize("what", NAMED)
def test_what_is_damaged_is_named_in_one_line(what: str, copy: Path, invoke: "Callable[..., Ended]") -> None:
    name, damage = NAMED[what]
    damage(copy)
    with pytest.raises(UserError, match=name):
        _read(copy)
    resumed = invoke("sweep", copy / "sweep.yaml", "--resume", "--jobs", "1")
    assert (resumed.code, resumed.out, resumed.err.count("\n")) == (2, "", 1), resumed.err
    assert name in resumed.err
    assert "toytf list configs" not in resumed.err
    inspected = invoke("inspect", copy)
    assert (inspected.code, inspected.err.count("\n")) == (2, 1)
    assert f"its page is {copy / 'sweep.html'}" in inspected.err


@pytest.mark.parametrize("what", MENDED)
def test_what_can_be_written_again_is(what: str, copy: Path, whole: Path, invoke: "Callable[..., Ended]") -> None:
    MENDED[what](copy)
    resumed = invoke("sweep", copy / "sweep.yaml", "--resume", "--jobs", "1")
    assert resumed.code == 1  # one run failed, as before
    assert "1 of 3 runs failed, first n=8: it was too much" in resumed.err.splitlines()[-1]
    _read(copy)
    for name in ("table.csv", "plan.json", "sweep.yaml", "errors.json"):
        assert (copy / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_plan_that_was_lost_is_asked_for(copy: Path) -> None:
    (copy / "plan.json").unlink()
    with pytest.raises(UserError, match=r"no plan.json.*write it again: toytf sweep .*sweep.yaml --resume$"):
        toytf.open_sweep(copy)


# --- whose numbers the table has


def test_a_run_under_the_id_of_another_is_refused(copy: Path, invoke: "Callable[..., Ended]") -> None:
    first, second = (toytf.open_sweep(copy).run(member).directory for member in toytf.open_sweep(copy).members[:2])
    shutil.rmtree(first)
    shutil.copytree(second, first)
    says = rf"{first} holds another run \(n 4 → 6\): remove the directory"
    with pytest.raises(UserError, match=says):
        _read(copy)
    resumed = invoke("sweep", copy / "sweep.yaml", "--resume", "--jobs", "1")
    assert (resumed.code, resumed.err.count("\n")) == (2, 1)
    shutil.rmtree(first)
    invoke("sweep", copy / "sweep.yaml", "--resume", "--jobs", "1")
    _read(copy)


def test_a_run_that_was_made_again_by_other_code_has_its_new_numbers(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    before = toytf.open_sweep(copy)
    first, second = (run.name for run in before.runs)
    value = {run: before.table.groupby("run")["value"].get_group(run).tolist() for run in (first, second)}
    real = Study.found

    def found(self: Any, case: Any, seeds: Any) -> Iterator[FoundAtStep]:
        for one in real(self, case, seeds):
            measured = tuple(replace(a, value=None if a.value is None else a.value + 1) for a in one.measured)
            yield replace(one, measured=measured)

    monkeypatch.setattr(Study, "found", found)
    shutil.rmtree(before.run(before.members[0]).directory)
    toytf.sweep(copy / "sweep.yaml", resume=True, jobs=1)
    written = pd.read_csv(copy / "table.csv").groupby("run")["value"]
    assert written.get_group(second).tolist() == value[second]
    assert written.get_group(first).tolist() == [one + 1 for one in value[first]]
    again = before.table.groupby("run")["value"]  # also for somebody who read it before
    assert again.get_group(first).tolist() == [one + 1 for one in value[first]]
