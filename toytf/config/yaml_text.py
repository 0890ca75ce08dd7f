"""Plain YAML: text to mappings, lists, strings, numbers, true, false and null, and back. Nothing in it is interpreted.

A number may be written 1e-3, as YAML 1.2 has it; a date is a string; a key may stand only once in a mapping.
"""

import re
from collections.abc import Hashable
from math import inf
from typing import Any

import yaml

from toytf.errors import UserError, shortened

DEEPEST = 64
"""How many mappings and lists may lie in each other."""

LARGEST = 2_000_000
"""How many values a text may have once its aliases are written out."""

_NUMBERS = (
    ("int", r"[-+]?(?:0|[1-9][0-9_]*|0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+)"),
    (
        "float",
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
        r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
    ),
)

_TAGS = ("str", "int", "float", "bool", "null", "seq", "map")
"""The kinds of value there are: no dates, sets or bytes."""

_UNSAFE = re.compile("[^\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
"""Characters that YAML takes for line breaks, or does not take at all, unless they are escaped."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_constructors = {  # noqa: RUF012
        tag: build
        for tag, build in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in _TAGS
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse a key that stands twice; the last would win silently."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):  # the other kind is refused below
                if key in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key}", key_node.start_mark)
                seen.add(key)
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return found


class _Dumper(yaml.SafeDumper):
    """Knows the numbers of the loader, so that a string like 1e-3 is quoted."""


for _class in (_Loader, _Dumper):
    kept = {
        first: [(tag, pattern) for tag, pattern in pairs if tag.rpartition(":")[2] not in ("int", "float", "timestamp")]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _class.yaml_implicit_resolvers = kept
    for _tag, _pattern in _NUMBERS:
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), [*"-+0123456789."])


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if _UNSAFE.search(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)


def load_yaml(text: str, label: str) -> Any:
    """The value of a YAML text; what is wrong with it becomes one line that starts with `label`."""
    if _SURROGATE.search(text):
        raise UserError(f"{label}: not valid YAML: it is not text in UTF-8")
    try:
        return _plain(yaml.load(text, _Loader), label)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{label}, line {mark.line + 1}" if mark else label
        problem = getattr(error, "problem", None) or str(error).strip().partition("\n")[0]
        raise UserError(f"{where}: not valid YAML: {shortened(problem)}") from None
    except RecursionError:
        raise UserError(f"{label}: not valid YAML: mappings and lists are nested more than {DEEPEST} deep") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:  # such as `!!bool maybe`
        raise UserError(f"{label}: not valid YAML: a value does not match its tag: {shortened(str(error))}") from None


def dump_yaml(data: Any) -> str:
    """A plain value as YAML; `load_yaml` gives it back."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def inline_yaml(value: Any) -> str:
    """A value as YAML on one line, as in an override; what YAML has no word for is shown as Python prints it."""
    try:
        text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=inf, default_flow_style=True)
    except yaml.YAMLError:
        return str(value)
    return str(text).removesuffix("\n").removesuffix("\n...")


def _plain(value: Any, label: str) -> Any:
    """A copy in which nothing is shared, of bounded depth and size, whose text can be written in UTF-8."""
    left = LARGEST

    def copy(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise UserError(f"{label}: too large: more than {LARGEST} values once its aliases are expanded")
        if depth > DEEPEST:
            raise UserError(f"{label}: not valid YAML: mappings and lists are nested more than {DEEPEST} deep")
        if isinstance(value, dict):
            return {copy(key, depth + 1): copy(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, list):
            return [copy(inner, depth + 1) for inner in value]
        if isinstance(value, str) and _SURROGATE.search(value):
            raise UserError(f"{label}: not valid YAML: {shortened(value)} has half a character (a lone surrogate)")
        return value

    return copy(value, 0)
