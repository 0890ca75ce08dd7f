"""What a person types, and what comes back: the commands, their exit codes, and the run directory they leave."""

import json
import math
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.graph_objects as go
import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file

import toytf
from toytf.catalogue import config_files, config_folder
from toytf.config import digest
from toytf.errors import UserError
from toytf.plugins import load_config

if TYPE_CHECKING:
    from conftest import Command, Ended, Mistake

QUICKSTART = config_folder() / "quickstart.yaml"


@pytest.fixture(scope="module")
def command_run(
    command: "Command", tiny_config: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple["subprocess.CompletedProcess[str]", Path]:
    """`toytf run tiny.yaml` in an empty folder: how it ended, and the folder."""
    folder = tmp_path_factory.mktemp("work")
    return command("run", tiny_config, cwd=folder), folder


# --- fast


@pytest.mark.parametrize(
    "program",
    [
        "import toytf",
        "import toytf.cli; sys.argv = ['toytf', '--help']; toytf.cli.main()",
        "import toytf.cli; sys.argv = ['toytf', 'run', '--help']; toytf.cli.main()",
        "import toytf.cli; sys.argv = ['toytf', 'list']; toytf.cli.main()",
        "import toytf.cli; sys.argv = ['toytf', 'list', 'configs', '--schema']; toytf.cli.main()",
        f"import toytf; toytf.load_config({str(QUICKSTART)!r})",
    ],
    ids=["import", "help", "help of a command", "list", "schema", "load"],
)
def test_what_needs_no_model_imports_neither_torch_nor_transformer_lens(program: str) -> None:
    """torch takes 2 s to import and transformer_lens 6."""
    watched = f"""
import atexit, sys
atexit.register(lambda: sys.stderr.write("heavy: " + " ".join({{"torch", "transformer_lens"}} & set(sys.modules))))
{program}
"""
    ended = subprocess.run([sys.executable, "-c", watched], capture_output=True, text=True, check=True)
    assert ended.stderr == "heavy: "


def test_help_names_every_command(command: "Command", tmp_path: Path) -> None:
    ended = command("--help", cwd=tmp_path)
    assert ended.returncode == 0
    for name in ("run", "list", "inspect", "probe", "claims", "bench"):
        assert re.search(rf"^  {name}  ", ended.stdout, re.MULTILINE)


def test_list_shows_every_kind_with_one_line_each(command: "Command", tmp_path: Path) -> None:
    ended = command("list", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.findall(r"^(\w+):$", ended.stdout, re.MULTILINE) == [
        "tasks",
        "probes",
        "experiments",
        "configs",
        "claims",
    ]
    for name in ("bigram", "memory_recall", "train", "configs/quickstart.yaml", "bigram/bigram_ideal"):
        assert re.search(rf"^  {name} +\S", ended.stdout, re.MULTILINE)


# --- mistakes


def test_a_mistake_in_a_config_ends_with_2_and_one_line(mistake: "Mistake", command: "Command", tmp_path: Path) -> None:
    ended = command("run", mistake.source(tmp_path), *mistake.overrides, cwd=tmp_path)
    _is_one_line(ended, *mistake.says)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "nowhere.yaml"], ["nowhere.yaml", "toytf list configs"]),
        (["run", "."], ["a directory"]),
        (["run", QUICKSTART, "--out", "a_file"], ["a_file: cannot be written"]),
        (["inspect", "nowhere"], ["nowhere: not a run directory"]),
        (["inspect", "a_file"], ["a_file: not a run directory"]),
        (["probe", "nowhere"], ["nowhere: not a run directory"]),
        (["claims", "bigram_idael"], ['"bigram_idael"', 'did you mean "bigram_ideal"?']),
        (["claims", "nowhere.yaml"], ["nowhere.yaml"]),
        (["claims", QUICKSTART], [str(QUICKSTART), "unknown key", "accepted: expect, minutes"]),
        (["bench", "bigram_dat"], ['"bigram_dat"', 'did you mean "bigram_data"?']),
        (["list", "task"], ['"task"', 'did you mean "tasks"?']),
        (["list", "tasks", "--schema"], ["toytf list configs --schema"]),
        (["list", "--schema"], ["toytf list configs --schema"]),
    ],
    ids=lambda value: " ".join(Path(str(part)).name for part in value),
)
def test_a_wrong_name_ends_with_2_and_one_line(
    arguments: list[object], says: list[str], command: "Command", tmp_path: Path
) -> None:
    (tmp_path / "a_file").touch()
    _is_one_line(command(*arguments, cwd=tmp_path), *says)


