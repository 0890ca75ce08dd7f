"""Shipped configs and claims by bare name, from anywhere, and the answer to a name that is wrong or has changed."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import toytf
from toytf.claims import choose
from toytf.config.shipped import claim_files, config_files, config_folder, shipped_file
from toytf.errors import UserError
from toytf.experiments.launch import default_directory

if TYPE_CHECKING:
    from conftest import Ended

BARE_NAMES = ["quickstart", "quickstart.yaml", "configs/quickstart", "configs/quickstart.yaml"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that is no checkout."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- names that are found


@pytest.mark.parametrize("name", BARE_NAMES)
def test_a_shipped_config_is_found_by_its_bare_name_from_anywhere(name: str) -> None:
    whole = toytf.load_config(config_folder() / "quickstart.yaml")
    assert toytf.load_config(name) == toytf.load_config(Path(name)) == whole


def test_every_config_goes_by_its_path_below_configs() -> None:
    assert {"quickstart", "factual/quick", "bigram/birth"} <= set(config_files())
    for name, path in config_files().items():
        assert path == config_folder() / f"{name}.yaml" == shipped_file(name)


def test_a_file_of_exactly_that_path_wins(elsewhere: Path) -> None:
    for name, seed in {"quickstart": 7, "configs/quickstart.yaml": 8, "factual/quick": 9}.items():
        (elsewhere / name).parent.mkdir(exist_ok=True)
        (elsewhere / name).write_text(f"experiment: train\ntask: bigram\nseeds: [{seed}]\n")
        assert toytf.load_config(name).seeds == (seed,)


def test_a_directory_of_that_path_does_not(elsewhere: Path) -> None:
    """`toytf run quickstart --out quickstart` can be typed again."""
    (elsewhere / "quickstart").mkdir()
    assert toytf.load_config("quickstart").experiment == "train"


@pytest.mark.parametrize("name", BARE_NAMES)
def test_a_base_is_a_file_beside_the_config_or_a_shipped_name(name: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine" / "mine.yaml"
    mine.parent.mkdir()
    mine.write_text(f"base: [{name}, models/full]\nseeds: [7]\n")
    theirs = {"base": [str(config_folder() / "quickstart.yaml"), str(config_folder() / "models" / "full.yaml")]}
    assert toytf.load_config(mine) == toytf.load_config(theirs | {"seeds": [7]})
    mine.with_name("other.yaml").write_text("experiment: train\ntask: bigram\nseeds: [8]\n")
    mine.write_text("base: other.yaml\n")
    assert toytf.load_config(mine).seeds == (8,)


def test_a_file_may_have_the_name_of_the_config_that_it_builds_on(elsewhere: Path) -> None:
    (elsewhere / "quickstart.yaml").write_text("base: quickstart\nseeds: [7]\n")
    assert toytf.load_config("quickstart.yaml").seeds == (7,)


def test_a_table_that_ships_is_found_by_its_bare_name_too() -> None:
    given = [
        toytf.load_config("factual/countries", {"task.facts": f"{part}factual/countries.csv"})
        for part in ("", "configs/")
    ]
    assert given[0] == given[1] == toytf.load_config("factual/countries")


@pytest.mark.parametrize(
    "name", ["/quickstart", "../configs/quickstart", "configs/../configs/quickstart", "", ".", "\0"]
)
def test_only_what_lies_below_configs_ships(name: str) -> None:
    assert shipped_file(name) is None


@pytest.mark.parametrize("name", ["factual/quick", "configs/factual/quick.yaml"])
def test_a_run_goes_by_the_last_part_of_the_name(name: str) -> None:
    directory = default_directory(name, toytf.load_config(name))
    assert re.fullmatch(r"quick-[0-9a-f]{8}", directory.name)
    assert directory.parent == Path("runs")


def test_a_shipped_config_runs_by_its_bare_name(invoke: "Callable[..., Ended]", elsewhere: Path) -> None:
    small = {"train.steps": 0, "model.d_model": 8, "task.seq_len": 4, "train.evaluation.sequences": 4, "seeds": [0]}
    small |= {"logging.wandb": "off", "threads": 1}
    ended = invoke("run", "quickstart", *(f"{key}={value}" for key, value in small.items()), "--out", "mine")
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "mine")
    assert toytf.run("quickstart", small, out="mine", resume=True, page=False).finished


# --- claims


def test_a_claim_is_chosen_by_area_and_name_by_name_by_area_and_by_path(elsewhere: Path) -> None:
    files = claim_files()
    assert choose(["bigram/ideal"]) == choose(["ideal"]) == {"bigram/ideal": files["bigram/ideal"]}
    assert choose(["bigram"]) == {name: path for name, path in files.items() if name.startswith("bigram/")}
    areas = {name.partition("/")[0] for name in files}
    assert {"bigram", "capacity", "dynamics", "factual"} <= areas
    assert choose([]) == choose([*areas, "ideal"]) == files
    (elsewhere / "mine.yaml").touch()
    assert choose(["mine.yaml", "ideal"]) == {"mine": Path("mine.yaml"), "bigram/ideal": files["bigram/ideal"]}


def test_the_path_of_a_shipped_claim_means_that_claim() -> None:
    path = claim_files()["bigram/ideal"]
    for given in (str(path), "configs/claims/bigram/ideal.yaml"):
        assert choose([given, "bigram/ideal"]) == {"bigram/ideal": path}


def test_a_name_that_two_areas_have_needs_its_area() -> None:
    with pytest.raises(UserError, match=r'^several claims are called "two_layers": choose bigram/two_layers or cap'):
        choose(["two_layers"])


def test_two_files_may_not_give_the_same_name(elsewhere: Path) -> None:
    for folder in ("a", "b"):
        (elsewhere / folder).mkdir()
        (elsewhere / folder / "mine.yaml").touch()
    with pytest.raises(UserError, match=r'^two claims are called "mine": a/mine\.yaml and b/mine\.yaml$'):
        choose(["a/mine.yaml", "b/mine.yaml"])


# --- names that are wrong


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "factual/quik"], "factual/quik: no such config: did you mean factual/quick?"),
        (["run", "configs/quickstrat.yaml"], "configs/quickstrat.yaml: no such config: did you mean quickstart?"),
        (["run", "ideal"], "ideal: no such config: did you mean bigram/ideal or factual/ideal?"),
        (["run", "zebra"], "zebra: no such config (`toytf list configs`"),
        (["run", "mine.yaml"], "factual/quik: no such config: did you mean factual/quick?"),
        (["claims", "bigram/idael"], "bigram/idael: no such claim: did you mean bigram/ideal?"),
        (["claims", "zebra.yaml"], "zebra.yaml: no such claim (`toytf list claims`"),
        (["claims", "factual/quick"], "factual/quick: no such claim"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(
    arguments: list[str], says: str, invoke: "Callable[..., Ended]", elsewhere: Path
) -> None:
    (elsewhere / "mine.yaml").write_text("base: factual/quik\n")
    _is_one_line(invoke(*arguments), says)


def _is_one_line(ended: Any, says: str) -> None:
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(r"toytf: .+\n", ended.err)
    assert says in ended.err


@pytest.mark.parametrize("name", ["bigram/ideal.yaml", "claims/bigram/ideal", "configs/claims/bigram/ideal.yaml"])
def test_a_claim_is_found_by_its_file_name_and_is_no_config(name: str) -> None:
    assert choose([name]) == {"bigram/ideal": claim_files()["bigram/ideal"]}


def test_an_own_file_comes_before_what_ships(elsewhere: Path) -> None:
    (elsewhere / "quickstart.yaml").write_text("base: configs/quickstart\nseeds: [7]\n")
    (elsewhere / "mine.yaml").write_text("base: factual/quick\nseeds: [8]\n")
    for name, seeds in {"quickstart": (7,), "mine": (8,), "configs/quickstart": (0,)}.items():
        config: Any = toytf.load_config(name)
        assert config.seeds == seeds
