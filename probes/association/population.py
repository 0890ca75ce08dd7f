"""Which inputs a model remembers, over all of them: exact error and loss, and margins against frequency."""

import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool

from probes.association.config import PopulationProbeConfig
from tasks.association.population import Population, population
from tasks.association.task import AssociationTask
from toytf.measurement import Group, Headline, Measurement
from toytf.memory.limits import matrix_limits
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task

POPULATION = Group(
    "population", "Error and loss over all inputs", "Exact, each input counted by how often it comes; a tie is an "
    "error. Theory is a part that is filled to its capacity with the most frequent inputs and guesses the others. The "
    "head are the d most frequent inputs, and the tail is the rest.",
    variants=("heuristic",),
    headline=(
        Headline("error", "probability of a wrong answer, exact over all inputs"),
        Headline("error_tail", "of it, due to inputs beyond the d most frequent", 1),
        Headline("loss", "loss, exact over all inputs (nats)", 1),
    ),
    meanings=(
        ("error/constant", "Error of always giving the most frequent answer; a model that remembers any input is "
         "below."),
        ("loss/constant", "Loss of knowing only how often answers come, in nats; a model that remembers any input is "
         "below."),
        ("error_head", "Part of the error that is due to the d most frequent inputs; near 0 if what is frequent is "
         "stored."),
        ("error_tail", "Part of the error that is due to all but the d most frequent inputs; with that of the head it "
         "adds up to the error."),
        ("error", "Probability that the answer is wrong, exact over all inputs, where a tie is wrong; 0 if all are "
         "stored."),
        ("loss", "Mean cross-entropy, exact over all inputs, in nats; near 0 if all are stored with large margins."),
    ),
)  # fmt: skip
BY_FREQUENCY = Group(
    "by_frequency", "Margins against frequency", "Does what is frequent have the larger margin? Each input counts "
    "once.",
    curve=False, headline=(Headline("margin_correlation", "correlation of margins with log frequency", 2),),
    meanings=(
        ("margin_slope", "By how many logits the margin grows if an input is e times as frequent; 0 if frequency plays "
         "no part, 1 for slow descent on orthogonal inputs."),
        ("margin_correlation", "Correlation of the margin with the logarithm of the frequency over all inputs; 0 if "
         "frequency plays no part, 1 if it decides."),
    ),
)  # fmt: skip

SHOWN = 4096
"""Inputs that the figure has at most: of more, some of each frequency."""
FEW, NAMED = 256, 12
"""Up to so many inputs dots are large, and so many that are wrong are named."""


