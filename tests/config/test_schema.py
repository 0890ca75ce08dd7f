"""The JSON schema of a config, for editors."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from toytf.config.plugins import load_config
from toytf.config.shipped import config_files, config_folder
from toytf.config.yaml_text import load_yaml
from toytf.errors import UserError

if TYPE_CHECKING:
    from conftest import Command

QUICKSTART = config_folder() / "quickstart.yaml"


@pytest.fixture(scope="module")
def schema(command: "Command", tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    ended = command("list", "configs", "--schema", cwd=tmp_path_factory.mktemp("work"))
    assert (ended.returncode, ended.stderr) == (0, "")
    printed: dict[str, Any] = json.loads(ended.stdout)
    return printed


def test_the_schema_describes_the_fields_of_the_task(schema: dict[str, Any]) -> None:
    assert schema["$schema"].startswith("https://json-schema.org/")
    task = schema["$defs"]["BigramConfig"]
    assert {"kind", "seq_len", "n_triggers", "triggers", "corpus"} <= set(task["properties"])
    assert task["properties"]["seq_len"]["minimum"] == 2
    assert "Input tokens per sequence" in task["properties"]["seq_len"]["description"]
    assert "base" in schema["$defs"]["TrainExperimentConfig"]["properties"]


@pytest.mark.parametrize("path", config_files().values(), ids=config_files())
def test_the_schema_accepts_a_shipped_config_as_it_is_written(path: Path, schema: dict[str, Any]) -> None:
    """An editor sees the file alone, short forms, `base:` and all."""
    written = load_yaml(path.read_text(encoding="utf-8"), path.name)
    assert _objections(written, schema, schema["$defs"], "") == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"task": {"kind": "bigram", "seq_length": 8}}, "task"),
        ({"train": {"optimizer": {"kind": "adam"}}}, "train.optimizer.kind"),
        ({"model": {"d_model": "wide"}}, "model.d_model"),
        ({"zebra": 1}, "zebra"),
    ],
)
def test_the_schema_refuses_what_loading_refuses(change: dict[str, Any], where: str, schema: dict[str, Any]) -> None:
    content = {"experiment": "train", "task": {"kind": "bigram"}, **change}
    assert _objections(content, schema, schema["$defs"], "")
    with pytest.raises(UserError, match=re.escape(where)):
        load_config(content)


def _objections(value: Any, schema: dict[str, Any], definitions: dict[str, Any], path: str) -> list[str]:
    """Where a value does not fit a JSON schema, by the keywords that say which names and types are allowed."""
    if "$ref" in schema:
        return _objections(value, definitions[schema["$ref"].rpartition("/")[2]], definitions, path)
    for keyword in ("oneOf", "anyOf"):
        if keyword in schema:
            tried = [_objections(value, choice, definitions, path) for choice in schema[keyword]]
            return min(tried, key=len)
    allowed = schema.get("type", [])
    allowed = {allowed} if isinstance(allowed, str) else set(allowed)
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    given = {names.get(type(value), "null")} | ({"number"} if type(value) is int else set())
    if allowed and not given & allowed:
        return [f"{path}: {value!r} is not {' or '.join(sorted(allowed))}"]
    if value not in schema.get("enum", [schema.get("const", value)]):
        return [f"{path}: {value!r} is not accepted"]
    found = []
    if isinstance(value, dict):
        found += [f"{path}: {name} is required" for name in schema.get("required", []) if name not in value]
        for name, inner in value.items():
            inside = schema.get("properties", {}).get(name, schema.get("additionalProperties", True))
            if inside is False:
                found.append(f"{path}: {name} is not allowed")
            elif isinstance(inside, dict):
                found += _objections(inner, inside, definitions, f"{path}.{name}".lstrip("."))
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for i, inner in enumerate(value):
            found += _objections(inner, schema["items"], definitions, f"{path}.{i}")
    return found
