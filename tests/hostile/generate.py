"""Configs, overrides, fact tables and run directories as nobody should write them, drawn at random."""

import csv
import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import yaml
from safetensors import SafetensorError

from tests.hostile.damage import CHECKPOINTS, OTHERS, ROWS
from toytf.config.compose import read_config
from toytf.config.shipped import config_files

QUIET: dict[str, Any] = {"seeds": [0], "device": "cpu", "threads": 1, "logging": {"wandb": "off"}}
TRAIN = {"steps": 2, "batch_size": 4, "evaluation": {"every": 1, "sequences": 4}}

TINY: list[dict[str, Any]] = [
    {
        "experiment": "train",
        "task": {"kind": "bigram", "seq_len": 6, "n_tokens": 8},
        "model": {"d_model": 4},
        "train": TRAIN,
        "probes": ["memory_recall", "attention"],
        **QUIET,
    },
    {
        "experiment": "train",
        "task": {"kind": "factual", "n_subjects": 3, "n_relations": 2, "n_answers": 2, "seq_len": 4},
        "model": {
            "d_model": 4,
            "n_layers": 1,
            "position": "none",
            "attention": {"n_heads": 2, "residual": False},
            "feed_forward": {"kind": "relu", "width": 5},
        },
        "train": {**TRAIN, "loss": "fact"},
        "probes": ["facts", "fact_storage", "value_memory"],
        **QUIET,
    },
    {"experiment": "capacity", "rules": ["hebbian", "optimum"], "dimensions": [2, 3], "draws": 2, **QUIET},
    {"experiment": "storage", "rules": ["hebbian", "mlp_h2"], "dimension": 4, "n": 6, "width": 5, **QUIET},
    {
        "experiment": "train",
        "task": {"kind": "association", "n_inputs": 6, "n_outputs": 3},
        "model": {
            "d_model": 4,
            "n_layers": 1,
            "position": "none",
            "attention": {"kq": "joint", "ov": "joint", "residual": False},
        },
        "train": {**TRAIN, "optimizer": {"kind": "muon", "lr": 0.02}},
        "probes": ["population", "margins_over_time"],
        **QUIET,
    },
    {
        "experiment": "scaling",
        "n_inputs": [9],
        "dimensions": [2, 3],
        "samples": [4],
        "schemes": ["counts", "top"],
        **QUIET,
    },
    {"experiment": "optimisers", "n_inputs": 6, "dimensions": [3], "samples": [8], "batches": [2, "all"], **QUIET},
    {"experiment": "dynamics", "system": {"kind": "random", "n_inputs": 4, "dimensions": [3]}, "steps": 4, **QUIET},
    {"experiment": "noise_learning", "n_tokens": [4, 5], "seq_len": 4, "samples": [2, 4], "repeats": 2, **QUIET},
    {"experiment": "three_steps", "n_tokens": 6, "seq_len": 5, "samples": [8], "evaluation_samples": 8, **QUIET},
    {"experiment": "fact_dynamics", "n_subjects": 4, "n_relations": 2, "n_answers": 2, "steps": 4, **QUIET},
]
"""A small one of every kind, so that a change that is valid runs in a blink."""

WORDS = (
    *("", " ", "a", "none", "all", "null", "~", "true", "off", "1e3", "0x10", "1_0", "nan", ".inf", "-.inf", "???"),
    *("${x}", "${oc.env:HOME}", "<b>x</b>", "../../etc/passwd", "/", "~", "~nobody/x", "configs/quickstart.yaml"),
    *(
        "名前",
        "اسم",
        "😀",
        "\u202etxt",
        "a\x85b",
        "\x1b[31m",
        "\x00",
        "a\nb",
        '"',
        "'",
        "x" * 5000,
        "%s",
        "{}",
        "[",
        "&a",
    ),
    *(
        "bigram",
        "factual",
        "train",
        "memory_recall",
        "facts",
        "relu",
        "linear",
        "sphere",
        "orthonormal",
        "one_hot",
        "eos",
    ),
)
NUMBERS = (
    *(0, 1, 2, 3, 5, 7, 8, -1, -7, 10**6, 10**9, 10**12, 2**31, 2**63, 10**23, -(10**12)),
    *(0.0, 0.5, 1.0, 1e-3, 1e-30, 1e-300, 1e30, 1e38, 1e300, -0.5, float("inf"), float("-inf"), float("nan")),
)


def value(chance: random.Random, depth: int = 0) -> Any:
    """Anything that a YAML file can say."""
    draw = chance.random()
    if draw < 0.45:
        return chance.choice(NUMBERS)
    if draw < 0.8 or depth > 3:
        return chance.choice((None, True, False, *WORDS))
    if draw < 0.9:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice((*WORDS[:30], 3, None)): value(chance, depth + 1) for _ in range(chance.randrange(3))}


def similar(chance: random.Random, given: Any) -> Any:
    """A value of the same kind as one that is right, often right itself."""
    if isinstance(given, bool):
        return not given
    if isinstance(given, int):
        return chance.choice((0, 1, 2, 3, 4, 6, 9, given + 1, given, 10**6, 10**9))
    if isinstance(given, float):
        return chance.choice((given / 2, given * 2, 1e-9, 0.0, 1.0, 1e6, 1e25))
    if isinstance(given, str):
        return chance.choice(TEXTS)
    if isinstance(given, list):
        return chance.choice((given[:1], given[::-1], [*given, *given], [*given, value(chance)], []))
    return value(chance)


def _places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(place for key, below in inner for place in _places(below, (*path, key)))]


