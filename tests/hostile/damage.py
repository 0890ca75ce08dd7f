"""Ways to damage a run directory. Each takes the directory and leaves it damaged."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

Damage = Callable[[Path], None]


def last_checkpoint(directory: Path, suffix: str, seed: int = 0) -> Path:
    """The file of the last checkpoint of a seed."""
    return sorted((directory / "checkpoints").glob(f"seed{seed}-step*.{suffix}"))[-1]


def flip(path: Path, place: int) -> None:
    """Change one bit of one byte."""
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(bytes(content))


def _checkpoint(suffix: str, change: Callable[[Path], None], directory: Path) -> None:
    change(last_checkpoint(directory, suffix))


def _tensors(change: Callable[[dict[str, torch.Tensor]], None], path: Path) -> None:
    """Change tensors and keep the header."""
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, header)


def _header(fields: dict[str, object] | None, path: Path) -> None:
    """Change fields of the header, or lose it."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["toytf"])
    save_file(load_file(path), path, None if fields is None else {"toytf": json.dumps({**header, **fields})})


def _into_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _first_of(tensors: dict[str, torch.Tensor]) -> str:
    return min(tensors)


def _without_the_first(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[_first_of(tensors)]


def _other_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors[_first_of(tensors)] = torch.zeros(3)


def _other_type(tensors: dict[str, torch.Tensor]) -> None:
    tensors[_first_of(tensors)] = tensors[_first_of(tensors)].double()


FILES: dict[str, Callable[[Path], None]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "extended": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "header_byte": lambda path: flip(path, 40),
    "first_byte": lambda path: flip(path, 0),
    "data_byte": lambda path: flip(path, -30),
    "garbage": lambda path: path.write_bytes(b"\x93NUMPY garbage" * 20),
    "empty": lambda path: path.write_bytes(b""),
    "tensor_missing": partial(_tensors, _without_the_first),
    "tensor_extra": partial(_tensors, lambda tensors: tensors.update(extra=torch.zeros(2))),
    "tensor_of_another_shape": partial(_tensors, _other_shape),
    "tensor_of_another_type": partial(_tensors, _other_type),
    "no_header": partial(_header, None),
    "negative_header": partial(_header, {"step": -1, "rows": -5, "loss_count": -1}),
    "textual_header": partial(_header, {"step": "two", "rows": [], "sha256": {}}),
    "directory": _into_a_directory,
    "gone": Path.unlink,
}


def _renamed(directory: Path) -> None:
    for suffix in ("safetensors", "training"):
        path = last_checkpoint(directory, suffix)
        path.rename(path.with_name(f"seed0-step000003.{suffix}"))


def _stray(step: int, directory: Path) -> None:
    for suffix in ("safetensors", "training"):
        path = last_checkpoint(directory, suffix)
        shutil.copy(path, path.with_name(f"seed0-step{step:06d}.{suffix}"))


def _one_for_the_other(source: str, target: str, directory: Path) -> None:
    shutil.copy(last_checkpoint(directory, source), last_checkpoint(directory, target))


def _seed_missing(directory: Path) -> None:
    for path in (directory / "checkpoints").glob("seed0-*"):
        path.unlink()


def _checkpoints_a_file(directory: Path) -> None:
    shutil.rmtree(directory / "checkpoints", ignore_errors=True)
    (directory / "checkpoints").write_text("not a folder")


CHECKPOINTS: dict[str, Damage] = {
    **{
        f"{suffix}_{kind}": partial(_checkpoint, suffix, change)
        for suffix in ("safetensors", "training")
        for kind, change in FILES.items()
    },
    "checkpoint_renamed": _renamed,
    "weights_for_training": partial(_one_for_the_other, "safetensors", "training"),
    "training_for_weights": partial(_one_for_the_other, "training", "safetensors"),
    "checkpoint_stray": partial(_stray, 999_999),
    "seed_missing": _seed_missing,
    "checkpoints_a_file": _checkpoints_a_file,
}


def _lines(change: Callable[[list[bytes]], list[bytes]], directory: Path) -> None:
    path = directory / "metrics.jsonl"
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def _other_value(line: bytes) -> bytes:
    row = json.loads(line)
    name = max(row)
    return json.dumps({**row, name: row[name] + 1.0}).encode() + b"\n"


def _rows_of_another_run(line: bytes) -> bytes:
    row = json.loads(line)
    return json.dumps({**row, **{name: 0.5 for name in row if "/" in name}}).encode() + b"\n"


ROWS: dict[str, Damage] = {
    "metrics_missing": lambda directory: (directory / "metrics.jsonl").unlink(),
    "metrics_empty": lambda directory: (directory / "metrics.jsonl").write_bytes(b"") and None,
    "metrics_list": partial(_lines, lambda lines: [*lines[:1], b"[1, 2]\n", *lines[1:]]),
    "metrics_number": partial(_lines, lambda lines: [b"3\n", *lines]),
    "metrics_text_values": partial(_lines, lambda lines: [b'{"seed": "a", "step": "b", "x/y": "z"}\n', *lines[1:]]),
    "metrics_not_utf8": partial(_lines, lambda lines: [*lines, b"\xff\xfe\n"]),
    "metrics_torn": partial(_lines, lambda lines: [*lines[:-1], lines[-1][:-20]]),
    "metrics_of_another_run": partial(_lines, lambda lines: [*map(_rows_of_another_run, lines)]),
    "metrics_doubled": partial(_lines, lambda lines: [line for line in lines for _ in range(2)]),
    "metrics_value_changed": partial(_lines, lambda lines: [_other_value(lines[0]), *lines[1:]]),
    "metrics_row_lost": partial(_lines, lambda lines: lines[1:]),
    "metrics_deeply_nested": partial(_lines, lambda lines: [*lines, b"[" * 100_000 + b"\n"]),
    "metrics_a_directory": lambda directory: _into_a_directory(directory / "metrics.jsonl"),
}


def _config(change: Callable[[dict[str, object]], dict[str, object]], directory: Path) -> None:
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(change(yaml.safe_load(path.read_text()))))


