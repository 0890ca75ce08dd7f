"""Checkpoints: weights that anyone can load, and beside them what training needs to go on to the same bits.

`seed0-step000300.safetensors` holds the weights under their TransformerLens names. `seed0-step000300.training` (also
safetensors) holds the optimiser, the running loss, and how many rows metrics.jsonl had of this seed; it is written
last, so its presence means that the checkpoint is whole. Both carry a checksum. Random states need no saving: every
stream is found again from its seed, its purpose and the step.
"""

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from toytf.errors import UserError, reason
from toytf.files import write_atomic
from toytf.models.transformer import ToyTransformer
from toytf.optimizers import Moments

Header = dict[str, int | str]

FIELDS = {"safetensors": {"seed", "step"}, "training": {"seed", "step", "rows", "loss_count"}}
"""What the header of each file says, besides its checksum."""


@dataclass(frozen=True)
class Progress:
    """Where training stands: steps done, rows written, and the loss since the last evaluation."""

    step: int
    rows: int
    loss_sum: Tensor
    loss_count: int


class CheckpointStore:
    """The checkpoints of one seed in a run's directory."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory, self.seed = directory, seed

    def steps(self) -> list[int]:
        """The steps that have weights."""
        return self._steps("safetensors")

    def newest(self) -> int | None:
        """The last step that has anything, be it half of a checkpoint."""
        return max((*self.steps(), *self._steps("training")), default=None)

    def latest(self, last: int | None = None) -> int | None:
        """The last step that training can go on from; a checkpoint beyond the last step of the run is refused."""
        whole = self._whole()
        if last is not None and whole and whole[-1] > last:
            raise UserError(
                f"{self._path(whole[-1], 'training')} is after step {last}, the last of this run, and does not belong "
                f"here: remove {self._path(whole[-1], '*')}"
            )
        return whole[-1] if whole else None

    def drop_later(self, step: int) -> None:
        """Remove later checkpoints, and what is left of those that are not whole: they are written again."""
        for later in {*self.steps(), *self._steps("training")}:
            if later > step:
                for suffix in ("safetensors", "training"):
                    self._path(later, suffix).unlink(missing_ok=True)

    def load_weights(self, step: int, parameters: Mapping[str, nn.Parameter]) -> None:
        """Put the weights of a step into a model."""
        weights, _ = self._read(step, "safetensors")
        for name in sorted({*weights, *parameters}):
            has, wants = (tuple(known[name].shape) if name in known else "none" for known in (weights, parameters))
            if has != wants:  # weights of another model
                raise self._damaged(step, "safetensors", f"{name}: expected {wants}, got {has}")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(weights[name])

    def models(self, like: ToyTransformer, steps: Iterable[int]) -> Iterator[tuple[int, ToyTransformer]]:
        """Copies of a model with the weights of these steps, one after the other."""
        for step in steps:
            model = copy.deepcopy(like)
            self.load_weights(step, dict(model.named_parameters()))
            yield step, model.eval()

    def rows(self, step: int) -> int:
        """How many rows metrics.jsonl had of this seed at a step, by a checkpoint that is whole."""
        self._read(step, "safetensors")
        return int(self._read(step, "training")[1]["rows"])

    def save(self, parameters: Mapping[str, nn.Parameter], moments: Mapping[str, Moments], progress: Progress) -> None:
        """Write a checkpoint, with what the optimiser remembers of each parameter.

        A crash at any moment leaves the older ones as they were.
        """
        self.directory.mkdir(exist_ok=True)
        weights = {name: _on_cpu(parameter) for name, parameter in parameters.items()}
        state = {f"{name}/{key}": _on_cpu(value) for name, known in moments.items() for key, value in known.items()}
        state["loss_sum"] = progress.loss_sum.detach().cpu()
        at: Header = {"seed": self.seed, "step": progress.step}
        counts: Header = {"rows": progress.rows, "loss_count": progress.loss_count}
        _write(self._path(progress.step, "safetensors"), weights, at)
        _write(self._path(progress.step, "training"), state, {**at, **counts})

    def restore(self, step: int, parameters: Mapping[str, nn.Parameter]) -> tuple[dict[str, Moments], Progress]:
        """Put weights back as they were at a step; what the optimiser remembered then, and how far it was."""
        state, header = self._read(step, "training")
        self.load_weights(step, parameters)
        loss_sum, moments = state.pop("loss_sum"), dict[str, Moments]()
        for key, value in state.items():
            name, _, field = key.rpartition("/")
            if name not in parameters or (field != "step" and value.shape != parameters[name].shape):
                raise self._damaged(step, "training", f"it has {key}, which this model does not have")
            moments.setdefault(name, {})[field] = value.to(parameters[name].device)
        device = next(iter(parameters.values())).device
        return moments, Progress(step, int(header["rows"]), loss_sum.to(device), int(header["loss_count"]))

    def _read(self, step: int, suffix: str) -> tuple[dict[str, Tensor], Header]:
        """The tensors and the header of a file, which must be what was written."""
        path = self._path(step, suffix)
        try:
            with path.open("rb"):
                pass  # if the system refuses it, the file may well be whole
        except OSError as error:
            raise UserError(f"{path} cannot be read: {reason(error)}") from None
        try:
            return self._intact(step, suffix)
        except ValueError as error:
            raise self._damaged(step, suffix, str(error)) from None

    def _intact(self, step: int, suffix: str) -> tuple[dict[str, Tensor], Header]:
        """The same; a ValueError says what is wrong."""
        path = self._path(step, suffix)
        try:
            with safe_open(path, framework="pt") as file:
                header: Header = json.loads((file.metadata() or {}).get("toytf", "{}"))
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            written = header.pop("sha256", None)
            found = _digest(tensors, header)
        except (OSError, SafetensorError, ValueError, AttributeError, TypeError, RecursionError) as error:
            raise ValueError(reason(error)) from None
        if written != found:
            raise ValueError("its checksum does not match" if written else "it has no checksum")
        if set(header) != FIELDS[suffix]:
            raise ValueError("it is a different file of the checkpoint")
        if (header["seed"], header["step"]) != (self.seed, step):
            raise ValueError(f"it belongs to seed {header['seed']}, step {header['step']}")
        return tensors, header

    def _damaged(self, step: int, suffix: str, why: str) -> UserError:
        """What is wrong with a file, and how the run goes on without it."""
        summary = self.directory.parent / "summary.json"
        also = " and summary.json" if summary.exists() else ""
        earlier = next((other for other in reversed(self._whole()) if other < step and self._can_resume(other)), None)
        where = "starts over" if earlier is None else f"continues from step {earlier}"
        between = [other for other in self._whole() if other != step and (earlier is None or other > earlier)]
        after = f"after step {earlier}" if earlier is not None else "all of them"
        which = f"the checkpoints of seed {self.seed}, {after}" if between else str(self._path(step, "*"))
        return UserError(
            f"{self._path(step, suffix)} is damaged ({why}): remove {which}{also}; with --resume "
            f"the training of seed {self.seed} then {where}"
        )

    def _can_resume(self, step: int) -> bool:
        """Are both files of a step what was written?"""
        try:
            return all(self._intact(step, suffix) for suffix in ("safetensors", "training"))
        except ValueError:
            return False

    def _whole(self) -> list[int]:
        """The steps that have both files."""
        return sorted(set(self._steps("training")) & set(self.steps()))

    def _path(self, step: int, suffix: str) -> Path:
        return self.directory / f"seed{self.seed}-step{step:06d}.{suffix}"

    def _steps(self, suffix: str) -> list[int]:
        pattern = re.compile(rf"seed{self.seed}-step(\d{{6,}})\.{suffix}")
        names = (pattern.fullmatch(path.name) for path in self.directory.glob(f"seed{self.seed}-step*"))
        return sorted(int(match[1]) for match in names if match)


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def _write(path: Path, tensors: dict[str, Tensor], header: Header) -> None:
    # One header field: safetensors does not fix the order of several, and equal checkpoints should be equal files.
    content = {**header, "sha256": _digest(tensors, header)}
    write_atomic(path, save(tensors, {"toytf": json.dumps(content)}))


def _digest(tensors: Mapping[str, Tensor], header: Header) -> str:
    """SHA-256 over the header, and over name, type, shape and bytes of every tensor."""
    found = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()
