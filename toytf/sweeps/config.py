"""The section `sweep:` of a config: what is varied, with which seeds, and what is shown of it. Imports no torch."""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from toytf.config.sections import Config, Unique

MOST_RUNS = 100_000


class LineConfig(Config):
    """A line of theory in a figure, such as the boundary that a paper draws."""

    label: str
    points: tuple[tuple[float, float], ...] = Field(min_length=2)
    """[x, y] in the units of the axes."""


class FigureConfig(Config):
    """A figure of a sweep."""

    kind: Literal["heatmap", "curves"]
    metric: str
    x: str
    """A key of the config, or a product of keys and numbers: `model.attention.n_heads * model.attention.d_head`."""
    y: str | None = None
    """The other axis of a heat map."""
    color: str | None = None
    """One curve for each value of this; curves only."""
    lines: tuple[LineConfig, ...] = ()
    title: str = ""

    @model_validator(mode="after")
    def _parts_fit(self) -> "FigureConfig":
        if self.kind == "heatmap" and self.y is None:
            raise ValueError("a heatmap needs y, the key of its other axis")
        if self.kind == "heatmap" and self.color is not None:
            raise ValueError("color is an option of curves: a heatmap is coloured by its metric")
        if self.kind == "curves" and self.y is not None:
            raise ValueError("y is an option of a heatmap: curves have color")
        return self


class RandomConfig(Config):
    """Points drawn at random."""

    n: PositiveInt
    """How many."""
    seed: int = 0
    """Of the draws; the seeds of the runs are another matter."""
    draw: dict[str, Any] = Field(min_length=1)
    """By key: a list, log(lo, hi), uniform(lo, hi) or integer(lo, hi)."""


class SweepConfig(Config):
    """What a sweep varies. `grid`, `zip`, `points` and `random` are combined, each with all of the others."""

    title: str = ""
    """Default: the first comment of the file."""
    grid: dict[str, Any] = Field(default_factory=dict)
    """Every combination: by key a list, log(lo, hi, n), linear(lo, hi, n) or range(lo, hi, step)."""
    zip: dict[str, Any] = Field(default_factory=dict)
    """The same, but taken together: the first values of all keys, then the second …"""
    points: tuple[dict[str, Any], ...] = ()
    """Just these: what each changes, by key."""
    random: RandomConfig | None = None
    seeds: (
        Annotated[int, Field(ge=1, le=MOST_RUNS)] | Annotated[tuple[int, ...], Field(min_length=1), Unique] | None
    ) = None
    """Each point is run with each of them; a number n: 0, 1, … n − 1. Default: the seeds of the config."""
    show: Annotated[tuple[str, ...], Unique] = ()
    """Metrics of the terminal, the page and its figures; default: the one that the runs themselves show first."""
    figures: tuple[FigureConfig, ...] = ()
    """Default: every metric that is shown against what is varied."""
    pages: bool = False
    """Does every run write its own page (5 MB)? `toytf inspect RUN` writes it later."""

    @field_validator("seeds", mode="before")
    @classmethod
    def _a_number_or_a_list(cls, seeds: Any) -> Any:
        listed = seeds if isinstance(seeds, list | tuple) else [seeds]
        if seeds is None or (listed and all(isinstance(seed, int) and not isinstance(seed, bool) for seed in listed)):
            if isinstance(seeds, int) and not 1 <= seeds <= MOST_RUNS:
                raise ValueError(f"give a number of seeds from 1 to {MOST_RUNS:,}, or a list of seeds")
            return seeds
        raise ValueError("give a number of seeds, such as 3, or a list of seeds, such as [0, 7]")

    def numbers(self) -> list[int] | None:
        """The seeds as a list; None: those of the config."""
        if self.seeds is None:
            return None
        return list(range(self.seeds) if isinstance(self.seeds, int) else self.seeds)