def test_without_arguments_it_helps(command: "Command", tmp_path: Path) -> None:
    ended = command(cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert all(name in ended.stdout for name in ("run", "list", "inspect", "probe", "claims", "bench"))


@pytest.mark.parametrize(
    "arguments",
    [["run"], ["run", QUICKSTART, "--otu", "x"], ["rnu"], ["probe", "x", "--step", "last"], ["list", "a", "b"]],
)
def test_a_wrong_usage_ends_with_2_and_no_traceback(
    arguments: list[object], command: "Command", tmp_path: Path
) -> None:
    ended = command(*arguments, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(r"toytf: .+\(see toytf --help\)\n", ended.stderr)
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.freeze=[embed.W_X]", 'model.freeze: "embed.W_X" matches no parameter'),
        ("model.freeze=['*']", "model.freeze leaves nothing to train"),
        ("device=cup", 'device = "cup"'),
    ],
)
def test_a_mistake_that_only_the_model_shows_leaves_no_run_behind(
    override: str, says: str, invoke: "Callable[..., Ended]", tiny_config: Path, tmp_path: Path
) -> None:
    """The corrected command must work: the directory may not be taken by the config that was wrong."""
    ended = invoke("run", tiny_config, override, "--out", tmp_path / "run")
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert len(ended.err.splitlines()) == 1
    assert invoke("run", tiny_config, "--out", tmp_path / "run").code == 0


def _is_one_line(ended: "subprocess.CompletedProcess[str]", *says: str) -> None:
    assert "Traceback" not in ended.stderr
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(r"toytf: .+\n", ended.stderr)
    for part in says:
        assert part in ended.stderr


# --- the schema


@pytest.fixture(scope="module")
def schema(command: "Command", tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    ended = command("list", "configs", "--schema", cwd=tmp_path_factory.mktemp("work"))
    assert (ended.returncode, ended.stderr) == (0, "")
    printed: dict[str, Any] = json.loads(ended.stdout)
    return printed


def test_the_schema_describes_the_fields_of_the_task(schema: dict[str, Any]) -> None:
    assert schema["$schema"].startswith("https://json-schema.org/")
    task = schema["$defs"]["BigramConfig"]
    assert {"kind", "seq_len", "n_triggers", "triggers", "corpus"} <= set(task["properties"])
    assert task["properties"]["seq_len"]["minimum"] == 2
    assert "Input tokens per sequence" in task["properties"]["seq_len"]["description"]
    assert "base" in schema["$defs"]["TrainExperimentConfig"]["properties"]


@pytest.mark.parametrize("path", config_files().values(), ids=config_files())
def test_the_schema_accepts_a_shipped_config_as_it_is_written(path: Path, schema: dict[str, Any]) -> None:
    """An editor sees the file alone, short forms, `base:` and all."""
    written = OmegaConf.to_container(OmegaConf.load(path))
    assert _objections(written, schema, schema["$defs"], "") == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"task": {"kind": "bigram", "seq_length": 8}}, "task"),
        ({"train": {"optimizer": {"kind": "adam"}}}, "train.optimizer.kind"),
        ({"model": {"d_model": "wide"}}, "model.d_model"),
        ({"zebra": 1}, "zebra"),
    ],
)
def test_the_schema_refuses_what_loading_refuses(change: dict[str, Any], where: str, schema: dict[str, Any]) -> None:
    content = {"experiment": "train", "task": {"kind": "bigram"}, **change}
    assert _objections(content, schema, schema["$defs"], "")
    with pytest.raises(UserError, match=re.escape(where)):
        load_config(content)


