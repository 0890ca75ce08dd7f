"""A config is composed from files and overrides, validated at once, and every mistake in it is one line to act on."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.mistakes import MISTAKES, QUICKSTART, Mistake
from toytf.claims import load_claim
from toytf.config.compose import read_config
from toytf.config.plugins import load_config
from toytf.config.sections import differences, digest, dump
from toytf.config.shipped import claim_files, config_files, config_folder
from toytf.errors import UserError

SMALLEST = {"experiment": "train", "task": {"kind": "bigram"}}
SHIPPED = sorted(path for path in config_folder().rglob("*.yaml") if not {"claims", "sweeps"} & {*path.parts})


# --- overrides


@pytest.mark.parametrize(
    ("override", "path", "expected"),
    [
        ("train.steps=5", "train.steps", 5),
        ("train.steps=1_000", "train.steps", 1000),
        ("train.optimizer.lr=1e-3", "train.optimizer.lr", 0.001),
        ("train.optimizer.lr=0.5", "train.optimizer.lr", 0.5),
        ("train.optimizer.lr=1", "train.optimizer.lr", 1.0),
        ("train.optimizer.betas=[0.8,0.9]", "train.optimizer.betas", (0.8, 0.9)),
        ("seeds=[3,4]", "seeds", (3, 4)),
        ("seeds.0=7", "seeds", (7,)),
        ("task.no_repeat=true", "task.no_repeat", True),
        ("task.triggers=random", "task.triggers", "random"),
        ("model.attention.d_head=null", "model.attention.d_head", None),
        ("model.attention.scale=2", "model.attention.scale", 2.0),
        ("model.feed_forward={kind: relu, width: 8}", "model.feed_forward.width", 8),
        ("model.feed_forward.layers=[1]", "model.feed_forward.layers", (1,)),
        ("model.unfreeze={300: [embed.W_E]}", "model.unfreeze", {300: ("embed.W_E",)}),
        ("model.unfreeze.300=[embed.W_E]", "model.unfreeze", {300: ("embed.W_E",)}),
        ("logging.project=a=b", "logging.project", "a=b"),
        ("logging.project=${oc.env:HOME}", "logging.project", "${oc.env:HOME}"),
        ("logging.project='???'", "logging.project", "???"),
        ("logging.group=null", "logging.group", None),
        ("logging.wandb=off", "logging.wandb", "off"),
        ("logging.wandb=online", "logging.wandb", "online"),
    ],
)
def test_an_override_is_read_as_yaml_would_read_it(override: str, path: str, expected: object) -> None:
    value: Any = load_config(QUICKSTART, [override])
    for name in path.split("."):
        value = getattr(value, name)
    assert value == expected
    assert type(value) is type(expected)


def test_an_override_reaches_into_a_list_of_probes() -> None:
    full = {**SMALLEST, "probes": [{"kind": "memory_recall"}, {"kind": "attention"}]}
    assert load_config(full, ["probes.0.failures=3"]).probes[0].failures == 3


def test_an_override_reaches_into_what_a_file_names_by_its_kind_alone() -> None:
    """The shipped configs say `probes: [limits, memory_recall]`; that must not shut the door to their options."""
    assert load_config(QUICKSTART, ["probes.0.worst=3"]).probes[0].worst == 3
    assert load_config({"experiment": "train", "task": "bigram"}, ["task.seq_len=9"]).task.seq_len == 9


def test_overrides_of_a_mapping_are_those_of_the_command_line() -> None:
    from_python = load_config(QUICKSTART, {"train.steps": 5, "seeds": [1, 2], "train.optimizer": {"lr": 0.1}})
    typed = load_config(QUICKSTART, ["train.steps=5", "seeds=[1,2]", "train.optimizer={lr: 0.1}"])
    assert from_python == typed
    assert from_python.train.steps == 5


def test_the_last_of_two_overrides_wins() -> None:
    assert load_config(QUICKSTART, ["train.steps=5", "train.steps=6"]).train.steps == 6


def test_wandb_can_be_turned_off_in_a_file(tmp_path: Path) -> None:
    """In YAML 1.1, `off` is a boolean."""
    path = tmp_path / "quiet.yaml"
    path.write_text("experiment: train\ntask: bigram\nlogging: {wandb: off}\n")
    assert load_config(path).logging.wandb == "off"


# --- base:


def test_a_file_is_laid_over_its_base(tmp_path: Path) -> None:
    (tmp_path / "low.yaml").write_text("experiment: train\ntask: {kind: bigram, seq_len: 8}\ntrain: {steps: 3}\n")
    (tmp_path / "high.yaml").write_text("base: low.yaml\ntask: {n_triggers: 2}\nseeds: [4]\n")
    config = load_config(tmp_path / "high.yaml")
    assert (config.task.seq_len, config.task.n_triggers, config.train.steps, config.seeds) == (8, 2, 3, (4,))


def test_a_later_base_wins_over_an_earlier_one_and_the_file_over_both(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/a.yaml").write_text("train: {steps: 1, batch_size: 1, loss: global}\n")
    (tmp_path / "parts/b.yaml").write_text("base: a.yaml\ntrain: {steps: 2, batch_size: 2}\n")
    (tmp_path / "parts/c.yaml").write_text("model: {d_model: 8}\n")
    (tmp_path / "top.yaml").write_text(
        "base: [parts/b.yaml, parts/c.yaml]\nexperiment: train\ntask: bigram\ntrain: {steps: 3}\n"
    )
    config = load_config(tmp_path / "top.yaml")
    assert (config.train.steps, config.train.batch_size, config.train.loss) == (3, 2, "global")
    assert config.model.d_model == 8


def test_a_list_replaces_the_list_of_its_base(tmp_path: Path) -> None:
    (tmp_path / "low.yaml").write_text("experiment: train\ntask: bigram\nseeds: [0, 1, 2]\n")
    (tmp_path / "high.yaml").write_text("base: low.yaml\nseeds: [5]\n")
    assert load_config(tmp_path / "high.yaml").seeds == (5,)


def test_two_files_may_share_a_base(tmp_path: Path) -> None:
    """A diamond is no circle."""
    (tmp_path / "low.yaml").write_text("experiment: train\ntask: bigram\n")
    for side in ("left", "right"):
        (tmp_path / f"{side}.yaml").write_text("base: low.yaml\n")
    (tmp_path / "top.yaml").write_text("base: [left.yaml, right.yaml]\n")
    assert load_config(tmp_path / "top.yaml") == load_config(SMALLEST)


def test_the_base_of_a_mapping_is_relative_to_its_folder() -> None:
    config = load_config({"base": "quickstart.yaml", "seeds": [9]}, folder=config_folder())
    assert config.seeds == (9,)
    assert config.train == load_config(QUICKSTART).train


def test_nothing_in_a_file_is_looked_up_elsewhere(tmp_path: Path) -> None:
    """Neither in the environment nor in the config: what is shared shows what was written, and no bomb goes off."""
    path = tmp_path / "mine.yaml"
    path.write_text("experiment: train\ntask: bigram\nlogging: {project: '${oc.env:HOME}', group: '???'}\n")
    logging = load_config(path).logging
    assert (logging.project, logging.group) == ("${oc.env:HOME}", "???")


# --- the object


def test_a_config_is_frozen() -> None:
    config = load_config(QUICKSTART)
    for section, name in ((config, "seeds"), (config.train, "steps"), (config.task, "seq_len")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(section, name, getattr(section, name))


@pytest.mark.parametrize("path", config_files().values(), ids=config_files())
def test_loading_the_dump_of_a_shipped_config_gives_an_equal_object(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    again = tmp_path / "config.yaml"
    again.write_text(dump(config), encoding="utf-8")
    for name, content in config.files().items():
        (tmp_path / name).write_bytes(content)
    assert load_config(again) == config
    assert dump(load_config(again)) == dump(config)
    assert digest(load_config(again)) == digest(config)


_CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "train.steps": st.integers(0, 10**9),
        "train.optimizer.lr": st.floats(1e-300, 1e38),
        "train.optimizer.betas": st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)).map(list),
        "model.d_model": st.integers(1, 10**6),
        "model.init": st.just("ideal"),
        "model.unfreeze": st.dictionaries(st.integers(0, 99), st.lists(st.sampled_from(["*", "embed.W_E"]))),
        "model.feed_forward.layers": st.lists(st.integers(0, 1)),
        "seeds": st.lists(st.integers(-(10**9), 10**9), min_size=1, unique=True),
        "logging.project": st.text(st.characters(exclude_categories=["Cs"])),
        "logging.tags": st.lists(st.sampled_from(["1e-3", "${x}", "???", "a\x85b", "\u2028", "off", "2020-01-01"])),
        "logging.wandb": st.sampled_from(["off", "offline", "online"]),
    },
)


@given(_CHANGES)
def test_loading_the_dump_of_any_config_gives_an_equal_object(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    config = load_config(SMALLEST, changes)
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(dump(config), encoding="utf-8")
    assert load_config(path) == config


def test_the_digest_names_what_is_computed_and_not_where_it_is_logged() -> None:
    plain = load_config(QUICKSTART)
    assert len(digest(plain)) == 8
    assert digest(load_config(QUICKSTART, {"logging.project": "other", "logging.wandb": "off"})) == digest(plain)
    for change in ({"train.steps": 301}, {"seeds": [1]}, {"task.seq_len": 65}, {"model.norm": "layer"}):
        assert digest(load_config(QUICKSTART, change)) != digest(plain)


def test_differences_are_named_by_key_with_both_values() -> None:
    left = load_config(QUICKSTART)
    right = load_config(QUICKSTART, {"train.steps": 5, "model.attention.n_heads": 2, "logging.project": "other"})
    assert differences(left, left) == []
    assert differences(left, right) == ["model.attention.n_heads 1 → 2", "train.steps 300 → 5"]


# --- mistakes


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_with_one_line(mistake: Mistake, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_config(mistake.source(tmp_path), mistake.overrides)
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    for part in mistake.says:
        assert part in line
    for internal in ("literal[", "ListConfig", "DictConfig", "Tuple", "instance of"):  # of the libraries, not ours
        assert internal not in line


@pytest.mark.parametrize("name", ["nowhere.yaml", "."])
def test_a_path_that_is_no_file_is_answered_with_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_config(tmp_path / name)
    assert len(str(caught.value).splitlines()) == 1
    assert str(tmp_path / name) in str(caught.value)


def test_a_file_that_is_not_text_is_answered_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UserError, match=r"binary\.yaml: cannot be read as YAML") as caught:
        load_config(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_longer_circle_of_bases_is_found(tmp_path: Path) -> None:
    for name, base in {"a": "b", "b": "c", "c": "a"}.items():
        (tmp_path / f"{name}.yaml").write_text(f"base: {base}.yaml\n")
    with pytest.raises(UserError, match="circle"):
        read_config(tmp_path / "a.yaml")


def test_the_first_of_several_mistakes_is_told_and_the_others_are_counted() -> None:
    with pytest.raises(UserError, match=r"train\.batch_size = 0.*\(and 1 more mistake in this config\)$"):
        load_config(QUICKSTART, {"train.batch_size": 0, "train.checkpoints.every": 0})


# --- what ships


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(config_folder())))
def test_a_shipped_config_is_valid_and_says_what_it_shows_in_two_lines(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line.startswith("# ") for line in lines[:3]] == [True, True, False]
    if path in config_files().values():
        load_config(path)
    else:  # a part that others build on: valid once it is given an experiment and a task
        load_config({"base": str(path), **SMALLEST})


@pytest.mark.parametrize("path", claim_files().values(), ids=claim_files())
def test_a_shipped_claim_loads(path: Path) -> None:
    claim, configs = load_claim(path)
    assert set(configs) == set(claim.runs)
    assert all(config.logging.wandb == "off" for config in configs.values())
    assert {run for expectation in claim.expect for run in expectation.runs()} == set(configs)


def test_every_runnable_file_is_listed() -> None:
    runnable = {path for path in SHIPPED if "experiment" in read_config(path)}
    assert runnable == set(config_files().values())
    assert QUICKSTART in runnable


def test_the_dump_is_plain_yaml() -> None:
    assert yaml.safe_load(dump(load_config(QUICKSTART)))["train"]["optimizer"]["lr"] == 3e-3
