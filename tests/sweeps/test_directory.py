"""What is in the directory of a sweep already: files of a user are never removed or overwritten."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import toytf
from toytf.config.yaml_text import dump_yaml
from toytf.errors import UserError

if TYPE_CHECKING:
    from conftest import Ended

pytestmark = pytest.mark.repeats_runs

STUDY = {"experiment": "storage", "rules": ["hebbian"], "dimension": 4, "device": "cpu", "logging": {"wandb": "off"}}


def _file(path: Path, **sweep: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"# What this shows.\n{dump_yaml({**STUDY, 'sweep': {'grid': {'n': [4, 6]}, **sweep}})}")
    return path


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name", ["table.csv", "sweep.html", "sweep.yaml", "errors.json", "checksums.json", "figures/mine.json", "runs/a/b"]
)
def test_a_file_of_the_user_where_the_sweep_would_write_is_kept(
    name: str, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    path, out = _file(tmp_path / "mine.yaml"), tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("precious")
    for options in ([], ["--resume"], ["--retry"]):
        ended = invoke("sweep", path, "--out", out, "--jobs", "1", *options)
        taken = name.partition("/")[0]
        says = f"toytf: {out} already has {taken}, which this sweep did not write: choose another --out\n"
        assert (ended.code, ended.out, ended.err) == (2, "", says)
        assert _content(out) == {name: b"precious"}


def test_other_files_of_the_user_do_not_matter(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("precious")
    sweep = toytf.sweep(_file(tmp_path / "mine.yaml"), out=out, jobs=1)
    assert len(sweep.runs) == 2
    assert (out / "notes.txt").read_text() == "precious"


def test_a_config_called_sweep_yaml_is_not_replaced_by_its_own_sweep(
    invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    path = _file(tmp_path / "my" / "sweep.yaml")
    for options in (["--out", path.parent], ["--resume"]):
        before = path.read_bytes()
        ended = invoke("sweep", path, "--jobs", "1", *options)
        assert ended.code == 2
        assert "already has sweep.yaml, which this sweep did not write" in ended.err
        assert _content(path.parent) == {"sweep.yaml": before}


def test_figures_that_are_shown_no_more_go_and_those_of_the_user_stay(tmp_path: Path) -> None:
    path, out = _file(tmp_path / "mine.yaml"), tmp_path / "out"
    first = toytf.sweep(path, out=out, jobs=1)
    (shown,) = first.shown[:1]
    others = sorted({*first.table["metric"]} - {*first.shown})
    theirs = {path.name for path in (out / "figures").iterdir()}
    (out / "figures" / "mine.json").write_text("precious")
    kept = out / "figures" / min(theirs)
    second = toytf.sweep(_file(tmp_path / "mine.yaml", show=others[:1]), out=out, jobs=1, resume=True)
    now = {f"{name}.json" for name in second.figures()}
    assert shown not in second.shown
    assert {path.name for path in (out / "figures").iterdir()} == now | {"mine.json"}
    kept.write_text("changed for a paper")
    toytf.sweep(_file(tmp_path / "mine.yaml", show=others[1:2]), out=out, jobs=1, resume=True)
    assert kept.read_text() == "changed for a paper"


def test_a_sweep_that_was_killed_before_its_plan_was_written_goes_on(tmp_path: Path) -> None:
    path, out = _file(tmp_path / "mine.yaml"), tmp_path / "out"
    toytf.sweep(path, out=out, jobs=1)
    for kept in (["sweep.yaml"], ["sweep.yaml", "checksums.json"]):
        for one in [one for one in out.iterdir() if one.name not in kept]:
            shutil.rmtree(one) if one.is_dir() else one.unlink()
        with pytest.raises(UserError, match="already holds a sweep: add --resume"):
            toytf.sweep(path, out=out, jobs=1)
        assert len(toytf.sweep(path, out=out, jobs=1, resume=True).runs) == 2


def test_the_same_sweep_is_written_the_same_way_again(tmp_path: Path) -> None:
    """Without a plan, a sweep is known by these bytes."""
    sweep = toytf.sweep(_file(tmp_path / "mine.yaml", seeds=2), {"iterations": 5}, out=tmp_path / "out", jobs=1)
    before = _content(sweep.directory)
    toytf.sweep(sweep.directory / "sweep.yaml", resume=True, jobs=1)
    after = _content(sweep.directory)
    assert {name for name in before if before[name] != after[name]} <= {"checksums.json"}


# --- an id is made from a config


def test_runs_of_a_stack_that_was_asked_for_are_known(tmp_path: Path) -> None:
    """config.yaml has the size of the stack that there was, not the one that was asked for."""
    small = {
        "base": "factual/quick", "train": {"steps": 1, "evaluation": {"sequences": 8}}, "probes": [],
        "task": {"n_subjects": 4, "n_relations": 2}, "model": {"d_model": 8}, "logging": {"wandb": "off"}, "stack": 8,
    }  # fmt: skip
    sweep = toytf.sweep(small, {"seeds": 3}, out=tmp_path / "out", jobs=1)
    assert {run.config.stack for run in sweep.runs} == {3}
    assert toytf.open_sweep(sweep.directory).table["seed"].nunique() == 3


def test_runs_with_facts_of_a_file_are_known(tmp_path: Path) -> None:
    """Their config.yaml names a file beside it."""
    facts = tmp_path / "facts.csv"
    facts.write_text(
        "subject,relation,attribute\n" + "".join(f"s{i},r{j},a{i}{j}\n" for i in range(4) for j in range(2))
    )
    small = {
        "base": "factual/quick", "train": {"steps": 1, "evaluation": {"sequences": 8}}, "probes": [],
        "task": {"facts": str(facts)}, "model": {"d_model": 8}, "logging": {"wandb": "off"},
    }  # fmt: skip
    sweep = toytf.sweep(small, {"seeds": 2}, out=tmp_path / "out", jobs=1)
    assert toytf.open_sweep(sweep.directory).table["seed"].nunique() == 2
    assert set(yaml.safe_load(sweep.runs[0].config_file.read_text())["task"]["facts"]) == {"file", "sha256"}
