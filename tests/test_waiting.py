"""Threads that wait sleep, and how many there are depends on nothing but the config."""

import os
import subprocess
import sys

import pytest

from toytf.config.plugins import load_config
from toytf.waiting import OWN, SETTINGS

pytestmark = pytest.mark.heavy


SHOWN = "import os, toytf, torch; print(*(os.environ.get(name) for name in {names!r}))"


def settings_with(**given: str) -> list[str]:
    """What a process that was started with these settings has when torch is loaded."""
    clean = {name: value for name, value in os.environ.items() if name not in OWN}
    ended = subprocess.run(
        [sys.executable, "-c", SHOWN.format(names=OWN)], env=clean | given, capture_output=True, text=True, check=True
    )
    return ended.stdout.split()


def test_threads_sleep_while_they_wait() -> None:
    assert settings_with() == ["None", *SETTINGS.values()]


def test_a_setting_of_ones_own_is_kept() -> None:
    assert settings_with(OMP_WAIT_POLICY="ACTIVE") == ["ACTIVE", "None", "None"]
    assert settings_with(GOMP_SPINCOUNT="7") == ["None", "7", "None"]


@pytest.mark.parametrize(
    ("config", "threads"),
    [("quickstart", 1), ("factual/quick", 1), ("bigram/birth", 2), ("capacity/linear", 2), ("bigram/three_steps", 1)],
)
def test_large_experiments_have_two_threads(config: str, threads: int) -> None:
    loaded = load_config(config)
    assert loaded.threads == "auto"  # type: ignore[attr-defined]
    assert loaded.resolved().threads == threads  # type: ignore[attr-defined]


def test_threads_that_are_asked_for_are_kept() -> None:
    assert load_config("bigram/birth", {"threads": 3}).resolved().threads == 3  # type: ignore[attr-defined]


def test_a_run_that_goes_on_keeps_its_threads() -> None:
    """The last bits depend on it."""
    before = load_config("quickstart", {"threads": 2})
    assert load_config("quickstart").resolved(before).threads == 2  # type: ignore[attr-defined]
    assert load_config("quickstart", {"threads": 1}).resolved(before).threads == 1  # type: ignore[attr-defined]
