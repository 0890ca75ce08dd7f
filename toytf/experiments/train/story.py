"""What a training says at its end: is the task solved, and in which order did that come?

The verdict is about the accuracy at the task's goal, by how far it has come from what is had for nothing, a guess or
the best trivial heuristic, to the ideal:

    progress = (accuracy − trivial) / (ideal − trivial)      solved ≥ 0.95 > partly learned ≥ 0.5 > not learned

There is no verdict where trivial is as good as ideal.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from toytf.measurement import Quantity, flat, reference_name
from toytf.report.story import against, amount, counted, listed, percent
from toytf.runs.summary import ONSET_ABOVE_CHANCE, moments
from toytf.task import EVAL, FLOOR

if TYPE_CHECKING:
    from toytf.runs import TrainedRun

SOLVED, PARTLY = 0.95, 0.5
NO_ROOM = 0.05
"""Where the ideal is not even this much above a trivial heuristic, an accuracy says nothing."""


def training_findings(run: "TrainedRun") -> Iterator[str]:
    """How it began, the verdict, the same on what else it was evaluated on, the order of learning, and the loss."""
    config, task, seeds = run.config, run.task, run.seeds
    last = int(run.history["step"].max())
    if last < config.train.steps:
        yield f"The run has not ended: this is step {last} of {config.train.steps}."
    elif config.train.steps == 0:
        ideal = config.model.init == "ideal"
        yield f"Nothing was trained: the model is {'the ideal construction' if ideal else 'as it was initialised'}."
    summary, what = run.summary, task.role_phrase(task.goal)
    said = verdict(seeds, summary, _accuracy(task.goal), what, _heuristics(run))
    yield said if config.train.steps else said.replace(" learned", " solved")
    for name in config.evaluate_on:
        metric = _accuracy(task.goal, name)
        if metric in summary:
            right = f"{amount(summary, metric, percent)} are right{against(summary, metric, percent)}"
            yield f"Evaluated on {name}, {right}."
    if last:
        yield from _order(run)
    if "all" in task.config.roles and config.train.loss != "all" and config.train.steps:
        yield (
            f"The loss was computed only on {task.role_phrase(config.train.loss)} (train.loss = {config.train.loss}): "
            "other predictions are not trained, and may be worse than chance."
        )


def _accuracy(role: str, on: str = "") -> str:
    at = {"role": role, "quantity": "accuracy"}
    return flat(Quantity(EVAL, at={"on": on, **at} if on else at))


def _heuristics(run: "TrainedRun") -> list[str]:
    """The metrics that say how accurate trivial heuristics are at the task's goal."""
    at = {"role": run.task.goal, "quantity": "accuracy"}.items()
    return [
        name
        for name, about in run.columns.items()
        if about.group.name == FLOOR.name and not about.on and at <= about.at.items()
    ]


def verdict(
    seeds: pd.DataFrame, summary: Mapping[str, float], metric: str, what: str, heuristics: Sequence[str] = ()
) -> str:
    """The verdict in each seed, and the accuracy: `Solved: 98.4 % of the facts are right (ideal 100 %, chance 1.5 %).`

    seeds: the last values, one row a seed; what: what the accuracy is taken over, such as `facts`; heuristics: the
    metrics that say what trivial ones reach.
    """
    if metric not in summary:
        return f"No verdict: there were no {what} in the evaluation."
    best = max((summary[floor] for floor in heuristics if floor in summary), default=None)
    ideal, chance = (summary.get(reference_name(kind, metric)) for kind in ("ideal", "chance"))
    levels = {"ideal": ideal, "best heuristic": best, "chance": chance}
    shown = ", ".join(f"{name} {percent(level)}" for name, level in levels.items() if level is not None)
    said = f"{amount(summary, metric, percent)} of the {what} are right" + (f" ({shown})" if shown else "")
    trivial = max((level for level in (chance, best) if level is not None), default=None)
    if ideal is None or trivial is None:
        return f"No verdict, as the task does not say what is ideal: {said}."
    if ideal - trivial < NO_ROOM:
        return f"No verdict, as a trivial heuristic is right as often as the ideal: {said}."
    return f"{verdicts([(value - trivial) / (ideal - trivial) for value in seeds[metric].tolist()])}: {said}."


