"""What the configs of experiments share."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field

from toytf.config.plugins import ExperimentConfig
from toytf.config.sections import Unique, auto_or_up_to
from toytf.runs.tracking import LoggingConfig

MOST_THREADS = 1024
MOST_SEEDS = 10_000


def _in_a_row(given: Any) -> Any:
    """`0..99` as the hundred seeds from 0 to 99; anything else as it is."""
    ends = re.fullmatch(r"(\d{1,15})\.\.(\d{1,15})", given) if isinstance(given, str) else None
    if ends is None:
        return given
    first, last = map(int, ends.groups())
    if last < first:
        raise ValueError(f"the first seed is above the last: write {last}..{first}")
    if last - first >= MOST_SEEDS:
        raise ValueError(f"these are more than {MOST_SEEDS} seeds")
    return tuple(range(first, last + 1))


Seeds = Annotated[tuple[int, ...], Unique, BeforeValidator(_in_a_row, json_schema_input_type=tuple[int, ...] | str)]
"""Different seeds; 0..99 is short for the hundred from 0 to 99."""


def in_short(seeds: Sequence[int]) -> str:
    """Seeds as a config may give them: 0..99 for those in a row, else one by one."""
    in_a_row = len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"{seeds[0]}..{seeds[-1]}" if in_a_row else ", ".join(map(str, seeds))


def with_float64(device: str) -> str:
    """A device that has float64: the same, or the CPU."""
    return "cpu" if device.startswith("mps") else device


class SeededConfig(ExperimentConfig):
    """An experiment that runs once per seed."""

    seeds: Seeds = Field(default=(0,), min_length=1)
    """The experiment runs once with each; the summary has the mean and standard deviation over seeds. 0..99 is short
    for the hundred from 0 to 99."""
    device: str = "auto"
    """auto: a GPU if there is one; or cpu, cuda, cuda:1, mps."""
    threads: Annotated[Literal["auto"] | int, auto_or_up_to(MOST_THREADS)] = "auto"
    """CPU threads. auto: one, or two for a training with large steps and for `capacity`; only the config decides.
    config.yaml of the run has the number, because the last bits of a sum depend on it."""
    logging: LoggingConfig = LoggingConfig()

    @property
    def n_threads(self) -> int:
        """CPU threads as a number."""
        return self.worth_threads if self.threads == "auto" else self.threads

    @property
    def worth_threads(self) -> int:
        """The CPU threads that pay, from the sizes in the config alone."""
        return 1

    def resolved(self, before: ExperimentConfig | None = None) -> Self:
        """With `device: auto` replaced by the device that it means here, and `threads: auto` by a number.

        before: the config of the run that goes on; its number of threads is kept.
        """
        from toytf.build import pick_device

        known = before if self.threads == "auto" and isinstance(before, SeededConfig) else self
        return self.model_copy(update={"device": str(pick_device(self.device)), "threads": known.n_threads})
