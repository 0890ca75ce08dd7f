"""Config sections: validated, frozen, and answered with one sentence when they are wrong. Imports no torch."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from toytf.errors import UserError, nearest

T = TypeVar("T")

LONG = 120
"""Characters of a value that an error shows."""


class Config(BaseModel):
    """A frozen config section that answers an unknown key with the nearest valid one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    hint = nearest(key, cls.model_fields)
                    raise PydanticCustomError("unknown_key", "{key}|{hint}", {"key": str(key), "hint": hint})
        return data


def validate(schema: TypeAdapter[T], data: Mapping[str, Any], label: str) -> T:
    """Check data against a schema; the first mistake becomes one line that starts with `label`."""
    try:
        return schema.validate_python(data)
    except ValidationError as error:
        by_path: dict[str, list[ErrorDetails]] = {}
        for problem in error.errors(include_url=False):
            by_path.setdefault(_path(problem["loc"], data), []).append(problem)
        for path in [path for path, problems in by_path.items() if problems[0]["type"] == "too_short"]:
            if any(other.startswith(f"{path}.") for other in by_path):
                del by_path[path]  # too short only because an entry is wrong
        path, problems = next(iter(by_path.items()))
        more = f" (and {len(by_path) - 1} more)" if len(by_path) > 1 else ""
        raise UserError(f"{label}: {_sentence(path, problems)}{more}") from None


def dump(config: Config) -> str:
    """The fully resolved config as YAML; loading it gives an equal object."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def digest(config: Config) -> str:
    """Eight hexadecimal digits that name a resolved config, whatever it logs to."""
    content = config.model_dump(mode="json", exclude={"logging"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def differences(left: Config, right: Config) -> list[str]:
    """The dotted keys in which two configs differ, as `key left → right`; a long value is cut."""

    def short(value: Any) -> str:
        text = str(value)
        return text if len(text) <= LONG else f"{text[:LONG]}…"

    def flatten(value: Any, prefix: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            return {prefix: value}
        return {k: v for key, inner in value.items() for k, v in flatten(inner, f"{prefix}.{key}".lstrip(".")).items()}

    a, b = (flatten(config.model_dump(mode="json", exclude={"logging"}), "") for config in (left, right))
    return [f"{key} {short(a.get(key))} → {short(b.get(key))}" for key in sorted(a | b) if a.get(key) != b.get(key)]


def _sentence(path: str, problems: list[ErrorDetails]) -> str:
    """Say what is wrong at one place; several problems there are the alternatives of a union."""
    problem, context = problems[0], problems[0].get("ctx", {})
    given = problem["input"]
    match problem["type"]:
        case "unknown_key":
            section = f' in "{path}"' if path else ""
            return f'unknown key "{context["key"]}"{section}: {context["hint"]}'
        case "missing":
            return f"{path} is missing"
        case "union_tag_not_found":
            return f"{path}.{_unquote(context['discriminator'])}".lstrip(".") + " is missing"
        case "union_tag_invalid":
            where = f"{path}.{_unquote(context['discriminator'])}".lstrip(".")
            known = _names(context["expected_tags"])
            return f'{where} = "{context["tag"]}" is not known: {nearest(context["tag"], known)}'
        case "literal_error" if isinstance(given, str):
            expected = [name for p in problems for name in _names(str(p.get("ctx", {}).get("expected", "")))]
            return f'{path} = "{given}" is not known: {nearest(given, expected)}'
        case _:
            shown = f" = {given!r}" if isinstance(given, str | int | float | bool) or given is None else ""
            message = ", or ".join(dict.fromkeys(_plain(p) for p in problems))
            return f"{path}{shown}: {message}" if path else message


def _plain(problem: ErrorDetails) -> str:
    """Pydantic's message in the words of a YAML file."""
    if problem["type"] == "model_type" or problem["type"] == "dict_type":
        return "should be a mapping of keys to values"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ").replace(" after validation", "")
    return re.sub("tuple", "list", message, flags=re.IGNORECASE)


def _unquote(text: object) -> str:
    return str(text).strip("'")


def _names(text: object) -> list[str]:
    """The quoted names in a message of pydantic, such as "'sgd' or 'adamw'"."""
    return re.findall(r"'([^']*)'", str(text))


def _path(location: Sequence[int | str], data: Any) -> str:
    """Turn pydantic's location into the path a user would type: without the tags and labels of unions."""
    names: list[str] = []
    at_entry = True
    for i, part in enumerate(location):
        if not isinstance(data, Mapping | list):
            break
        if isinstance(data, Mapping) and part not in data and i + 1 < len(location):
            continue  # only a tag: a key that is missing comes last
        if isinstance(data, list) and not isinstance(part, int):
            continue  # the label of a union
        if at_entry and isinstance(data, Mapping) and part in (data.get("experiment"), data.get("kind")):
            at_entry = False
            continue
        names.append(str(part))
        try:
            data = data[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            break
        at_entry = True
    return ".".join(names)
