"""Random numbers by purpose: no global state, and every stream can be found again from its name."""

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def generator(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one purpose of one seed, such as `generator(0, "train", step)`.

    Streams of different purposes are independent, and none depends on what was drawn before: a resumed run draws the
    same batch at step 300 as an uninterrupted one.
    """
    key = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(key[:8], "little") >> 1)


def drawn(draw: Callable[[torch.Generator], Tensor], generators: Sequence[torch.Generator], dim: int = 0) -> Tensor:
    """What each of several generators draws, one after the other along an axis."""
    parts = [draw(random) for random in generators]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)
