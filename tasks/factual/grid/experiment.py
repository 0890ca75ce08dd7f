"""The experiment `fact_grid`: which models learn one table of facts, by their heads and hidden units."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.factual.capacity.config import N_ANSWERS
from tasks.factual.grid.config import FactGridConfig
from tasks.factual.trainings import Sizes, TableSize, Trial, trained_accuracies
from toytf.experiments.study import Study, factors
from toytf.measurement import Group, Headline, Measurement, Quantity, flat
from toytf.report.story import percent
from toytf.runs import Run
from toytf.tidy import over_seeds
from toytf.words import counted

ACCURACY = Group(
    "accuracy", "Best accuracy", "The best of all trainings of a model on the table; 1 if it knows every fact.",
    headline=(Headline("*", "best accuracy, heads: {n_heads}, hidden units: {width}"),),
    meanings=(
        ("*", "Best accuracy of all trainings with so many heads (H) and hidden units (m); 1 if such a model learns "
         "every fact."),
    ),
)  # fmt: skip

PAPER = 32
"""S = R = d of the heat map of Nichani et al. 2024, Fig. 4."""


@dataclass(frozen=True)
class Cell:
    """Numbers of heads and hidden units."""

    n_heads: int
    width: int


class FactGrid(Study[Cell]):
    """Train every model of the grid on the table."""

    config: FactGridConfig

    def cases(self) -> Sequence[Cell]:
        """Every number of heads with every number of hidden units."""
        return [Cell(n_heads, width) for n_heads in self.config.heads for width in self.config.widths]

    def sizes(self, case: Cell) -> Sizes:
        """The model of a case."""
        return Sizes(self.config.d_model, case.n_heads, self.config.d_head, case.width)

    def measure(self, case: Cell, seed: int) -> Iterator[Measurement]:
        """The best accuracy over the learning rates."""
        for _, _, found in self.seeds(case, [seed]):
            yield from found

    def seeds(self, case: Cell, seeds: Sequence[int]) -> Iterator[tuple[int, int, list[Measurement]]]:
        """The same for several seeds, whose models are trained together."""
        config = self.config
        table = TableSize(config.n_subjects, config.n_relations, config.n_answers)
        trials = [Trial(self.sizes(case), table, seed) for seed in seeds]
        for seed, accuracies in zip(seeds, trained_accuracies(config, trials), strict=True):
            yield seed, self.last_step, [ACCURACY.measurement(max(accuracies))]

    def findings(self, run: Run) -> Iterator[str]:
        """How many models learn the table, and the smallest of them; or how far the best one comes."""
        config, summary = self.config, run.summary
        metrics = {case: flat(Quantity(ACCURACY, at=factors(case))) for case in self.cases()}
        accuracy = {case: summary[name] for case, name in metrics.items() if name in summary}
        learned = [case for case, value in accuracy.items() if value >= config.goal]
        n_facts = config.n_subjects * config.n_relations
        yield f"{len(learned)} of {len(accuracy)} models know {percent(config.goal)} of the {n_facts} facts or more."
        if learned:
            case, which = min(learned, key=lambda case: self.sizes(case).n_parameters), "smallest of them"
        else:
            case, which = (
                max(accuracy, key=lambda case: accuracy[case]),
                f"best knows {percent(max(accuracy.values()))} and",
            )
        yield f"The {which} has {counted(case.n_heads, 'head')} and {counted(case.width, 'hidden unit')}."

    def figures(self, run: Run) -> Iterator[tuple[str, Any]]:
        """The best accuracy by heads and hidden units, with the boundary that Nichani et al. 2024 draw."""
        from toytf.figures import fractions

        config, heads, widths = self.config, sorted(self.config.heads), sorted(self.config.widths)
        accuracy = over_seeds(run.table).set_index(["n_heads", "width"])["value"]
        columns = {f"{H} · {config.d_head}": [accuracy[H, m] for m in reversed(widths)] for H in heads}
        table = f"S = {config.n_subjects}, R = {config.n_relations}, D = {config.n_answers}, d = {config.d_model}"
        figure = fractions(columns, [f"{m}" for m in reversed(widths)], f"Best accuracy, {table}")
        figure.update_xaxes(title="H · d_head", type="category").update_yaxes(title="hidden units m", type="category")
        places = boundary_places(config, heads, widths)
        if len(places) > 1:
            path = "M " + " L ".join(f"{x:.4f},{len(widths) - 1 - y:.4f}" for x, y in places)
            scaled = "" if config.d_model == PAPER else f", scaled from d = {PAPER}"
            figure.add_shape(
                type="path", path=path, line={"color": "red", "width": 3, "dash": "dash"}, showlegend=True,
                name=f"boundary of Nichani et al. 2024{scaled}",
            )  # fmt: skip
        yield "accuracy_grid", figure


def boundary_places(config: FactGridConfig, heads: Sequence[int], widths: Sequence[int]) -> list[tuple[float, float]]:
    """Where the boundary lies among ascending heads and widths, as numbers of the column and row; as far as it does."""
    across, upward = [H * config.d_head * config.d_model for H in heads], [m * config.d_model for m in widths]
    right, top = len(heads) - 0.5, len(widths) - 0.5
    places = [(_place(x, across), _place(y, upward)) for x, y in paper_boundary(config)]
    line = [(at, up) for at, up in places if -0.5 <= at <= right and -0.5 <= up <= top]
    wall = [(places[0][0], top)] if line and line[0] == places[0] else []
    return [*wall, *line]


def paper_boundary(config: FactGridConfig) -> list[tuple[float, float]]:
    """Points (H d_head d, m d) of the boundary drawn in Fig. 4 (right) of Nichani et al. 2024, S = R = d = 32, D = 8.

    m d = 2300 − H d_head d / 2  from H d_head d = 1280 on, where it ends in a wall: what is right of it and above is
    learned. Facts S R and what attention must serve, (S + R) d, both grow like d² if S = R = d: so for such tables it
    is scaled by (d/32)², and for others there is none.
    """
    if not config.n_subjects == config.n_relations == config.d_model or config.n_answers != N_ANSWERS:
        return []
    scale = (config.d_model / PAPER) ** 2
    return [(scale * x, scale * (2300 - x / 2)) for x in np.linspace(1280, 4600, 84).tolist()]


def _place(value: float, values: Sequence[int]) -> float:
    """Where a value is on an axis with one place for each of the ascending values, beyond its ends too."""
    if len(values) == 1:
        return 0.0 if value == values[0] else float("inf")
    i = min(max(int(np.searchsorted(values, value)), 1), len(values) - 1)
    return i - 1 + (value - values[i - 1]) / (values[i] - values[i - 1])
