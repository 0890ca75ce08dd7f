"""What an experiment is: what a config runs, and what it draws."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from toytf.errors import RunFailed, ToytfError, UserError
from toytf.report.story import Story, first_row
from toytf.runs import Run


class Experiment(ABC):
    """What a config runs; `implementation` of its config class names it."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def run(self, run: Run) -> None:
        """Do what is not done yet in this run directory, up to its summary and page."""

    @classmethod
    def run_together(cls, experiments: "Sequence[Experiment]", runs: Sequence[Run]) -> list[ToytfError | None]:
        """Do the same for several runs whose configs have one `stack_key`; why each failed, if it did.

        By default one after the other.
        """
        failures: list[ToytfError | None] = []
        for experiment, run in zip(experiments, runs, strict=True):
            try:
                experiment.run(run)
                failures.append(None)
            except (UserError, RunFailed) as error:
                failures.append(error)
        return failures

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
