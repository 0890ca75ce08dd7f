"""Configs: YAML and dotted overrides in, one validated frozen object out, errors a person can act on.

OmegaConf merges (`base:` files, then the file, then overrides); pydantic validates at once; no DictConfig leaves here.
Imports no torch: `toytf --help` and config checking stay fast.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from toytf.errors import UserError, nearest

Overrides = Mapping[str, Any] | Sequence[str]
T = TypeVar("T")


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


def read_config(
    source: Path | str | Mapping[str, Any], overrides: Overrides = (), folder: Path | None = None
) -> dict[str, Any]:
    """Read a YAML file (or take a mapping), merge it over its `base:` files, and apply `key=value` overrides.

    A mapping's `base:` is relative to `folder` (default: the working directory).
    """
    if isinstance(source, str | Path):
        path = locate(Path(source))
        merged = _compose(_load_yaml(path), path, ())
    else:
        merged = _compose(OmegaConf.create(dict(source)), (folder or Path()) / "config", ())
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(_parse_override, overrides)
    for key, value in pairs:
        try:
            OmegaConf.update(merged, key, value, merge=False)
        except (OmegaConfBaseException, TypeError, ValueError) as error:
            raise UserError(f"override {key}={value}: {_first_line(error)}") from None
    try:
        plain = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{_label(source)}: {_first_line(error)}") from None
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def config_folder() -> Path:
    """The configs that ship: beside the package, in a checkout and when installed alike."""
    return Path(__file__).parent.parent / "configs"


def locate(path: Path) -> Path:
    """The file itself; away from the checkout, `configs/…` means the configs that ship."""
    shipped = config_folder().parent / path
    return shipped if path.parts[:1] == ("configs",) and not path.exists() and shipped.exists() else path


def validate(schema: TypeAdapter[T], data: Mapping[str, Any], label: str) -> T:
    """Check data against a schema; the first mistake becomes one line that starts with `label`."""
    try:
        return schema.validate_python(data)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(f"{label}: {_sentence(problems[0], data)}{more}") from None


def dump(config: Config) -> str:
    """The fully resolved config as YAML; loading it gives an equal object."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def digest(config: Config) -> str:
    """Eight hexadecimal digits that name a resolved config, whatever it logs to."""
    content = config.model_dump(mode="json", exclude={"logging"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def differences(left: Config, right: Config) -> list[str]:
    """The dotted keys in which two configs differ, as `key left → right`."""

    def flatten(value: Any, prefix: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            return {prefix: value}
        return {k: v for key, inner in value.items() for k, v in flatten(inner, f"{prefix}.{key}".lstrip(".")).items()}

    a, b = (flatten(config.model_dump(mode="json", exclude={"logging"}), "") for config in (left, right))
    return [f"{key} {a.get(key)} → {b.get(key)}" for key in sorted(a | b) if a.get(key) != b.get(key)]


def _compose(own: DictConfig, path: Path, seen: tuple[Path, ...]) -> DictConfig:
    """Merge the content of a file over the files it names in `base:` (one path or several, relative to itself)."""
    if path.resolve() in seen:
        raise UserError(f"{path}: its `base:` files form a circle")
    bases = own.pop("base", None) or []
    files = [path.parent / str(base) for base in ([bases] if isinstance(bases, str) else bases)]
    layers = [_compose(_load_yaml(file), file, (*seen, path.resolve())) for file in files]
    merged = OmegaConf.merge(*layers, own)
    assert isinstance(merged, DictConfig)
    return merged


def _load_yaml(path: Path) -> DictConfig:
    if not path.is_file():
        raise UserError(f"{path}: no such config file (`toytf list configs` shows those that ship)")
    try:
        loaded = OmegaConf.load(path)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise UserError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or _first_line(error)}") from None
    except (UnicodeDecodeError, OmegaConfBaseException, OSError) as error:
        raise UserError(f"{path}: cannot be read as YAML: {_first_line(error)}") from None
    if not isinstance(loaded, DictConfig):
        raise UserError(f"{path}: a config is a mapping of keys to values, got a {type(loaded).__name__}")
    return loaded


def _parse_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"override {text!r}: expected key=value, such as train.steps=500")
    try:
        return key, OmegaConf.from_dotlist([f"value={value}"])["value"]
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"override {text!r}: {_first_line(error)}") from None


def _sentence(problem: ErrorDetails, data: Mapping[str, Any]) -> str:
    path = _path(problem["loc"], data)
    context = problem.get("ctx", {})
    match problem["type"]:
        case "unknown_key":
            section = f' in "{path}"' if path else ""
            return f'unknown key "{context["key"]}"{section}: {context["hint"]}'
        case "missing":
            return f"{path} is missing"
        case "union_tag_invalid" | "union_tag_not_found":
            tag = str(context["discriminator"]).strip("'")
            where = f"{path}.{tag}".lstrip(".")
            names = [name.strip("' ") for name in str(context.get("expected_tags", "")).split(",")]
            if "tag" not in context:
                return f"{where} is missing"
            return f'{where} = "{context["tag"]}" is not known: {nearest(context["tag"], names)}'
        case _:
            message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
            given = problem["input"]
            shown = f" = {given!r}" if isinstance(given, str | int | float | bool) or given is None else ""
            return f"{path}{shown}: {message}" if path else message


def _path(location: Sequence[int | str], data: Any) -> str:
    """Turn pydantic's location into the path a user would type: without the tags of the unions on the way."""
    names: list[str] = []
    at_entry = True
    for part in location:
        if at_entry and isinstance(data, Mapping) and part in (data.get("experiment"), data.get("kind")):
            at_entry = False
            continue
        names.append(str(part))
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            data = None
        at_entry = True
    return ".".join(names)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _label(source: object) -> str:
    return str(source) if isinstance(source, str | Path) else "config"
