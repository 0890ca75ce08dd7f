"""The two paths from attention to the logits: the direct one, and the one through the feed-forward part.

    L = L_direct + L_FF,   L_direct = aᵀ U,   L_FF = FF(a)ᵀ U,   a = the stream after attention

A path is removed by putting its mean over all facts in its place.
"""

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Bool, Float
from torch import Tensor

from tasks.factual.streams import facts_answered
from tasks.factual.tables import in_chunks
from tasks.factual.task import FactualTask
from toytf.models.transformer import FeedForward


@dataclass(frozen=True, eq=False)
class Paths:
    """What each path gives for every fact, in so many draws of the noise."""

    part: FeedForward
    """It reads what attention gives."""
    attended: Float[Tensor, "fact draw d"]
    """a."""

    @property
    def direct(self) -> Float[Tensor, "fact draw d"] | None:
        """a, if it goes past the feed-forward part."""
        return self.part.skip(self.attended)

    @cached_property
    def through(self) -> Float[Tensor, "fact draw d"]:
        """FF(a)."""
        a = self.attended
        return in_chunks(self.part, max(self.part.W_in.shape), a.flatten(0, 1)).view_as(a)

    def right_without(self, task: FactualTask, U: Float[Tensor, "d answer"]) -> dict[str, Bool[Tensor, "fact draw"]]:
        """Which facts are right without `feed_forward` and, if there is a direct path, without `direct`."""
        constant = self.through.mean((0, 1)).expand_as(self.through)
        streams = {"feed_forward": self.part.add(self.attended, constant)}
        if self.direct is not None:
            streams["direct"] = self.part.add(self.attended.mean((0, 1)), self.through)
        return {path: facts_answered(x, task, U) for path, x in streams.items()}
