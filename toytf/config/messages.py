"""What pydantic finds wrong with a config, in the words of the YAML file."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from toytf.errors import nearest, shortened

LARGEST_INT = 10**15
LARGEST_FLOAT = 1e38
"""No number of a config is larger in size: tensors could not be indexed by it, or hold it in float32."""


def first_mistake(error: ValidationError, data: Any) -> str:
    """One line about the first mistake, with the number of others."""
    by_path: dict[str, list[ErrorDetails]] = {}
    for problem in error.errors(include_url=False):
        by_path.setdefault(_path(problem["loc"], data), []).append(problem)
    for path in [path for path, problems in by_path.items() if problems[0]["type"] == "too_short"]:
        if any(other.startswith(f"{path}.") for other in by_path):
            del by_path[path]  # too short only because an entry is wrong
    path, problems = next(iter(by_path.items()))
    others = len(by_path) - 1
    more = f" (and {others} more mistake{'s' if others > 1 else ''} in this config)" if others else ""
    return f"{_sentence(path, problems)}{more}"


def _sentence(path: str, problems: list[ErrorDetails]) -> str:
    """Say what is wrong at one place; several problems there are the alternatives of a union."""
    problem, context = problems[0], problems[0].get("ctx", {})
    given = problem["input"]
    match problem["type"]:
        case "unknown_key" if not path and context["key"] == "sweep":
            sentence = "this config has a section sweep: run it with `toytf sweep`, or leave that section out"
        case "unknown_key":  # of toytf.config.sections, as is too_large
            section = f' in "{path}"' if path else ""
            sentence = f'unknown key "{shortened(context["key"])}"{section}: {context["hint"]}'
        case "too_large":
            most = LARGEST_INT if isinstance(context["value"], int) else LARGEST_FLOAT
            where = shortened(f"{path}{context['path']}".lstrip("."))
            sentence = f"{where} = {_as_given(context['value'])} is too large: at most {most:.0e} in absolute value"
        case "unknown_plugin":  # of toytf.config.plugins
            known = f"{context['hint']}; {context['group']} of other packages appear here once those are installed"
            sentence = f'{_below(path, context["tag"])} = "{shortened(context["kind"])}" does not exist: {known}'
        case "missing":
            sentence = f"{path} is missing"
        case "union_tag_not_found":
            sentence = f"{_below(path, context['discriminator'])} is missing"
        case "union_tag_invalid":
            known = nearest(context["tag"], _names(context["expected_tags"]))
            sentence = (
                f'{_below(path, context["discriminator"])} = "{shortened(context["tag"])}" is not accepted: {known}'
            )
        case "literal_error" if isinstance(given, str):
            expected = [name for p in problems for name in _names(str(p.get("ctx", {}).get("expected", "")))]
            sentence = f'{path} = "{shortened(given)}" is not accepted: {nearest(given, expected)}'
        case _:
            shown = f" = {_as_given(given)}" if isinstance(given, str | int | float | bool) or given is None else ""
            message = ", or ".join(dict.fromkeys(_plain(p) for p in problems))
            sentence = f"{path}{shown}: {message}" if path else message
    return sentence


def _below(path: str, key: object) -> str:
    return f"{path}.{str(key).strip(chr(39))}".lstrip(".")


def _as_given(value: object) -> str:
    text = shortened(repr(value))
    return f"{text[:4]}… ({len(str(value))} digits)" if isinstance(value, int) and len(text) > 40 else text


def _plain(problem: ErrorDetails) -> str:
    """Pydantic's message in the words of a YAML file."""
    if problem["type"] == "model_type" or problem["type"] == "dict_type":
        return "should be a mapping of keys to values"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ").replace(" after validation", "")
    message = message.partition(", unable to parse")[0]
    return re.sub("tuple", "list", message, flags=re.IGNORECASE)


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
        names.append(shortened(str(part)))
        try:
            data = data[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            break
        at_entry = True
    return ".".join(names)
