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
from toytf.measurement import Group, Reference
from toytf.memory import Association
from toytf.models.transformer import Slot, ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Memory, Task


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

    def references(self) -> Mapping[tuple[str, str], Reference]:
        """Always right, or a guess."""
        return {("all", "accuracy"): Reference(1.0, 1 / self.config.n_tokens)}

    def memories(self, model: ToyTransformer) -> Mapping[str, Memory]:
        """The two memories of the module's head."""
        p, e, u = model.pos_embed.W_pos.detach(), model.embed.W_E.detach(), model.unembed.W_U.detach().T
        return {
            "W_KQ1": Memory(Association(p[1:], p[:-1], torch.arange(len(p) - 1, device=p.device)), Slot("KQ", 0)),
            "W_OV1": Memory(Association(e, u, torch.arange(len(e), device=e.device)), Slot("OV", 0)),
        }


AGREEMENT = Group("agreement", "Says the token before", "It should rise to 1, also where the loss is not counted.")


class Agreement(Probe):
    """`agreement/previous`, and by position in a figure."""

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Compare what the model says with the token before."""
        said = model(batch.tokens).argmax(-1)[:, 1:]
        right = (said == batch.tokens[:, :-1]).float()
        by_position = right.mean(0).tolist()

        def draw() -> object:
            from toytf.figures import lines

            points = [(t + 2.0, value) for t, value in enumerate(by_position)]
            return lines({"agreement": {"the model": points}}, "Who says the token before, by position", x="position")

        measured = AGREEMENT.measurement(float(right.mean()), "previous", ideal=1.0, chance=1 / len(task.token_names))
        return ProbeResult([measured], draw=draw)
