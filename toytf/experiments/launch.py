"""Run any config: from Python, the command line or a claim alike."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toytf.compose import Overrides
from toytf.config import digest
from toytf.errors import Interrupted, RunFailed, UserError, reason
from toytf.footprint import check_memory
from toytf.lock import locked
from toytf.plugins import ExperimentConfig, implementation, load_config
from toytf.runs import Run


def default_directory(source: Path | str | dict[str, Any], config: ExperimentConfig) -> Path:
    """`runs/<config name>-<hash>`; the config.yaml of a run goes by the name of its directory."""
    name = "run"
    if isinstance(source, str | Path):
        path = Path(source)
        name = path.resolve().parent.name if path.name == "config.yaml" else path.stem
    return Path("runs") / f"{name}-{digest(config)}"


def run(
    source: Path | str | dict[str, Any],
    overrides: Overrides = (),
    *,
    out: Path | str | None = None,
    resume: bool = False,
    force: bool = False,
) -> Run:
    """Run a config (a file or a mapping) and return its run directory.

    With `resume`, a run that is finished is returned as it is, and one that is not goes on. With `force`, also a run
    that seems to need more memory than there is.
    """
    config = load_config(source, overrides)
    directory = Path(out) if out is not None else default_directory(source, config)
    return run_config(config, directory, resume=resume, force=force)


def run_config(config: ExperimentConfig, directory: Path, *, resume: bool, force: bool = False) -> Run:
    """Run a validated config in a directory."""
    config = config.settled()
    if resume and Run(directory).finished:
        return Run.start(directory, config, resume=True)
    if not force:
        check_memory(config.needs())
    with _failures(directory), _made(directory), locked(directory):
        is_new = not Run(directory).config_file.exists()
        started = Run.start(directory, config, resume=resume)
        if not started.finished:
            try:
                implementation(config)(config, started)
            except Exception as error:
                if is_new and not isinstance(error, Interrupted):
                    started.discard_unless_begun()
                raise
    return started


@contextlib.contextmanager
def _made(directory: Path) -> Iterator[None]:
    """Make the directory and those above it; in the end remove those of them that are empty."""
    try:
        new = [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory}: cannot be written: {reason(error)}") from None
    try:
        yield
    finally:
        for path in new:
            with contextlib.suppress(OSError):
                path.rmdir()


@contextlib.contextmanager
def _failures(directory: Path) -> Iterator[None]:
    """Say in one sentence what the system refused: room on the disk, memory, or a file."""
    go_on = f"then go on: {Run(directory).resume_command}"
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFailed(f"{directory}: the disk is full; free some space, {go_on}") from None
        where = error.filename if error.filename is not None else directory
        raise RunFailed(f"{where}: {reason(error)}; what was saved stays: mend this, {go_on}") from None
    except (MemoryError, RuntimeError) as error:
        if _out_of_memory(error):
            raise RunFailed(
                f"{directory}: not enough memory ({reason(error)}): choose smaller sizes, or close other programs"
            ) from None
        if "without overflow" in str(error):
            raise RunFailed(f"{directory}: a number of the config is too large for float32 ({reason(error)})") from None
        raise


def _out_of_memory(error: Exception) -> bool:
    """Is this how Python, numpy or torch say that there is no memory left?"""
    said = ("can't allocate memory", "out of memory", "Storage size calculation overflowed", "invalid dimensions")
    return isinstance(error, MemoryError) or any(words in str(error) for words in said)
