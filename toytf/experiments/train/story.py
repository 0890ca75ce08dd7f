"""What a training says at its end: is the task solved, and in which order did that come?

The verdict is about the accuracy at the task's goal, by how far it has come from chance to the ideal:

    progress = (accuracy − chance) / (ideal − chance)      solved ≥ 0.95 > partly learned ≥ 0.5 > not learned
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from toytf.measurement import Quantity, flat, reference_name
from toytf.report.story import against, amount, counted, listed, percent
from toytf.runs.summary import ONSET_ABOVE_CHANCE, moments
from toytf.task import EVAL

if TYPE_CHECKING:
    from toytf.runs import TrainedRun

SOLVED, PARTLY = 0.95, 0.5


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
    yield verdict(seeds, summary, _accuracy(task.goal), what)
    for name in config.evaluate_on:
        metric = _accuracy(task.goal, name)
        if metric in summary:
            right = f"{amount(summary, metric, percent)} are right{against(summary, metric, percent)}"
            yield f"Evaluated on {name}, {right}."
    if last:
        yield from _order(run)
    if "all" in task.config.roles and config.train.loss != "all" and config.train.steps:
        yield (
            f"The loss was taken only on {task.role_phrase(config.train.loss)} (train.loss = {config.train.loss}): "
            "other predictions are not trained."
        )


def _accuracy(role: str, on: str = "") -> str:
    at = {"role": role, "quantity": "accuracy"}
    return flat(Quantity(EVAL, at={"on": on, **at} if on else at))


def verdict(seeds: pd.DataFrame, summary: Mapping[str, float], metric: str, what: str) -> str:
    """The verdict in each seed, and the accuracy: `Solved: 98.4 % of the facts are right (ideal 100 %, chance 1.5 %).`

    seeds: the last values, one row a seed; what: what the accuracy is taken over, such as `facts`.
    """
    if metric not in summary:
        return f"No verdict: there were no {what} in the evaluation."
    said = f"{amount(summary, metric, percent)} of the {what} are right{against(summary, metric, percent)}"
    levels = [reference_name(kind, metric) for kind in ("ideal", "chance")]
    if not all(level in seeds for level in levels):
        return f"{said[0].upper()}{said[1:]}. The task names no ideal to compare with."
    ideal, chance = (seeds[level] for level in levels)
    progress = ((seeds[metric] - chance) / (ideal - chance)).tolist()
    return f"{verdicts(progress)}: {said}."


def verdicts(progress: Sequence[float]) -> str:
    """`Solved`, `Solved in all 3 seeds`, or how many seeds came how far."""
    words = [learned(part) for part in progress]
    kinds = {word: words.count(word) for word in ("solved", "partly learned", "not learned") if word in words}
    if len(words) == 1:
        return words[0].capitalize()
    if len(kinds) == 1:
        return f"{words[0].capitalize()} in all {len(words)} seeds"
    return listed([f"{word} in {n}" for word, n in kinds.items()]).capitalize() + f" of {len(words)} seeds"


def learned(progress: float) -> str:
    """The word for how much of the way from chance to the ideal was made."""
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
    for timed, words in {
        "onset": f"Recall rose {ONSET_ABOVE_CHANCE:g} above chance",
        "halfway": "Accuracy made half of its way to the ideal",
    }.items():
        found = _moments(run, timed)
        came = [moment for moment in found if moment.step is not None]
        never = [moment.name for moment in found if moment.step is None]
        if len(came) > 1:
            every = run.config.train.evaluation.every
            yield f"{words} in this order: {in_order(came, every, len(run.seeds))} (evaluated every {every} steps)."
        elif came:
            yield f"{words} in {came[0].name} {_when(came, len(run.seeds))}."
        if never:
            yield f"{words} never in {listed(never)}."
        if found:
            return


def in_order(moments: Sequence[Moment], every: int, n_seeds: int) -> str:
    """`W_OV2 and W_KQ2 by step 10, W_KQ1 by step 70`: less than an evaluation apart, they came together."""
    together: list[list[Moment]] = []
    for moment in sorted(moments, key=lambda one: one.step or 0.0):
        if together and (moment.step or 0.0) - (together[-1][0].step or 0.0) < every:
            together[-1].append(moment)
        else:
            together.append([moment])
    return ", ".join(f"{listed([one.name for one in tie])} {_when(tie, n_seeds)}" for tie in together)


def _when(tie: Sequence[Moment], n_seeds: int = 1) -> str:
    steps = list(dict.fromkeys(f"{one.step:.0f}" for one in tie))
    missing = max(one.missing for one in tie)
    seen = f" (in {n_seeds - missing} of {counted(n_seeds, 'seed')})" if missing else ""
    return f"by {'step' if len(steps) == 1 else 'steps'} {listed(steps)}{seen}"


def _moments(run: "TrainedRun", timed: str) -> list[Moment]:
    """Of the task's solution, if it names one: what was measured of each memory; of accuracies, those of headlines."""
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
        came = seeds[steps[name]].dropna() if steps[name] in seeds else pd.Series(dtype=float)
        found.append(
            Moment(about.label, float(came.mean()) if len(came) else None, len(seeds) - len(came))
        )  # fmt: skip
    return found


def _is_headline(about: Quantity) -> bool:
    headline = about.group.headline
    return headline is None or any(about.label == row.label for row in headline)