def verdicts(progress: Sequence[float]) -> str:
    """`Solved`, `Solved in all 3 seeds`, or how many seeds came how far."""
    words = [learned(part) for part in progress]
    kinds = {word: words.count(word) for word in ("solved", "partly learned", "not learned") if word in words}
    n = len(words)
    if n == 1:
        return words[0].capitalize()
    if len(kinds) == 1:
        every = f"any of {n} seeds" if words[0] == "not learned" else f"all {n} seeds" if n > 2 else "both seeds"
        return f"{words[0].capitalize()} in {every}"
    return f"Of {n} seeds, " + listed([f"{count} {word}" for word, count in kinds.items()])


def learned(progress: float) -> str:
    """The word for how much of the way to the ideal was made."""
    return "solved" if progress >= SOLVED else "partly learned" if progress >= PARTLY else "not learned"


# The order of learning


@dataclass(frozen=True)
class Moment:
    """When something came: the mean step of the seeds in which it did, and how many did not see it."""

    name: str
    step: float | None
    missing: int = 0


def _order(run: "TrainedRun") -> Iterator[str]:
    """In which order memories left chance, or if none was measured, accuracies came halfway to the ideal."""
    every, n_seeds = run.config.train.evaluation.every, len(run.seeds)
    means = f", means over {n_seeds} seeds" if n_seeds > 1 else ""
    for timed, (came_there, never_came) in {
        "onset": (
            f"Recall first exceeded chance by {ONSET_ABOVE_CHANCE:g}",
            f"Recall did not exceed chance by {ONSET_ABOVE_CHANCE:g}",
        ),
        "halfway": ("Accuracy was halfway to the ideal", "Accuracy did not come halfway to the ideal"),
    }.items():
        found = _moments(run, timed)
        came = [moment for moment in found if moment.step is not None]
        never = [moment.name for moment in found if moment.step is None]
        if came:
            order = in_order(came, every, n_seeds)
            others = f", not in {listed(never, 'or')}" if never else ""
            yield f"{came_there} {order}{others} (evaluated every {every} steps{means})."
        elif never:
            yield f"{never_came} in {listed(never, 'or')}."
        if found:
            return


def in_order(moments: Sequence[Moment], every: int, n_seeds: int) -> str:
    """`in this order: W_OV2 and W_KQ2 by step 10, W_KQ1 by step 70`; what is less than an evaluation apart is a tie."""
    together: list[list[Moment]] = []
    for moment in sorted(moments, key=lambda one: one.step or 0.0):
        if together and (moment.step or 0.0) - (together[-1][0].step or 0.0) < every:
            together[-1].append(moment)
        else:
            together.append([moment])
    said = ", ".join(f"{listed([one.name for one in tie])} {_when(tie, n_seeds)}" for tie in together)
    return f"in this order: {said}" if len(together) > 1 else f"in {said}"


def _when(tie: Sequence[Moment], n_seeds: int = 1) -> str:
    steps = list(dict.fromkeys(f"{one.step:.0f}" for one in tie))
    missing = max(one.missing for one in tie)
    seen = f" (in {n_seeds - missing} of {counted(n_seeds, 'seed')})" if missing else ""
    return f"by {'step' if len(steps) == 1 else 'steps'} {listed(steps)}{seen}"


def _moments(run: "TrainedRun", timed: str) -> list[Moment]:
    """Of the task's solution, if it names one: what was measured of each memory; of accuracies, those of headlines.

    Not of a memory that a guess recalls, such as one with a single pair.
    """
    seeds, columns, solution = run.seeds, run.columns, run.task.solution
    own = {
        name: about for name, about in columns.items()
        if about.group.timed == timed and not about.on and not about.is_variant and _is_headline(about)
    }  # fmt: skip
    if timed == "onset":
        fewest = min((len(about.at) for about in own.values()), default=0)  # other views of a memory have more factors
        own = {name: about for name, about in own.items() if len(about.at) == fewest}
        if any(about.label in solution for about in own.values()):
            own = {name: about for name, about in own.items() if about.label in solution}
    steps: Mapping[str, str] = {name: moment for moment, (name, _) in moments(columns).items()}
    found = []
    for name, about in own.items():
        if timed == "onset" and run.summary.get(reference_name("chance", name), 0.0) + ONSET_ABOVE_CHANCE >= 1:
            continue
        came = seeds[steps[name]].dropna() if steps[name] in seeds else pd.Series(dtype=float)
        found.append(
            Moment(about.label, float(came.mean()) if len(came) else None, len(seeds) - len(came))
        )  # fmt: skip
    return found


def _is_headline(about: Quantity) -> bool:
    headline = about.group.headline
    return headline is None or any(about.label == row.label for row in headline)
