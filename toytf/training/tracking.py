"""wandb as a mirror of metrics.jsonl: imported late, on a thread of its own, and never able to stop a training."""

import queue
import sys
import threading
from pathlib import Path
from typing import Any, Literal

from toytf.training.config import LoggingConfig
from toytf.training.learner import Row


class WandbMirror:
    """Sends rows to one wandb run per seed.

    Importing wandb and starting a run take seconds; a thread does both while training has already begun.
    """

    def __init__(self, logging: LoggingConfig, directory: Path, seed: int, config: dict[str, Any]) -> None:
        self._rows: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._mode: Literal["offline", "online"] | None = None if logging.wandb == "off" else logging.wandb
        if self._mode is not None:
            target = (logging, directory.resolve(), seed, config)
            self._thread = threading.Thread(target=self._send, args=target, daemon=True)
            self._thread.start()

    def log(self, row: Row) -> None:
        """Pass a row on."""
        if self._thread is not None:
            self._rows.put(row)

    def close(self) -> None:
        """Wait until everything is sent."""
        if self._thread is not None:
            self._rows.put(None)
            self._thread.join()

    def _send(self, logging: LoggingConfig, directory: Path, seed: int, config: dict[str, Any]) -> None:
        try:
            import wandb

            run = wandb.init(
                project=logging.project,
                group=logging.group or directory.name,
                tags=list(logging.tags),
                name=f"{directory.name}-seed{seed}",
                config={**config, "seed": seed},
                dir=str(directory),
                mode=self._mode,
                reinit="create_new",
                settings=wandb.Settings(silent=True, console="off", quiet=True, x_disable_stats=True),
            )
            while (row := self._rows.get()) is not None:
                run.log(
                    {name: value for name, value in row.items() if name not in ("seed", "step")}, step=int(row["step"])
                )
            run.finish()
        except Exception as error:  # a mirror: whatever goes wrong there, the run directory is the record
            reason = " ".join(str(error).split()) or type(error).__name__
            sys.stderr.write(f"toytf: wandb ({logging.wandb}) stopped mirroring: {reason}\n")
