"""What a page says of a run before its results: what was learned, by which model, and where the run comes from."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toytf.runs.provenance import without_folders
from toytf.words import counted

if TYPE_CHECKING:
    from toytf.models.transformer import ToyTransformer
    from toytf.runs import Run
    from toytf.views.sequence import SequenceView

WINDOW = 32
"""Tokens of the example sequence."""
NAMED = 4
"""Trained weights that the model's line names."""
EXAMPLES = 3
"""Questions that the example shows, if it has as many."""


@dataclass(frozen=True)
class Token:
    """A token of the example sequence: its part, and what should come next if that is asked."""

    name: str
    part: int
    answer: str | None


@dataclass(frozen=True)
class Example:
    """A piece of a sequence with the parts that its tokens play."""

    tokens: tuple[Token, ...]
    parts: tuple[str, ...]
    before: int
    """Tokens of the sequence before the piece."""
    after: int


def title_of(run: "Run") -> str:
    """The first comment of the config that was run; without one, the name of the run."""
    return run.provenance.title or run.name


def example_of(view: "SequenceView") -> Example:
    """A piece of a sequence, up to a few questions in it."""
    T, first = len(view.tokens), len(view.tokens) - len(view.asked)
    asked = [first + int(q) for q in view.asked.nonzero()[0]][:EXAMPLES]
    stop = min(T, max(WINDOW, asked[-1] + 3 if asked else 0))
    start = max(0, stop - WINDOW)
    answers = {first + q: view.right[q] for q in range(len(view.asked)) if view.asked[q]}
    tokens = [Token(view.tokens[t], int(view.part_of[t]), answers.get(t)) for t in range(start, stop)]
    return Example(tuple(tokens), view.parts, view.before + start, T - stop + view.after)


def model_line(model: "ToyTransformer", steps: int) -> str:
    """The model in one line: layers, heads, width, parts, and how many parameters these steps train."""
    from toytf.training.freezing import trainable_ever

    config = model.config
    heads = f"{counted(config.attention.n_heads, 'head')}{' each' if config.n_layers > 1 else ''}"
    kind = "linear attention" if config.attention.kind == "linear" else "attention"
    layers = [layer + 1 for layer in range(config.n_layers) if config.has_feed_forward(layer)]
    feed_forward = "no feed-forward part"
    if layers:
        linear = config.feed_forward.kind == "linear"
        part = "a linear feed-forward part" if linear else f"a feed-forward part of {config.width} hidden units"
        where = "" if len(layers) == config.n_layers else f" in layer {' and '.join(map(str, layers))}"
        feed_forward = f"{part}{where}"
    parameters = dict(model.named_parameters())
    trained = trainable_ever(config, parameters, steps) if steps else ()
    total, own = (sum(parameters[name].numel() for name in names) for names in ({*parameters}, trained))
    which = f" ({', '.join(name for name in parameters if name in trained)})" if 0 < len(trained) <= NAMED else ""
    return (
        f"{counted(config.n_layers, 'layer')} of {kind} with {heads}, width {config.d_model}, {feed_forward}, "
        f"{'LayerNorm' if config.norm == 'layer' else 'no LayerNorm'}; {own:,} of {total:,} parameters are trained"
        f"{which}."
    )


def provenance_of(run: "Run") -> Iterator[tuple[str, str]]:
    """Where a run comes from: pairs of a word and what it is; of several starts, the first, and how many came later."""
    starts = run.provenance.starts
    if starts:
        first = starts[0]
        commit = f", commit {first.commit}" if first.commit else ""
        if first.command:
            yield "command", without_folders(first.command)
        again = f", continued {counted(len(starts) - 1, 'time')}" if len(starts) > 1 else ""
        yield "started", first.started.replace("T", " ").replace("+00:00", " UTC") + again
        yield (
            "toytf",
            f"{first.toytf}{commit}; Python {first.python}" + (f", torch {first.torch}" if first.torch else ""),
        )
        if first.device:
            yield "device", first.device
    else:
        yield "provenance", "not known: provenance.json is missing or damaged"
    if run.timing:  # without that of the page itself: it says the same whenever it is written
        seconds = sum(taken for part, taken in run.timing.items() if part != "page")
        yield "time", f"{seconds:,.0f} seconds" if seconds >= 10 else f"{seconds:.1f} seconds"
