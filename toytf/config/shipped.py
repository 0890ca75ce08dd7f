"""What comes with toytf besides its code: configs and claims by their bare names. Imports no torch.

A checkout has them in configs/, beside the package; a wheel has them inside, in toytf/configs.
"""

import difflib
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path, PurePath

from toytf.errors import LONG, UserError, shortened

_PACKAGE = Path(__file__).parent.parent


def config_folder() -> Path:
    """Where the configs that ship are."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"


def config_files() -> dict[str, Path]:
    """The configs that can be run, by bare name; `models` holds parts that others build on."""
    return {name: path for name, path in _below("").items() if not name.startswith(("models/", "claims/", "sweeps/"))}


def sweep_files() -> dict[str, Path]:
    """The sweeps that ship, by bare name: `sweeps/tiny`."""
    return {f"sweeps/{name}": path for name, path in _below("sweeps").items()}


def claim_files() -> dict[str, Path]:
    """The claims that ship, by area/name."""
    return _below("claims")


def _below(part: str) -> dict[str, Path]:
    """The YAML files of a part of configs/, by their bare names in it."""
    folder = config_folder() / part
    return {_bare(path.relative_to(folder)): path for path in sorted(folder.rglob("*.yaml"))}


def shipped_file(name: str | Path) -> Path | None:
    """The file that a bare name such as `factual/quick` means; `configs/` before it and `.yaml` after it may be there.

    A file that is no YAML goes by its full name: `factual/countries.csv`.
    """
    bare = PurePath(_bare(name))
    if bare.is_absolute() or ".." in bare.parts:
        return None
    folder = config_folder()
    return next(filter(is_file, (folder / bare, folder / f"{bare}.yaml")), None)


def why_missing(name: str | Path) -> str:
    """What to say of a config that is not at the path where its name points: the nearest name that ships."""
    hint = nearest_shipped(_bare(name), [*config_files(), *sweep_files()])
    return f"no such config{hint} (`toytf list configs` shows all that ship with toytf)"


def nearest_shipped(name: str, names: Collection[str]) -> str:
    """Say which of the names that ship is meant, as the tail of a sentence; nothing where none is near."""
    meant = [known for known in names if known.rpartition("/")[2] == name]  # only the area is missing
    meant = meant or difflib.get_close_matches(name[:LONG], names, n=1)
    return f": did you mean {' or '.join(meant)}?" if meant else ""


def _bare(name: str | PurePath) -> str:
    """A name without `configs/` and `.yaml`."""
    return PurePath(name).as_posix().removeprefix("configs/").removesuffix(".yaml")


def is_file(path: Path) -> bool:
    """Is there such a file? No name is too long, or too strange, to be asked for."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def refuse_hidden() -> None:
    """Refuse to go on if Python would import somebody else's `tasks` or `probes` instead of those beside toytf."""
    for name in ("tasks", "probes"):
        own = (_PACKAGE.parent / name).resolve()
        try:
            spec = find_spec(name)
        except ValueError:  # a module that was made by hand
            continue
        if spec is None or not own.is_dir():
            continue
        found = [Path(place) for place in spec.submodule_search_locations or [spec.origin or name]]
        if own not in [place.resolve() for place in found]:
            raise UserError(
                f'{shortened(str(found[0]))} hides the package "{name}" of toytf: rename it, or take its folder off '
                f"sys.path (PYTHONPATH, or the folder of the script that you run)"
            )