def mutated(chance: random.Random, config: dict[str, Any]) -> Any:
    """A config in which some places are changed, removed or added."""
    config = json.loads(json.dumps(config))
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        *above, key = chance.choice(_places(config)[1:] or [("experiment",)])
        parent = config
        for name in above:
            parent = parent[name]
        kind = chance.random()
        if kind < 0.5:
            parent[key] = similar(chance, parent[key])
        elif kind < 0.75:
            parent[key] = value(chance)
        elif kind < 0.85:
            del parent[key]
        elif isinstance(parent, dict):
            parent[chance.choice(KEYS)] = value(chance)
    return config


def _keys(data: Any) -> set[str]:
    return {str(part) for place in _places(data) for part in place if isinstance(part, str)}


def _texts(data: Any) -> set[str]:
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return {data} if isinstance(data, str) else set().union(*map(_texts, inner))


SHIPPED = [read_config(path) for path in config_files().values()]
TEXTS = sorted({text for config in SHIPPED for text in _texts(config)})
KEYS = sorted(
    set().union(*map(_keys, SHIPPED))
    | {"zebra", "evaluate_on", "freeze", "unfreeze", "beta", "facts", "corpus", "base"}
)


def config_text(chance: random.Random, *, tiny: bool) -> bytes:
    """The text of a config file: mutated as data, as text, or no YAML at all."""
    config = chance.choice(TINY if tiny else SHIPPED)
    draw = chance.random()
    if draw < 0.75:
        text = yaml.safe_dump(mutated(chance, config), allow_unicode=chance.random() < 0.5).encode()
    elif draw < 0.95:
        text = _scrambled(chance, yaml.safe_dump(config).encode())
    else:
        text = bytes(chance.choices(b"{}[]:,-&*!|>'\"%@`#?~ \n\tabc019.\xff\x00", k=chance.randrange(200)))
    return text


def _scrambled(chance: random.Random, text: bytes) -> bytes:
    content = bytearray(text)
    for _ in range(chance.choice((1, 1, 2, 8))):
        place = chance.randrange(len(content) or 1)
        piece = chance.choice(
            (b"\x00", b"\xff", b": ", b"- ", b"[", b"}", b"&a ", b"*a", b"!!int ", b"!!python/x ", b"\n", b"9" * 40)
        )
        content[place : place + chance.randrange(4)] = piece
    return bytes(content)


def overrides(chance: random.Random, config: dict[str, Any]) -> list[str]:
    """Arguments of the command line after a config: keys that it has, and others."""
    found = []
    for _ in range(chance.randrange(1, 4)):
        place = chance.choice(_places(config)[1:])
        given = config
        for name in place:
            given = given[name]
        said: Any = similar(chance, given) if chance.random() < 0.6 else value(chance)
        if chance.random() < 0.4:
            place = tuple(
                chance.choice((*KEYS, "0", "7", "-1", "", "x" * 3000)) for _ in range(chance.choice((1, 2, 3)))
            )
        key, text = ".".join(map(str, place)), yaml.safe_dump(said, default_flow_style=True)
        text = text.removesuffix("...\n").strip()
        found.append(chance.choice((f"{key}={text}",) * 9 + (key, f"={text}", f"{key}==")))
    return found


def facts_csv(chance: random.Random) -> bytes:
    """A table of facts: mostly well-formed with strange names, else torn."""
    names = [*(f"n{i}" for i in range(12)), *(WORDS if chance.random() < 0.5 else ())]
    out = io.StringIO()
    writer = csv.writer(
        out, delimiter=chance.choice(",,,,,,,,,,,,;\t"), quoting=chance.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    )
    header = chance.choice(
        (["subject", "relation", "attribute"],) * 20 + (["subject", "relation"], ["a", "b", "c"], [])
    )
    writer.writerow(header)
    for _ in range(chance.choice((0, 1, 3, 30, 200))):
        width = 3 if chance.random() < 0.998 else chance.choice((1, 2, 4))
        fact = [chance.choice(names) for _ in range(width)]
        if width == 3 and chance.random() < 0.998:
            fact[2] = f"{fact[0]} {fact[1]}"  # one answer each
        writer.writerow(fact)
    text = out.getvalue().encode(chance.choice(("utf-8",) * 20 + ("utf-16", "utf-8-sig")), "replace")
    return _scrambled(chance, text) if chance.random() < 0.3 else text


def damaged(chance: random.Random, source: Path, target: Path) -> None:
    """A copy of a run directory with one to three things wrong."""
    shutil.copytree(source, target)
    named = [*ROWS.values(), *OTHERS.values(), *(CHECKPOINTS.values() if (source / "checkpoints").exists() else ())]
    for _ in range(chance.choice((1, 1, 2, 3))):
        try:
            if chance.random() < 0.5:
                chance.choice(named)(target)
            else:
                _damage_a_file(chance, target)
        except (
            OSError,
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
            RecursionError,
            SafetensorError,
            yaml.YAMLError,
        ):
            # too damaged for that already
            continue


def _damage_a_file(chance: random.Random, directory: Path) -> None:
    path = chance.choice([path for path in sorted(directory.rglob("*")) if path.is_file()])
    content = bytearray(path.read_bytes())
    match chance.randrange(5):
        case 0:
            path.unlink()
        case 1:
            path.write_bytes(bytes(content[: chance.randrange(len(content) + 1)]))
        case 2:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            path.write_bytes(bytes(content))
        case 3:
            other = chance.choice([path for path in sorted(directory.rglob("*")) if path.is_file()])
            path.write_bytes(other.read_bytes())
        case _:
            path.write_bytes(bytes(content) + bytes(chance.choices(range(256), k=20)))
