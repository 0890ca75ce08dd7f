"""Make the pictures of README.md and docs/ from real runs.

    python docs/make_images.py                     # all pictures; five minutes on one core
    python docs/make_images.py front attention     # some of them

The runs are kept in runs/images and used again. A picture is a plotly figure, and chromium takes a screenshot of it.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from image_runs import COLOURS, FAINT, OUTPUT, PALE, TRIGGER, run
from memory_images import capacity, filling, hidden_units, limits
from picture import GREY, INK, TITLE, Panel, Picture
from scaling_images import dynamics, optimisers, scaling

from toytf.memory import hebbian

IMAGES = Path(__file__).resolve().parent / "images"

SHOWN = 24
"""Tokens of the sequence that is shown."""


# --- runs


@dataclass(frozen=True)
class Example:
    """What the quickstart's model does with one held-out sequence."""

    tokens: list[str]
    counter: list[int]
    """How often the trigger at a position has been seen, itself included; 0 elsewhere."""
    attention: list[np.ndarray]
    """Of each layer, [query, key]."""
    probability: np.ndarray
    """Of the right next token, at every position."""

    @property
    def scored(self) -> list[int]:
        """Positions (from 0) whose answer is in the context."""
        return [t for t, seen in enumerate(self.counter[:SHOWN]) if seen >= 2]

    def answers(self, t: int) -> list[int]:
        """The positions after earlier occurrences of the trigger at t: there the answer is."""
        return [s + 1 for s in range(t) if self.tokens[s] == self.tokens[t]]


@cache
@torch.no_grad()
def example() -> Example:
    """The first untrapped held-out sequence that is easy to show: five answers in its first tokens, and no blanks."""
    made = run("quickstart")
    model, batch = made.model(), made.batch(256)
    names = made.task.token_names
    logits, seen = model.observe(batch.tokens, *(f"blocks.{layer}.attn.hook_pattern" for layer in (0, 1)))
    for i, scored in enumerate(batch.roles["untrapped"][:, :SHOWN].sum(1).tolist()):
        tokens = [names[token] for token in batch.tokens[i].tolist()]
        if scored >= 5 and not {"␣", "⏎"} & set(tokens[:SHOWN]):
            right = logits[i].softmax(-1).gather(1, batch.targets[i][:, None])[:, 0]
            attention = [pattern[i, 0].numpy() for pattern in seen.values()]
            return Example(tokens, batch.latents["counter"][i].tolist(), attention, right.numpy())
    raise LookupError("no held-out sequence is easy to show")


@cache
@torch.no_grad()
def scores(memory: str) -> tuple[np.ndarray, np.ndarray]:
    """u_yᵀ W e_z of the learned and of the ideal matrix, [z, y], each divided by its largest."""
    made = run("quickstart")
    model = made.model()
    held = made.task.memories(model)[memory]
    found = [held.association.scores(W) for W in (lambda x: model.read(held.slot, x), hebbian(held.association))]
    learned, ideal = ((M / M.abs().max()).numpy() for M in found)
    return learned, ideal


# --- what several pictures show


def painted(tokens: Sequence[str], counter: Sequence[int]) -> dict[str, Any]:
    """A tick for every token, where triggers and what follows them have their colours."""

    def colour(t: int) -> str:
        return TRIGGER if counter[t] else OUTPUT if t and counter[t - 1] else GREY

    text = [f'<span style="color:{colour(t)}">{token}</span>' for t, token in enumerate(tokens)]
    return {"tickvals": [*range(len(tokens))], "ticktext": text, "tickangle": 0}


def second_layer(panel: Panel, ring: int = 17) -> None:
    """Attention of layer 2 on the example, with rings where the answer is, at every position that is scored."""
    shown = example()
    panel.heat(shown.attention[1][:SHOWN, :SHOWN], signed=False)
    panel.rings(*zip(*((s, t) for t in shown.scored for s in shown.answers(t)), strict=True), size=ring, colour=OUTPUT)
    ticks = painted(shown.tokens[:SHOWN], shown.counter)
    panel.framed("x", SHOWN, title_text="… looks at this token", **ticks)
    panel.framed("y", SHOWN, title_text="at this token, layer 2 …", **ticks)
    t = shown.scored[0]
    s = shown.answers(t)[0]
    trigger, answer = shown.tokens[t], shown.tokens[s]
    lines = (
        f"at the second <b>{trigger}</b> it",
        f"looks at <b>{answer}</b>, which",
        f"followed the first <b>{trigger}</b>",
    )
    panel.label("<br>".join(lines), 11.5, 4)
    panel.arrow((11.3, 4.8), (s, t), OUTPUT)


