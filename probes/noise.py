"""Noise against context, at triggers that have been seen before (Chen, Bruna, Bietti 2024).

- p_noise, p_correct: the probability of the noise token τ, and of the target
- noise_margin/FF2: u_τᵀ F(e_q) − max_{y ≠ τ} u_yᵀ F(e_q) of the feed-forward part of layer 2, mean over triggers q
- attention_output, attention_noise: attention of layer 2 to where the trigger was followed by its output, and by τ
- predicted_noise: how often τ is predicted; /noise and /output: where τ comes, and where something else does
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probes.config import NoiseConfig
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Reference, Task


class Noise(Probe):
    """`noise/…` and `noise_margin/FF2`; the chance value is a uniform guess, or uniform attention over the past."""

    config: NoiseConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure on the batch; the feed-forward margin needs a feed-forward part, attention a second layer."""
        metrics: dict[str, float] = {}
        references: dict[str, Reference] = {}

        def add(name: str, values: Float[Tensor, "b t"], where: Bool[Tensor, "b t"], reference: Reference) -> None:
            if where.any():
                metrics[f"noise/{name}"] = float(values[where].mean())
                references[f"noise/{name}"] = reference

        second = "blocks.1.attn.hook_pattern"
        logits, seen = model.observe(batch.tokens, second)
        law, scored, z = logits.softmax(-1), batch.roles["in_context"], batch.tokens
        noise = task.rivals(batch)["noise"]
        uniform = 1 / len(task.output_names)
        alpha = task.config.noise.probability
        add("p_noise", law.gather(2, noise[..., None])[..., 0], scored, Reference(alpha, uniform))
        add("p_correct", law.gather(2, batch.targets[..., None])[..., 0], scored, Reference(chance=uniform))
        predicted = (logits.argmax(-1) == noise).float()
        add("predicted_noise", predicted, scored, Reference(chance=uniform))
        add("predicted_noise/noise", predicted, scored & (batch.targets == noise), Reference(chance=uniform))
        add("predicted_noise/output", predicted, scored & (batch.targets != noise), Reference(chance=uniform))

        stored = task.memories(model).get("FF2_noise")
        if stored is not None:
            margins = stored.association.margins(lambda keys: model.read(stored.slot, keys))
            metrics["noise_margin/FF2"] = float(margins.mean())
        if second in seen:
            pattern = seen[second].mean(1)
            T = z.shape[1]
            before = torch.nn.functional.pad(z.masked_fill(~batch.roles["all"], -1)[:, :-1], (1, 0), value=-1)
            past = torch.ones(T, T, dtype=torch.bool, device=z.device).tril()
            followed = (before[:, None, :] == z[:, :, None]) & past
            is_noise = (z == noise)[:, None, :]
            fraction = 1 / torch.arange(1.0, T + 1, device=z.device)
            split = {"attention_output": followed & ~is_noise, "attention_noise": followed & is_noise}
            for name, keys in split.items():
                uniformly = float((keys.sum(2) * fraction)[scored].mean()) if scored.any() else None
                add(name, (pattern * keys).sum(2), scored, Reference(chance=uniformly))
        return ProbeResult(metrics, references)
