"""Every moment of a run belongs to one part."""

import json
import time
from pathlib import Path

import pytest

import toytf
from toytf.timing import PARTS, spent_on, taken, timed, told


def test_parts_within_parts_are_not_counted_twice() -> None:
    began = time.perf_counter()
    with timed(), spent_on("evaluation"):
        time.sleep(0.02)
        with spent_on("probes"):
            time.sleep(0.03)
        time.sleep(0.01)
        seconds = taken()
    whole = time.perf_counter() - began
    assert seconds["probes"] >= 0.03
    assert seconds["evaluation"] >= 0.03
    assert sum(seconds.values()) == pytest.approx(whole, abs=0.005)


def test_what_was_taken_is_not_taken_again() -> None:
    with timed(began=time.perf_counter() - 5):
        assert taken()["start"] == pytest.approx(5, abs=0.1)
        assert taken()["start"] < 1


def test_outside_of_a_run_nothing_is_timed() -> None:
    with spent_on("probes"):
        assert taken() == {}


def test_a_line_tells_the_longest_part_first() -> None:
    assert told({"start": 1.96, "steps": 7.2, "wandb": 0.01}) == "9.2 s: training steps 7.2, start-up 2.0"
    assert told({}) == told({"capacity/optimum_d64": 3.0}) == ""


def test_a_training_writes_where_its_seconds_went(tiny_run: toytf.Run) -> None:
    timing = json.loads((tiny_run.directory / "timing.json").read_bytes())
    assert [*timing] == [part for part in PARTS if part != "wandb"]  # it is off there
    assert all(seconds > 0 for seconds in timing.values())


def test_parts_of_a_run_that_was_resumed_sum_up(tmp_path: Path) -> None:
    run = toytf.Run(tmp_path)
    run.add_seconds({"steps": 1.5, "page": 1.0})
    run.add_seconds({"steps": 2.0})
    assert run.timing == {"steps": 3.5, "page": 1.0}
