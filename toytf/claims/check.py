"""Checking claims: their runs, one by one or several at a time, and a file and a page of verdicts that grow."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toytf.claims.claim import Claim, load_claim
from toytf.claims.runs import ClaimRun, finish_runs
from toytf.claims.verdict import Outcome, outcome_of
from toytf.config.plugins import ExperimentConfig
from toytf.config.sections import digest
from toytf.config.shipped import claim_files, is_file, nearest_shipped
from toytf.engines import ONE_BY_ONE, EngineOptions
from toytf.errors import Interrupted, RunFailed, UserError, reason, shortened
from toytf.files import remove_temporary, write_atomic
from toytf.runs import Run
from toytf.runs.checksums import read_bytes
from toytf.runs.lock import locked
from toytf.runs.provenance import Origin
from toytf.words import counted, say

if TYPE_CHECKING:
    import pandas as pd


def check_claims(
    names: Iterable[str], out: Path, options: EngineOptions = ONE_BY_ONE, *, quick: bool = False
) -> list[Outcome]:
    """Run the named claims or areas (default: all); claims.json and claims.html grow with every verdict.

    Runs are kept by config: what a stopped check has finished, and what two claims share, is not run again. options:
    how many runs go on at a time, and where. quick: the smaller version of each claim.
    """
    from toytf.report.verdicts import verdict_page

    files = choose(names)
    chosen = []
    for name, path in files.items():
        # What to type to check this claim alone: one that ships goes by its name, one's own by its file.
        asked = name if path in claim_files().values() else str(path)
        command = shlex.join(["toytf", "claims", asked, *(["--quick"] if quick else []), "--out", str(out)])
        chosen.append(_Chosen(name, *load_claim(path, quick=quick), out, Origin(command=command), quick))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {reason(error)}") from None
    outcomes: dict[str, Outcome] = {}
    with locked(out):
        remove_temporary(out)
        _refuse_foreign(out)
        for outcome in _outcomes(chosen, options):
            outcomes[outcome.name] = outcome
            known = [outcomes[name] for name in files if name in outcomes]
            write_atomic(out / "claims.json", (json.dumps([asdict(one) for one in known], indent=2) + "\n").encode())
            write_atomic(out / "claims.html", verdict_page(known, out).encode(errors="surrogateescape"))
    return [outcomes[name] for name in files]


@dataclass(frozen=True)
class _Chosen:
    """A claim that is to be checked, and where its runs go."""

    name: str
    claim: Claim
    configs: dict[str, ExperimentConfig]
    out: Path
    origin: Origin
    quick: bool

    @property
    def directories(self) -> dict[str, Path]:
        """Of its runs, by their names in the claim."""
        return {run: self.out / "runs" / digest(config) for run, config in self.configs.items()}


def _outcomes(chosen: Sequence[_Chosen], options: EngineOptions) -> Iterator[Outcome]:
    """A verdict as soon as all runs of a claim have ended, whatever the order."""
    waiting = {one.name: {path for path in one.directories.values() if not Run(path).finished} for one in chosen}
    failures: dict[Path, RunFailed] = {}
    undecided = [*chosen]

    def decided() -> Iterator[Outcome]:
        for one in [one for one in undecided if not waiting[one.name]]:
            undecided.remove(one)
            outcome = _outcome(one, failures)
            say(f"{one.name}: {outcome.verdict}; {counted(len(undecided), 'claim')} left")
            yield outcome

    yield from decided()
    runs: dict[Path, ClaimRun] = {}  # what is left to run, each config once
    for one in chosen:
        for name, path in one.directories.items():
            if path not in runs and not Run(path).finished:
                minutes = one.claim.minutes / len(one.configs)  # the runs of a claim are taken to be equally long
                runs[path] = ClaimRun(f"{one.name}: {name}", one.configs[name], path, one.origin, minutes)
    try:
        with closing(finish_runs([*runs.values()], options)) as ending:
            for run, failure in ending:
                if failure is not None:
                    failures[run.directory] = failure
                for of_claim in waiting.values():
                    of_claim.discard(run.directory)
                yield from decided()
    except Interrupted:
        done = f"{len(chosen) - len(undecided)} of {counted(len(chosen), 'claim')} checked"
        raise Interrupted(f"stopped with {done}; to continue, run the same command again") from None


def _outcome(one: _Chosen, failures: Mapping[Path, RunFailed]) -> Outcome:
    """The verdict on a claim whose runs have ended; those that failed have no seeds, and the note says why."""
    seeds: dict[str, pd.DataFrame] = {}
    seconds = 0.0
    notes = [one.claim.note]
    for run, directory in one.directories.items():
        if directory in failures:
            notes.append(f"{run}: {failures[directory]}.")
        else:  # a run of another config is refused
            resolved = one.configs[run].resolved(Run.open(directory).config)
            done = Run.start(directory, resolved, resume=True)
            seeds[run] = done.seeds
            seconds += sum((done.timing or {}).values())
    runs = {run: str(directory) for run, directory in one.directories.items()}
    studies = [run for run, config in one.configs.items() if config.experiment != "train"]
    note = " ".join(filter(None, notes)).strip()
    return outcome_of(one.name, one.claim, seeds, runs, note, studies=studies, seconds=seconds, quick=one.quick)


def choose(names: Iterable[str]) -> dict[str, Path]:
    """The claims that names, areas and paths of files mean, by name."""
    files = claim_files()
    chosen: dict[str, Path] = {}
    for name in list(names) or files:
        for claim, path in _meant(name, files).items():
            if chosen.setdefault(claim, path) != path:
                raise UserError(f'two claims are called "{claim}": {chosen[claim]} and {path}')
    return chosen


def _meant(name: str, files: dict[str, Path]) -> dict[str, Path]:
    """The claims that one word means: an area, area/name, a name that one area has, or the path of a file."""
    areas = {claim.partition("/")[0] for claim in files}
    if name in areas:
        return {claim: path for claim, path in files.items() if claim.startswith(f"{name}/")}
    path = Path(name)
    if not is_file(path):
        bare = path.as_posix().removeprefix("configs/").removeprefix("claims/").removesuffix(".yaml")
        known = {claim: file for claim, file in files.items() if bare in (claim, claim.partition("/")[2])}
        if len(known) > 1:
            raise UserError(f'several claims are called "{bare}": choose {" or ".join(known)}')
        if known:
            return known
    else:
        shipped = {claim: file for claim, file in files.items() if file.samefile(path)}
        return shipped or {path.stem: path}
    hint = nearest_shipped(name, [*files, *areas])
    raise UserError(f"{shortened(name)}: no such claim{hint} (`toytf list claims` shows all that ship with toytf)")


def _refuse_foreign(out: Path) -> None:
    """Refuse a directory with a claims.json or claims.html that no check of claims has written."""
    from toytf.report.page import is_page

    verdicts, page = out / "claims.json", out / "claims.html"
    try:
        known = json.loads(read_bytes(verdicts)) if verdicts.exists() else []
    except (ValueError, RecursionError):
        known = None
    ours = isinstance(known, list) and all(isinstance(one, dict) and "verdict" in one for one in known)
    if not ours or (page.exists() and not is_page(page)):
        raise UserError(f"{page if ours else verdicts} already exists and is not of toytf: choose another --out")
