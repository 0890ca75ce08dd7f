"""What `toytf list` shows: plug-ins by entry point, configs and claims by their bare names."""

import json
from pathlib import Path
from typing import Any

import typer

from toytf.config.plugins import experiment_schema, plugins
from toytf.config.shipped import claim_files, config_files, sweep_files
from toytf.errors import UserError, nearest, shortened

KINDS = ("tasks", "probes", "experiments", "configs", "claims")


def first_comment(path: Path) -> str:
    """The first comment line of a YAML file: what it shows."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return lines[0].lstrip("# ") if lines and lines[0].startswith("#") else ""


def config_schema() -> str:
    """The JSON schema of a config file with everything that is installed, and `base:` for composing files."""
    schema: dict[str, Any] = experiment_schema().json_schema()
    base = {
        "description": "Configs to build on: files, relative to this one, or names of configs that ship with toytf.",
        "type": ["string", "array"],
    }
    for definition in schema.get("$defs", {}).values():
        definition.pop("required", None)  # a base may give what a file leaves out
        if "experiment" in definition.get("properties", {}):
            definition["properties"]["base"] = base
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2)


def print_catalogue(what: str) -> None:
    """Print the entries of one kind, or of all."""
    if what and what not in KINDS:
        raise UserError(f'"{shortened(what)}" cannot be listed: {nearest(what, KINDS)}')
    files = {"configs": config_files() | sweep_files(), "claims": claim_files()}
    for kind in [what] if what else KINDS:
        if kind in files:
            entries = {name: first_comment(path) for name, path in files[kind].items()}
        else:
            entries = {name: (cls.__doc__ or "").partition("\n")[0] for name, cls in plugins(kind).items()}
        typer.echo(f"{kind}:")
        width = max(map(len, entries), default=0)
        for name, text in entries.items():
            typer.echo(f"  {name:<{width}}  {text}")
