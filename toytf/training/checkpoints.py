"""Checkpoints: weights that anyone can load, and beside them what training needs to go on to the same bits.

`seed0-step000300.safetensors` holds the weights under their TransformerLens names. `seed0-step000300.training` (also
safetensors) holds the optimiser, the running loss, and how long metrics.jsonl was; it is written last, so its presence
means that the checkpoint is whole. Random states need no saving: every stream is found again from its seed, its purpose
and the step.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from toytf.errors import UserError
from toytf.files import write_atomic


@dataclass(frozen=True)
class Progress:
    """Where training stands: steps done, length of metrics.jsonl, and the loss since the last evaluation."""

    step: int
    metrics_bytes: int
    loss_sum: Tensor
    loss_count: int


class CheckpointStore:
    """The checkpoints of one seed in a run's directory."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory, self.seed = directory, seed

    def steps(self) -> list[int]:
        """The steps that have weights."""
        return self._steps("safetensors")

    def latest(self) -> int | None:
        """The last step that training can go on from."""
        whole = sorted(set(self._steps("training")) & set(self.steps()))
        return whole[-1] if whole else None

    def load_weights(self, step: int) -> dict[str, Tensor]:
        """The weights at a step, by name."""
        return _read(self._path(step, "safetensors"))[0]

    def save(
        self, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, progress: Progress
    ) -> None:
        """Write a checkpoint; a crash at any moment leaves the older ones as they were."""
        self.directory.mkdir(exist_ok=True)
        name_of: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
        weights = {name: parameter.detach().cpu().contiguous() for name, parameter in parameters.items()}
        state = {
            f"{name_of[parameter]}/{key}": value.detach().cpu().contiguous()
            for parameter, values in optimizer.state.items()
            for key, value in values.items()
            if isinstance(value, Tensor)
        }
        state["loss_sum"] = progress.loss_sum.detach().cpu()
        header = {"step": progress.step, "metrics_bytes": progress.metrics_bytes, "loss_count": progress.loss_count}
        _write(self._path(progress.step, "safetensors"), weights, {})
        _write(self._path(progress.step, "training"), state, header)

    def restore(self, step: int, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> Progress:
        """Put weights and optimiser back as they were at a step."""
        weights = self.load_weights(step)
        state, header = _read(self._path(step, "training"))
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(weights[name])
        for key, value in state.items():
            name, slash, field = key.rpartition("/")
            if slash:
                # AdamW keeps its step count on the CPU whatever the device, so that no step waits for it.
                device = "cpu" if field == "step" else parameters[name].device
                optimizer.state[parameters[name]][field] = value.to(device)
        device = next(iter(parameters.values())).device
        return Progress(header["step"], header["metrics_bytes"], state["loss_sum"].to(device), header["loss_count"])

    def metrics_bytes(self, step: int) -> int:
        """How long metrics.jsonl was at a step."""
        return _read(self._path(step, "training"))[1]["metrics_bytes"]

    def _path(self, step: int, suffix: str) -> Path:
        return self.directory / f"seed{self.seed}-step{step:06d}.{suffix}"

    def _steps(self, suffix: str) -> list[int]:
        pattern = re.compile(rf"seed{self.seed}-step(\d+)\.{suffix}")
        names = (pattern.fullmatch(path.name) for path in self.directory.glob(f"seed{self.seed}-step*"))
        return sorted(int(match[1]) for match in names if match)


def _write(path: Path, tensors: dict[str, Tensor], header: dict[str, int]) -> None:
    # One header field: safetensors does not fix the order of several, and equal checkpoints should be equal files.
    write_atomic(path, save(tensors, {"toytf": json.dumps(header)}))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, int]]:
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("toytf", "{}"))
            return {key: file.get_tensor(key) for key in file.keys()}, header  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a readable checkpoint: {error}") from None
