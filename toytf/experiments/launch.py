"""Run any config: from Python, the command line, a claim or a sweep alike."""

import errno
from pathlib import Path
from typing import Any

from toytf.compose import Overrides
from toytf.config import digest
from toytf.errors import RunFailed, UserError
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
) -> Run:
    """Run a config (a file or a mapping) and return its run directory.

    With `resume`, a run that is finished is returned as it is, and one that is not goes on.
    """
    config = load_config(source, overrides)
    return run_config(config, Path(out) if out is not None else default_directory(source, config), resume=resume)


def run_config(config: ExperimentConfig, directory: Path, *, resume: bool) -> Run:
    """Run a validated config in a directory."""
    config = config.settled()
    started = Run.start(directory, config, resume=resume)
    if resume and started.finished:
        return started
    try:
        implementation(config)(config, started)
    except UserError:
        started.discard_unless_begun()
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RunFailed(
            f"{directory}: the disk is full; free some space, then go on: {started.resume_command}"
        ) from None
    return started