class PopulationProbe(Probe):
    """`population/error` and `population/loss` over all inputs, by their frequency.

    `population/error_head`, `…_tail`   of the d most frequent inputs, and of the rest, if there are more; they add up
    `population/error/constant`, `population/loss/constant`   of the best answer that ignores the input
    `by_frequency/margin_slope`, `…_correlation`   of margins on ln p(z), each input counted once, if frequencies differ
    """

    config: PopulationProbeConfig

    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Ask for every input; the batch is not used."""
        assert isinstance(task, AssociationTask)
        found = population(model, task)
        measured = [*_errors(found, task, model), *_by_frequency(found)]
        wrong = np.flatnonzero(found.wrong)
        first = wrong[np.argsort(-found.frequencies[wrong], kind="stable")][: self.config.failures]
        targets = task.targets.tolist()
        names = [
            f"{task.token_names[z]} → {task.output_names[found.answers[z]]}, should be {task.output_names[targets[z]]}"
            for z in first.tolist()
        ]
        finite = bool(np.isfinite(found.margins).all())
        return ProbeResult(measured, {measured[0].flat: names}, (lambda: _figure(found, task)) if finite else None)


def _errors(found: Population, task: AssociationTask, model: ToyTransformer) -> Iterator[Measurement]:
    """Error and loss, the parts of the error, and what a constant answer reaches."""
    M = len(task.output_names)
    guess, fit = 1 - 1 / M, None
    stores = [holder for holder in task.holders(model) if holder.head is None]
    if len(stores) == 1:  # how many pairs fit into it; any number if there is no rival
        limits = stores[0].limits or matrix_limits(stores[0].association, stores[0].rank)
        fit = None if limits is None or not math.isfinite(limits.at_values) else int(limits.at_values)

    def of_error(some: Bool[np.ndarray, "input"], part: str | None = None) -> Measurement:
        p = found.frequencies
        beyond = None if fit is None else guess * float(p[some & ~found.head(fit)].sum())
        chance = guess * float(p[some].sum())
        return POPULATION.measurement(
            found.error_of(some), ideal=0.0, chance=chance, theory=beyond, quantity="error", part=part
        )

    head = found.head(model.config.d_model)
    yield of_error(np.ones_like(head))
    if not head.all():
        yield of_error(head, "head")
        yield of_error(~head, "tail")
    yield POPULATION.measurement(found.loss, ideal=0.0, chance=math.log(M), quantity="loss")
    constant = task.constant_answer()
    yield POPULATION.measurement(1 - constant["accuracy"], quantity="error", heuristic="constant")
    yield POPULATION.measurement(constant["loss"], quantity="loss", heuristic="constant")


def _by_frequency(found: Population) -> Iterator[Measurement]:
    """The line that fits the margins best, as a function of ln p; nothing if all inputs are equally frequent."""
    x, y = np.log(found.frequencies), found.margins
    x = x - x.mean()
    if not (np.isfinite(y).all() and float(np.abs(x).max()) > 1e-9):
        return
    y = y - y.mean()
    yield BY_FREQUENCY.measurement(float(x @ y / (x @ x)), "margin_slope")
    spread = math.sqrt(float(y @ y))
    if spread > 0:
        yield BY_FREQUENCY.measurement(
            float(x @ y / (math.sqrt(float(x @ x)) * spread)), "margin_correlation", chance=0.0
        )


def _figure(found: Population, task: AssociationTask) -> object:
    """Every input as a dot, right or wrong; a few that are wrong by name."""
    import plotly.graph_objects as go

    from toytf.figures import COLOURS, LONGEST_NAME, LONGEST_TICK, empty_figure, literal, styled

    shown = np.argsort(-found.frequencies, kind="stable")
    if len(shown) > SHOWN:  # the frequent ones and, evenly on a logarithmic axis of ranks, some of the others
        shown = shown[np.unique(np.geomspace(1, len(shown), SHOWN).astype(int)) - 1]
    targets = task.targets.tolist()
    size = 8 if len(shown) <= FEW else 5
    figure = empty_figure()
    for label, colour, wrong in (("right", COLOURS[0], False), ("wrong", COLOURS[1], True)):
        some = shown[found.wrong[shown] == wrong].tolist()
        pairs = [(task.token_names[z], task.output_names[targets[z]]) for z in some]
        named = wrong and len(some) <= NAMED
        dots = go.Scatter(
            x=found.frequencies[some], y=found.margins[some],
            name=f"{label}: {int((found.wrong == wrong).sum()):,} of {len(found.wrong):,}",
            mode="markers+text" if named else "markers", textposition="bottom center",
            text=[literal(name, LONGEST_TICK) for name, _ in pairs] if named else None,
            marker={"color": colour, "size": size, "opacity": 0.8},
            customdata=[" → ".join(literal(name, LONGEST_NAME) for name in pair) for pair in pairs],
            hovertemplate="%{customdata}: frequency %{x:.3g}, margin %{y:.3g}<extra></extra>",
        )  # fmt: skip
        figure.add_trace(dots)
    figure.add_hline(y=0, line={"color": "black", "width": 1, "dash": "dash"})
    figure.update_xaxes(type="log", exponentformat="power", dtick=1)
    figure.update_yaxes(title="margin over the best rival (logits)")
    return styled(figure, "Margin of every input, and how often it comes", x="frequency of the input, p(z)")
