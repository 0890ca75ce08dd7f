"""The previous token: one layer solves it with two memories.

position    1  2  3  4  5
token       b  a  a  d  c
target      –  b  a  a  d

W_KQ1 = Σ_t p_t p_{t−1}ᵀ     attend to the previous position
W_OV1 = Σ_k u_k e_kᵀ         say the token found there
"""

from collections.abc import Mapping

import torch

from copycat.config import CopyConfig
from toytf.memory import Association
from toytf.models.transformer import Slot, ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Memory, Reference, Task


class CopyTask(Task):
    """Say the token before."""

    config: CopyConfig

    def __init__(self, config: CopyConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.n_positions = config.seq_len
        self.token_names = self.output_names = tuple(chr(ord("a") + token) for token in range(config.n_tokens))

    def sample(self, n: int, generator: torch.Generator) -> Batch:
        """Draw tokens; the target of the first position counts nowhere."""
        shape = (n, self.config.seq_len)
        tokens = torch.randint(self.config.n_tokens, shape, generator=generator, device=self.device)
        asked = torch.ones(shape, dtype=torch.bool, device=self.device)
        asked[:, 0] = False
        return Batch(tokens, tokens.roll(1, 1), {"all": asked})

    def references(self) -> Mapping[str, Reference]:
        """Always right, or a guess."""
        return {"eval/all_accuracy": Reference(1.0, 1 / self.config.n_tokens)}

    def memories(self, model: ToyTransformer) -> Mapping[str, Memory]:
        """The two memories of the module's head."""
        p, e, u = model.pos_embed.W_pos.detach(), model.embed.W_E.detach(), model.unembed.W_U.detach().T
        return {
            "W_KQ1": Memory(Association(p[1:], p[:-1], torch.arange(len(p) - 1, device=p.device)), Slot("KQ", 0)),
            "W_OV1": Memory(Association(e, u, torch.arange(len(e), device=e.device)), Slot("OV", 0)),
        }


class Agreement(Probe):
    """`agreement/previous`."""

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Compare what the model says with the token before."""
        said = model(batch.tokens).argmax(-1)[:, 1:]
        agreement = float((said == batch.tokens[:, :-1]).float().mean())
        return ProbeResult(
            {"agreement/previous": agreement}, {"agreement/previous": Reference(1.0, 1 / len(task.token_names))}
        )
