"""What an experiment is: what a config runs, and what it draws."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from toytf.runs import Run


class Experiment(ABC):
    """What a config runs; `implementation` of its config class names it."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def run(self, run: Run) -> None:
        """Do what is not done yet in this run directory, up to its summary and page."""

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Names and figures of the page."""
        yield from ()
