"""What the system refuses ends a run with one sentence and exit code 1; what was finished stays."""

import contextlib
import errno
import hashlib
import json
import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import toytf
from toytf import files
from toytf.config.footprint import check_memory
from toytf.config.plugins import load_config
from toytf.engines import EngineOptions
from toytf.errors import RunFailed, UserError
from toytf.experiments.train import experiment as train
from toytf.process import free_memory, memory_limit, without_memory_limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Command, Ended

pytestmark = pytest.mark.repeats_runs

STEPS = {"train.steps": 4, "train.checkpoints.every": 1}


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENOENT, errno.EMFILE])
def test_a_file_that_cannot_be_written_ends_the_run_and_it_can_be_resumed(
    code: int, tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def refuse(file: int) -> None:
        if "seed0-step000002" in Path(f"/proc/self/fd/{file}").readlink().name:
            raise OSError(code, os.strerror(code), "a file")
        real(file)

    monkeypatch.setattr(files.os, "fsync", refuse)
    with pytest.raises(RunFailed, match=re.escape(os.strerror(code))) as failure:
        toytf.run(tiny_config, STEPS, out=tmp_path / "run")
    assert failure.value.exit_code == 1
    monkeypatch.undo()
    again = toytf.run(tiny_config, STEPS, out=tmp_path / "run", resume=True)
    whole = toytf.run(tiny_config, STEPS, out=tmp_path / "whole")
    assert again.metrics_file.read_bytes() == whole.metrics_file.read_bytes()
    assert again.summary_file.read_bytes() == whole.summary_file.read_bytes()


def test_a_limit_on_the_size_of_files_is_a_sentence(tiny_config: Path, tmp_path: Path) -> None:
    """The real thing: the system refuses to write more than so many bytes (EFBIG)."""
    ended = subprocess.run(
        [Path(sys.executable).with_name("toytf"), "run", tiny_config, "--out", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "File too large" in ended.stderr.splitlines()[-1]


def test_a_directory_that_vanishes_ends_the_run_with_a_sentence(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: "Callable[..., Ended]"
) -> None:
    class Vanishes(train.ProgressLine):
        def stepped(self, step: int) -> None:
            super().stepped(step)
            if step == 1:
                (tmp_path / "run").rename(tmp_path / "elsewhere")

    monkeypatch.setattr(train, "ProgressLine", Vanishes)
    ended = invoke("run", tiny_config, "--out", tmp_path / "run")
    assert ended.code == 1
    last = ended.err.splitlines()[-1]
    assert last.startswith("toytf: ")
    assert "No such file or directory" in last


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "x" * 300],
        ["run", "configs/quickstart.yaml", "--out", "x" * 300],
        ["inspect", "x" * 300],
        ["probe", "x" * 300],
        ["inspect", "{run}", "--html", "x" * 300],
        ["claims", "gradient_lemmas", "--out", "x" * 300],
        ["bench", "data", "--json", "nowhere/x.json"],
        ["run", "configs/factual/quick.yaml", "task.facts=~nobody_of_this_name/a.csv"],
        ["run", "configs/factual/quick.yaml", f"task.facts={'x' * 300}"],
        ["run", "configs/quickstart.yaml", "device=cuda"],
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_a_name_that_the_system_does_not_take_is_a_sentence(
    arguments: list[str],
    tiny_run: toytf.Run,
    invoke: "Callable[..., Ended]",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = invoke(*(argument.format(run=tiny_run.directory) for argument in arguments))
    assert ended.code in (1, 2)
    assert re.fullmatch(r"toytf: .+\n", ended.err)
    assert list(tmp_path.iterdir()) == []


def test_without_a_gpu_the_build_is_named(invoke: "Callable[..., Ended]", tiny_config: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    ended = invoke("run", tiny_config, "device=cuda", "--out", tmp_path / "run")
    assert ended.code == 2
    assert 'device = "cuda": this machine has none' in ended.err
    assert torch.backends.cuda.is_built() or "is built without CUDA: install a build with CUDA" in ended.err


def test_output_that_nobody_reads_any_more_is_no_traceback(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [Path(sys.executable).with_name("toytf"), "list"]
    ended = subprocess.run(command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize("stream", ["2>&-", "2>/dev/full", ">&- 2>&-", "2>&1 | true"])
def test_a_run_whose_stderr_is_closed_or_full_comes_to_its_end(stream: str, tiny_config: Path, tmp_path: Path) -> None:
    command = shlex.join([str(Path(sys.executable).with_name("toytf")), "run", str(tiny_config), "--out", "run"])
    ended = subprocess.run(f"{command} {stream}", cwd=tmp_path, shell=True, capture_output=True, check=False)
    assert ended.returncode == 0
    assert (tmp_path / "run" / "summary.json").exists()
    assert toytf.Run.open(tmp_path / "run").finished


@pytest.mark.parametrize("stderr", [None, Path("/dev/full")], ids=["none", "full"])
def test_a_study_called_from_python_without_a_stderr_comes_to_its_end(
    stderr: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = None if stderr is None else os.fdopen(os.open(stderr, os.O_WRONLY), "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", stream)
    changes = {"dimensions": [4], "draws": 1, "resolution": 0.9, "rules": ["hebbian"], "logging.wandb": "off"}
    assert toytf.run("capacity/linear", changes, out=tmp_path / "run").finished
    monkeypatch.undo()
    with contextlib.suppress(OSError):
        if stream is not None:
            stream.close()


# --- memory


SIZES: dict[str, tuple[str, list[str], str]] = {
    "model": ("quickstart", ["model.d_model=100000"], "model.d_model = 100,000"),
    "positions": ("quickstart", ["task.seq_len=10000000"], "task.seq_len = 10,000,000"),
    "batch": ("quickstart", ["train.batch_size=1000000000"], "train.batch_size = 1,000,000,000"),
    "evaluation": ("quickstart", ["train.evaluation.sequences=1000000000"], "train.evaluation.sequences = 1,"),
    "heads": ("quickstart", ["model.attention.n_heads=1000000", "model.attention.d_head=1000"], "n_heads = 1,000,000"),
    "layers": ("quickstart", ["model.n_layers=100000"], "model.n_layers = 100,000"),
    "width": (
        "quickstart",
        ["model.feed_forward.kind=relu", "model.feed_forward.width=1000000000000"],
        "model.feed_forward.width = 1,000,000,000,000",
    ),
    "subjects": ("factual/quick", ["task.n_subjects=1000000000"], "task.n_subjects = 1,000,000,000"),
    "relations": ("factual/quick", ["task.n_relations=100000"], "task.n_relations = 100,000"),
    "answers": ("factual/quick", ["task.n_answers=1000000000"], "task.n_answers = 1,000,000,000"),
    "noise": ("factual/quick", ["task.n_noise=10000000000"], "task.n_noise = 10,000,000,000"),
    "places": ("factual/quick", ["task.seq_len=1000000000"], "task.seq_len = 1,000,000,000"),
    "dimension": ("capacity/linear", ["dimensions=[1000000]"], "dimensions = 1,000,000"),
    "stored": ("capacity/scores", ["n=100000000"], "n = 100,000,000"),
    "fact_dimension": ("factual/capacity_quick", ["dimensions=[1000000000]"], "dimensions = 1,000,000,000"),
    "checked": ("factual/capacity_quick", ["check_sequences=1000000000000"], "check_sequences = 1,000,000,000,000"),
    "dynamics": ("factual/dynamics", ["n_subjects=1000000", "n_noise=1000000"], "n_subjects = 1,000,000"),
    "steps_of_three": ("bigram/three_steps", ["n_tokens=1000000"], "n_tokens = 1,000,000"),
    "contexts": ("bigram/noise_learning", ["samples=[1000000000]"], "samples = 1,000,000,000"),
}


@pytest.mark.parametrize(("name", "overrides", "says"), SIZES.values(), ids=SIZES)
def test_a_size_that_cannot_fit_is_named_and_leaves_nothing_behind(
    name: str, overrides: list[str], says: str, little_memory: None, tmp_path: Path
) -> None:
    """By an estimate, or by the limit of the process."""
    with pytest.raises(UserError, match=r"needs too much memory: .* 3 GB (are|were) free.*--force") as refused:
        toytf.run(f"configs/{name}.yaml", [*overrides, "device=cpu"], out=tmp_path / "runs" / "run")
    assert says in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("toytf.process", "toytf.experiments.launch"):
        monkeypatch.setattr(f"{place}.free_memory", lambda: 3e9)


def test_a_case_that_cannot_fit_is_named_by_a_worker(tmp_path: Path) -> None:
    """A worker has half of what is free, and asks for 4 TB."""
    asked, engine = {"n_tokens": 1_000_000, "device": "cpu"}, EngineOptions(jobs=2)
    with pytest.raises(UserError, match=r"n_tokens = 1,000,000 needs .* asked for 4 TB more"):
        toytf.run("bigram/three_steps", asked, out=tmp_path / "run", engine=engine)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_holds_within_another_and_is_not_inherited_where_it_is_lifted(little_memory: None) -> None:
    asked = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY)"
    unlimited = lambda: subprocess.check_output([sys.executable, "-c", asked], text=True) == "True\n"  # noqa: E731
    with memory_limit(3) as free:
        assert free == 1e9
        with memory_limit() as within:
            assert within <= free
        with pytest.raises(RuntimeError, match="allocate 2000000000 bytes"):
            torch.empty(2 * 10**9, dtype=torch.uint8)
        with without_memory_limit():
            assert unlimited()
        assert not unlimited()
    assert unlimited()


@pytest.mark.parametrize(("name", "gigabytes"), [("quickstart", 0.25), ("bigram/birth", 1.5), ("factual/quick", 0.3)])
def test_the_estimate_is_of_the_order_of_what_a_run_takes(name: str, gigabytes: float) -> None:
    """Measured peaks without the 0.25 GB of Python and torch; a run that fits must not be refused."""
    config = load_config(f"configs/{name}.yaml", {"device": "cpu"})
    assert gigabytes / 10 < config.needs() / 1e9 < 2 * gigabytes


def test_every_shipped_config_passes_on_16_gigabytes() -> None:
    from toytf.config.shipped import config_files

    for path in config_files().values():
        config: Any = load_config(path, {"device": "cpu"})
        assert config.needs() < 16e9, path


def test_memory_that_runs_out_is_a_sentence_and_leaves_nothing_behind(tiny_config: Path, tmp_path: Path) -> None:
    """Forced, so that the estimate does not stop it: torch itself finds no room for 40 TB."""
    with pytest.raises(RunFailed, match="not enough memory"):
        toytf.run(tiny_config, {"train.batch_size": 10**12}, out=tmp_path / "runs" / "run", force=True)
    assert list(tmp_path.iterdir()) == []


def test_an_estimate_names_the_largest_sizes() -> None:
    content = {"x": 3, "seeds": [99], "train": {"steps": 5000}, "part": {"y": [7, 8], "z": 1000}}
    check_memory(content, 7e9, free=7e9)
    check_memory(content, 7e9, free=None)
    with pytest.raises(
        UserError, match=r"^part.z = 1,000 needs .* about 7 GB, and 6\.9 GB .* sizes: part.y = 8, x = 3\)"
    ):
        check_memory(content, 7e9, free=6.9e9)


def test_a_rate_at_which_numbers_leave_float32_is_a_sentence(tiny_config: Path, tmp_path: Path) -> None:
    overrides = {"train.optimizer.lr": 1e30, "train.optimizer.weight_decay": 1e30}
    with pytest.raises(RunFailed, match=r"too large for float32|diverged"):
        toytf.run(tiny_config, overrides, out=tmp_path / "run")


def test_a_run_that_fails_before_its_first_step_leaves_nothing_behind(
    command: "Command", tiny_config: Path, tmp_path: Path
) -> None:
    ended = command("run", tiny_config, "model.freeze=['*']", "--out", "a/b/run", cwd=tmp_path)
    assert ended.returncode == 2
    assert list(tmp_path.iterdir()) == []


def _fails_after(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the disk fail at the row after so many."""
    real, seen = os.fsync, []

    def fail(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().name == "metrics.jsonl":
            seen.append(file)
        if len(seen) > rows:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(file)

    monkeypatch.setattr(files.os, "fsync", fail)


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({"train.steps": 0, "seeds": [0, 1]}, 1),
        ({"train.steps": 9, "train.checkpoints": {"every": 1000, "log_spaced": False}, "train.evaluation.every": 1}, 4),
    ],
    ids=["no_steps", "no_checkpoint_yet"],
)
def test_a_run_that_has_measured_something_keeps_it(
    changes: dict[str, Any], rows: int, tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fails_after(rows, monkeypatch)
    with pytest.raises(RunFailed, match=r"Input/output error.*fix this, then continue: toytf run .*config\.yaml"):
        toytf.run(tiny_config, changes, out=tmp_path / "run")
    monkeypatch.undo()
    assert (
        len(toytf.Run.open(tmp_path / "run").history) == rows + 1
    )  # the last had reached the file when the disk failed
    again = toytf.run(tiny_config, changes, out=tmp_path / "run", resume=True)
    whole = toytf.run(tiny_config, changes, out=tmp_path / "whole")
    assert again.metrics_file.read_bytes() == whole.metrics_file.read_bytes()


def test_divergence_keeps_the_checkpoint_that_its_sentence_names(tiny_config: Path, tmp_path: Path) -> None:
    changes = {
        "train.steps": 50,
        "train.optimizer": {"kind": "sgd", "lr": 1e30},
        "train.checkpoints": {"every": 1000, "log_spaced": False},
    }
    with pytest.raises(RunFailed, match="the last good checkpoint is at step 0"):
        toytf.run(tiny_config, changes, out=tmp_path / "run")
    assert toytf.Run.open(tmp_path / "run").model(step=0) is not None


def test_a_failure_of_the_system_is_no_verdict_on_a_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toytf.claims import check_claims

    _fails_after(0, monkeypatch)
    with pytest.raises(RunFailed, match="Input/output error"):
        check_claims(["gradient_lemmas"], tmp_path / "claims")
    assert not (tmp_path / "claims" / "claims.json").exists()


def test_what_a_container_caches_counts_as_free(tmp_path: Path) -> None:
    for name, content in {"max": "8e9", "current": "7", "stat": ""}.items():
        (tmp_path / f"memory.{name}").write_text(content)
    everything = free_memory(tmp_path)  # no limit that can be read
    for name, content in {"max": "8000000", "current": "7000000", "stat": "anon 1\ninactive_file 500000\n"}.items():
        (tmp_path / f"memory.{name}").write_text(content)
    assert free_memory(tmp_path) == 1_500_000 < everything


@pytest.mark.parametrize(
    "name",
    [
        "summary.json", "metrics.jsonl", "columns.json", "timing.json", "provenance.json", "checksums.json",
        "report.html", "figures/paper.pdf", "checkpoints/mine.pt",
    ],
)  # fmt: skip
@pytest.mark.parametrize("fails", [False, True], ids=["runs", "fails_before_its_first_step"])
def test_a_file_of_the_user_is_neither_removed_nor_overwritten_nor_taken_for_the_run(
    name: str, fails: bool, tiny_config: Path, tmp_path: Path
) -> None:
    own = tmp_path / "out" / name
    own.parent.mkdir(parents=True)
    own.write_text("my own")
    for resume in (False, True):
        with pytest.raises(UserError, match=rf"{re.escape(name.partition('/')[0])} already exists"):
            toytf.run(tiny_config, {"model.freeze": ["nosuch"]} if fails else {}, out=tmp_path / "out", resume=resume)
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == [own]
    assert own.read_text() == "my own"


def test_what_a_run_does_not_write_may_lie_beside_it_and_stays(tiny_config: Path, tmp_path: Path) -> None:
    own = tmp_path / "notes.txt"
    own.write_text("my own")
    with pytest.raises(UserError, match="nosuch"):
        toytf.run(tiny_config, {"model.freeze": ["nosuch"]}, out=tmp_path)
    assert [*tmp_path.iterdir()] == [own]
    assert toytf.run(tiny_config, out=tmp_path).finished
    assert own.read_text() == "my own"


def test_own_facts_are_not_written_over_those_of_the_user(tmp_path: Path) -> None:
    facts = tmp_path / "mine" / "facts.json"
    facts.parent.mkdir()
    facts.write_text("my own")
    with pytest.raises(UserError, match=r"facts\.json already exists"):
        toytf.run("configs/factual/countries.yaml", {"train.steps": 1}, out=facts.parent)
    assert facts.read_text() == "my own"
    written = toytf.run(
        "factual/countries", {"train.steps": 0, "probes": [], "logging.wandb": "off"}, out=tmp_path / "run"
    )
    copied = (written.directory / "facts.json").read_bytes()
    facts.write_bytes(copied)  # what the run would write is the user's, too
    with pytest.raises(UserError, match=r"facts\.json already exists"):
        toytf.run("factual/countries", {"model.freeze": ["nosuch"]}, out=facts.parent)
    assert facts.read_bytes() == copied


def test_a_start_that_was_killed_before_its_config_was_written_can_be_made_again(
    tiny_config: Path, tmp_path: Path
) -> None:
    whole = toytf.run(tiny_config, out=tmp_path / "whole")
    first = json.dumps({"config.yaml": hashlib.sha256(whole.config_file.read_bytes()).hexdigest()}, indent=2)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checksums.json").write_text(f"{first}\n")
    assert toytf.run(tiny_config, out=tmp_path / "run").summary == whole.summary
