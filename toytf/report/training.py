"""The figures of a training."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from toytf.report.page import MAP
from toytf.report.table import BACKGROUND, GROUPS, group_and_test, is_variant

if TYPE_CHECKING:
    from toytf.runs import Run

CHART_TITLES = {**GROUPS, "loss": "Loss by role", "accuracy": "Accuracy by role"}

DRAWN_BY_PROBES = ("scores", "spectrum")
"""Groups of many numbers that the figures of their probes show better than curves."""

MAP_LENGTH = 64
"""Positions shown in an attention map; more cannot be read."""


def training_figures(run: "Run") -> Iterator[tuple[str, Any]]:
    """Loss and accuracy by role, recall and attention curves, figures of probes, and attention maps of one sequence."""
    from toytf.figures import curves

    history, summary = run.history, run.summary
    names = [name for name in history.columns if "/" in name and not is_variant(name)]
    charts: dict[tuple[str, str], list[str]] = {}
    for name in names:
        group, test = group_and_test(name)
        if group == "eval":
            group = name.rpartition("_")[2]  # loss or accuracy
        only_at_end = history[name].count() <= history["seed"].nunique()
        if group not in (*BACKGROUND, *DRAWN_BY_PROBES, "floor", "data") and not only_at_end:
            charts.setdefault((group, test), []).append(name)
    moved = history["step"].max() > 0  # else the table says it all
    for (group, test), members in charts.items() if moved else ():
        floor = f"floor@{test}/" if test else "floor/"
        levels = {
            name.removeprefix(floor): value
            for name, value in summary.items()
            if name.startswith(floor) and f"_{group}/" in name and not name.endswith("/std")
        }
        chance = {name: summary[f"chance/{name}"] for name in members if f"chance/{name}" in summary}
        title = CHART_TITLES.get(group, group) + (f" ({test})" if test else "")
        yield group + (f"_{test}" if test else ""), curves(history, members, title, chance=chance, levels=levels)
    yield from _probe_figures(run)
    yield from _attention_maps(run)


def _probe_figures(run: "Run") -> Iterator[tuple[str, Any]]:
    """The figures of the probes that draw one of their own, for the first seed."""
    from toytf.probe import sharing
    from toytf.training.build import build_probe, build_tests

    chosen = [probe for probe in run.config.probes if probe.draws]
    if not chosen:
        return
    model, n = run.model(), run.config.train.evaluation.sequences
    tests = build_tests(run.config.test_tasks, run.task)
    batches = {test: run.batch(n, test=test) for test in (None, *tests)}
    with sharing():
        found = {
            (config.kind, test): build_probe(config)(model, run.task if test is None else tests[test], batches[test])
            for config in chosen
            for test in (batches if config.reads_batch else (None,))
        }
    for (kind, test), result in found.items():
        if result.draw is not None:
            figure = result.figure()
            if test is not None:
                figure.update_layout(title_text=f"{figure.layout.title.text} ({test})")
            yield f"probe_{kind}" + (f"_{test}" if test else ""), figure


def _attention_maps(run: "Run") -> Iterator[tuple[str, Any]]:
    import torch

    from toytf.figures import attention_map

    model, task = run.model(), run.task
    batch = run.batch(1)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.config.n_layers)]
    with torch.no_grad():
        logits, seen = model.observe(batch.tokens, *names, last=batch.last)
    tokens = [task.token_names[token] for token in batch.tokens[0, :MAP_LENGTH].tolist()]
    for layer, name in enumerate(names):
        if seen[name].shape[2] == 1:
            answer, target = (task.output_names[int(y)] for y in (logits[0, -1].argmax(), batch.targets[0, -1]))
            title = f"Attention of layer {layer + 1} at the last position: the answer is {answer}, right is {target}"
            heads = [f"head {head + 1}" for head in range(model.config.attention.n_heads)]
            pattern = seen[name][0, :, 0, : len(tokens)].cpu()
            yield f"{MAP}{layer + 1}", attention_map(pattern.tolist(), tokens, title, heads=heads)
            continue
        for head, pattern in enumerate(seen[name][0, :, : len(tokens), : len(tokens)].cpu()):
            title = f"Attention of layer {layer + 1}, head {head + 1}, on one sequence"
            yield f"{MAP}{layer + 1}_head{head + 1}", attention_map(pattern.tolist(), tokens, title)
