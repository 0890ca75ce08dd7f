"""Associations (Cabannes, Dohmatob, Bietti 2024): an input has one answer, and frequent inputs come often.

One sequence, with N inputs z1 … zN and answers z mod M, counted from 0:

    position    1
    token       z7
    answer      y2      for M = 5

    z ~ p(z) ∝ z^−α on 1 … N,    y = f(z)

There is nothing to generalise: every pair must be stored, and there may be more of them than a matrix can hold. What is
lost should be what is rare. The one token attends to itself, so that attention is just the matrix W_OV.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks.alias import AliasTable
from tasks.association.config import AssociationConfig
from toytf.measurement import Headline, Measurement, Reference
from toytf.memory import Association
from toytf.models.transformer import Slot, ToyTransformer
from toytf.randomness import drawn, generator
from toytf.task import FLOOR, Annotation, Batch, Memory, Task
from toytf.theory import zipf
from toytf.words import counted

HEURISTIC = replace(
    FLOOR, headline=(Headline("all_accuracy/constant", "to beat: always give the most frequent answer", 1),),
    meanings=(
        ("*_accuracy/constant", "Accuracy of always giving the most frequent answer; a model that remembers any input "
         "is above."),
        ("*_loss/constant", "Loss of knowing only how often answers come, H(y) in nats; a model that remembers any "
         "input is below."),
    ),
)  # fmt: skip


class AssociationTask(Task):
    """One token, one answer; see the module for a sequence drawn out.

    Inputs are numbered as in the file or, without one, from the most frequent to the rarest.
    """

    config: AssociationConfig
    ideal_needs_residual = False
    role_phrases: Mapping[str, str] = {"all": "inputs, each as often as it comes"}
    role_texts: Mapping[str, str] = {"all": "inputs, each asked as often as it comes"}
    n_positions = 1

    def __init__(self, config: AssociationConfig, device: torch.device) -> None:
        super().__init__(config, device)
        sizes = config.sizes()
        N, M = sizes.n_tokens, sizes.n_outputs
        self.token_names = tuple(f"z{z}" for z in range(1, N + 1))
        self.output_names = tuple(f"y{y}" for y in range(1, M + 1))
        answers = np.arange(N) % M
        if config.answers == "bijective":
            answers = torch.randperm(N, generator=generator(0, "answers")).numpy()
        if config.pairs:
            self.token_names, named, weights = zip(*config.pairs, strict=True)
            self.output_names = tuple(dict.fromkeys(named))
            number = {name: y for y, name in enumerate(self.output_names)}
            answers = np.array([number[name] for name in named])
        self.ideal_rule = config.construction.rule
        self.targets: Int[Tensor, "input"] = torch.tensor(answers, device=device)
        """f(z)."""
        self.frequencies: Float[np.ndarray, "input"]
        """p(z), in float64: Zipf's, or as the file has them."""
        if config.exponent is not None:
            self.frequencies = zipf(N, config.exponent)
        else:
            p = np.array(weights, dtype=np.float64)
            p /= p.max()  # so that no sum is too large
            self.frequencies = p / p.sum()
        self._input = AliasTable.build(self.frequencies[None], device)

    @property
    def inputs(self) -> Int[Tensor, "input 1"]:
        """Every input as a sequence."""
        return torch.arange(len(self.targets), device=self.device)[:, None]

    def sample(self, n: int, generator: torch.Generator) -> Batch:
        """Draw n inputs by p(z)."""
        return self.sample_each(n, [generator])

    def sample_each(self, n: int, generators: Sequence[torch.Generator]) -> Batch:
        """All at once: only the random numbers are drawn by each generator."""
        N = len(self.targets)
        column = drawn(lambda random: torch.randint(N, (n, 1), generator=random, device=self.device), generators)
        height = drawn(lambda random: torch.rand(n, 1, generator=random, device=self.device), generators)
        return self.ask(self._input.choose(torch.zeros_like(column), column, height))

    def ask(self, inputs: Int[Tensor, "n 1"]) -> Batch:
        """These inputs, with their answers."""
        return Batch(inputs, self.targets[inputs], {"all": torch.ones_like(inputs, dtype=torch.bool)})

    @property
    def about(self) -> str:
        """How many pairs there are, and how often each comes."""
        alpha, N, M = self.config.exponent, len(self.token_names), len(self.output_names)
        if alpha is None:
            often = "as often as the file says"
        else:
            often = "each equally often" if alpha == 0 else f"the z-th with probability ∝ z^−{alpha:g}"
        return (
            f"The model learns {counted(N, 'pair')}: an input, and its answer among {counted(M, 'output')}. A sequence "
            f"is a single token, the input; inputs come {often}. Only memory tells the answer, so that an error is a "
            "pair that was not stored."
        )

    def annotate(self, batch: Batch) -> Annotation:
        """The one token asks, and has nothing to attend to but itself."""
        itself = torch.ones_like(batch.tokens, dtype=torch.bool)
        return Annotation({"input: asks for its answer": itself}, {0: itself[:, None]})

    def references(self) -> Mapping[tuple[str, str], Reference]:
        """A model that stores every pair, and a uniform guess."""
        M = len(self.output_names)
        return {
            ("all", "accuracy"): Reference(ideal=1.0, chance=1 / M),
            ("all", "loss"): Reference(ideal=0.0, chance=float(np.log(M))),
        }

    def constant_answer(self) -> dict[str, float]:
        """What the best answer reaches that ignores the input: accuracy max_y p(y), loss H(y) = −Σ_y p(y) ln p(y)."""
        p = np.bincount(self.targets.cpu().numpy(), self.frequencies, minlength=len(self.output_names))
        given = p[p > 0]
        return {"accuracy": min(1.0, float(p.max())), "loss": max(0.0, float(-(given * np.log(given)).sum()))}

    def floors(self) -> Sequence[Measurement]:
        """A constant answer."""
        return [
            HEURISTIC.measurement(value, role="all", quantity=quantity, heuristic="constant")
            for quantity, value in self.constant_answer().items()
        ]

    @torch.no_grad()
    def memories(self, model: ToyTransformer) -> Mapping[str, Memory]:
        """What stores the pairs in the last layer; none where no matrix can stand for LayerNorm or linear attention.

        A sequence is one token, which attends to itself with weight 1. So the stream after attention and the logits are

            x' = x + x W_OV,    logits = (x' + FF(x')) W_U      x = e_z (+ p_1), each residual path only if there is one

            W_OV1 = {x → f(z)}      if what attention gives can reach the outputs without a feed-forward part
            FF1   = {x' → f(z)}     if there is such a part; {x → f(z)} if it is parallel to attention

        Without residual paths and feed-forward part the model is the memory: logits_y = u_yᵀ W e_z with W = W_OV1ᵀ.
        """
        config, last = model.config, model.config.n_layers - 1
        if config.norm != "none" or config.attention.kind != "softmax":
            return {}
        part, x, job = model.feed_forward(last), model.stream(self.inputs, stop=last)[:, 0], "answer each input"
        asked = {}
        if part is None or part.residual:
            own = job if part is None else f"{job}, unless FF{last + 1} does"
            asked[f"W_OV{last + 1}"] = x, Slot("OV", last), own
        if part is not None:
            parallel = config.feed_forward.reads == "block_input"
            keys = x if parallel else model.attention(last).add(x, model.read(Slot("OV", last), x))
            asked[f"FF{last + 1}"] = keys, Slot("FF", last), job
        found, values = {}, model.unembed.W_U.detach().T
        for name, (keys, slot, own) in asked.items():
            p = torch.tensor(self.frequencies, dtype=keys.dtype, device=keys.device)
            stored = Association(keys, values, self.targets, p, None, self.token_names, self.output_names)
            weighted = f"{own}, weighted by how often it comes: recall"
            found[name] = Memory(stored, slot, job=own, job_weighted=weighted)
        return found

    def ideal_memories(self, model: ToyTransformer) -> dict[str, Memory]:
        """Only one of them: twice stored is no better. W_OV1, if its answers reach the outputs."""
        return dict([*self.memories(model).items()][:1])