def learned_and_ideal(learned: Panel, ideal: Panel, memory: str, *, asked: str, answer: str) -> None:
    """The scores of a learned matrix, and in another panel those of the ideal one."""
    for panel, M in zip((learned, ideal), scores(memory), strict=True):
        panel.heat(M, signed=True)
        panel.framed("x", len(M[0]), title_text=answer, showticklabels=False)
        panel.framed("y", len(M), title_text=asked if panel is learned else "", showticklabels=False)


def recall(panel: Panel) -> None:
    """Recall of the three matrices over training steps, and what a guess would recall."""
    history = run("quickstart").history
    last = float(history["step"].max())
    for level, colour in {0.2: COLOURS["W_KQ2"], 1 / 64: GREY}.items():
        panel.curve([0, last], [level, level], colour, dash="dot")
    for memory, colour in COLOURS.items():
        panel.curve(history["step"], history[f"recall/{memory}"], colour)
    panel.axis("x", title_text="training step", range=[0, last], tickvals=[0, 100, 200, 300])
    panel.axis("y", range=[-0.02, 1.04], tickvals=[0, 0.5, 1], gridcolor=PALE)


# --- the pictures


def front() -> Picture:
    """README: how one answer is found, one learned matrix beside the ideal one, and recall during training."""
    picture, shown = Picture(520), example()
    picture.text("<b>How the next letter is found</b>", 20, 8, size=TITLE)
    t = shown.scored[0]
    trigger, answer = shown.tokens[t], shown.tokens[shown.answers(t)[0]]
    panel = picture.panel(0, 40, 500, 505)
    lines_of_attention(panel)
    panel.label(f"<b>W_OV2</b>: copy {answer} to the output", t - 0.35, 2.5, COLOURS["W_OV2"], xanchor="right")
    find = f"<b>W_KQ2</b>: find the token<br>that came after {trigger}"
    panel.label(find, 3.1, 1.72, COLOURS["W_KQ2"], xanchor="right", align="right")
    panel.label("<b>W_KQ1</b>: look one position back", 3, -0.42, COLOURS["W_KQ1"], xanchor="center")
    picture.text("<b>W_KQ1, learned beside ideal</b>", 565, 8, size=TITLE)
    learned, ideal = picture.panel(565, 88, 773, 296), picture.panel(795, 88, 1003, 296)
    learned_and_ideal(learned, ideal, "W_KQ1", asked="from position t", answer="to position s")
    picture.text("learned", 669, 56, xanchor="center")
    picture.text("ideal", 899, 56, xanchor="center")
    lines = (
        "Red: a high score. On the diagonal",
        "t looks at t − 1. Late positions are",
        "rarely needed, and partly learned.",
    )
    picture.text("<br>".join(lines), 565, 350)
    picture.text("<b>Pairs each matrix recalls</b>", 1072, 8, size=TITLE)
    panel = picture.panel(1072, 48, 1375, 458)
    recall(panel)
    panel.label("<b>W_OV2</b> copy", 138, 0.93, COLOURS["W_OV2"])
    panel.label("<b>W_KQ2</b><br>find", 2, 0.84, COLOURS["W_KQ2"])
    panel.label("<b>W_KQ1</b><br>look back", 175, 0.48, COLOURS["W_KQ1"])
    panel.label("dotted: chance", 150, 0.08, GREY)
    return picture


def lines_of_attention(panel: Panel) -> None:
    """The first answer of the example, from tokens (below) to the prediction (above); line widths are attention."""
    shown = example()
    t = shown.scored[0]
    s = shown.answers(t)[0]
    panel.axis("x", range=[-0.6, t + 0.6], visible=False)
    panel.axis("y", range=[-0.6, 3.4], visible=False)
    chosen = {(0, s, s - 1): COLOURS["W_KQ1"], (1, t, s): COLOURS["W_KQ2"]}
    for layer, query in [*((0, position) for position in range(t + 1)), (1, t)]:
        for key, weight in enumerate(shown.attention[layer][query, : query + 1].tolist()):
            colour = chosen.get((layer, query, key), FAINT)
            line = {"color": colour, "width": (4 if colour == FAINT else 12) * weight}
            panel.draw(go.Scatter(x=[key, query], y=[layer + 0.22, layer + 0.78], mode="lines", line=line))
    copied = {"color": COLOURS["W_OV2"], "width": 12}
    panel.draw(go.Scatter(x=[t, t], y=[2.22, 2.78], mode="lines", line=copied))
    colours = [TRIGGER if shown.counter[i] else OUTPUT if i and shown.counter[i - 1] else GREY for i in range(t + 1)]
    for row, i in [*((row, i) for row in (0, 1) for i in range(t + 1)), (2, t)]:
        panel.label(f"<b>{shown.tokens[i]}</b>", i, row, colours[i], xanchor="center", font_size=30)
    panel.label(f"<b>{shown.tokens[s]}</b>", t, 3, OUTPUT, xanchor="center", font_size=30)


