"""provenance.json of a run: its title, and of each of its starts when, by which command and with what.

A remark, not a record: no result depends on it, no checksum covers it, and where it is damaged nothing is known.
"""

import json
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, TypeAdapter

from toytf import __version__
from toytf.config.compose import Overrides, source_file
from toytf.config.plugins import lies_in_run
from toytf.config.yaml_text import inline_yaml
from toytf.errors import shortened
from toytf.files import write_atomic

PROVENANCE = "provenance.json"
UNTOLD = ("device", "logging", "seeds", "threads")
"""Keys that do not make another experiment of a config: with other keys changed, its title alone would be wrong."""
_CHECKOUT = Path(__file__).resolve().parents[2]
_OF_TITLE, _OF_MAPPING, _OF_COMMAND = 300, 200, 2000  # characters that are kept
_FOLDERS = re.compile(r"""(?<![\w./])/(?:[^/'",\[\]]+/)+""")  # of an absolute path, in one argument
_Line = Annotated[str, AfterValidator(lambda text: shortened(text, _OF_COMMAND))]


@dataclass(frozen=True)
class Origin:
    """What a run was asked for with: the title of its config, and the command."""

    title: str | None = None
    command: str | None = None


@dataclass(frozen=True)
class Start:
    """One start or continuation of a run: when (UTC), by which command, and with what."""

    started: _Line
    command: _Line | None
    toytf: _Line
    commit: _Line | None  # of toytf's own checkout, as abc1234 or abc1234 with changes
    python: _Line
    torch: _Line | None
    device: _Line | None


@dataclass(frozen=True)
class Provenance:
    """Where a run comes from."""

    title: _Line | None
    starts: tuple[Start, ...]


def read_provenance(directory: Path) -> Provenance:
    """What provenance.json says; nothing if it is missing, damaged or somebody else's."""
    try:
        return TypeAdapter(Provenance).validate_json((directory / PROVENANCE).read_bytes())
    except (OSError, ValueError):
        return Provenance(None, ())


def add_start(directory: Path, origin: Origin, device: object) -> None:
    """Note that a run starts or goes on, on a device such as cuda:0 (None: unknown). Its first title stays."""
    known, now = read_provenance(directory), datetime.now(UTC).isoformat(timespec="seconds")
    command = None if origin.command is None else shortened(origin.command, _OF_COMMAND)
    torch = next((found.version for found in distributions(name="torch")), None)  # without importing it
    name = None if device is None else str(device)
    if name is not None and name.startswith("cuda"):  # a GPU with its name, as `cuda: NVIDIA A100`
        from torch.cuda import get_device_name

        with suppress(RuntimeError, AssertionError, ValueError):  # how torch says that there is none
            name = f"cuda: {get_device_name(name)}"
    with_what = __version__, _commit(_CHECKOUT), platform.python_version(), torch, name
    grown = Provenance(known.title or origin.title, (*known.starts, Start(now, command, *with_what)))
    write_atomic(directory / PROVENANCE, f"{json.dumps(asdict(grown), indent=2)}\n".encode())


def origin_of(
    source: Path | str | Mapping[str, Any], overrides: Overrides, *, out: Path | str | None, resume: bool, force: bool
) -> Origin:
    """The origin of a run that `toytf.run` is asked for with these arguments; a mapping has no title.

    Where keys are changed, the title says which: the first comment of a config speaks of the config as it is.
    """
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={inline_yaml(value)}" for key, value in overrides.items()]
    changes = [overrides] if isinstance(overrides, str) else list(overrides)
    if isinstance(source, Mapping):
        named = {"overrides": changes, "out": out and str(out), "resume": resume, "force": force}
        arguments = [shortened(repr(source)[:_OF_COMMAND], _OF_MAPPING)]
        arguments += [f"{name}={value!r}" for name, value in named.items() if value]
        return Origin(None, f"toytf.run({', '.join(arguments)})")
    options = [*(["--out", str(out)] if out is not None else []), *["--resume"] * resume, *["--force"] * force]
    path = source_file(source)
    if lies_in_run(path):  # the config.yaml of a run has the title of its run
        title = read_provenance(path.parent).title
    else:
        first = path.read_text(encoding="utf-8-sig", errors="replace").lstrip().partition("\n")[0]
        title = shortened(first.lstrip("#"), _OF_TITLE) or None if first.startswith("#") else None
    told = [change for change in changes if re.split("[.=]", change.strip(), maxsplit=1)[0] not in UNTOLD]
    if title and told:
        shown = ", ".join(_FOLDERS.sub("", change) for change in told)
        title = shortened(f"{title.removesuffix('.')} (changed: {shown})", _OF_TITLE)
    return Origin(title, shlex.join(["toytf", "run", str(source), *changes, *options]))


def without_folders(command: str) -> str:
    """A command without the folders of absolute paths, which are those of somebody's machine."""
    try:
        return shlex.join(_FOLDERS.sub("", word) for word in shlex.split(command))
    except ValueError:  # cut within a quotation
        return _FOLDERS.sub("", command)


def _commit(checkout: Path) -> str | None:
    """The commit of a checkout of toytf; None for a folder that is none, whatever repository it lies in."""
    git, environment = checkout / ".git", {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = ["git", "--no-optional-locks", f"--git-dir={git}", f"--work-tree={checkout}"]  # no folder above
    command += ["status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no"]
    try:
        if not git.exists() or '\nname = "toytf"\n' not in (checkout / "pyproject.toml").read_text(encoding="utf-8"):
            return None
        ended = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, timeout=2, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    head = re.match(rb"# branch\.oid ([0-9a-f]{7})", ended.stdout)
    changed = re.search(rb"^[^#]", ended.stdout, re.MULTILINE)
    return head and head[1].decode() + (" with changes" if changed else "")
