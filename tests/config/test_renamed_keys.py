"""Keys of earlier versions: answered with their present names, and understood in the config that a run keeps."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import toytf
from toytf.config.plugins import experiment_schema, load_config
from toytf.config.sections import Config
from toytf.config.yaml_text import dump_yaml, load_yaml
from toytf.errors import UserError
from toytf.runs.checksums import NAME, Checksums, sha256

if TYPE_CHECKING:
    from conftest import Ended

QUIET: dict[str, Any] = {"device": "cpu", "threads": 1, "logging": {"wandb": "off"}}
BIGRAM = {"kind": "bigram", "seq_len": 12, "n_tokens": 12}
TRAINING = {
    "experiment": "train",
    "task": BIGRAM,
    "model": {
        "d_model": 16,
        "attention": {"init": "normal_over_d"},
        "feed_forward": {"kind": "linear", "init": "zeros"},
    },
    "train": {"steps": 8, "batch_size": 8, "evaluation": {"every": 4, "sequences": 16}},
    "evaluate_on": {"short": {"seq_len": 8}},
    "probes": ["memory_recall"],
    **QUIET,
}
STORAGE = {
    "experiment": "storage", "rules": ["hebbian", "ridge"], "dimension": 6, "n": 4, "noise_vectors": 2,
    "data": {"distribution": "gaussian"}, **QUIET,
}  # fmt: skip
DYNAMICS = {
    "experiment": "fact_dynamics", "n_subjects": 4, "n_relations": 2, "n_answers": 2, "steps": 16, "evaluate_every": 8,
    "init_scales": [1e-2, 1e-3], **QUIET,
}  # fmt: skip

FORMER = {
    "model.attention.law": (TRAINING, "model.attention.init"),
    "model.feed_forward.law": (TRAINING, "model.feed_forward.init"),
    "tests": (TRAINING, "evaluate_on"),
    "data.law": (STORAGE, "data.distribution"),
    "noise": (STORAGE, "noise_vectors"),
    "alphas": (DYNAMICS, "init_scales"),
}


def test_probes_of_an_earlier_run_are_those_that_took_their_place(tmp_path: Path) -> None:
    run = toytf.run(TRAINING | {"probes": ["memory_recall", "limits"]}, out=tmp_path / "run")
    kept = load_yaml(run.config_file.read_text(encoding="utf-8"), "")
    kept["probes"] = [{"kind": kind, "when": "always"} for kind in ("spectrum", "memory_recall", "margins")]
    former = tmp_path / "former"
    former.mkdir()
    (former / "metrics.jsonl").touch()
    (former / "config.yaml").write_text(dump_yaml(kept), encoding="utf-8")
    config: Any = load_config(former / "config.yaml")
    assert [probe.kind for probe in config.probes] == ["limits", "memory_recall"]
    with pytest.raises(UserError, match='"spectrum" does not exist any more: "limits" measures the same'):
        load_config(former / "config.yaml", of_run=False)


def _renamed(content: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """The same mapping with the dotted key `new` under its former name `old`, in the same place."""
    first, _, rest = new.partition(".")
    if not rest:
        return {old if key == new else key: value for key, value in content.items()}
    return {**content, first: _renamed(content[first], old.partition(".")[2], rest)}


def _as_earlier(content: dict[str, Any]) -> dict[str, Any]:
    """A config with all keys as an earlier version called them."""
    for old, (base, new) in FORMER.items():
        if base["experiment"] == content["experiment"]:
            content = _renamed(content, old, new)
    return content


def _sentence(old: str, new: str) -> str:
    section, _, key = old.rpartition(".")
    place = f' in "{section}"' if section else ""
    return f'unknown key "{key}"{place}: it is now called "{new.rpartition(".")[2]}"'


@pytest.mark.parametrize("old", FORMER)
def test_a_former_key_in_a_file_is_answered_with_its_present_name(old: str, tmp_path: Path) -> None:
    base, new = FORMER[old]
    path = tmp_path / "config.yaml"  # the name alone does not make it the config of a run
    path.write_text(dump_yaml(_renamed(base, old, new)), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}: {_sentence(old, new)}"


@pytest.mark.parametrize("old", FORMER)
def test_a_former_key_in_an_override_is_answered_with_its_present_name(
    old: str, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    base, new = FORMER[old]
    (tmp_path / "mine.yaml").write_text(dump_yaml(base), encoding="utf-8")
    ended = invoke("run", tmp_path / "mine.yaml", f"{old}=3")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines()[-1].endswith(_sentence(old, new))
    assert len(ended.err.splitlines()) == 1


def _config_classes(cls: type[Config] = Config) -> Iterator[type[Config]]:
    for below in cls.__subclasses__():
        yield below
        yield from _config_classes(below)


def test_former_keys_lead_to_fields_and_are_in_no_schema() -> None:
    definitions = experiment_schema().json_schema()["$defs"]
    ours = (cls for cls in _config_classes() if not cls.__module__.startswith("tests."))  # other tests define some
    found = {cls.__name__: cls.renamed for cls in ours if cls.renamed}
    assert sum(map(len, found.values())) >= len(FORMER)
    for name, renamed in found.items():
        properties = definitions[name]["properties"]
        assert set(renamed.values()) <= set(properties)
        assert not set(renamed) & set(properties)


@pytest.fixture(scope="module", params=[TRAINING, STORAGE, DYNAMICS], ids=lambda config: config["experiment"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    return toytf.run(request.param, out=tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def earlier(whole: toytf.Run, tmp_path: Path) -> Path:
    """The directory of the same run, with its config as an earlier version wrote it."""
    directory = tmp_path / "earlier"
    shutil.copytree(whole.directory, directory)
    content = load_yaml((directory / "config.yaml").read_text(encoding="utf-8"), "")
    text = dump_yaml(_as_earlier(content)).encode()
    assert text != (directory / "config.yaml").read_bytes()
    (directory / "config.yaml").write_bytes(text)
    Checksums(directory)["config.yaml"] = sha256(text)
    return directory


def test_an_earlier_run_is_opened_inspected_and_resumed(
    whole: toytf.Run, earlier: Path, invoke: "Callable[..., Ended]"
) -> None:
    assert toytf.Run.open(earlier).config == whole.config
    assert toytf.Run.open(earlier).summary == whole.summary
    assert toytf.load_config(earlier / "config.yaml") == whole.config
    before = (earlier / "config.yaml").read_bytes()
    for arguments in (["inspect", earlier], ["run", earlier / "config.yaml", "--out", earlier, "--resume"]):
        assert invoke(*arguments).code == 0
    assert (earlier / "config.yaml").read_bytes() == before
    assert toytf.Run.open(earlier).summary == whole.summary


@pytest.mark.parametrize("lost", [[NAME], ["metrics.jsonl", "columns.json"], []], ids=["checksums", "rows", "nothing"])
def test_an_earlier_run_that_is_not_done_goes_on(
    whole: toytf.Run, earlier: Path, lost: list[str], invoke: "Callable[..., Ended]"
) -> None:
    """Whatever it had come to: one of an early version has no checksums, one that just began no rows."""
    for name in ("summary.json", *lost):
        (earlier / name).unlink()
    if "metrics.jsonl" in lost:
        shutil.rmtree(earlier / "checkpoints", ignore_errors=True)
        config = Checksums(earlier)["config.yaml"]
        (earlier / NAME).write_text(json.dumps({"config.yaml": config}))
    assert invoke("run", earlier / "config.yaml", "--out", earlier, "--resume").code == 0
    assert toytf.Run(earlier).summary == whole.summary


def test_an_override_of_an_earlier_run_goes_by_the_present_name(whole: toytf.Run, earlier: Path) -> None:
    old, new = next((old, new) for old, (base, new) in FORMER.items() if base["experiment"] == whole.config.experiment)
    present: Any = toytf.load_config(earlier / "config.yaml", ["seeds=[5]"])
    assert present == whole.config.model_copy(update={"seeds": (5,)})
    with pytest.raises(UserError, match="it is now called"):
        toytf.load_config(earlier / "config.yaml", [f"{old}=3"])
    with pytest.raises(UserError, match=new.rpartition(".")[2]):
        toytf.load_config(earlier / "config.yaml", [f"{new}={{}}"])


def test_a_run_that_has_a_key_by_both_names_is_refused(earlier: Path) -> None:
    path = earlier / "config.yaml"
    content = load_yaml(path.read_text(), "")
    names = {"train": ("tests", "evaluate_on"), "storage": ("noise", "noise_vectors")}
    old, new = names.get(content["experiment"], ("alphas", "init_scales"))
    content[new] = content[old]
    path.write_text(dump_yaml(content))
    with pytest.raises(UserError, match=f'unknown key "{old}": it is now called "{new}"'):
        toytf.load_config(path)
