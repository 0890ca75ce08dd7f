"""Config sections: validated, frozen, and answered with one sentence when they are wrong. Imports no torch."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import pydantic
from pydantic import AfterValidator, BeforeValidator, TypeAdapter
from pydantic_core import PydanticCustomError

from toytf.config.messages import LARGEST_FLOAT, LARGEST_INT, first_mistake
from toytf.config.yaml_text import dump_yaml
from toytf.errors import UserError, nearest, shortened

T = TypeVar("T")


class Config(pydantic.BaseModel):
    """A frozen config section that answers an unknown key with the nearest valid one."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _refuse_what_cannot_be(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    hint = nearest(key, cls.model_fields)
                    if "kind" in data and hint.startswith("accepted"):
                        hint += "; if it comes from a base of another kind, give the section as a whole, {kind: …, …}"
                    raise PydanticCustomError("unknown_key", "{key}|{hint}", {"key": str(key), "hint": hint})
            found = _too_large(data)
            if found is not None:
                raise PydanticCustomError("too_large", "too large", {"path": found[0], "value": found[1]})
        return data

    def files(self) -> dict[str, bytes]:
        """Files that a run keeps beside config.yaml, with what is too large for that: those of all sections."""
        sections = (getattr(self, name) for name in type(self).model_fields)
        return {name: file for part in sections if isinstance(part, Config) for name, file in part.files().items()}


def _without_repeats(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        twice = max(values, key=values.count)
        shown = list(twice) if isinstance(twice, tuple) else shortened(str(twice))
        raise ValueError(f"{shown} is listed twice")
    return values


Unique = AfterValidator(_without_repeats)
"""Of a field that is a list: no entry may be there twice. `seeds: Annotated[tuple[int, ...], Unique]`."""


def auto_or_up_to(most: int) -> BeforeValidator:
    """Of a field that is `auto` or a whole number from 1 on: what to say of anything else."""

    def check(value: object) -> object:
        whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
        if value == "auto" or whole:
            return value
        raise ValueError(f"give auto, or a whole number from 1 to {most}")

    return BeforeValidator(check)


def _too_large(value: Any, path: str = "") -> tuple[str, float] | None:
    """Where in a value there is a number that no tensor could have, and the number."""
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    elif isinstance(value, int):
        return (path, value) if abs(value) > LARGEST_INT else None
    elif isinstance(value, float):
        return (path, value) if LARGEST_FLOAT < abs(value) < math.inf else None
    found = (_too_large(value, f"{path}.{key}") or _too_large(key, f"{path}.{key}") for key, value in inner)
    return next(filter(None, found), None)


def validate(schema: TypeAdapter[T], data: Mapping[str, Any], label: str) -> T:
    """Check data against a schema; the first mistake becomes one line that starts with `label`."""
    try:
        return schema.validate_python(data)
    except pydantic.ValidationError as error:
        raise UserError(f"{label}: {first_mistake(error, data)}") from None


def dump(config: Config) -> str:
    """The fully resolved config as YAML; loading it gives an equal object."""
    return dump_yaml(config.model_dump(mode="json"))


def digest(config: Config, digits: int = 8) -> str:
    """Hexadecimal digits that name a resolved config, whatever it logs to."""
    return digest_of(config.model_dump(mode="json"), digits)


def digest_of(content: Mapping[str, Any], digits: int) -> str:
    """The same of what config.yaml holds."""
    told = {key: value for key, value in content.items() if key != "logging"}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:digits]


def flattened(config: Config) -> dict[str, Any]:
    """A config by dotted keys, whatever it logs to."""

    def flatten(value: Any, prefix: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            return {prefix: value}
        return {k: v for key, inner in value.items() for k, v in flatten(inner, f"{prefix}.{key}".lstrip(".")).items()}

    return flatten(config.model_dump(mode="json", exclude={"logging"}), "")


def differences(left: Config, right: Config) -> list[str]:
    """The dotted keys in which two configs differ, as `key left → right`; a long value is cut."""
    a, b = flattened(left), flattened(right)
    changed = [key for key in sorted(a | b) if a.get(key) != b.get(key)]
    return [f"{shortened(key)} {shortened(str(a.get(key)))} → {shortened(str(b.get(key)))}" for key in changed]
