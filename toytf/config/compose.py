"""From YAML files and overrides to one plain mapping.

`base:` names files to build on, relative to the file itself, or configs that ship; mappings merge, lists and scalars
replace. Overrides come last, and each replaces the whole value at its key. A value is what the file says: nothing such
as `${…}` is looked up. Imports no torch.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toytf.config.shipped import is_file, shipped_file, why_missing
from toytf.config.yaml_text import load_yaml
from toytf.errors import UserError, reason, shortened

Overrides = Mapping[str, Any] | Sequence[str]
"""`{"train.steps": 500}`, or `["train.steps=500"]` with values in YAML."""


def read_config(
    source: Path | str | Mapping[str, Any], overrides: Overrides = (), folder: Path | None = None
) -> dict[str, Any]:
    """Read a YAML file (or take a mapping), merge it over its `base:` files, and apply overrides.

    A file is given by its path, or by the bare name of a config that ships, such as `factual/quick`. The `base:` of a
    mapping is relative to `folder` (default: the working directory).
    """
    if isinstance(source, str | Path):
        path = source_file(source)
        merged = _compose(_load(path, source), path, ())
    else:
        path = (folder or Path()) / "config"
        merged = _compose(_with_places(dict(source), path.parent), path, ())
    if isinstance(overrides, str):
        overrides = [overrides]
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(parse_override, overrides)
    for key, value in pairs:
        _override(merged, key, value)
    return {str(key): value for key, value in merged.items()}


def source_file(source: Path | str) -> Path:
    """The file that a path or a bare name means: a bare name is one's own file before one that ships."""
    own = Path(f"{source}.yaml")
    return own if is_file(own) and not is_file(Path(source)) else locate(source, Path())


def overlay(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with changes merged into it: mappings merge, everything else replaces."""
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        merged[key] = overlay(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def locate(name: str | Path, folder: Path) -> Path:
    """The file of that path in a folder; where there is none, the file that ships under that name."""
    file = folder / name
    return file if is_file(file) else shipped_file(name) or file


def _compose(own: dict[str, Any], path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in seen:
        raise UserError(f"{path}: its `base:` files form a circle")
    own = dict(own)
    base = own.pop("base", None)
    names = [base] if isinstance(base, str) else [] if base is None else base
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: base should be a path or a list of paths, got {shortened(repr(base))}")
    merged: dict[str, Any] = {}
    for name in names:
        file = locate(name, path.parent)
        layer = _compose(_load(file, name), file, (*seen, path.resolve()))
        _refuse_other_shape(layer, own, path)
        merged = overlay(merged, layer)
    return overlay(merged, own)


def _refuse_other_shape(base: Mapping[str, Any], own: Mapping[str, Any], path: Path, section: str = "") -> None:
    """A list cannot be merged with a mapping: say where that is asked for."""
    kinds = {True: "a mapping", False: "a list"}
    for key, above in own.items():
        below, name = base.get(key), f"{section}.{key}".lstrip(".")
        if isinstance(below, Mapping) and isinstance(above, Mapping):
            _refuse_other_shape(below, above, path, name)
        elif isinstance(below, Mapping | list) and isinstance(above, Mapping | list) and type(below) is not type(above):
            of_both = kinds[isinstance(above, Mapping)], kinds[isinstance(below, Mapping)]
            raise UserError(f"{path}: {shortened(name)} is {of_both[0]} here, but {of_both[1]} in its base")


def _load(path: Path, name: str | Path) -> dict[str, Any]:
    try:
        if path.is_dir():
            raise UserError(f"{path}: this is a directory, not a config file")
        if not path.is_file():
            raise UserError(f"{path}: {why_missing(name)}")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as YAML: {reason(error)}") from None
    if not text.strip():
        raise UserError(f"{path}: the file is empty")
    loaded = load_yaml(text, str(path))
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        kind = "list" if isinstance(loaded, list) else "single value"
        raise UserError(f"{path}: a config should be a mapping of keys to values, got a {kind}")
    return {key: _with_places(value, path.parent) for key, value in loaded.items()}


def _with_places(value: Any, folder: Path) -> Any:
    """A config in which a file that it names with its SHA-256, `{file: …, sha256: …}`, is found where it lies."""
    if not isinstance(value, dict):
        return value
    if set(value) == {"file", "sha256"}:
        return {**value, "file": str(folder / str(value["file"]))}
    return {key: _with_places(inner, folder) for key, inner in value.items()}


def parse_override(text: str) -> tuple[str, Any]:
    """Key and value of an override such as `train.steps=500`."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"override {shortened(repr(text))}: expected key=value, such as train.steps=500")
    try:
        return key, load_yaml(value, "")
    except UserError as error:
        raise UserError(f"override {shortened(repr(text))}: the value is {str(error).partition(': ')[2]}") from None


def _override(merged: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; a name on the way, such as a probe given by its kind alone, becomes `{kind: name}`."""
    names = re.sub(r"\[(\w+)\]", r".\1", key).split(".")
    shown = f"override {shortened(f'{key}={value}')}"
    place: Any = merged
    for depth, name in enumerate(names, 1):
        at: Any = name
        if isinstance(place, dict):
            numbers = {str(key): key for key in place if isinstance(key, int)}  # a mapping may have numbers as keys
            at = name if name in place else numbers.get(name, name)
        elif name in map(str, range(len(place))):
            at = int(name)
        else:
            what = f"{shortened(name)} is not an index of a list of length {len(place)} (0 is the first)"
            raise UserError(f"{shown}: {what}")
        if depth == len(names):
            place[at] = value
            return
        below = place[at] if isinstance(place, list) else place.get(at)
        if below is not None and not isinstance(below, str | dict | list):
            raise UserError(f"{shown}: {'.'.join(names[:depth])} is {shortened(str(below))}, which has no keys")
        place[at] = {"kind": below} if isinstance(below, str) else {} if below is None else below.copy()
        place = place[at]