def _objections(value: Any, schema: dict[str, Any], definitions: dict[str, Any], path: str) -> list[str]:
    """Where a value does not fit a JSON schema, by the keywords that say which names and types are allowed."""
    if "$ref" in schema:
        return _objections(value, definitions[schema["$ref"].rpartition("/")[2]], definitions, path)
    for keyword in ("oneOf", "anyOf"):
        if keyword in schema:
            tried = [_objections(value, choice, definitions, path) for choice in schema[keyword]]
            return min(tried, key=len)
    allowed = schema.get("type", [])
    allowed = {allowed} if isinstance(allowed, str) else set(allowed)
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    given = {names.get(type(value), "null")} | ({"number"} if type(value) is int else set())
    if allowed and not given & allowed:
        return [f"{path}: {value!r} is not {' or '.join(sorted(allowed))}"]
    if value not in schema.get("enum", [schema.get("const", value)]):
        return [f"{path}: {value!r} is not accepted"]
    found = []
    if isinstance(value, dict):
        found += [f"{path}: {name} is required" for name in schema.get("required", []) if name not in value]
        for name, inner in value.items():
            inside = schema.get("properties", {}).get(name, schema.get("additionalProperties", True))
            if inside is False:
                found.append(f"{path}: {name} is not allowed")
            elif isinstance(inside, dict):
                found += _objections(inner, inside, definitions, f"{path}.{name}".lstrip("."))
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for i, inner in enumerate(value):
            found += _objections(inner, schema["items"], definitions, f"{path}.{i}")
    return found


# --- a run


def test_a_run_prints_its_directory_last_which_is_named_by_config_and_hash(
    command_run: tuple["subprocess.CompletedProcess[str]", Path], tiny_config: Path
) -> None:
    ended, folder = command_run
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    directory = Path(ended.stdout.splitlines()[-1])
    assert directory == Path("runs") / f"tiny-{digest(load_config(tiny_config))}"
    assert [path.name for path in (folder / "runs").iterdir()] == [directory.name]


def test_a_run_directory_holds_the_whole_record(tiny_run: toytf.Run) -> None:
    directory = tiny_run.directory
    assert load_config(directory / "config.yaml") == tiny_run.config
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [(row["seed"], row["step"]) for row in rows] == [(0, 0), (0, 2)]
    summary = json.loads((directory / "summary.json").read_text())
    assert all(type(value) is float and math.isfinite(value) for value in summary.values())
    for metric in (
        "eval/in_context_accuracy",
        "eval/untrapped_loss",
        "eval/global_loss",
        "recall/W_OV2",
        "recall/W_KQ1",
    ):
        assert {metric, f"ideal/{metric}", f"chance/{metric}"} <= set(summary)
        assert summary[metric] == rows[-1][metric]
    assert not any(name.endswith("/std") for name in summary)
    assert "<html" in (directory / "report.html").read_text(encoding="utf-8")
    weights = sorted(path.name for path in (directory / "checkpoints").glob("*.safetensors"))
    assert weights == [f"seed0-step{step:06d}.safetensors" for step in (0, 1, 2)]


def test_the_config_of_a_run_gives_the_same_bits_again(
    command_run: tuple["subprocess.CompletedProcess[str]", Path], tmp_path: Path
) -> None:
    ended, folder = command_run
    first = folder / ended.stdout.splitlines()[-1]
    again = toytf.run(first / "config.yaml", out=tmp_path / "again").directory
    assert (again / "metrics.jsonl").read_bytes() == (first / "metrics.jsonl").read_bytes()
    assert (again / "summary.json").read_bytes() == (first / "summary.json").read_bytes()
    last = "checkpoints/seed0-step000002.safetensors"
    assert (again / last).read_bytes() == (first / last).read_bytes()


def test_a_run_is_not_written_over(tiny_run: toytf.Run, invoke: "Callable[..., Ended]") -> None:
    before = tiny_run.metrics_file.stat().st_mtime_ns
    ended = invoke("run", tiny_run.config_file, "--out", tiny_run.directory)
    assert (ended.code, ended.out) == (2, "")
    assert "already holds a run: add --resume" in ended.err
    assert tiny_run.metrics_file.stat().st_mtime_ns == before


