"""What a model does with one sequence: where every head attends, what it predicts, and what would be right."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from toytf.errors import UserError
from toytf.models.transformer import ToyTransformer
from toytf.task import Batch, Task

if TYPE_CHECKING:
    import plotly.graph_objects as go

ONE_ROW = 1024
"""Positions that are shown of a sequence where only the last one attends."""
TOP = 5
"""Predictions that are named at every position."""


@dataclass(frozen=True, eq=False)
class SequenceView:
    """One sequence with attention and predictions. Layers may have fewer queries than positions: the last ones."""

    tokens: tuple[str, ...]
    parts: tuple[str, ...]
    """What tokens can be: `subject`, `relation` …"""
    part_of: Int[np.ndarray, "position"]
    """The number of the part of every token; −1: none."""
    asked: Bool[np.ndarray, "query"]
    """Whether the prediction counts towards the goal."""
    right: tuple[str, ...]
    """What every query should predict."""
    patterns: tuple[Float[np.ndarray, "head _query position"], ...]
    """The attention of every layer; before the last one, of all positions."""
    right_keys: Mapping[int, Bool[np.ndarray, "_query position"]]
    """Where a layer, counted from 0, should look."""
    outputs: tuple[str, ...]
    """What can be predicted."""
    predicted: Int[np.ndarray, "query top"]
    """The numbers of the likeliest outputs of every query."""
    probabilities: Float[np.ndarray, "query top"]
    right_probability: Float[np.ndarray, "query"]
    before: int = 0
    """Positions of the sequence that come before the tokens here."""
    after: int = 0
    """Positions that come after them."""

    def last_positions(self, n: int) -> "SequenceView":
        """The last positions alone."""
        cut = max(len(self.tokens) - n, 0)
        return replace(
            self,
            tokens=self.tokens[cut:],
            part_of=self.part_of[cut:],
            asked=self.asked[-n:],
            right=self.right[-n:],
            patterns=tuple(pattern[:, -n:, cut:] for pattern in self.patterns),
            right_keys={layer: keys[-n:, cut:] for layer, keys in self.right_keys.items()},
            predicted=self.predicted[-n:],
            probabilities=self.probabilities[-n:],
            right_probability=self.right_probability[-n:],
            before=self.before + cut,
        )

    def predictions(self, query: int = -1) -> list[tuple[str, float]]:
        """The likeliest outputs of a query, by default the last, and their probabilities."""
        return [
            (self.outputs[y], float(p)) for y, p in zip(self.predicted[query], self.probabilities[query], strict=True)
        ]

    def figure(self, layer: int = 0, head: int = 0) -> "go.Figure":
        """The attention of a head as a map; of a single query, that of all heads of the layer."""
        from toytf.figures import attention_map, literal

        if not 0 <= layer < len(self.patterns):
            raise UserError(f"layer {layer}: this model has layers 0 to {len(self.patterns) - 1}")
        pattern = self.patterns[layer]
        if not 0 <= head < len(pattern):
            raise UserError(f"head {head}: layer {layer} has heads 0 to {len(pattern) - 1}")
        if pattern.shape[1] == 1:
            says = f"says {literal(self.predictions()[0][0])}, right is {literal(self.right[-1])}"
            names = [f"L{layer}H{h}" for h in range(len(pattern))]
            return attention_map(pattern[:, 0], self.tokens, f"Attention at the last position ({says})", heads=names)
        return attention_map(pattern[head], self.tokens, f"Attention of layer {layer + 1}, head L{layer}H{head}")

    def _repr_html_(self) -> str:
        tokens = " ".join(f"<code>{escape(token)}</code>" for token in self.tokens)
        last = ", ".join(f"{escape(name)} {p:.2f}" for name, p in self.predictions())
        return f"<p>{tokens}</p><p>At the end: {last}; right is {escape(self.right[-1])}.</p>"


@torch.no_grad()
def sequence_views(model: ToyTransformer, task: Task, batch: Batch, *, most: int | None = None) -> list[SequenceView]:
    """Every sequence of a batch, by one forward.

    most: positions of longer sequences, the first ones if all are asked, and else the last. Where only the last
    position attends to anything, a sequence may be longer, since it is one row of a map.
    """
    T = batch.tokens.shape[1]
    if most is None or most >= T:
        return _views(model, task, batch)
    if batch.last == T:
        return [replace(view, after=T - most) for view in _views(model, task, batch.first_positions(most))]
    views = _views(model, task, batch)
    one_row = all(pattern.shape[1] == 1 for pattern in views[0].patterns)
    return [view.last_positions(max(most, ONE_ROW) if one_row else most) for view in views]


def _views(model: ToyTransformer, task: Task, batch: Batch) -> list[SequenceView]:
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.config.n_layers)]
    logits, seen = model.observe(batch.tokens, *names, last=batch.last)
    p = logits.softmax(-1)
    top = p.topk(min(TOP, p.shape[-1]), dim=-1)
    reading, asked = task.annotate(batch), batch.roles[task.goal]
    parts = torch.stack([*reading.parts.values()]).int() if reading.parts else None
    part_of = torch.full_like(batch.tokens, -1)
    if parts is not None:
        part_of = torch.where(parts.any(0), parts.argmax(0), -1)
    right_p = p.gather(-1, batch.targets[..., None])[..., 0]
    return [
        SequenceView(
            tuple(task.token_names[token] for token in batch.tokens[i].tolist()),
            tuple(reading.parts),
            part_of[i].cpu().numpy(),
            asked[i].cpu().numpy(),
            tuple(task.output_names[y] for y in batch.targets[i].tolist()),
            tuple(seen[name][i].cpu().numpy() for name in names),
            {layer: keys[i].cpu().numpy() for layer, keys in reading.right_keys.items() if layer < len(names)},
            task.output_names,
            top.indices[i].cpu().numpy(),
            top.values[i].cpu().numpy(),
            right_p[i].cpu().numpy(),
        )
        for i in range(len(batch.tokens))
    ]
