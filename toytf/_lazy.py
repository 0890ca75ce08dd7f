"""Public names that import their module (and torch) only when first used."""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy(package: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """`__getattr__` (PEP 562) and `__all__` of a package, from the imports of the stub beside it, `__init__.pyi`.

    The stub is what type checkers and editors read, so that every name is said in one place.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    places = {of.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for of in node.names}

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(str(places[name])), name)

    return load, sorted(places)