def test_resuming_with_another_config_names_the_key(tiny_run: toytf.Run, invoke: "Callable[..., Ended]") -> None:
    ended = invoke("run", tiny_run.config_file, "train.steps=3", "--out", tiny_run.directory, "--resume")
    assert (ended.code, ended.out) == (2, "")
    assert "train.steps 2 → 3" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_resuming_a_finished_run_changes_nothing(tiny_run: toytf.Run, invoke: "Callable[..., Ended]") -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny_run.directory.rglob("*")}
    ended = invoke("run", tiny_run.config_file, "logging.project=other", "--out", tiny_run.directory, "--resume")
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == str(tiny_run.directory)
    assert {path: path.stat().st_mtime_ns for path in tiny_run.directory.rglob("*")} == before


def test_a_run_that_diverges_ends_with_1_and_one_sentence(
    invoke: "Callable[..., Ended]", tiny_config: Path, tmp_path: Path
) -> None:
    overrides = ["train.optimizer={kind: sgd, lr: 1e30}", "train.loss=all", "train.steps=5"]
    ended = invoke("run", tiny_config, *overrides, "--out", tmp_path / "run")
    assert ended.code == 1
    assert "Traceback" not in ended.err
    assert "toytf: training diverged by step" in ended.err.splitlines()[-1]
    assert "train.optimizer.lr" in ended.err.splitlines()[-1]


def test_with_two_seeds_the_summary_has_their_mean_and_spread(two_seeds_run: toytf.Run) -> None:
    summary, history = two_seeds_run.summary, two_seeds_run.history
    last = history[history["step"] == 2].set_index("seed")
    means = [name for name in summary if not name.endswith("/std")]
    assert all(f"{name}/std" in summary for name in means)
    for metric in ("eval/all_loss", "recall/W_KQ1"):
        a, b = last[metric]
        assert summary[metric] == pytest.approx((a + b) / 2)
        assert summary[f"{metric}/std"] == pytest.approx(abs(a - b) / math.sqrt(2))  # n − 1 in the denominator
    assert summary["eval/all_loss/std"] > 0


# --- probe and inspect


def test_probes_run_again_on_any_checkpoint(tiny_run: toytf.Run, invoke: "Callable[..., Ended]") -> None:
    ended = invoke("probe", tiny_run.directory, "--step", "1")
    assert (ended.code, ended.err) == (0, "")
    for name in ("W_OV2", "W_KQ2", "W_KQ1", "induction", "should be"):
        assert name in ended.out


