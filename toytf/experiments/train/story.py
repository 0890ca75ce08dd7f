"""What a training says at its end: is the task solved, and in which order did that come?

The verdict is about the accuracy at the task's goal, by how far it has come from what is had for nothing, a guess or
the best trivial heuristic, to the ideal:

    progress = (accuracy − trivial) / (ideal − trivial)      solved ≥ 0.95 > partly learned ≥ 0.1 > not learned

There is no verdict where trivial is as good as ideal.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pandas as pd

from toytf.measurement import Quantity, flat, reference_name
from toytf.report.headlines import headline_of
from toytf.report.story import against, amount, percent
from toytf.runs.summary import ONSET_ABOVE_CHANCE, moments
from toytf.task import EVAL, FLOOR
from toytf.words import listed

if TYPE_CHECKING:
    from toytf.runs import TrainedRun

SOLVED, PARTLY = 0.95, 0.1
LEARNED = ("solved", "partly learned", "not learned")
UNTRAINED = ("solved", "partly solved", "not solved")
"""The words for a model that was not trained."""
RECENT, RISE = 0.2, 0.03
"""An accuracy that rose by so much in the last fifth of the steps was still rising."""
WHOLE = 0.995
"""From this recall on, no memory is called the weakest."""
NO_ROOM = 0.05
"""Where the ideal is not even this much above a trivial heuristic, an accuracy says nothing."""


def training_findings(run: "TrainedRun") -> Iterator[str]:
    """How it began, the verdict, the same on what else it was evaluated on, the order of learning, and the loss."""
    config, task, summary = run.config, run.task, run.summary
    steps = run.history.groupby("seed")["step"].max().reindex(config.seeds)
    ideal = config.model.init == "ideal"
    if (steps != config.train.steps).any():
        yield f"The run has not ended: {reached(steps, config.train.steps)}."
    elif config.train.steps == 0:
        yield f"Nothing was trained: the model is {'the ideal construction' if ideal else 'as it was initialised'}."
    what, words = task.role_phrase(task.goal), LEARNED if config.train.steps else UNTRAINED
    goal = _accuracy(task.goal)
    at_goal = {"role": task.goal, "quantity": "accuracy"}.items()
    heuristics = [
        name
        for name, about in run.columns.items()
        if about.group.name == FLOOR.name and not about.on and at_goal <= about.at.items()
    ]
    reached_it = verdict(run.seeds, summary, goal, what, heuristics, words=words)
    yield " ".join([reached_it, *still_rising(run.history, summary, goal)])
    for name in config.evaluate_on:
        metric = _accuracy(task.goal, name)
        if metric in summary:
            right = f"{amount(summary, metric, percent)} are right{against(summary, metric, percent)}"
            yield f"Evaluated on {name}, {right}."
    if steps.max() > 0 and not ideal:  # what begins at the ideal is not learned
        yield from _order(run)
        yield from weakest(run)
    if "all" in task.config.roles and config.train.loss != "all" and config.train.steps:
        yield f"Trained only on {task.role_phrase(config.train.loss)} (train.loss): others may be worse than chance."


def reached(steps: pd.Series, last: int) -> str:
    """How far the seeds are, by their last steps: `1 of 3 seeds is done, seed 1 is at step 2 of 4`."""
    if len(steps) == 1:
        return f"this is step {steps.iloc[0]:.0f} of {last}"
    done = int((steps == last).sum())
    on_the_way = [f"seed {seed} is at step {step:.0f} of {last}" for seed, step in steps[steps < last].items()]
    return ", ".join([f"{done} of {len(steps)} seeds {'is' if done == 1 else 'are'} done", *on_the_way])


def still_rising(history: pd.DataFrame, summary: Mapping[str, float], metric: str) -> Iterator[str]:
    """A sentence if an accuracy that is not ideal yet rose until the end: steps may be what was missing."""
    ideal = summary.get(reference_name("ideal", metric))
    mean = history.groupby("step")[metric].mean().dropna() if metric in history else pd.Series(dtype=float)
    before = mean[mean.index <= (1 - RECENT) * mean.index.max()] if len(mean) else mean
    if ideal is None or not len(before) or mean.iloc[-1] > SOLVED * ideal or mean.iloc[-1] - before.iloc[-1] < RISE:
        return
    was, now = (f"{percent(part.iloc[-1])} at step {part.index[-1]}" for part in (before, mean))
    yield f"Accuracy was still rising: {was}, {now}. More steps may help."


def _accuracy(role: str, on: str = "") -> str:
    at = {"role": role, "quantity": "accuracy"}
    return flat(Quantity(EVAL, at={"on": on, **at} if on else at))


def verdict(
    seeds: pd.DataFrame,
    summary: Mapping[str, float],
    metric: str,
    what: str,
    heuristics: Sequence[str] = (),
    *,
    words: Sequence[str] = LEARNED,
) -> str:
    """The verdict in each seed, and the accuracy: `Solved: 98.4 % of the facts are right (ideal 100 %, chance 1.5 %).`

    seeds: the last values, one row a seed; what: what the accuracy is taken over, such as `facts`; heuristics: the
    metrics that say what trivial ones reach; words: for all, half, and less of the way.
    """
    if metric not in summary:
        n, lacking = len(seeds), int(seeds.reindex(columns=[metric])[metric].isna().sum())
        if lacking < n:
            return f"No verdict: {lacking} of {n} seeds had no {what} in the evaluation."
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
    progress = [(value - trivial) / (ideal - trivial) for value in seeds[metric].tolist()]
    return f"{verdicts(progress, words)}: {said}."


def verdicts(progress: Sequence[float], words: Sequence[str] = LEARNED) -> str:
    """`Solved`, `Solved in all 3 seeds`, or how many seeds came how far."""
    found = [learned(part, words) for part in progress]
    kinds = {word: found.count(word) for word in words if word in found}
    n = len(found)
    if n == 1:
        return found[0].capitalize()
    if len(kinds) == 1:
        every = f"any of {n} seeds" if found[0] == words[-1] else f"all {n} seeds" if n > 2 else "both seeds"
        return f"{found[0].capitalize()} in {every}"
    return f"Of {n} seeds, " + listed([f"{count} {word}" for word, count in kinds.items()])


def learned(progress: float, words: Sequence[str] = LEARNED) -> str:
    """The word for how much of the way to the ideal was made."""
    return words[0 if progress >= SOLVED else 1 if progress >= PARTLY else 2]


# The order of learning


@dataclass(frozen=True)
class Moment:
    """When something came: the mean step of the seeds in which it did, and how many did not see it."""

    name: str
    step: float | None
    missing: int = 0
    metric: str = ""


def _order(run: "TrainedRun") -> Iterator[str]:
    """In which order memories left chance for good, or if none was measured, accuracies came halfway to the ideal."""
    every, n_seeds = run.config.train.evaluation.every, len(run.seeds)
    evaluated = "at every step" if every == 1 else f"every {every} steps"
    means = f", means over {n_seeds} seeds" if n_seeds > 1 else ""
    for timed, (came_there, never_came, when) in {
        "onset": (
            f"Recall stayed more than {ONSET_ABOVE_CHANCE:g} above chance",
            f"Recall did not stay more than {ONSET_ABOVE_CHANCE:g} above chance",
            "from {} on",
        ),
        "halfway": ("Accuracy was halfway to the ideal", "Accuracy did not come halfway to the ideal", "by {}"),
    }.items():
        found = _moments(run, timed)
        never = [moment.name for moment in found if moment.step is None]
        if len(never) < len(found):
            others = f"; not in {listed(never, 'or')}" if never else ""
            yield f"{came_there} {in_order(found, every, n_seeds, when)}{others} (evaluated {evaluated}{means})."
            ties = _ties(weighted := _weighted(run, found), every)
            if ties and [set(tie) for tie in ties] != [set(tie) for tie in _ties(found, every)]:
                yield f"With each pair weighted by how often it is needed, {in_order(weighted, every, n_seeds, when)}."
        elif never:
            yield f"{never_came} in {listed(never, 'or')}."
        if found:
            return


def in_order(moments: Sequence[Moment], every: int, n_seeds: int, when: str) -> str:
    """`in this order: W_OV2 and W_KQ2 by step 10, W_KQ1 by step 70`; what is less than an evaluation apart is a tie.

    What came only in some seeds has no place in the order, and is named after it. when: such as `by {}`.
    """
    ties = _ties(moments, every)
    said = ", ".join(f"{listed([*tie])} {_when([*tie.values()], when)}" for tie in ties)
    some = [
        f"{moment.name} {_when([moment.step], when)} (in {n_seeds - moment.missing} of {n_seeds})"
        for moment in moments
        if moment.step is not None and moment.missing
    ]
    parts = [f"in this order: {said}" if len(ties) > 1 else f"in {said}"] if ties else []
    return "; ".join([*parts, *([f"only in some seeds: {', '.join(some)}"] if some else [])])


def _ties(moments: Sequence[Moment], every: int) -> list[dict[str, float]]:
    """What came in all seeds and when, in order."""
    everywhere = {moment.name: moment.step for moment in moments if moment.step is not None and not moment.missing}
    ties: list[dict[str, float]] = []
    for name, step in sorted(everywhere.items(), key=lambda one: one[1]):
        if ties and step - min(ties[-1].values()) < every:
            ties[-1][name] = step
        else:
            ties.append({name: step})
    return ties


def _when(steps: Sequence[float], when: str) -> str:
    said = list(dict.fromkeys(f"{step:.0f}" for step in steps))
    return when.format(f"{'step' if len(said) == 1 else 'steps'} {listed(said)}")


def _moments(run: "TrainedRun", timed: str) -> list[Moment]:
    """Of the task's solution, if it names one: what was measured of each memory; of accuracies, those of headlines.

    Not of a memory that a guess recalls, such as one with a single pair.
    """
    columns, summary, solution = run.columns, run.summary, run.task.solution
    own = {
        name: about for name, about in columns.items()
        if about.group.timed == timed and not about.on and not about.is_variant and headline_of(about) is not None
    }  # fmt: skip
    if timed == "onset":
        fewest = min((len(about.at) for about in own.values()), default=0)  # other views of a memory have more factors
        own = {name: about for name, about in own.items() if len(about.at) == fewest}
        if any(about.label in solution for about in own.values()):
            own = {name: about for name, about in own.items() if about.label in solution}
    found = []
    for name, about in own.items():
        if timed == "onset" and summary.get(reference_name("chance", name), 0.0) + ONSET_ABOVE_CHANCE >= 1:
            continue
        found.append(_moment(run, about.label, name))
    return found


def _moment(run: "TrainedRun", name: str, metric: str) -> Moment:
    steps = {about: moment for moment, (about, _) in moments(run.columns).items()}
    came = run.seeds[steps[metric]].dropna() if steps.get(metric) in run.seeds else pd.Series(dtype=float)
    return Moment(name, float(came.mean()) if len(came) else None, len(run.seeds) - len(came), metric)


def _weighted(run: "TrainedRun", found: Sequence[Moment]) -> list[Moment]:
    """The same onsets with each pair weighted by how often it is needed; none unless every memory has one."""
    weighted = []
    for one in found:
        about = run.columns[one.metric]
        weighted.append(_moment(run, one.name, flat(replace(about, at={**about.at, "weighted": True}))))
    return [] if any(one.step is None for one in weighted) else weighted


def weakest(run: "TrainedRun") -> Iterator[str]:
    """The memory with the smallest recall, if that is not whole, and how far its pairs are those that are needed."""
    summary = run.summary
    metric = min(
        (moment.metric for moment in _moments(run, "onset")), key=lambda name: summary.get(name, 1.0), default=""
    )
    if summary.get(metric, 1.0) >= WHOLE:
        return
    about = run.columns[metric]
    weighted = flat(replace(about, at={**about.at, "weighted": True}))
    needed = f", {percent(summary[weighted])} by how often each is needed" if weighted in summary else ""
    yield f"Weakest memory: {about.label} recalls {percent(summary[metric])} of its pairs{needed}."


def lasting_onsets(run: "TrainedRun") -> dict[str, float]:
    """By metric, the mean step from which recall stays above chance; of what the story tells about, in any seed."""
    if run.history.empty:
        return {}
    return {moment.metric: moment.step for moment in _moments(run, "onset") if moment.step is not None}
