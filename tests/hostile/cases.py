"""One hostile case: what is run, and how it must end."""

import contextlib
import io
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import toytf
from tests.hostile import generate
from toytf import cli
from toytf.config.footprint import check_memory
from toytf.config.plugins import load_config
from toytf.errors import Interrupted, ToytfError, shortened
from toytf.experiments import study
from toytf.experiments.train import experiment as train
from toytf.process import free_memory

PATIENCE = (2.0, 3.0)
"""Seconds after which a run that is only long gets a Ctrl-C, after which it should stop in order, and then a second."""

HANG = 10.0
"""Seconds after which a case has failed."""


@dataclass
class Fuzzer:
    """Prepared runs to damage, and a folder to work in."""

    folder: Path
    runs: list[Path] = field(default_factory=list)
    ended: Counter[tuple[str, int]] = field(default_factory=Counter)
    """How often each kind of case ended with each exit code."""

    def prepare(self) -> None:
        """Finished and stopped runs of a training and a study."""
        for i, tiny in enumerate((*generate.TINY[:2], generate.TINY[3])):
            config = {**tiny, "seeds": [0, 1]}
            toytf.run(config, out=self.folder / f"finished{i}")
            module, line = (train, "ProgressLine") if config["experiment"] == "train" else (study, "CaseLine")
            method = "stepped" if line == "ProgressLine" else "begin"
            stop = mock.Mock(
                side_effect=[None, None, None, None, Interrupted("")]
                if line == "ProgressLine"
                else [None, Interrupted("")]
            )
            with mock.patch.object(getattr(module, line), method, stop), contextlib.suppress(Interrupted):
                toytf.run(config, out=self.folder / f"stopped{i}")
            self.runs += [self.folder / f"finished{i}", self.folder / f"stopped{i}"]

    def run(self, number: int, seed: int) -> str | None:
        """Do a case; None if it ended as it should, else what went wrong."""
        chance = random.Random(f"{seed} {number}")
        kind = chance.choices(list(KINDS), [weight for _, weight in KINDS.values()])[0]
        work = Path(tempfile.mkdtemp(dir=self.folder))
        started = time.monotonic()
        out = err = ""
        try:
            with (
                _in_time(),
                contextlib.redirect_stdout(io.StringIO()) as stdout,
                contextlib.redirect_stderr(io.StringIO()) as stderr,
            ):
                try:
                    code = KINDS[kind][0](self, chance, work)
                finally:
                    out, err = stdout.getvalue(), stderr.getvalue()
            self.ended[kind, code] += 1
            problem = _problem(code, err)
        except BaseException:  # whatever comes is what is looked for
            problem = traceback.format_exc()
        if time.monotonic() - started > HANG:
            problem = f"took {time.monotonic() - started:.1f} s"
        if problem is not None:
            kept = self.folder / "failed" / f"{seed}-{number}"
            shutil.copytree(work, kept, dirs_exist_ok=True)
            return f"case {number} of seed {seed} ({kind}, kept in {kept}): {problem}\n{out[-500:]}{err[-1500:]}"
        shutil.rmtree(work, ignore_errors=True)
        return None


def _problem(code: int, err: str) -> str | None:
    """What is wrong with how a command ended: any foreseen end says one line, and no more than a screen."""
    if code not in (0, 1, 2, 130):
        return f"exit code {code}"
    last = err.rstrip("\n").split("\n")[-1]
    if code and not (last.startswith("toytf: ") and len(last) < 2100):
        return f"exit code {code} without a sentence"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", err.replace("\r", "")):
        return "control characters reach the terminal"
    return "a traceback" if "Traceback" in err else None


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """Ask a long run to stop, and end one that does not."""
    waits = [*PATIENCE[1:], HANG - sum(PATIENCE), 0.0]

    def ring(number: int, frame: Any) -> None:
        if len(waits) == 1:
            raise TimeoutError("does not end when it is told to")
        signal.setitimer(signal.ITIMER_REAL, waits.pop(0))
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, ring), signal.getsignal(signal.SIGINT)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE[0])
    try:
        yield
    except KeyboardInterrupt:
        raise TimeoutError(f"not done in {sum(PATIENCE)} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGINT, before[1])


def _command(*arguments: object) -> int:
    with mock.patch.object(sys, "argv", ["toytf", *map(str, arguments)]):
        try:
            cli.main()
        except SystemExit as ended:
            return int(ended.code or 0)
    raise AssertionError("the command did not end")


def _validate(source: Path, overrides: list[str]) -> int:
    """All that happens to a config before it runs."""
    try:
        config = load_config(source, overrides).resolved()
        check_memory(config.model_dump(mode="json"), config.needs(), free_memory())
        config.files()
    except ToytfError as error:
        sys.stderr.write(f"toytf: {shortened(str(error), cli.LONGEST)}\n")  # as the command says it
        return error.exit_code
    return 0


def _config(fuzzer: Fuzzer, chance: random.Random, work: Path) -> int:
    path = work / "mine.yaml"
    path.write_bytes(generate.config_text(chance, tiny=False))
    return _validate(path, [])


def _override(fuzzer: Fuzzer, chance: random.Random, work: Path) -> int:
    chosen = chance.randrange(len(generate.SHIPPED))
    path = list(generate.config_files().values())[chosen]
    return _validate(path, generate.overrides(chance, generate.SHIPPED[chosen]))


def _run(fuzzer: Fuzzer, chance: random.Random, work: Path) -> int:
    path = work / "mine.yaml"
    path.write_bytes(generate.config_text(chance, tiny=True))
    return _command("run", path, "logging.wandb=off", "threads=1", "--out", work / "run")


def _table(fuzzer: Fuzzer, chance: random.Random, work: Path) -> int:
    path = work / "facts.csv"
    path.write_bytes(generate.facts_csv(chance))
    (work / "mine.yaml").write_text(
        generate.yaml.safe_dump({**generate.TINY[1], "task": {"kind": "factual", "facts": str(path)}})
    )
    if chance.random() < 0.7:
        return _validate(work / "mine.yaml", [])
    code = _command("run", work / "mine.yaml", "--out", work / "run")
    return code or _command(*chance.choice((("probe", work / "run"), ("inspect", work / "run"))))


def _damaged(fuzzer: Fuzzer, chance: random.Random, work: Path) -> int:
    source, run = chance.choice(fuzzer.runs), work / "run"
    generate.damaged(chance, source, run)
    has_checksums = (run / "checksums.json").is_file()
    resume = ("run", run / "config.yaml", "--out", run, "--resume")
    others = (("probe", run), ("probe", run, "--step", "1", "--seed", "1"), ("inspect", run))
    command = resume if chance.random() < 0.5 else chance.choice(others)
    code = _command(*command)
    if command == resume and code == 0 and has_checksums:
        whole = source.with_name(source.name.replace("stopped", "finished"))
        assert (run / "summary.json").read_bytes() == (whole / "summary.json").read_bytes(), "silently wrong"
    return code


KINDS: dict[str, tuple[Callable[[Fuzzer, random.Random, Path], int], float]] = {
    "config": (_config, 0.35),
    "override": (_override, 0.35),
    "run": (_run, 0.06),
    "table": (_table, 0.12),
    "damaged run": (_damaged, 0.12),
}
"""What there is, and how often it is drawn."""
