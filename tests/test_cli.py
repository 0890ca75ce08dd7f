"""What a person types, and what comes back: help, lists, and one line for every mistake."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mistakes import MISTAKES, QUICKSTART

if TYPE_CHECKING:
    from conftest import Command, Ended


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
    for name in ("bigram", "memory_recall", "train", "quickstart", "factual/quick", "capacity/pairs"):
        assert re.search(rf"^  {name} +\S", ended.stdout, re.MULTILINE)


# --- mistakes


@pytest.mark.parametrize("name", ["broken_yaml", "not_utf8", "heads_do_not_fit"])
def test_a_mistake_in_a_config_ends_with_2_and_one_line(name: str, command: "Command", tmp_path: Path) -> None:
    """A file that cannot be read, an argument that is no text, parts that do not fit; test_config.py has them all."""
    mistake = MISTAKES[name]
    ended = command("run", mistake.source(tmp_path), *mistake.overrides, cwd=tmp_path)
    _is_one_line((ended.returncode, ended.stdout, ended.stderr), *mistake.says)
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
        (["claims", "nowhere.yaml"], ["nowhere.yaml"]),
        (["claims", QUICKSTART], [str(QUICKSTART), "unknown key", "accepted: expect, kind, minutes"]),
        (["bench", "dat"], ['"dat"', 'did you mean "data"?']),
        (["list", "task"], ['"task"', 'did you mean "tasks"?']),
        (["list", "tasks", "--schema"], ["toytf list configs --schema"]),
        (["list", "--schema"], ["toytf list configs --schema"]),
    ],
    ids=lambda value: " ".join(Path(str(part)).name for part in value),
)
def test_a_wrong_name_ends_with_2_and_one_line(
    arguments: list[object],
    says: list[str],
    invoke: "Callable[..., Ended]",
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_file").touch()
    ended = invoke(*arguments)
    _is_one_line((ended.code, ended.out, ended.err), *says)


def test_without_arguments_it_helps(invoke: "Callable[..., Ended]") -> None:
    ended = invoke()
    assert (ended.code, ended.err) == (0, "")
    assert all(name in ended.out for name in ("run", "list", "inspect", "probe", "claims", "bench"))


@pytest.mark.parametrize(
    "arguments",
    [["run"], ["run", QUICKSTART, "--otu", "x"], ["rnu"], ["probe", "x", "--step", "last"], ["list", "a", "b"]],
)
def test_a_wrong_usage_ends_with_2_and_no_traceback(arguments: list[object], invoke: "Callable[..., Ended]") -> None:
    ended = invoke(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(r"toytf: .+\(see toytf --help\)\n", ended.err)
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.freeze=[embed.W_X]", 'model.freeze: "embed.W_X" does not match any parameter'),
        ("model.freeze=['*']", "model.freeze leaves nothing to train"),
        ("device=cup", 'device = "cup"'),
        ("task.noise={probability: 0.5, token: e}", "task.noise.token = 'e' is one of the fixed triggers"),
        ("task.noise={probability: 0.5, token: ß}", "task.noise.token = 'ß' is not a character of the corpus"),
        ("evaluate_on={few: {n_tokens: 30}}", "evaluate_on.few changes the vocabulary: it must stay that of the task"),
        ("evaluate_on={long: {seq_len: 9}}", "evaluate_on.long has sequences of 9 tokens: at most 8, as in the task"),
        (
            "probes=[{kind: truncation, matrices: [blocks.1.mlp.W_out]}]",
            'probe truncation: the model has no matrix "blocks.1.mlp.W_out": did you mean "blocks.1.attn.W_V"?',
        ),
        (
            "probes=[{kind: truncation, matrices: [blocks.2.attn.W_OV]}]",
            'probe truncation: "blocks.2.attn.W_OV" is in layer 2, but the model only has layers 0 to 1',
        ),
        (
            "probes=[{kind: truncation, ranks: [17]}]",
            "probe truncation: rank = 17: expected 1 to 16 for blocks.0.attn.W_OV of this model",
        ),
        ("probes=[{kind: truncation, ranks: [0]}]", "; to remove the matrix, use the fraction 0"),
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
    assert not any((tmp_path / "run").glob("*"))
    assert invoke("run", tiny_config, "--out", tmp_path / "run").code == 0


def _is_one_line(ended: tuple[int, str, str], *says: str) -> None:
    code, out, err = ended
    assert "Traceback" not in err
    assert (code, out) == (2, "")
    assert re.fullmatch(r"toytf: .+\n", err)
    for part in says:
        assert part in err
