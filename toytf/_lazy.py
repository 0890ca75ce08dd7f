"""Public names that import their module (and torch) only when first used."""

import importlib
from collections.abc import Callable
from typing import Any


def lazy(package: str, names: dict[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose public names live in the given modules (PEP 562)."""

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(names[name]), name)

    return load