def circuit() -> Picture:
    """Tour: how one answer is found, in words."""
    picture, shown = Picture(500), example()
    t = shown.scored[0]
    s = shown.answers(t)[0]
    trigger, answer = shown.tokens[t], shown.tokens[s]
    lines_of_attention(picture.panel(30, 0, 730, 500))
    words = {
        "W_OV2": f"layer 2: copy the token that was found to the output.<br>It predicts {answer} with probability "
        f"{shown.probability[t]:.2f}.",
        "W_KQ2": f"layer 2: the second {trigger} looks for a token that noted<br>an {trigger}, and finds {answer}. "
        f"Attention {shown.attention[1][t, s]:.2f}.",
        "W_KQ1": f"layer 1: every token looks one position back and<br>notes what it saw. {answer} notes {trigger}: "
        f"attention {shown.attention[0][s, s - 1]:.2f}.",
    }
    for row, (memory, text) in enumerate(words.items()):
        picture.text(f"<b>{memory}</b>, {text}", 770, 85 + 125 * row, colour=COLOURS[memory])
    picture.text("The sequence begins like this. In it the trigger o<br>is always followed by h, and a by j.", 770, 405)
    return picture


def attention() -> Picture:
    """Tour: where both layers look."""
    picture, shown = Picture(700), example()
    picture.text("<b>Layer 1 (L0H0): all 64 positions</b>", 90, 8, size=TITLE)
    first = picture.panel(90, 48, 650, 608)
    n = len(shown.tokens)
    first.heat(shown.attention[0], signed=False)
    ticks = {"tickvals": [0, 15, 31, 47, 63], "ticktext": ["1", "16", "32", "48", "64"]}
    first.framed("x", n, title_text="… looks at this position", **ticks)
    first.framed("y", n, title_text="this position …", **ticks)
    first.label("one position back,<br>with gaps at late positions,<br>which are rarely needed", 30, 12)
    picture.text("<b>Layer 2 (L1H0): the first 24 tokens</b>", 800, 8, size=TITLE)
    second_layer(picture.panel(800, 48, 1360, 608), ring=24)
    return picture


def recalled() -> Picture:
    """Tour: recall of the three matrices, and accuracy."""
    picture = Picture(520)
    panel = picture.panel(80, 20, 1040, 440)
    history = run("quickstart").history
    recall(panel)
    panel.curve(history["step"], history["eval/untrapped_accuracy"], INK, dash="dash")
    panel.axis("y", title_text="fraction")
    panel.beside("<b>W_KQ2</b>: 5 of 5 triggers", 1.03, COLOURS["W_KQ2"])
    panel.beside("<b>W_OV2</b>: 65 of 65 tokens", 0.96, COLOURS["W_OV2"])
    panel.beside("accuracy (dashed)", 0.885, INK)
    panel.beside("<b>W_KQ1</b>: 46 of 63 positions", 0.73, COLOURS["W_KQ1"])
    panel.beside("chance for W_KQ2: 1 of 5", 0.2, COLOURS["W_KQ2"])
    panel.beside("chance for the others", 0.016, GREY)
    return picture


def matrices() -> Picture:
    """Tour: the three learned matrices beside the ideal ones."""
    picture = Picture(660)
    jobs = {
        "W_KQ1": ("look one position back", "position"),
        "W_KQ2": ("find the same trigger", "trigger"),
        "W_OV2": ("copy the token", "token"),
    }
    for i, (memory, (job, what)) in enumerate(jobs.items()):
        left = 110 + 445 * i
        right = left + 255
        picture.text(f"<b>{memory}</b>: {job}", left, 8)
        learned, ideal = picture.panel(left, 45, right, 300), picture.panel(left, 345, right, 600)
        learned_and_ideal(learned, ideal, memory, asked=f"asked: {what}", answer=f"answer: {what}")
        learned.axis("x", title_text="")
        ideal.axis("y", title_text=f"asked: {what}")
        if not i:
            for text, middle in {"<b>learned</b>": 172, "<b>ideal</b>": 472}.items():
                picture.text(text, 30, middle, textangle=-90, xanchor="center", yanchor="middle", size=TITLE)
    return picture