def test_one_probe_can_be_chosen(tiny_run: toytf.Run, invoke: "Callable[..., Ended]") -> None:
    ended = invoke("probe", tiny_run.directory, "--probe", "attention")
    assert ended.code == 0
    assert "induction" in ended.out
    assert "W_OV2" not in ended.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--step", "7"], "no checkpoint at step 7 (there are: 0, 1, 2)"),
        (["--seed", "5"], "no seed 5 (there are: 0)"),
        (["--probe", "attentoin"], 'did you mean "attention"?'),
    ],
)
def test_a_probe_of_what_there_is_not_lists_what_there_is(
    arguments: list[str], says: str, tiny_run: toytf.Run, invoke: "Callable[..., Ended]"
) -> None:
    ended = invoke("probe", tiny_run.directory, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(rf"toytf: .*{re.escape(says)}.*\n", ended.err)


def test_inspect_puts_several_runs_on_one_page(
    tiny_run: toytf.Run, two_seeds_run: toytf.Run, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    page = tmp_path / "both.html"
    ended = invoke("inspect", tiny_run.directory, two_seeds_run.directory, "--html", page)
    assert (ended.code, ended.out) == (0, f"{page}\n")
    text = page.read_text(encoding="utf-8")
    title = re.search(r"<title>(.*?)</title>", text, re.DOTALL)
    assert title
    assert tiny_run.name in title[1]
    assert two_seeds_run.name in title[1]
    for name in (tiny_run.name, two_seeds_run.name):
        assert re.search(rf"<h\d[^>]*>\s*{name}\s*<", text)


def test_inspect_of_several_runs_asks_where_to_put_the_page(
    tiny_run: toytf.Run, two_seeds_run: toytf.Run, invoke: "Callable[..., Ended]"
) -> None:
    ended = invoke("inspect", tiny_run.directory, two_seeds_run.directory)
    assert (ended.code, ended.out) == (2, "")
    assert "--html FILE" in ended.err


def test_inspect_says_if_the_page_cannot_be_written(
    tiny_run: toytf.Run, invoke: "Callable[..., Ended]", tmp_path: Path
) -> None:
    ended = invoke("inspect", tiny_run.directory, "--html", tmp_path / "nowhere" / "page.html")
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(r"toytf: .*page\.html: cannot be written.*\n", ended.err)


# --- Python


def test_a_run_from_python_gives_its_history_as_a_table(tiny_run: toytf.Run) -> None:
    history = tiny_run.history
    assert isinstance(history, pd.DataFrame)
    assert history["step"].tolist() == [0, 2]
    assert history["eval/all_loss"].notna().all()


def test_a_run_from_python_gives_its_model_at_any_checkpoint(tiny_run: toytf.Run) -> None:
    for step, file in ((0, "seed0-step000000"), (None, "seed0-step000002")):
        saved = load_file(tiny_run.checkpoints / f"{file}.safetensors")
        for name, parameter in tiny_run.model(step=step).named_parameters():
            assert torch.equal(parameter, saved[name])


def test_a_run_from_python_gives_its_model_to_transformer_lens(tiny_run: toytf.Run) -> None:
    tokens = tiny_run.batch(2).tokens
    logits, cache = tiny_run.lens().run_with_cache(tokens)
    torch.testing.assert_close(logits, tiny_run.model()(tokens))
    assert cache["blocks.0.attn.hook_pattern"].shape == (2, 1, 8, 8)


def test_a_probe_from_python_has_metrics_and_a_figure(tiny_run: toytf.Run) -> None:
    result = tiny_run.probe("memory_recall")
    assert result.metrics["recall/W_OV2"] == tiny_run.summary["recall/W_OV2"]
    assert isinstance(result.figure(), go.Figure)


def test_from_python_a_mistake_is_an_exception_and_no_exit(tiny_config: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match='did you mean "steps"'):
        toytf.run(tiny_config, {"train.stepz": 2}, out=tmp_path / "run")
    with pytest.raises(UserError, match="not a run directory"):
        toytf.Run.open(tmp_path / "run")


# --- wandb


def test_by_default_wandb_writes_offline_into_the_run_directory(
    command: "Command", tiny_config: Path, tmp_path: Path
) -> None:
    assert load_config(QUICKSTART).logging.wandb == "offline"
    overrides = ["logging.wandb=offline", "logging.project=my_project", "logging.group=my_group"]
    ended = command("run", tiny_config, *overrides, "--out", "run", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "wandb" not in ended.stderr + ended.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    (record,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    content = record.read_bytes()
    for text in (b"my_project", b"my_group", b"run-seed0", b"eval/in_context_accuracy"):
        assert text in content


@pytest.mark.parametrize(
    "error", [RuntimeError("no more\nroom"), RuntimeError(), None], ids=["error", "silent", "gone"]
)
def test_a_failure_of_wandb_does_not_stop_the_run(
    error: Exception | None,
    monkeypatch: pytest.MonkeyPatch,
    invoke: "Callable[..., Ended]",
    tiny_config: Path,
    tmp_path: Path,
) -> None:
    def fail(**_: object) -> None:
        assert error is not None
        raise error

    broken = types.ModuleType("wandb")
    vars(broken).update(init=fail, Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", broken if error is not None else None)
    ended = invoke("run", tiny_config, "logging.wandb=offline", "--out", tmp_path / "run")
    assert ended.code == 0
    assert (tmp_path / "run" / "summary.json").is_file()
    assert "Traceback" not in ended.err
    (told,) = (line for line in ended.err.splitlines() if line.startswith("toytf: "))
    assert "wandb (offline) stopped mirroring" in told
