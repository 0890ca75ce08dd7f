"""The figures of a training."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from toytf.report.page import MAP

if TYPE_CHECKING:
    from toytf.probe import ProbeResult
    from toytf.runs import TrainedRun

CHART_TITLES = {"loss": "Loss by role", "accuracy": "Accuracy by role"}
"""Of groups that have several quantities, which are drawn apart."""

MAP_LENGTH = 64
"""Positions shown in an attention map; more cannot be read."""


def training_figures(run: "TrainedRun") -> Iterator[tuple[str, Any]]:
    """Loss and accuracy by role, recall and attention curves, figures of probes, and attention maps of one sequence."""
    yield from _curves(run)
    yield from _probe_figures(run)
    yield from _attention_maps(run)


def figure_name(kind: str, on: str, detail: str = "") -> str:
    """The name of a figure of a probe, its own or a detail, on the task or on an entry of `evaluate_on`."""
    return "_".join(filter(None, ["probe", kind, detail, on]))


def probe_figures(result: "ProbeResult", kind: str, on: str) -> dict[str, Any]:
    """The figures that a probe drew, by name, with what it was evaluated on in their titles."""
    drawn = {} if result.draw is None else {"": result.draw}
    figures = {figure_name(kind, on, detail): draw() for detail, draw in {**drawn, **result.details}.items()}
    if on:
        for figure in figures.values():
            figure.update_layout(title_text=f"{figure.layout.title.text} ({on})")
    return figures


def _curves(run: "TrainedRun") -> Iterator[tuple[str, Any]]:
    """One chart for each group, quantity and entry of `evaluate_on`, of what was measured at several steps."""
    from toytf.figures import curves
    from toytf.measurement import reference_name

    history, summary, columns = run.history, run.summary, run.columns
    charts: dict[tuple[str, str], list[str]] = {}
    for name, about in columns.items():
        several = name in history and history[name].count() > history["seed"].nunique()
        if several and about.group.curve and about.group.place != "log" and not about.is_variant:
            charts.setdefault((str(about.at.get("quantity", about.group.name)), about.on), []).append(name)
    for (chart, on), members in charts.items():
        levels = {
            about.label: summary[name]
            for name, about in columns.items()
            if about.group.name == "floor" and about.on == on and about.at.get("quantity") == chart
            and name in summary
        }  # fmt: skip
        chance = {name: summary[level] for name in members if (level := reference_name("chance", name)) in summary}
        title = CHART_TITLES.get(chart, columns[members[0]].group.heading) + (f" ({on})" if on else "")
        yield chart + (f"_{on}" if on else ""), curves(history, members, title, chance=chance, levels=levels)


def _probe_figures(run: "TrainedRun") -> Iterator[tuple[str, Any]]:
    """What the probes drew at the last evaluation of the first seed; if that is not there, what they draw now."""
    for config in run.config.probes:
        for on in ("", *run.config.evaluate_on) if config.reads_batch else ("",):
            names = [figure_name(config.kind, on, detail) for detail in ("", *config.details)]
            figures = {name: figure for name in names if (figure := run.kept_figure(name)) is not None}
            if any(map(run.lost_figure, names)) or (not figures and not run.has_ended(run.config.seeds[0])):
                figures |= probe_figures(run.probe(config.kind, on=on or None), config.kind, on)
            yield from figures.items()


def _attention_maps(run: "TrainedRun") -> Iterator[tuple[str, Any]]:
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
            title = f"Attention of layer {layer + 1} at the last position: answer {answer}, right answer {target}"
            heads = [f"L{layer}H{head}" for head in range(model.config.attention.n_heads)]
            pattern = seen[name][0, :, 0, : len(tokens)].cpu()
            yield f"{MAP}{layer + 1}", attention_map(pattern.tolist(), tokens, title, heads=heads)
            continue
        for head, pattern in enumerate(seen[name][0, :, : len(tokens), : len(tokens)].cpu()):
            title = f"Attention of layer {layer + 1} (head L{layer}H{head}) on one sequence"
            yield f"{MAP}{layer + 1}_L{layer}H{head}", attention_map(pattern.tolist(), tokens, title)
