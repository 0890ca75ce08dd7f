"""The end of a training: solved or not by a stated rule, and in which order memories came."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import toytf
from toytf.experiments.opened import story_of
from toytf.experiments.train.story import (
    UNTRAINED,
    Moment,
    in_order,
    learned,
    reached,
    still_rising,
    verdict,
    verdicts,
    weakest,
)
from toytf.measurement import Group, Headline, Measurement
from toytf.runs import Run

pytestmark = pytest.mark.repeats_runs

FEW: dict[str, Any] = {
    "task.seq_len": 32,
    "model.d_model": 32,
    "train.steps": 4,
    "train.batch_size": 8,
    "train.evaluation.every": 2,
    "train.evaluation.sequences": 64,
    "threads": 1,
    "logging.wandb": "off",
}


def said(accuracies: list[float], **levels: float) -> str:
    """The verdict on accuracies of facts, one a seed, beside an ideal, a chance value and a heuristic."""
    summary = {"eval/fact_accuracy": sum(accuracies) / len(accuracies)}
    summary |= {f"{kind}/eval/fact_accuracy": level for kind, level in levels.items() if kind != "heuristic"}
    if "heuristic" in levels:
        summary["floor/repeat"] = levels["heuristic"]
    seeds = pd.DataFrame({"eval/fact_accuracy": accuracies})
    return verdict(seeds, summary, "eval/fact_accuracy", "facts", ["floor/repeat"])


@pytest.mark.parametrize(
    ("progress", "word"),
    [(1.02, "solved"), (0.95, "solved"), (0.949, "partly learned"), (0.1, "partly learned"), (0.099, "not learned")],
)
def test_solved_is_95_percent_of_the_way_and_partly_learned_a_tenth(progress: float, word: str) -> None:
    assert learned(progress) == word


def test_the_way_begins_at_a_guess() -> None:
    assert said([0.96], ideal=1.0, chance=0.2) == "Solved: 96.0 % of the facts are right (ideal 100 %, chance 20.0 %)."
    assert said([0.95], ideal=1.0, chance=0.2).startswith("Partly learned: ")


def test_the_way_begins_at_the_best_trivial_heuristic_where_there_is_one() -> None:
    levels = {"ideal": 1.0, "chance": 0.1, "heuristic": 0.5}
    assert said([0.54], **levels).startswith("Not learned: 54.0 % of the facts")
    assert said([0.56], **levels).startswith("Partly learned: ")
    assert "(ideal 100 %, best heuristic 50.0 %, chance 10.0 %)" in said([0.7], **levels)


def test_the_way_ends_at_the_ideal_even_if_that_is_far_from_all() -> None:
    assert said([0.6], ideal=0.62, chance=0.02).startswith("Solved: ")


def test_there_is_no_verdict_without_room_above_a_heuristic() -> None:
    assert said([0.5], ideal=0.5, chance=0.1, heuristic=0.49).startswith("No verdict, as a trivial heuristic is right")
    assert said([0.5]) == "No verdict, as the task does not say what is ideal: 50.0 % of the facts are right."
    missing = verdict(pd.DataFrame({"a": [1.0]}), {}, "eval/fact_accuracy", "facts")
    assert missing == "No verdict: there were no facts in the evaluation."
    some = verdict(pd.DataFrame({"eval/fact_accuracy": [1.0, None, 1.0]}), {}, "eval/fact_accuracy", "facts")
    assert some == "No verdict: 1 of 3 seeds had no facts in the evaluation."


def test_the_words_of_an_untrained_model_are_not_those_of_its_task() -> None:
    metric = "eval/fact_accuracy"
    summary = {metric: 0.0, f"ideal/{metric}": 1.0, f"chance/{metric}": 0.0}
    seeds = pd.DataFrame({metric: [0.0]})
    assert verdict(seeds, summary, metric, "facts learned", words=UNTRAINED).startswith(
        "Not solved: 0 % of the facts l"
    )


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        ([1.0, 0.99], "Solved in both seeds"),
        ([1.0, 0.99, 0.98], "Solved in all 3 seeds"),
        ([0.01, 0.02, 0.03], "Not learned in any of 3 seeds"),
        ([1.0, 0.6, 0.01, 0.99], "Of 4 seeds, 2 solved, 1 partly learned and 1 not learned"),
    ],
)
def test_several_seeds_are_counted(progress: list[float], words: str) -> None:
    assert verdicts(progress) == words


@pytest.mark.parametrize(
    ("accuracies", "sentence"),
    [
        ([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], ["Accuracy was still rising: 40.0 % at step 4, 50.0 % at step 5."]),
        ([0.0, 0.5, 0.5, 0.5, 0.5, 0.5], []),
        ([0.0, 0.1, 0.2, 0.3, 0.9, 1.0], []),
        ([0.5], []),
    ],
)
def test_an_accuracy_that_rose_until_the_end_has_a_sentence(accuracies: list[float], sentence: list[str]) -> None:
    metric = "eval/fact_accuracy"
    history = pd.DataFrame({"seed": 0, "step": range(len(accuracies)), metric: accuracies})
    found = [*still_rising(history, {f"ideal/{metric}": 1.0}, metric)]
    assert found == [f"{one} More steps may help." for one in sentence]
    assert [*still_rising(history, {}, metric)] == [*still_rising(history, {f"ideal/{metric}": 1.0}, "missing")] == []


@pytest.mark.parametrize(
    ("recalls", "told"),
    [
        ({"a": 0.5, "b": 0.25}, ["Weakest memory: b recalls 25.0 % of its pairs."]),
        (
            {"a": 0.5, "b": 1.0, "a_weighted": 0.875},
            ["Weakest memory: a recalls 50.0 % of its pairs, 87.5 % by how often each is needed."],
        ),
        ({"a": 1.0, "b": 1.0}, []),
    ],
)
def test_the_weakest_memory_is_named_unless_all_are_whole(recalls: dict[str, float], told: list[str]) -> None:
    found = [_recalled(label, value) for label, value in recalls.items()]
    names = [one.flat for one in found]
    history = pd.DataFrame(
        [{"seed": 0, "step": step, **dict.fromkeys(names, 0.0)} for step in (0, 1)]
        + [{"seed": 0, "step": 2, **{one.flat: one.value for one in found}}]
    )
    run: Any = SimpleNamespace(
        seeds=history.tail(1),
        columns={one.flat: one.quantity for one in found},
        summary={one.flat: one.value for one in found},
        history=history,
        task=SimpleNamespace(solution=()),
    )
    assert [*weakest(run)] == told


def _recalled(label: str, value: float) -> Measurement:
    memory = label.removesuffix("_weighted")
    group = Group("recall", "Recall", timed="onset", headline=(Headline("*", "recall of {memory}"),))
    return group.measurement(value, memory=memory, **({"weighted": True} if label != memory else {}))


def test_what_came_within_one_evaluation_came_together() -> None:
    moments = [Moment("W_KQ1", 70.0), Moment("W_OV2", 10.0), Moment("W_KQ2", 10.0)]
    assert in_order(moments, 10, 1, "by {}") == "in this order: W_OV2 and W_KQ2 by step 10, W_KQ1 by step 70"
    near = [Moment("W_OV2", 12.0), Moment("W_KQ2", 21.9), Moment("W_KQ1", 22.0)]
    assert in_order(near, 10, 5, "by {}") == "in this order: W_OV2 and W_KQ2 by steps 12 and 22, W_KQ1 by step 22"
    assert in_order(near, 20, 5, "from {} on") == "in W_OV2, W_KQ2 and W_KQ1 from steps 12 and 22 on"


def test_what_came_only_in_some_seeds_is_named_after_the_order() -> None:
    some = Moment("W_KQ1", 5.0, missing=2)
    assert in_order([some], 10, 5, "by {}") == "only in some seeds: W_KQ1 by step 5 (in 3 of 5)"
    moments = [some, Moment("W_OV2", 10.0), Moment("W_KQ2", 20.0), Moment("FF2", None, missing=5)]
    assert in_order(moments, 10, 5, "from {} on") == (
        "in this order: W_OV2 from step 10 on, W_KQ2 from step 20 on; "
        "only in some seeds: W_KQ1 from step 5 on (in 3 of 5)"
    )


def test_the_end_of_a_training_says_how_far_it_came(tmp_path: Path) -> None:
    run = toytf.run("configs/quickstart.yaml", {**FEW, "seeds": [0, 1]}, out=tmp_path / "run", page=False)
    first, *others = story_of(run).sentences
    assert first.startswith("Not learned in any of 2 seeds: ")
    assert "of the answers that the context determines are right (ideal 100 %, best heuristic " in first
    assert any(re.match("Recall (stayed|did not stay) more than 0.1 above chance in ", one) for one in others)
    assert others[-1].startswith("Trained only on answers that the context determines (train.loss): ")
    assert story_of(run).next_step.startswith(f"toytf probe {tmp_path / 'run'} ")


def test_nothing_was_trained_without_a_step(tmp_path: Path) -> None:
    ideal, random = (
        toytf.run(
            "configs/bigram/ideal.yaml",
            {**FEW, "train.steps": 0, "seeds": [0], **more},
            out=tmp_path / name,
            page=False,
        )
        for name, more in {
            "ideal": {"model.d_model": 512, "task.seq_len": 256, "train.evaluation.sequences": 32},
            "random": {"model.init": "random", "model.beta": {}},
        }.items()
    )
    assert story_of(ideal).sentences[0] == "Nothing was trained: the model is the ideal construction."
    assert story_of(ideal).sentences[1].startswith("Solved: ")
    assert story_of(random).sentences[0] == "Nothing was trained: the model is as it was initialised."
    assert story_of(random).sentences[1].startswith("Not solved: ")
    assert len(story_of(ideal).sentences) == 2  # no order of learning, no word about the loss


def test_a_run_on_the_way_says_where_it_is(tmp_path: Path) -> None:
    run = toytf.run("configs/quickstart.yaml", FEW, out=tmp_path / "run", page=False)
    lines = run.metrics_file.read_bytes().splitlines(keepends=True)
    early = tmp_path / "early"
    early.mkdir()
    for name in ("config.yaml", "columns.json"):
        (early / name).write_bytes((run.directory / name).read_bytes())
    (early / "metrics.jsonl").write_bytes(b"".join(lines[:2]))
    assert story_of(toytf.Run.open(early)).sentences[0] == "The run has not ended: this is step 2 of 4."


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ({0: 4}, "1 of 3 seeds is done"),
        ({0: 4, 1: 2}, "1 of 3 seeds is done, seed 1 is at step 2 of 4"),
        ({0: 2, 1: 2}, "0 of 3 seeds are done, seed 0 is at step 2 of 4, seed 1 is at step 2 of 4"),
    ],
)
def test_a_run_between_its_seeds_has_not_ended(steps: dict[int, int], says: str) -> None:
    assert reached(pd.Series(steps).reindex([0, 1, 2]), 4) == says


def test_a_training_that_lacks_a_seed_has_not_ended(tmp_path: Path) -> None:
    run = toytf.run("configs/quickstart.yaml", {**FEW, "seeds": [0, 1], "probes": []}, out=tmp_path / "run", page=False)
    early = tmp_path / "early"
    early.mkdir()
    for name in ("config.yaml", "columns.json"):
        (early / name).write_bytes((run.directory / name).read_bytes())
    lines = run.metrics_file.read_bytes().splitlines(keepends=True)
    (early / "metrics.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    first = story_of(toytf.Run.open(early)).sentences[0]
    assert first == "The run has not ended: 1 of 2 seeds is done."


def test_a_training_that_begins_at_the_ideal_has_no_order_of_learning(tmp_path: Path) -> None:
    changed = {**FEW, "model.init": "ideal", "model.beta": {}, "model.d_model": 64, "train.loss": "untrapped"}
    run = toytf.run("configs/bigram/ideal.yaml", {**changed, "seeds": [0]}, out=tmp_path / "run", page=False)
    assert not any("Recall" in sentence for sentence in story_of(run).sentences)
    loss = "Trained only on answers that the context determines, in sequences without a loop (a → e → a)"
    assert story_of(run).sentences[-1].startswith(loss)


def with_rows(run: Run, directory: Path, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> Run:
    """A run as if other rows had been measured."""
    directory.mkdir()
    for name in ("config.yaml", "columns.json"):
        (directory / name).write_bytes((run.directory / name).read_bytes())
    rows = [json.dumps(changed(json.loads(line))) for line in run.metrics_file.read_text().splitlines()]
    (directory / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows))
    return Run.open(directory)


def test_an_evaluation_at_every_step_is_said_so(tmp_path: Path) -> None:
    changed = {**FEW, "train.steps": 2, "train.evaluation.every": 1}
    run = toytf.run("configs/quickstart.yaml", changed, out=tmp_path / "run", page=False)
    learned = with_rows(run, tmp_path / "learned", lambda row: {**row, "recall/W_OV2": 0.9})
    (order,) = (one for one in story_of(learned).sentences if one.startswith("Recall stayed"))
    assert order == (
        "Recall stayed more than 0.1 above chance in W_OV2 from step 1 on; not in W_KQ1 or W_KQ2 "
        "(evaluated at every step)."
    )


@pytest.mark.parametrize(
    ("weighted", "said"),
    [
        ((1, 2, 3), " W_OV2 from step 1 on, W_KQ2 from step 2 on, W_KQ1 from step 3 on."),
        ((1, 3, 2), None),  # the same order
        ((1, 2, 9), None),  # W_KQ1 never comes
    ],
    ids=["other", "same", "never"],
)
def test_another_order_by_how_often_pairs_are_needed_is_said(
    weighted: tuple[int, int, int], said: str | None, tmp_path: Path
) -> None:
    changed = {**FEW, "task.triggers": "random", "train.steps": 3, "train.evaluation.every": 1, "seeds": [0]}
    run = toytf.run("configs/quickstart.yaml", changed, out=tmp_path / "run", page=False)
    came = {"W_OV2": 1, "W_KQ1": 2, "W_KQ2": 3}
    came |= dict(zip(("W_OV2_weighted", "W_KQ2_weighted", "W_KQ1_weighted"), weighted, strict=True))

    def measured(row: dict[str, Any]) -> dict[str, Any]:
        return row | {f"recall/{name}": float(row["step"] >= step) for name, step in came.items()}

    sentences = story_of(with_rows(run, tmp_path / "learned", measured)).sentences
    first, *others = [line for line in sentences if "in this order" in line or "weighted" in line]
    assert "W_OV2 from step 1 on, W_KQ1 from step 2 on, W_KQ2 from step 3 on" in first
    assert others == ([f"With each pair weighted by how often it is needed, in this order:{said}"] if said else [])


def test_accuracies_are_put_in_order_where_no_memory_is_measured(tmp_path: Path) -> None:
    sizes = {"task.n_subjects": 4, "task.n_relations": 4, "task.n_answers": 2, "model.d_model": 16}
    steps = {"train.steps": 60, "train.evaluation.every": 5, "train.batch_size": 256, "train.evaluation.sequences": 256}
    changed = {**sizes, **steps, "probes": ["facts"], "threads": 1, "logging.wandb": "off"}
    run = toytf.run("configs/factual/quick.yaml", changed, out=tmp_path / "run", page=False)
    found = run.summary
    came = {name: found[f"halfway/eval/{name}_accuracy"] for name in ("relation", "fact")}
    assert came["relation"] <= came["fact"]
    (sentence,) = (line for line in story_of(run).sentences if line.startswith("Accuracy was halfway"))
    assert sentence.index("relation_accuracy") < sentence.index("fact_accuracy")
    assert f"by step {came['fact']:.0f} (evaluated every 5 steps)." in sentence


def test_what_a_run_was_evaluated_on_besides_has_a_sentence_of_its_own(tmp_path: Path) -> None:
    run = toytf.run("configs/bigram/noisy.yaml", {**FEW, "seeds": [0], "probes": []}, out=tmp_path / "run", page=False)
    assert story_of(run).sentences[0].startswith("No verdict, as a trivial heuristic is right as often as the ideal: ")
    assert story_of(run).sentences[1].startswith("Evaluated on clean, ")