def _write(name: str, content: bytes, directory: Path) -> None:
    (directory / name).write_bytes(content)


def _reword(name: str, word: bytes, other: bytes, directory: Path) -> None:
    path = directory / name
    path.write_bytes(path.read_bytes().replace(word, other))


OTHERS: dict[str, Damage] = {
    **{
        f"{name.partition('.')[0]}_{kind}": partial(_write, name, content)
        for name in ("summary.json", "timing.json", "checksums.json")
        for kind, content in {
            "empty": b"",
            "garbage": b"\xff{{",
            "list": b"[1]\n",
            "text": b'{"recall/x": "y"}',
        }.items()
    },
    "columns_garbage": partial(_write, "columns.json", b"\xff{{"),
    "columns_missing": lambda directory: (directory / "columns.json").unlink(),
    "columns_of_another_run": partial(_reword, "columns.json", b"recall", b"recoil"),
    "checksums_missing": lambda directory: (directory / "checksums.json").unlink(),
    "config_size": partial(_config, lambda config: {**config, "threads": 2, "model": {"d_model": 8}, "dimension": 8}),
    "config_seeds": partial(_config, lambda config: {**config, "seeds": [0]}),
    "config_task": partial(_config, lambda config: {**config, "task": {"kind": "factual"}}),
    "config_unknown_key": partial(_config, lambda config: {**config, "zebra": 1}),
    "config_plugin": partial(_config, lambda config: {**config, "experiment": "of_another_package"}),
    "config_empty": partial(_write, "config.yaml", b""),
    "config_garbage": partial(_write, "config.yaml", b"\xff\x00: ["),
    "lock_left_behind": partial(_write, ".lock", b"process 1 on elsewhere"),
}
