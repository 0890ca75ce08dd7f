"""One case of a study as a job: measured in whichever process, written down by the one that runs the study."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from toytf.config.plugins import implementation
from toytf.engines import Job
from toytf.experiments.launch import limited_memory
from toytf.measurement import Measurement
from toytf.process import cpu_threads
from toytf.runs.rows import MetricsFile

if TYPE_CHECKING:
    from toytf.experiments.study import Study


@dataclass(frozen=True)
class FoundAtStep:
    """What a case gave in one seed at one step: measurements with their factors, and figures by name."""

    seed: int
    step: int
    measured: tuple[Measurement, ...]
    figures: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class _Sent:
    """A figure on its way to where it is kept: as text, since one that is built again may be written differently."""

    text: str

    def to_json(self) -> str:
        """What the file of the figure will hold."""
        return self.text


def case_job(name: str, config: Any, case: Any, seeds: Sequence[int]) -> Job:
    """The job that measures a case in these seeds."""
    return Job(name, f"{__name__}:measure_case", {"config": config, "case": case, "seeds": list(seeds)})


def measure_case(config: Any, case: Any, seeds: Sequence[int]) -> list[FoundAtStep]:
    """Measure a case of the study that a config means, with the threads that the config says."""
    study: Study[Any] = implementation(config)(config)
    with limited_memory(config), cpu_threads(config.n_threads):
        found = list(study.found(case, seeds))
    return [
        replace(one, figures=tuple((name, _Sent(figure.to_json())) for name, figure in one.figures)) for one in found
    ]


class CaseOrder:
    """The order in which one job at a time would have written rows and columns, whichever job ended first.

    What the file had before stays first.
    """

    def __init__(self, jobs: Sequence[str], metrics: MetricsFile) -> None:
        self._place = {name: i for i, name in enumerate(jobs)}
        self._rows, self._columns = [-1] * len(metrics.rows), {-1: [*metrics.columns]}

    def note(self, job: str, found: Sequence[FoundAtStep], metrics: MetricsFile) -> None:
        """All rows that have come since are of this job."""
        place = self._place[job]
        self._rows += [place] * (len(metrics.rows) - len(self._rows))
        self._columns[place] = [one.flat for at_step in found for one in at_step.measured]

    def restore(self, metrics: MetricsFile) -> None:
        """Put rows and columns in order."""
        rows = sorted(range(len(self._rows)), key=self._rows.__getitem__)
        metrics.arrange(rows, [name for place in sorted(self._columns) for name in self._columns[place]])
