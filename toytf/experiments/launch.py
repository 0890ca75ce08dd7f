"""Run any config: from Python, the command line or a claim alike."""

import contextlib
import errno
import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toytf.config.compose import Overrides
from toytf.config.footprint import amount, check_memory, too_large
from toytf.config.plugins import ExperimentConfig, implementation, lies_in_run, load_config
from toytf.config.sections import digest
from toytf.engines import ONE_BY_ONE, EngineOptions
from toytf.errors import Interrupted, RunFailed, SystemRefused, ToytfError, UserError, reason, shortened
from toytf.files import remove_temporary
from toytf.process import free_memory, memory_limit
from toytf.runs import Run
from toytf.runs.lock import locked
from toytf.runs.provenance import Origin, add_start, origin_of
from toytf.timing import spent_on, taken, timed
from toytf.words import say

if TYPE_CHECKING:
    from toytf.experiments.experiment import Experiment


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
    engine: EngineOptions = ONE_BY_ONE,
    page: bool = True,
) -> Run:
    """Run a config (a file, the bare name of one that ships, or a mapping) and return its run directory.

    With `resume`, a run that is finished is returned as it is, and one that is not goes on. With `force`, also a run
    that seems to need more memory than there is. engine: where the cases of a study are measured. page: write one.
    """
    return launch(source, overrides, out=out, resume=resume, force=force, engine=engine, page=page)[1]


def launch(
    source: Path | str | dict[str, Any],
    overrides: Overrides = (),
    *,
    out: Path | str | None,
    resume: bool,
    force: bool,
    engine: EngineOptions = ONE_BY_ONE,
    page: bool = True,
) -> tuple["Experiment", Run]:
    """The same, and the experiment that has done it, which tells the story."""
    began = time.perf_counter()
    config = load_config(source, overrides)
    origin = origin_of(source, overrides, out=out, resume=resume, force=force)
    if out is None and resume and isinstance(source, str | Path) and lies_in_run(Path(source)):
        out = Path(source).parent
    directory = Path(out) if out is not None else default_directory(source, config)
    with timed(began), _begun(config, directory, resume=resume, force=force, origin=origin) as (experiment, run):
        if not run.finished:
            experiment.run(run, engine)
            _end(experiment, run, page=page)
    return experiment, run


def run_config(
    config: ExperimentConfig, directory: Path, *, resume: bool, origin: Origin | None = None, page: bool = True
) -> Run:
    """Run a validated config in a directory; its provenance will tell the origin. page: write one."""
    with timed(), _begun(config, directory, resume=resume, origin=origin or Origin()) as (experiment, run):
        if not run.finished:
            experiment.run(run)
            _end(experiment, run, page=page)
    return run


def run_together(
    configs: Sequence[ExperimentConfig], directories: Sequence[Path], *, page: bool = True, origin: Origin | None = None
) -> list[Run | ToytfError]:
    """Run configs that have one `stack_key` as one tensor program, each in its directory, from where it was stopped.

    Of each there is the run that has ended, or why it failed; the others go on. Configs that cannot be stacked run one
    after the other. page: write the pages of the runs, too.
    """
    began, origin = time.perf_counter(), origin or Origin()
    ends: list[Run | ToytfError] = []
    keys = {config.stack_key for config in configs}
    if len(keys) > 1 or None in keys or getattr(configs[0], "stack", 1) in (1, "auto"):
        for config, directory in zip(configs, directories, strict=True):
            try:
                ends.append(run_config(config, directory, resume=True, origin=origin, page=page))
            except (UserError, RunFailed) as error:
                ends.append(error)
        return ends
    with timed(began), contextlib.ExitStack() as opened:
        begun: dict[int, tuple["Experiment", Run]] = {}
        for i, (config, directory) in enumerate(zip(configs, directories, strict=True)):
            try:
                experiment, run = opened.enter_context(_begun(config, directory, resume=True, origin=origin))
            except (UserError, RunFailed) as error:
                ends.append(error)
                continue
            ends.append(run)
            if not run.finished:
                begun[i] = experiment, run
        if begun:
            experiments, runs = zip(*begun.values(), strict=True)
            for i, failure in zip(begun, type(experiments[0]).run_together(experiments, runs), strict=True):
                ends[i] = failure or ends[i]
                if failure is None:
                    _end(*begun[i], page=page)
    return ends


