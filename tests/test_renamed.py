"""docs/renamed.md has every name that the product answers with a new one, and the new names are there."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from toytf.config.plugins import experiment_schema, plugins
from toytf.config.sections import Config, validate
from toytf.config.shipped import RENAMED_CLAIMS, RENAMED_CONFIGS
from toytf.errors import UserError

DOCUMENT = Path(__file__).parent.parent / "docs" / "renamed.md"
experiment_schema()  # imports every config class that is installed


def _classes(cls: type[Config] = Config) -> Iterator[type[Config]]:
    for below in cls.__subclasses__():
        yield below
        yield from _classes(below)


KEYS = [(cls, old, new) for cls in _classes() for old, new in cls.renamed.items()]


def _rows(heading: str) -> list[list[list[str]]]:
    """The table below a heading: of every cell the names in it."""
    part = DOCUMENT.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ") and not line.startswith("| Old ")]
    assert lines
    return [[re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(("cls", "old", "new"), KEYS, ids=lambda value: getattr(value, "__name__", value))
def test_a_renamed_key_is_answered_with_its_new_name_and_listed(cls: type[Config], old: str, new: str) -> None:
    with pytest.raises(UserError) as caught:
        validate(TypeAdapter(cls), {old: 1}, "mine.yaml")
    assert str(caught.value) == f'mine.yaml: unknown key "{old}": it is now called "{new}"'
    listed = [tuple(name.rpartition(".")[2] for name in before + after) for before, after, _ in _rows("Config keys")]
    assert (old, new) in listed


REPLACED_PROBES = {old: new for new, config in plugins("probes").items() for old in config.replaces}


@pytest.mark.parametrize(
    ("heading", "table"), [("Probes", REPLACED_PROBES), ("Configs", RENAMED_CONFIGS), ("Claims", RENAMED_CLAIMS)]
)
def test_every_renamed_config_and_claim_is_listed(heading: str, table: dict[str, str]) -> None:
    assert {old: new for [old], [new] in _rows(heading)} == table


def test_the_new_modules_are_there() -> None:
    for _, after in _rows("Python modules"):
        for module in (name for name in after if re.fullmatch(r"\w+(\.\w+)*", name)):
            importlib.import_module(module)


def test_the_new_names_are_there() -> None:
    for _, after, places in _rows("Python names"):
        modules = [importlib.import_module(name) for name in places]
        for name in after:
            owner, _, attribute = name.partition(".")
            if owner == "run":  # an object, not a name
                continue
            found = next(getattr(module, owner) for module in modules if hasattr(module, owner))
            fields = getattr(found, "model_fields", {}) | getattr(found, "__dataclass_fields__", {})
            assert not attribute or attribute in fields or hasattr(found, attribute), name
