"""Products of config keys, such as `model.attention.n_heads * model.attention.d_head`: the axes of figures."""

import math
from collections.abc import Mapping
from typing import Any

from toytf.config.yaml_text import load_yaml
from toytf.errors import UserError, shortened


def keys_of(expression: str) -> list[str]:
    """The keys in a product."""
    return [part for part in _parts(expression) if isinstance(part, str)]


def value_of(expression: str, known: Mapping[str, Any]) -> Any:
    """The product of the values of its keys; a key alone may have any value."""
    parts = [known[part] if isinstance(part, str) else part for part in _parts(expression)]
    if len(parts) == 1:
        return parts[0]
    for part in parts:
        if not isinstance(part, int | float):
            raise UserError(f"{shortened(expression)}: {shortened(str(part))} is not a number, which a product needs")
    return math.prod(parts)


def _parts(expression: str) -> list[Any]:
    """Keys as text, numbers as numbers."""
    parts = [load_yaml(part.strip(), expression) for part in expression.split("*")]
    if not all(isinstance(part, str | int | float) for part in parts):
        raise UserError(f"sweep.figures: {shortened(expression)} should be a key, or a product of keys such as a * b")
    return parts
