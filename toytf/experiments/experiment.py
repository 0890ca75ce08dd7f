"""What an experiment is: what a config runs, and what it draws."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from toytf.engines import ONE_BY_ONE, EngineOptions
from toytf.errors import ToytfError
from toytf.process import cpu_threads
from toytf.report.page import Shown
from toytf.report.story import Story, first_row
from toytf.runs import Run


class Experiment(ABC):
    """What a config runs; `implementation` of its config class names it."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def run(self, run: Run, engine: EngineOptions = ONE_BY_ONE) -> None:
        """Do what is not done yet in this run directory; page and summary are written for it.

        engine: where its jobs run, if it consists of many.
        """

    @classmethod
    def run_together(cls, experiments: "Sequence[Experiment]", runs: Sequence[Run]) -> list[ToytfError | None]:
        """Do the same for several runs whose configs have one `stack_key`; why each failed, if it did."""
        raise NotImplementedError

    def shown(self, run: Run) -> Shown:
        """What the page is made of: the story and the figures, from files that are read once."""
        with cpu_threads(1), run.read_once():  # many small pictures
            return Shown(run, self.story(run), dict(self.figures(run)))

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Names and figures of the page."""
        yield from ()

    def story(self, run: Run) -> Story:
        """What the end of the run and its page say: a sentence or two, and what to do next."""
        return Story(tuple(self.findings(run)), self.next_step(run))

    def findings(self, run: Run) -> Iterable[str]:
        """What came out of it, in a sentence or two with numbers of the run."""
        return first_row(run)

    def next_step(self, run: Run) -> str:
        """A command, and what it does."""
        return f"{shlex.join(['toytf', 'inspect', str(run.directory), '--serve'])}  (opens the page in a browser)"
