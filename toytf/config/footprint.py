"""What to say of a run that needs more memory than is free, and an estimate of that from its config. Imports no torch.

A run is limited to what is free (`toytf.process`). An estimate is for what would come to that limit only after long,
and for where there is no such limit: trainings on GPUs, or on another system than Linux.
"""

from collections.abc import Mapping

from toytf.errors import UserError


def check_memory(content: Mapping[str, object], needed: float, free: float | None) -> None:
    """Refuse a run that needs more bytes of memory than are free (None: nobody knows); content: its config."""
    if free is not None and needed > free:
        raise too_large(content, f"the run would take about {amount(needed)}, and ", free)


def too_large(content: Mapping[str, object], takes: str, free: float) -> UserError:
    """What to say of a run that is too large; content: its config, whose largest size is the likely cause."""
    sizes = sorted(_sizes(content).items(), key=lambda item: item[1], reverse=True)
    cause, *others = [f"{key} = {value:,}" for key, value in sizes[:3]] or ["the config"]
    also = f" (other large sizes: {', '.join(others)})" if others else ""
    return UserError(
        f"{cause} needs too much memory: {takes}{amount(free)} were free when it began{also}: choose smaller "
        "values, or add --force to try anyway"
    )


def _sizes(content: Mapping[str, object], path: str = "") -> dict[str, int]:
    """The whole numbers of a config by their keys, the largest of each list."""
    found: dict[str, int] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            found |= _sizes(value, f"{path}{key}.")
        elif f"{path}{key}" != "train.steps" and not key.endswith(("seed", "seeds", "threads", "every", "iterations")):
            numbers = [one for one in (value if isinstance(value, list | tuple) else [value]) if type(one) is int]
            found |= {f"{path}{key}": max(numbers)} if numbers else {}
    return found


def amount(size: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("MB", "GB", "TB"):
        size /= 1e3 if unit != "MB" else 1e6
        if size < 1000:
            break
    return f"{size:,.3g} {unit}" if size < 1e6 else f"{size:.1e} {unit}"
