"""From YAML files and overrides to one plain mapping: OmegaConf merges, and none of its objects leaves here.

`base:` names files to build on, relative to the file itself; mappings merge, lists and scalars replace. Overrides come
last, and each replaces the whole value at its key. Imports no torch.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from toytf.errors import UserError

Overrides = Mapping[str, Any] | Sequence[str]
"""`{"train.steps": 500}`, or `["train.steps=500"]` with values in YAML."""


def config_folder() -> Path:
    """The configs that ship: beside the package, in a checkout and when installed alike."""
    return Path(__file__).parent.parent / "configs"


def read_config(
    source: Path | str | Mapping[str, Any], overrides: Overrides = (), folder: Path | None = None
) -> dict[str, Any]:
    """Read a YAML file (or take a mapping), merge it over its `base:` files, and apply overrides.

    A mapping's `base:` is relative to `folder` (default: the working directory).
    """
    if isinstance(source, str | Path):
        path = locate(source, Path())
        merged = _compose(_load(path), path, ())
    else:
        path = (folder or Path()) / "config"
        merged = _compose(OmegaConf.create(dict(source)), path, ())
    if isinstance(overrides, str):
        overrides = [overrides]
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(_parse, overrides)
    for key, value in pairs:
        _override(merged, key, value)
    try:
        plain = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {_first_line(error)}") from None
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def overlay(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with changes merged into it: mappings merge, everything else replaces."""
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        merged[key] = overlay(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def locate(name: str | Path, folder: Path) -> Path:
    """The file in a folder; where there is none, `configs/…` means the configs that ship."""
    file, shipped = folder / name, config_folder().parent / name
    return shipped if not file.exists() and Path(name).parts[:1] == ("configs",) and shipped.exists() else file


def _compose(own: DictConfig, path: Path, seen: tuple[Path, ...]) -> DictConfig:
    if path.resolve() in seen:
        raise UserError(f"{path}: its `base:` files form a circle")
    try:
        base = own.pop("base", None)
        names = [base] if isinstance(base, str) else list(base) if isinstance(base, ListConfig) else base or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"{path}: base is a path or a list of paths, got {base!r}")
        files = [locate(name, path.parent) for name in names]
        layers = [_compose(_load(file), file, (*seen, path.resolve())) for file in files]
        for layer in layers:
            _refuse_other_shape(layer, own, path)
        merged = OmegaConf.merge(*layers, own)
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: cannot be merged over its base: {_first_line(error)}") from None
    assert isinstance(merged, DictConfig)
    return merged


def _refuse_other_shape(base: DictConfig, own: DictConfig, path: Path, section: str = "") -> None:
    """A list cannot be merged with a mapping: say where that is asked for."""
    for key in own:
        below, above = base._get_node(key), own._get_node(key)
        name = f"{section}.{key}".lstrip(".")
        if isinstance(below, DictConfig) and isinstance(above, DictConfig):
            _refuse_other_shape(below, above, path, name)
        elif {type(below), type(above)} == {DictConfig, ListConfig}:
            kinds = {DictConfig: "a mapping", ListConfig: "a list"}
            raise UserError(f"{path}: {name} is {kinds[type(above)]}, but {kinds[type(below)]} in its base")


def _load(path: Path) -> DictConfig:
    if path.is_dir():
        raise UserError(f"{path}: a config is a file, this is a directory")
    if not path.is_file():
        raise UserError(f"{path}: no such config file (`toytf list configs` shows those that ship)")
    try:
        if not path.read_text(encoding="utf-8").strip():
            raise UserError(f"{path}: the file is empty")
        loaded = OmegaConf.load(path)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise UserError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or _first_line(error)}") from None
    except (UnicodeDecodeError, OmegaConfBaseException, OSError) as error:
        raise UserError(f"{path}: cannot be read as YAML: {_first_line(error)}") from None
    if not isinstance(loaded, DictConfig):
        kind = "list" if isinstance(loaded, ListConfig) else "single value"
        raise UserError(f"{path}: a config is a mapping of keys to values, got a {kind}")
    return loaded


def _parse(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"override {text!r}: expected key=value, such as train.steps=500")
    try:
        parsed = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={value}"]), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException):
        raise UserError(f"override {text!r}: the value is not valid YAML") from None
    assert isinstance(parsed, dict)
    return key, parsed["value"]


def _override(merged: DictConfig, key: str, value: Any) -> None:
    """Set a dotted key; a name on the way, such as a probe given by its kind alone, becomes `{kind: name}`."""
    names = key.split(".")
    for depth in range(1, len(names)):
        parent = ".".join(names[:depth])
        try:
            node = OmegaConf.select(merged, parent)
            if isinstance(node, str):
                OmegaConf.update(merged, parent, {"kind": node})
        except (OmegaConfBaseException, TypeError, ValueError) as error:
            raise UserError(f"override {key}={value}: {_first_line(error)}") from None
        if node is not None and not isinstance(node, str | DictConfig | ListConfig):
            raise UserError(f"override {key}={value}: {parent} is {node}, it has no keys")
    try:
        OmegaConf.update(merged, key, value, merge=False)
    except (OmegaConfBaseException, TypeError, ValueError, IndexError) as error:
        raise UserError(f"override {key}={value}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
