"""What a page shows of the weights, at several checkpoints and seeds: numbers in a few bytes each.

A frame is a seed at a checkpoint. Numbers are rounded to one or two bytes, deflated, and written as base64; equal ones,
such as an ideal matrix that never changes, are written once. The scripts of the page have the same fields and types:

    learned, ideal    int8, hundred-and-twenty-sevenths; −128: may not compete
    attention         uint8, two-hundred-and-fifty-fifths; of linear attention int8, relative to the largest
    margins           int16, hundredths, those of memories rounded away from 0;   singular values uint16, thousandths
    known             int8, hundredths, rounded down
    probabilities     uint16, ten-thousandths
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from toytf.sharing import sharing

if TYPE_CHECKING:
    from toytf.models.transformer import ToyTransformer
    from toytf.runs import TrainedRun
    from toytf.task import Batch
    from toytf.views.facts import FactSheet
    from toytf.views.memory import MemoryView
    from toytf.views.sequence import SequenceView

FRAMES = 30
"""Frames of a page, over all seeds and runs."""
BYTES = 24 * 2**20
"""Bytes of all frames before they are deflated; where one frame has many, there are fewer."""
WORK = 24_000_000
"""Weights that all frames are computed from, a few seconds' worth: of a large model there are fewer frames.

It is counted, not timed: the same run has the same page on every machine.
"""
PAIR = 200
"""A pair of a memory takes as long as so many weights."""
SEQUENCES = 6
POSITIONS = 256
"""Positions of a sequence that are shown."""
MAP_BYTES = 2**19
"""Bytes of the attention of a frame: longer sequences are fewer."""


class Store:
    """The arrays and names of a page, each once."""

    def __init__(self) -> None:
        self._arrays: dict[bytes, int] = {}
        self._names: dict[tuple[str, ...], int] = {}
        self.raw_bytes = 0

    def array(self, values: np.ndarray, kind: str, unit: float = 1.0) -> int:
        """The number of an array, in units of 1/unit and of a type such as `<i2`."""
        limits = np.iinfo(np.dtype(kind))
        whole = np.clip(np.round(np.nan_to_num(values * unit, nan=limits.min)), limits.min, limits.max)
        content = whole.astype(kind).tobytes()
        self.raw_bytes += len(content)
        return self._arrays.setdefault(content, len(self._arrays))

    def names(self, names: Sequence[str]) -> int:
        """The number of a list of names."""
        return self._names.setdefault(tuple(names), len(self._names))

    def to_json(self) -> dict[str, Any]:
        """All arrays and names, by their numbers."""
        return {
            "arrays": [base64.b64encode(zlib.compress(content, 6)).decode() for content in self._arrays],
            "names": [*map(list, self._names)],
        }


@dataclass(frozen=True, eq=False)
class Frame:
    """What is seen of a seed at a checkpoint."""

    model: "ToyTransformer"
    memories: "Mapping[str, MemoryView]"
    sequences: "Sequence[SequenceView]"
    facts: "FactSheet | None"

    @property
    def work(self) -> int:
        """What it takes to look, in weights."""
        weights = sum(parameter.numel() for parameter in self.model.parameters())
        return weights + PAIR * sum(len(view.margins) for view in self.memories.values())

    def to_json(self, store: Store) -> dict[str, Any]:
        """It by the numbers of its arrays and names."""
        return {
            "memories": {name: _memory(view, store) for name, view in self.memories.items()},
            "attention": _attention(self.sequences, store, signed=self.model.config.attention.kind == "linear"),
            "facts": None if self.facts is None else _facts(self.facts, store),
        }


def frames_of(run: "TrainedRun", store: Store, most: int = FRAMES) -> tuple[dict[str, Any], Frame]:
    """Seeds at their checkpoints as far as they fit, and the last of the first seed; sizes say how many do.

    A run that has a checkpoint has at least one frame.
    """
    steps = {seed: there for seed in run.config.seeds if (there := run.steps_of(seed))}
    seeds = [*steps][: max(most, 1)]
    found: dict[str, Any] = {"steps": {}, "frames": {}, "sequences": {}}
    newest: list[Frame] = []
    each = most // len(seeds)
    for seed in seeds:
        batch, model, before = run.batch(SEQUENCES, seed=seed), run.config.model, store.raw_bytes
        T, answered = (min(n, POSITIONS) for n in (batch.tokens.shape[1], batch.last))
        size = model.attention.n_heads * T * ((model.n_layers - 1) * T + answered)  # in the last layer what is asked
        batch = batch.part(0, max(1, MAP_BYTES // size))  # fewer if their attention takes much room
        last = look(run, seed, steps[seed][-1], batch)
        shown = {steps[seed][-1]: last.to_json(store)}
        fit = min(BYTES // max(store.raw_bytes - before, 1), WORK // last.work)
        each = max(1, min(each, fit // len(seeds)))
        shown |= {step: look(run, seed, step, batch).to_json(store) for step in _spread(steps[seed], each)[:-1]}
        found["steps"][seed] = sorted(shown)
        found["sequences"][seed] = [_sequence(view, store) for view in last.sequences]
        found["frames"] |= {f"{seed}/{step}": shown[step] for step in sorted(shown)}
        newest.append(last)
    return found, newest[0]


def look(run: "TrainedRun", seed: int, step: int, batch: "Batch") -> Frame:
    """A seed at a checkpoint, on a few sequences."""
    from toytf.views.memory import memory_views
    from toytf.views.sequence import sequence_views

    model, task = run.model(step=step, seed=seed), run.task
    with sharing():
        sequences = sequence_views(model, task, batch, most=POSITIONS)
        return Frame(model, memory_views(model, task), sequences, task.facts(model))


def _spread(steps: Sequence[int], most: int) -> list[int]:
    """The first and the last, and others evenly among them."""
    if len(steps) <= most:
        return [*steps]
    if most == 1:
        return [steps[-1]]
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]


def _sequence(view: "SequenceView", store: Store) -> dict[str, Any]:
    """What does not depend on the weights."""
    return {
        "tokens": store.names(view.tokens),
        "before": view.before,
        "after": view.after,
        "parts": store.names(view.parts),
        "part_of": view.part_of.tolist(),
        "asked": view.asked.astype(int).tolist(),
        "right": store.names(view.right),
        "right_keys": {
            layer: [keys.shape[0], store.array(keys, "u1")] for layer, keys in view.right_keys.items()
        },
    }  # fmt: skip


def _attention(views: Sequence["SequenceView"], store: Store, *, signed: bool) -> dict[str, Any]:
    layers = []
    for layer in range(len(views[0].patterns)):
        pattern = np.stack([view.patterns[layer] for view in views])
        largest = float(np.abs(pattern).max()) or 1.0
        maps = [
            store.array(one / largest, "i1", 127) if signed else store.array(one, "u1", 255) for one in pattern
        ]  # fmt: skip
        layers.append(
            {"heads": pattern.shape[1], "queries": pattern.shape[2], "signed": signed, "largest": largest, "maps": maps}
        )
    return {
        "layers": layers,
        "outputs": store.names(views[0].outputs),
        "predicted": [store.array(view.predicted, "<i4") for view in views],
        "probabilities": [store.array(view.probabilities, "<u2", 10_000) for view in views],
        "right_probability": [store.array(view.right_probability, "<u2", 10_000) for view in views],
    }


def _memory(view: "MemoryView", store: Store) -> dict[str, Any]:
    # Margins away from 0, so that none changes its sign; only one without a rival is the largest.
    whole = np.where(view.margins > 0, np.ceil(100 * view.margins), np.floor(100 * view.margins))
    hundredths = np.where(np.isposinf(view.margins), 32767, np.clip(whole, -32767, 32766))
    return {
        "job": view.job,
        "keys": store.names(view.keys),
        "values": store.names(view.values),
        "rows": view.rows,
        "columns": view.columns,
        "learned": store.array(view.learned, "i1", 127),
        "ideal": store.array(view.ideal, "i1", 127),
        "right": store.array(view.right, "u1"),
        "pairs": store.names(view.pair_keys),
        "value_names": store.names(view.value_names),
        "targets": store.array(view.targets, "<i4"),
        "rivals": store.array(view.rivals, "<i4"),
        "margins": store.array(hundredths, "<i2"),
        "pairs_to_hold": len(view.margins),
        "recalled": view.recalled,
        "singular": store.array(view.singular, "<u2", 1000),
    }


def _facts(sheet: "FactSheet", store: Store) -> dict[str, Any]:
    return {
        "subjects": store.names(sheet.subjects),
        "relations": store.names(sheet.relations),
        "answers": store.names(sheet.answers),
        "places": store.names(sheet.places),
        "right": store.array(sheet.right, "<i4"),
        "said": store.array(sheet.said, "<i4"),
        "known": store.array(np.floor(100 * sheet.known), "i1"),
        "margin": store.array(sheet.margin, "<i2", 100),
        "stored": store.array(sheet.stored, "i1"),
    }
