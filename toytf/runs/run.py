"""The run directory: the only state. Resuming, inspecting, comparing and claims all read it."""

import contextlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from toytf.config import sections as configs
from toytf.config.plugins import ExperimentConfig, load_config
from toytf.errors import UserError, nearest, shortened
from toytf.files import write_atomic
from toytf.measurement import Quantity
from toytf.runs import checksums
from toytf.runs.checksums import Checksums, read_bytes, sha256
from toytf.runs.provenance import PROVENANCE, Provenance, read_provenance
from toytf.runs.rows import COLUMNS, read_columns, read_rows
from toytf.runs.summary import by_seed, summarise
from toytf.tidy import tidy
from toytf.words import say

if TYPE_CHECKING:
    import pandas as pd

    from toytf.runs.trained import TrainedRun


_FILES = ("metrics.jsonl", COLUMNS, "timing.json", PROVENANCE, "summary.json", "report.html")
_FOLDERS = ("checkpoints", "figures")
"""What a run writes besides its config: a new one begins where none of these is."""

R = TypeVar("R", bound="Run")
C = TypeVar("C", bound="_Copied")


class _Copied(Protocol):
    def copy(self) -> Any:
        """One's own, to be changed at will."""


def once(read: Callable[[R], C]) -> Callable[[R], C]:
    """Remember what a property of a run returns within `read_once`; each time it is given as a copy."""

    @wraps(read)
    def known(run: R) -> C:
        if run._read is None:
            return read(run)
        name = read.__qualname__
        if name not in run._read:
            run._read[name] = read(run)
        found: C = run._read[name].copy()
        return found

    return known


