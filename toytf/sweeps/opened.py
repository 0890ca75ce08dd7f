"""A sweep on the disk: its runs, table, points and figures. It is read from the directory, also while it goes on."""

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter

from toytf.config.sections import differences
from toytf.config.yaml_text import dump_yaml, load_yaml
from toytf.errors import UserError, nearest, one_line, shortened
from toytf.files import write_atomic
from toytf.measurement import KINDS, Quantity, quantity_of, reference_name, spread_name
from toytf.report.headlines import short_table
from toytf.runs import Run, checksums
from toytf.runs.checksums import Checksums, read_bytes, sha256
from toytf.runs.summary import described
from toytf.sweeps.config import SweepConfig
from toytf.sweeps.plan import PLAN, SWEEP_FILE, Asked, Member, Plan, config_of, is_id_of, read_sweep
from toytf.sweeps.points import Point, label_of
from toytf.sweeps.table import CSV, MEASURED, Row, column_of, rows_of, with_factors
from toytf.words import counted

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

ERRORS, PAGE, RUNS, FIGURES = "errors.json", "sweep.html", "runs", "figures"
WRITTEN = (SWEEP_FILE, PLAN, RUNS, CSV, FIGURES, PAGE, ERRORS, checksums.NAME)
"""What a sweep writes into its directory."""
_SHOWN_OF_STUDY = 3
_ASKED = 20
"""Runs that are looked at for what metrics are about."""


@dataclass(frozen=True)
class Failure:
    """Why a run of a sweep failed."""

    error: str
    """The class of the error, such as RunFailed."""
    message: str
    traceback: str = ""
    """Where, if nobody foresaw it."""


@dataclass(frozen=True)
class _PlanFile:
    factors: tuple[str, ...]
    log: frozenset[str]
    runs: tuple[Member, ...]


