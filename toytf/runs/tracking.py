"""wandb as a mirror of metrics.jsonl: imported late, on a thread of its own, and never able to stop a training."""

import contextlib
import os
import queue
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator

from toytf.config.sections import Config
from toytf.process import without_memory_limit
from toytf.runs.rows import Row
from toytf.timing import spent_on
from toytf.words import say


class LoggingConfig(Config):
    """Where metrics are mirrored; the run directory always has all of them."""

    wandb: Literal["off", "offline", "online"] = "offline"
    project: str = "toytf"
    group: str | None = None
    """The wandb group (default: the name of the run directory); each seed is a wandb run in it."""
    tags: tuple[str, ...] = ()

    @field_validator("wandb", mode="before")
    @classmethod
    def _read_yaml_off(cls, value: object) -> object:
        return "off" if value is False else value  # YAML reads a bare `off` as false


class WandbMirror:
    """Sends rows to one wandb run per seed.

    Importing wandb and starting a run take seconds; a thread does both once training has begun.
    """

    def __init__(self, logging: LoggingConfig, directory: Path, seed: int, config: dict[str, Any]) -> None:
        self._rows: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        target = (logging, directory.resolve(), seed, config)
        self._thread = None if logging.wandb == "off" else threading.Thread(target=self._send, args=target, daemon=True)

    def __enter__(self) -> "WandbMirror":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        waits = kind is None or issubclass(kind, Exception)  # a second Ctrl-C waits for nothing
        if waits and self._thread is not None:
            with spent_on("wandb"):
                self._rows.put(None)
                if self._thread.ident is None:
                    self._thread.start()
                self._thread.join()

    def log(self, row: Row) -> None:
        """Pass a row on; the first one after training has begun starts the thread."""
        if self._thread is not None:
            self._rows.put(row)
            if row["step"] and self._thread.ident is None:
                self._thread.start()

    def _send(self, logging: LoggingConfig, directory: Path, seed: int, config: dict[str, Any]) -> None:
        try:
            with _starting:  # seeds of a stack all begin at once
                run = _start(logging, directory, seed, config)
            while (row := self._rows.get()) is not None:
                metrics = {name: value for name, value in row.items() if name not in ("seed", "step")}
                run.log(metrics, step=int(row["step"]))
            run.finish()
        except Exception as error:  # a mirror: whatever goes wrong there, the run directory is the record
            reason = " ".join(str(error).split()) or type(error).__name__
            say(f"toytf: wandb ({logging.wandb}) stopped mirroring: {reason}")


_starting = threading.Lock()
_REPORTS = "WANDB_ERROR_REPORTING"


def _start(logging: LoggingConfig, directory: Path, seed: int, config: dict[str, Any]) -> Any:
    """Begin the wandb run of a seed, or go on with it: its id is kept in the run directory."""
    import wandb

    mode: Literal["offline", "online"] = "online" if logging.wandb == "online" else "offline"
    if mode == "online" and not wandb.login(prompt=False):
        raise RuntimeError(
            "no account is set up on this machine (run `wandb login`); all metrics are in the run directory"
        )
    folder = directory / "wandb"
    folder.mkdir(exist_ok=True)
    id_file = folder / f"seed{seed}.id"
    if not id_file.exists():
        id_file.write_text(uuid.uuid4().hex[:8])
    with without_memory_limit(), _without_reports() if mode == "offline" else contextlib.nullcontext():
        return wandb.init(
            project=logging.project,
            group=logging.group or directory.name,
            tags=list(logging.tags),
            name=f"{directory.name}-seed{seed}",
            id=id_file.read_text(),
            resume="allow" if mode == "online" else None,
            config={**config, "seed": seed},
            dir=str(directory),
            mode=mode,
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", quiet=True, x_disable_stats=True),
        )


@contextlib.contextmanager
def _without_reports() -> Iterator[None]:
    """Have wandb's service started without reports about itself, for which it would ask a host even when offline.

    No setting says so, only the environment that the service starts in.
    """
    before = os.environ.get(_REPORTS)
    os.environ[_REPORTS] = "false"
    try:
        yield
    finally:
        os.environ.pop(_REPORTS)
        if before is not None:
            os.environ[_REPORTS] = before
