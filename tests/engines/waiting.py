"""Waiting for what other processes do, for some seconds at most."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil


def until(happens: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.01)


def appear(*paths: Path) -> None:
    """Wait until files are there and have been written."""
    until(lambda: all(path.exists() and path.read_text() for path in paths))


def is_gone(pid: int) -> bool:
    """Has a process ended, whether or not anybody has taken note of it?"""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