def _end(experiment: "Experiment", run: Run, *, page: bool) -> None:
    """The end of every run: its page, and then the summary, which says that the run is whole.

    A mistake in a picture, perhaps of somebody's task, costs only the page.
    """
    from toytf.report.page import write_report  # imports torch

    try:
        if page:
            with spent_on("page"), run.read_once():
                write_report(experiment.shown(run))
    except (ToytfError, OSError, MemoryError):
        raise
    except Exception as error:
        why = shortened(f"{type(error).__name__}: {error}")
        say(f"toytf: the page could not be drawn ({why}); all results of {run.directory} are there")
    run.finish()
    if page and run.config.trains_model:  # a study times its cases
        with contextlib.suppress(OSError):  # the run has ended
            run.add_seconds({"page": sum(taken().values())})


@contextlib.contextmanager
def _begun(
    config: ExperimentConfig, directory: Path, *, resume: bool, origin: Origin, force: bool = False
) -> Iterator[tuple["Experiment", Run]]:
    """An experiment and its run, which nobody else writes meanwhile; one that has ended already is only opened."""
    with _undisturbed():
        work = implementation(config)  # imports torch and all else that takes long
    known = Run(directory)
    if resume and known.config_file.exists():
        known.check_files()
        config = config.resolved(known.config)
    else:
        config = config.resolved()
    experiment = work(config)
    if resume and Run(directory).finished and Run(directory).config_file.exists():
        yield experiment, Run.start(directory, config, resume=True)
        return
    if not force:
        device = str(getattr(config, "device", "cpu"))
        free = free_memory() if device.startswith("cpu") else None
        if device.startswith("cuda"):
            import torch

            free = float(torch.cuda.mem_get_info(device)[0])
        check_memory(config.model_dump(mode="json"), config.needs(), free)
    with _failures(directory), _made(directory), locked(directory):
        is_new = not Run(directory).config_file.exists()
        started = Run.start(directory, config, resume=resume)
        remove_temporary(directory, started.checkpoints, started.figures)
        try:
            if not started.finished:
                add_start(directory, origin, getattr(config, "device", None))
            with contextlib.nullcontext() if force else limited_memory(config):
                yield experiment, started
        except (Exception, SystemExit) as error:
            if is_new and not isinstance(error, Interrupted):
                started.discard_unless_begun(config, diverged=isinstance(error, RunFailed))
            raise


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold back a Ctrl-C while modules are imported, which leaves them in pieces; it acts afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _made(directory: Path) -> Iterator[None]:
    """Make the directory and those above it; in the end remove those of them that are empty."""
    try:
        new = [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file, but --out should be a directory" if directory.is_file() else reason(error)
        raise UserError(f"{directory}: cannot be written: {why}") from None
    try:
        yield
    finally:
        for path in new:
            with contextlib.suppress(OSError):
                path.rmdir()


@contextlib.contextmanager
def _failures(directory: Path) -> Iterator[None]:
    """Say in one sentence what the system refused: room on the disk, memory, or a file."""
    try:
        yield
    except OSError as error:
        run = Run(directory)
        go_on = f"then continue: {run.resume_command}" if run.config_file.exists() else "then start again"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SystemRefused(f"{directory}: the disk is full; free some space, {go_on}") from None
        where = error.filename if error.filename is not None else directory
        raise SystemRefused(f"{where}: {reason(error)}; fix this, {go_on}") from None
    except (MemoryError, RuntimeError, ValueError) as error:
        if _out_of_memory(error):
            raise SystemRefused(
                f"{directory}: not enough memory ({reason(error)}): choose smaller sizes, or close other programs"
            ) from None
        if "without overflow" in str(error):
            raise RunFailed(f"{directory}: a number in the config is too large for float32 ({reason(error)})") from None
        raise


@contextlib.contextmanager
def limited_memory(config: ExperimentConfig) -> Iterator[None]:
    """Let a run on a CPU take the memory that is free and no more; one that asks for more ends with a sentence."""
    on_cpu = str(getattr(config, "device", "cpu")).startswith("cpu")
    try:
        with memory_limit() if on_cpu else contextlib.nullcontext() as free:
            yield
    except (MemoryError, RuntimeError, ValueError) as error:
        if free is None or not _out_of_memory(error):
            raise
        said = re.search(r"allocate (\d+) bytes", str(error))  # by torch; numpy keeps a number
        asked = float(said[1]) if said else getattr(error, "_total_size", None)
        takes = "" if asked is None else f"the run asked for {amount(asked)} more, and "
        raise too_large(config.model_dump(mode="json"), takes, free) from None


def _out_of_memory(error: Exception) -> bool:
    """Is this how Python, numpy or torch say that there is no memory left?"""
    said = (
        "can't allocate memory", "out of memory", "Storage size calculation overflowed", "invalid dimensions",
        "array is too big", "Maximum allowed dimension exceeded", "Maximum allowed size exceeded",
    )  # fmt: skip
    return isinstance(error, MemoryError) or any(words in str(error) for words in said)