class Sweep:
    """A directory with sweep.yaml, plan.json, runs/, table.csv, figures/ and sweep.html."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        if not (self.directory / PLAN).is_file():
            lost = (self.directory / SWEEP_FILE).is_file() and (self.directory / RUNS).is_dir()
            hint = f"; if it was lost, write it again: {self.resume_command}" if lost else ""
            raise UserError(f"{directory}: not the directory of a sweep (it has no {PLAN}){hint}")
        ours = (self.directory / SWEEP_FILE).is_file()
        mend = f"remove it, then write it again: {self.resume_command}" if ours else "choose another directory"
        written = Checksums(self.directory)[PLAN]
        if isinstance(written, list) and sha256(read_bytes(self.directory / PLAN)) not in written:
            raise UserError(f"{self.directory / PLAN} has changed since toytf wrote it: {mend}")
        plan = _read(self.directory / PLAN, _PlanFile, mend)
        self.factors, self.log, self.members = plan.factors, plan.log, plan.runs
        self._known: dict[str, tuple[bytes | None, list[Row]]] = {}
        self._shown: tuple[str, ...] = ()
        self._about: dict[str, tuple[Quantity, str]] = {}

    # What was asked for

    @cached_property
    def asked(self) -> Asked:
        """The config that all runs share, and what is varied."""
        return read_sweep(self.directory / SWEEP_FILE)

    @property
    def section(self) -> SweepConfig:
        """What is varied and shown."""
        return self.asked.section

    @property
    def title(self) -> str:
        """What it shows, or its name."""
        return self.asked.title or self.name

    @property
    def name(self) -> str:
        """The last part of its path, as text in every locale."""
        return os.fsencode(self.directory.resolve().name).decode(errors="replace")

    @property
    def resume_command(self) -> str:
        """What to type to go on with it."""
        return shlex.join(["toytf", "sweep", str(self.directory / SWEEP_FILE), "--resume"])

    # What there is

    @property
    def runs(self) -> list[Run]:
        """The runs that are finished, in the order of the plan."""
        return [run for run in (self.run(member) for member in self.members) if run.finished]

    def run(self, member: Member) -> Run:
        """The directory of a run, done or not."""
        return Run(self.directory / RUNS / member.id)

    @cached_property
    def at(self) -> dict[int, Point]:
        """The factors of each point."""
        return {member.point: member.at for member in self.members}

    @property
    def failures(self) -> dict[str, Failure]:
        """By run id, why it failed."""
        path = self.directory / ERRORS
        mend = f"remove it, then try again what failed: {self.resume_command}"
        found = _read(path, dict[str, Failure], mend) if path.exists() else {}
        return {member.id: found[member.id] for member in self.members if member.id in found}

    @property
    def failed(self) -> "pd.DataFrame":
        """One row for each run that failed: run, factors, seed, error, message."""
        import pandas as pd

        by_id = {member.id: member for member in self.members}
        rows = [
            {"run": run, **by_id[run].at, "seed": by_id[run].seed, **asdict(why)} for run, why in self.failures.items()
        ]
        return pd.DataFrame(rows, columns=["run", *self.factors, "seed", "error", "message", "traceback"])

    @property
    def table(self) -> "pd.DataFrame":
        """The last value of every metric of every run and seed: run, factors, seed, metric, value, ideal, theory …"""
        return with_factors(self.measured(), self.members, self.factors)

    def measured(self) -> "pd.DataFrame":
        """The same without factors, from the runs themselves."""
        import pandas as pd

        rows = [row for member in self.members if self.run(member).finished for row in self._rows(member)]
        kinds: dict[str, Any] = {"seed": "int64", "variant": bool, **dict.fromkeys(("value", *KINDS), float)}
        return pd.DataFrame(rows, columns=list(MEASURED)).astype(kinds)

    def _rows(self, member: Member) -> list[Row]:
        """The rows of a finished run, which is read again only if its checksums have changed.

        A directory that holds another run than its name says is refused.
        """
        run = self.run(member)
        now = read_bytes(run.directory / checksums.NAME) if Checksums(run.directory).exist else None
        before, rows = self._known.get(member.id, (None, []))
        if now is not None and now == before:
            return rows
        again = f"remove the directory, then do this run again: {self.resume_command}"
        if not run.config_file.is_file():
            raise UserError(f"{run.directory} has a summary but no {run.config_file.name}: restore it, or {again}")
        Checksums(run.directory).check(run.config_file.name, f"restore it from a copy, or {again}")
        content = load_yaml(read_bytes(run.config_file).decode(errors="replace"), str(run.config_file))
        if not isinstance(content, dict) or not is_id_of(member.id, content):
            # A stack that was asked for, or a plug-in that fills in keys of its own: see whether that is all.
            asked = config_of(self.asked, member).resolved(run.config)
            of_machine = tuple(f"{key} " for key in ("stack", "device", "threads") if key not in member.at)
            changed = [one for one in differences(asked, run.config) if not one.startswith(of_machine)]
            if changed:
                raise UserError(f"{run.directory} holds another run ({'; '.join(changed)}): {again}")
        rows = list(rows_of(run, member))
        self._known[member.id] = now, rows
        return rows

    @property
    def points(self) -> "pd.DataFrame":
        """One row for each point with a finished run: factors, seeds, mean and `…/std` of the metrics that are shown.

        What they can be read against has columns as in summary.json, such as `ideal/<metric>`.
        """
        return self.points_of(self.measured())

    def points_of(self, measured: "pd.DataFrame") -> "pd.DataFrame":
        """The same, from what was measured."""
        import pandas as pd

        seeds = self._seeds_of(measured)
        found = pd.DataFrame({key: {point: self.at[point].get(key) for point in seeds.index} for key in self.factors})
        found = found.reindex(seeds.index)
        found["seeds"] = seeds
        for metric in self.shown:
            own = self.rows_of(measured, metric).groupby("point")
            found[metric] = own["value"].mean()
            found[spread_name(metric)] = own["value"].std(ddof=1)
            for kind in KINDS:
                level = own[kind].mean()
                if level.notna().any():
                    found[reference_name(kind, metric)] = level
        return found.rename(columns={key: column_of(key) for key in self.factors})

    def rows_of(self, measured: "pd.DataFrame", metric: str) -> "pd.DataFrame":
        """The rows of a metric with the number of their point, but none of a point that lacks it in some seed.

        A mean over the seeds that happened to have it, or that did not fail, would mislead.
        """
        own = measured[measured["metric"] == metric]
        own = own.assign(point=own["run"].map(self._point_of))
        own = own[~own["point"].isin([self._point_of[run] for run in self.failures if run in self._point_of])]
        seeds = self._seeds_of(measured)
        return own[own.groupby("point")["seed"].transform("size") == own["point"].map(seeds)]

    def _seeds_of(self, measured: "pd.DataFrame") -> "pd.Series[int]":
        """How many seeds of each point are finished."""
        finished = measured[["run", "seed"]].drop_duplicates()
        return finished.groupby(finished["run"].map(self._point_of)).size().rename_axis("point")

    @cached_property
    def _point_of(self) -> dict[str, int]:
        return {member.id: member.point for member in self.members}

    @property
    def shown(self) -> tuple[str, ...]:
        """The metrics that the terminal and the page show; by default, what a run shows first."""
        if not self._shown:  # while no run has ended, nothing is known
            self._shown = self.section.show
            for run in () if self._shown else self.runs[:1]:
                most = 1 if run.config.trains_model else _SHOWN_OF_STUDY
                self._shown = tuple(row.cells()[0] for _, row in short_table(run.summary, run.columns).rows[:most])
        return self._shown

    @property
    def _wanted(self) -> list[str]:
        """Every metric that should be shown somewhere."""
        return [*self.shown, *(figure.metric for figure in self.section.figures)]

    @property
    def _described(self) -> dict[str, tuple[Quantity, str]]:
        """What metrics are about, and the phrase that the short tables of runs have for each, if they agree."""
        if self._about:
            return self._about
        found: dict[str, tuple[Quantity, str]] = {}
        runs = self.runs
        for run in [*runs[:1], *runs[:-_ASKED:-1]]:
            summary, columns = run.summary, run.columns
            phrases = {row.cells()[0]: phrase for phrase, row in short_table(summary, columns).rows}
            for name, about in described(summary, columns).items():
                phrase = phrases.get(name, "")
                told = found.get(name, (about, phrase))[1]
                found[name] = about, told if told == phrase else ""  # such as one that tells the size of a point
            if run is not runs[0] and {*self._wanted} <= found.keys():
                break
        self._about = found
        return found

    def about(self, metric: str) -> Quantity:
        """What a metric is about."""
        return self._described[metric][0] if metric in self._described else quantity_of(metric)

    def phrase(self, metric: str) -> str:
        """What a metric is in a phrase."""
        known = self._described.get(metric)
        return known[1] or known[0].group.title if known else ""

    def meaning(self, metric: str) -> str:
        """The same in a sentence, if somebody said one."""
        about = self.about(metric)
        return about.group.meaning(about.label) or self.phrase(metric)

    @property
    def unknown(self) -> dict[str, str]:
        """Metrics that should be shown but that no run has, each with the nearest that there is."""
        known = self._described
        # An onset that came in no run is no mistake.
        lacking = [name for name in self._wanted if not {name, name.partition("/")[2]} & known.keys()]
        return {name: nearest(name, known) for name in lacking if known}

    # What it looks like

    def figures(self) -> dict[str, Any]:
        """The plotly figures by name: every metric that is shown against what is varied, or those of sweep.figures."""
        from toytf.sweeps.figures import sweep_figures

        return dict(sweep_figures(self, self.measured()))

    def figure(self, name: str | None = None) -> Any:
        """One figure, by default the first."""
        found = self.figures()
        if not found:
            raise UserError(f"{self.directory}: there is nothing to draw yet")
        if name is None:
            return next(iter(found.values()))
        if name not in found:
            raise UserError(f'{self.directory}: no figure is called "{shortened(name)}": {nearest(name, found)}')
        return found[name]

    @property
    def state(self) -> str:
        """How far it is: `30 of 32 runs are done, 2 failed`."""
        n_failed = len(self.failures)
        n_done, n = len(self.runs), len(self.members)
        done = f"{n_done:,} of {counted(n, 'run')} {'is' if 1 in (n_done, n) else 'are'} done"
        return done + (f", {n_failed:,} failed" if n_failed else "")

    def _repr_html_(self) -> str:
        head = f"<p><b>{escape(one_line(self.title))}</b><br><code>{escape(str(self.directory))}</code>"
        return f"{head}<br>{escape(self.state)}</p>{self.points.to_html(max_rows=20)}"

    # Writing

    def write_failures(self, failures: Mapping[str, Failure]) -> None:
        """Keep why runs failed, in the order of the plan."""
        kept = {member.id: asdict(failures[member.id]) for member in self.members if member.id in failures}
        if kept or (self.directory / ERRORS).exists():
            write_atomic(self.directory / ERRORS, (json.dumps(kept, indent=1) + "\n").encode())


def open_sweep(directory: Path | str) -> Sweep:
    """A sweep by its directory, done or not."""
    return Sweep(directory)


def write_sweep(plan: Plan, directory: Path) -> Sweep:
    """Write down what was asked for, and which runs that means, without their configs."""
    write_atomic(directory / SWEEP_FILE, sweep_yaml(plan))
    names = ("id", "point", "at", "known", "seed")
    runs = [{name: getattr(run, name) for name in names} for run in plan.runs]
    lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in runs)
    head = json.dumps({"factors": plan.points.factors, "log": sorted(plan.points.log)}, ensure_ascii=False)
    path, content = directory / PLAN, f'{head[:-1]}, "runs": [\n{lines}\n]}}\n'.encode()
    before = [sha256(read_bytes(path))] if path.exists() else []
    Checksums(directory)[PLAN] = [*before, sha256(content)]  # both, as a kill may come before the next line
    write_atomic(path, content)
    return Sweep(directory)


def sweep_yaml(plan: Plan) -> bytes:
    """A config that gives the same sweep again."""
    asked = plan.asked
    told = asked.section.model_dump(mode="json", exclude_defaults=True)
    title = {"title": asked.title} if asked.title else {}
    return dump_yaml({**asked.base, "sweep": {**title, **told}}).encode()


def _read(path: Path, kind: type[T], mend: str) -> T:
    """What a JSON file of a sweep holds; `mend` says what to do if it is not that."""
    try:
        return TypeAdapter(kind).validate_json(read_bytes(path), strict=True)
    except ValueError:
        raise UserError(f"{path} is not what a sweep has written there: {mend}") from None


def member_label(member: Member) -> str:
    """A run for people: its factors and its seed."""
    seed = "" if member.seed is None else f"seed {member.seed}"
    return " ".join(filter(None, [label_of(member.at), seed]))