def delay() -> Picture:
    """Tour: accuracy when one matrix is frozen at random values until step 150."""
    picture = Picture(500)
    panel = picture.panel(80, 20, 1040, 420)
    curves = {
        "quickstart": ("nothing delayed", INK), "bigram/delay_kq1": ("<b>W_KQ1</b> delayed", COLOURS["W_KQ1"]),
        "bigram/delay_kq2": ("<b>W_KQ2</b> delayed", COLOURS["W_KQ2"]),
        "bigram/delay_output": ("<b>W_OV2</b> delayed", COLOURS["W_OV2"]),
    }  # fmt: skip
    for i, (config, (text, colour)) in enumerate(curves.items()):
        history = run(config, *(() if config == "quickstart" else (("seeds", (0,)),))).history
        accuracy = history["eval/untrapped_accuracy"]
        panel.curve(history["step"], accuracy, colour)
        half = history["step"][accuracy > 0.5].iloc[0]
        panel.beside(f"{text}:<br>above 0.5 at step {half}", 0.95 - 0.2 * i, colour)
    panel.curve([150, 150], [0, 1], GREY, dash="dot")
    panel.label("released at step 150", 145, 0.97, GREY, xanchor="right")
    panel.axis("x", title_text="training step", range=[0, 450], tickvals=[0, 150, 300, 450])
    panel.axis("y", title_text="accuracy", range=[-0.02, 1.04], tickvals=[0, 0.5, 1], gridcolor=PALE)
    return picture


def plateau() -> Picture:
    """Tour: a model knows which answers a relation has before it knows the facts."""
    picture = Picture(540)
    picture.text("<b>factual/quick: 256 facts, one layer</b>", 80, 8, size=TITLE)
    quick = picture.panel(80, 50, 610, 460)
    history = run("factual/quick").history
    kind = COLOURS["W_KQ1"]
    quick.curve(history["step"], history["eval/relation_accuracy"], kind)
    quick.curve(history["step"], history["eval/fact_accuracy"], INK)
    quick.label("an answer of the right kind", 115, 0.72, kind)
    quick.label("the right answer", 115, 0.6)
    quick.axis("x", title_text="training step", range=[0, 300], tickvals=[0, 100, 200, 300])
    quick.axis("y", title_text="accuracy", range=[-0.02, 1.04], tickvals=[0, 0.5, 1], gridcolor=PALE)
    picture.text("<b>factual/dynamics: 64 facts, linear attention</b>", 770, 8, size=TITLE)
    slow = picture.panel(770, 50, 1370, 460)
    history = run("factual/dynamics", ("init_scales", (1e-5,))).history
    for x, colour in {1595: GREY, 4176: GREY}.items():
        slow.curve([x, x], [0, 1.04], colour, dash="dot")
    for name, colour in {"right": INK, "same_relation": kind, "elsewhere": GREY}.items():
        slow.curve(history["step"], history[f"probability/{name}"], colour)
    slow.label("the right<br>answer", 5050, 0.8)
    slow.label("wrong, but of<br>the right kind:<br>made up", 1980, 0.62, kind)
    slow.label("of the<br>wrong kind", 60, 0.78, GREY)
    slow.label("theory:<br>1595", 1530, 0.97, GREY, xanchor="right", align="right")
    slow.label("theory:<br>4176", 4110, 0.97, GREY, xanchor="right", align="right")
    slow.axis("x", title_text="training step", range=[0, 8192], tickvals=[0, 2000, 4000, 6000, 8000])
    slow.axis("y", title_text="probability", range=[-0.02, 1.04], tickvals=[0, 0.5, 1], gridcolor=PALE)
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    made.__name__: made
    for made in (
        front,
        circuit,
        attention,
        recalled,
        matrices,
        delay,
        plateau,
        capacity,
        hidden_units,
        limits,
        filling,
        scaling,
        optimisers,
        dynamics,
    )
}


def main() -> None:
    """Make the pictures that are named, or all."""
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]().save(IMAGES / f"{name}.png")


if __name__ == "__main__":
    main()
