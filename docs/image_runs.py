"""The runs that the pictures of the documents show, and the colours that the matrices have in all of them."""

from functools import cache
from pathlib import Path
from typing import Any

import toytf

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "runs" / "images"

COLOURS = {"W_OV2": "#0072b2", "W_KQ2": "#d55e00", "W_KQ1": "#00855f"}
TRIGGER, OUTPUT = COLOURS["W_KQ2"], COLOURS["W_OV2"]
"""W_KQ2 looks for triggers, W_OV2 copies outputs."""
FAINT, PALE = "#aaaaaa", "#dddddd"


@cache
def run(config: str, *changes: tuple[str, Any]) -> Any:
    """The run of a config that ships, made once."""
    name = "-".join([config.replace("/", "-"), *(f"{key}={value}" for key, value in changes)])
    overrides = {"threads": 1, "logging.wandb": "off"} | dict(changes)
    return toytf.run(ROOT / "configs" / f"{config}.yaml", overrides, out=RUNS / name, resume=True)