class Run:
    """A directory with config.yaml, metrics.jsonl, summary.json, checkpoints/, figures/ and report.html."""

    html: "ClassVar[Callable[[Run], str] | None]" = None
    """What notebooks show of a run; `toytf.experiments` sets it, because the experiment tells the story."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self.config_file = self.directory / "config.yaml"
        """The fully resolved config."""
        self.metrics_file = self.directory / "metrics.jsonl"
        """One JSON object per evaluation: seed, step and metrics."""
        self.summary_file = self.directory / "summary.json"
        """The summary, written when the run has come to its end."""
        self.checkpoints = self.directory / "checkpoints"
        """The folder of weights."""
        self.figures = self.directory / "figures"
        """The folder of figures as plotly JSON."""
        self.report_file = self.directory / "report.html"
        """The page."""
        self._timing_file = self.directory / "timing.json"
        self._read: dict[str, Any] | None = None

    @contextlib.contextmanager
    def read_once(self) -> Iterator[None]:
        """Until its end, history, columns, table, seeds and summary are read once; one within another is part of it."""
        outermost = self._read is None
        self._read = {} if self._read is None else self._read
        try:
            yield
        finally:
            self._read = None if outermost else self._read

    @classmethod
    def open(cls, directory: Path | str) -> "Run":
        """A run that exists, whose files are what they were; a `TrainedRun` if its experiment trains a model."""
        run = cls(directory)
        if not run.config_file.is_file():
            raise UserError(f"{directory}: not a run directory (it has no config.yaml)")
        run.check_files()
        return run._as_configured()

    @classmethod
    def start(cls, directory: Path | str, config: ExperimentConfig, *, resume: bool) -> "Run":
        """A new run in a directory that exists, or with `resume` the one that holds the same config."""
        run = cls(directory)
        if run.config_file.exists():
            run.check_files()
            changed = configs.differences(run.config, config)
            if changed:
                only_threads = all(difference.startswith("threads ") for difference in changed)
                hint = "leave threads out to continue it, or " if only_threads else ""
                what = f"{directory} holds a run with a different config ({'; '.join(changed)})"
                raise UserError(f"{what}: {hint}choose another --out")
            if not resume:
                raise UserError(
                    f"{directory} already holds a run: add --resume to continue it, or choose another --out"
                )
            known = Checksums(run.directory)
            if not known.exist and not run.finished:  # it was removed, as its own message advises: begin it again
                known[run.config_file.name] = sha256(read_bytes(run.config_file))
            return run._as_configured()
        content, beside = configs.dump(config).encode(), config.files()
        first = {checksums.NAME: _as_json({run.config_file.name: sha256(content)}), **beside}
        noted = run.directory / checksums.NAME
        killed = noted.is_file() and read_bytes(noted) == first[checksums.NAME]  # a start of this very run
        for name in (*_FILES, *_FOLDERS, *first):
            path = run.directory / name
            if os.path.lexists(path) and not (killed and name in first):
                raise UserError(
                    f"{path} already exists, without the config.yaml of a run beside it: choose another --out"
                )
        for name, file in first.items():
            write_atomic(run.directory / name, file)
        write_atomic(run.config_file, content)  # last: its presence means that the run can be resumed
        return run._as_configured()

    def _as_configured(self) -> "Run":
        """The run as the class that its config calls for."""
        try:
            return self.trained if self.config.trains_model else self
        except UserError:  # such as of a package that is not installed here: rows and summary can still be read
            return self

    @property
    def trained(self) -> "TrainedRun":
        """The same run with its task, models and probes; refused if its experiment trains no model."""
        from toytf.runs.trained import TrainedRun

        if not self.config.trains_model:
            raise UserError(
                f"{self.directory} is a run of the experiment {self.config.experiment}, which has no model; its "
                f"results are on {self.directory / 'report.html'}"
            )
        if isinstance(self, TrainedRun):
            return self
        trained = TrainedRun(self.directory)
        trained.__dict__["config"] = self.config  # it is read once
        return trained

    def check_files(self) -> None:
        """Refuse a run whose files are not what toytf wrote: config, rows and summary."""
        known = Checksums(self.directory)
        if known.exist and known[self.config_file.name] is None:  # the first that is written
            raise known.damaged()
        known.check(self.config_file.name, "restore it from a copy, or run the changed config with another --out")
        if self.checkpoints.exists() and not self.checkpoints.is_dir():
            raise UserError(f"{self.checkpoints} should be the folder of the checkpoints, but is a file: remove it")
        if self.finished:
            known.check(self.summary_file.name, f"remove it, then write it again: {self.resume_command}")
            read_rows(self.metrics_file)

    def discard_unless_begun(self, config: ExperimentConfig, *, diverged: bool) -> None:
        """Free the directory of a new run that failed before its first step, so that the mended command may use it.

        diverged: the run itself gave up, which needs steps if anything was measured.
        """
        saved = [*self.checkpoints.glob("*")] if self.checkpoints.is_dir() else []
        try:
            steps = {row["step"] for row in read_rows(self.metrics_file)}
        except UserError:
            return
        nothing = not steps and not saved
        training = getattr(config, "train", None) if config.trains_model else None  # rows of a study are whole cases
        at_start = steps == {0} and all("-step000000." in path.name for path in saved)
        if nothing or (at_start and training is not None and training.steps and not diverged):
            names = (self.config_file.name, checksums.NAME, *_FILES, *config.files())
            for path in (*saved, *self.figures.glob("*.json"), *(self.directory / name for name in names)):
                path.unlink(missing_ok=True)
            for name in _FOLDERS:
                with contextlib.suppress(OSError):  # there is none, or somebody has put something there meanwhile
                    (self.directory / name).rmdir()

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.directory.resolve().name

    @property
    def resume_command(self) -> str:
        """What to type to go on with this run."""
        return shlex.join(["toytf", "run", str(self.config_file), "--out", str(self.directory), "--resume"])

    @cached_property
    def config(self) -> ExperimentConfig:
        """The validated config."""
        return load_config(self.config_file)

    @property
    def provenance(self) -> Provenance:
        """Its title, and of each of its starts when, by which command and with what; as far as it is known."""
        return read_provenance(self.directory)

    @property
    @once
    def history(self) -> "pd.DataFrame":
        """One row per seed and evaluation; a line torn by a crash is left out."""
        import pandas as pd

        return pd.DataFrame(read_rows(self.metrics_file))

    @property
    @once
    def columns(self) -> dict[str, Quantity]:
        """What the metrics are about, by their flat names."""
        return read_columns(self.directory)

    @property
    @once
    def table(self) -> "pd.DataFrame":
        """Every value as a row: seed, step, group, name, metric, factors, value, ideal, theory and chance."""
        return tidy(read_rows(self.metrics_file), self.columns)

    @property
    @once
    def seeds(self) -> "pd.DataFrame":
        """One row per seed: every metric's last value, onsets and halfway steps."""
        return by_seed(self.history, self.columns)

    @property
    @once
    def summary(self) -> dict[str, float]:
        """Means over seeds, `<metric>/std` beside each when there are several; of what there is while a run goes on."""
        if not self.finished:
            if self.history.empty:
                raise UserError(f"{self.directory}: nothing has been measured yet")
            return summarise(self.history, self.columns)
        try:
            summary = json.loads(read_bytes(self.summary_file))
        except (ValueError, RecursionError):
            summary = None
        if not isinstance(summary, dict) or not all(isinstance(value, int | float) for value in summary.values()):
            raise UserError(f"{self.summary_file} is damaged: remove it, then write it again: {self.resume_command}")
        return summary

    @property
    def finished(self) -> bool:
        """Did the run come to its end?"""
        return self.summary_file.exists()

    def finish(self) -> None:
        """Write the summary, last of all files: its presence means that the run is whole."""
        content = _as_json(summarise(self.history, self.columns))
        Checksums(self.directory)[self.summary_file.name] = sha256(content)
        write_atomic(self.summary_file, content)

    @property
    def figure_names(self) -> list[str]:
        """The figures that were drawn, for `figure`."""
        return sorted(path.stem for path in self.figures.glob("*.json"))

    def figure(self, name: str) -> Any:
        """A figure of the page, as plotly has it."""
        found = self.kept_figure(name)
        if found is None:
            raise UserError(
                f'{self.directory}: no figure is called "{shortened(name)}": {nearest(name, self.figure_names)}'
            )
        return found

    def _repr_html_(self) -> str | None:
        return None if Run.html is None else Run.html(self)

    def write_figure(self, name: str, figure: Any) -> None:
        """Write a figure as plotly JSON into figures/, unless it was kept there when it was measured."""
        if Checksums(self.directory)[_figure_file(name)] is None:
            self.figures.mkdir(exist_ok=True)
            write_atomic(self.directory / _figure_file(name), figure.to_json().encode())

    def keep_figures(self, figures: Mapping[str, Any]) -> None:
        """Write figures that cannot be drawn from rows alone, for `kept_figure`."""
        contents = {_figure_file(name): figure.to_json().encode() for name, figure in figures.items()}
        for file, content in contents.items():
            self.figures.mkdir(exist_ok=True)
            write_atomic(self.directory / file, content)
        Checksums(self.directory).update({file: sha256(content) for file, content in contents.items()})

    def lost_figure(self, name: str) -> bool:
        """Was a figure of this name kept, and is it gone?"""
        known = Checksums(self.directory)[_figure_file(name)]
        return known is not None and not (self.directory / _figure_file(name)).exists()

    def kept_figure(self, name: str) -> Any:
        """A plotly figure that was kept; None if there is none of this name, or if somebody removed it."""
        from plotly.io import from_json

        known, path = Checksums(self.directory), self.directory / _figure_file(name)
        if not path.exists():
            return None
        mend = "restore it from a copy, or start a new run with another --out"
        known.check(_figure_file(name), mend)
        try:
            return from_json(read_bytes(path).decode())
        except (ValueError, TypeError, RecursionError):
            raise UserError(f"{path} is not a figure: {mend}") from None

    def add_seconds(self, seconds: Mapping[str, float]) -> None:
        """Add to the times in timing.json: those of a run that was resumed sum up."""
        timing = self.timing
        if timing is None:
            say(f"toytf: {self._timing_file} was damaged: earlier timings of this run are lost")
            timing = {}
        write_atomic(self._timing_file, _as_json(timing | {k: timing.get(k, 0.0) + s for k, s in seconds.items()}))

    @property
    def timing(self) -> dict[str, float] | None:
        """Seconds by part or by case, none if nothing was timed; None if the file is damaged."""
        try:
            timing = json.loads(self._timing_file.read_bytes()) if self._timing_file.exists() else {}
            return {name: float(seconds) for name, seconds in timing.items()}
        except (OSError, ValueError, RecursionError, AttributeError, TypeError):
            return None


def _figure_file(name: str) -> str:
    """Where a figure is; whoever measures names it, and must not write elsewhere."""
    too_long = len(str(name).encode(errors="replace")) > 150  # systems count bytes
    if too_long or not re.fullmatch(r"\w[^/\\]*", str(name)) or not str(name).isprintable():
        accepted = "at most 150 bytes without slashes and control characters, a letter or digit first"
        raise UserError(f'a figure cannot be called "{shortened(str(name))}": use {accepted}')
    return f"figures/{name}.json"


def _as_json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
