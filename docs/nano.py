# ruff: noqa: T201
"""An induction head in one file: train three matrices, then ask each of them for what it should have stored.

    python docs/nano.py                    # seed 0, 300 steps, about ten seconds on one core; needs only torch

The idea (Bietti et al. 2023, arXiv 2306.00802). A weight matrix can be an associative memory. Write one outer product
per pair, W = Σ_z e_zᵀ u_f(z), where e_z and u_y are rows of random numbers. Such rows are almost orthogonal in high
dimension, so e_z W points to u_f(z), and the question z gets the answer f(z) = argmax_y e_z W u_yᵀ. If we know which
pairs a matrix of a transformer should store, we can ask the trained matrix for every one of them, and count.

The task. Text is drawn from the bigrams of Shakespeare, character by character. Five characters are *triggers*: in each
sequence, every trigger has one output, drawn anew, which always follows it. Here the triggers e and t drew k and h:

    token       a  e  k  i  t  h  a  e  k  s  t  h
    counter        1        1        2        2        how often this trigger was seen; from 2 on its output is known

So from its second occurrence on, the output of a trigger can be copied from the context. Two layers of attention do it:

    layer 1     every token looks one position back, and notes which token it saw there       W_KQ1
    layer 2     a trigger looks for the token that noted this same trigger                    W_KQ2
                and copies that token to the output                                           W_OV2

What you will see. W_KQ2 and W_OV2 come to recall all their pairs, W_KQ1 about 0.7 of them. It fails mostly late in the
sequence, where a trigger hardly ever comes for the first time: to copy its output, one occurrence before is enough.
This is `toytf run quickstart` without toytf: the same task, model, training and recall, but other random numbers.
"""

import argparse
import json
import math
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

SHAKESPEARE = Path(__file__).parents[1] / "tasks" / "bigram" / "data" / "shakespeare65.json"

K = 5  # triggers: tokens are numbered from the most frequent on, and the triggers are the tokens 0 … K−1
T = 64  # tokens of a sequence
d = 128  # length of all vectors

# --- 1. The task ------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Sequences drawn together; all but `outputs` have the shape [sequence, position]."""

    tokens: Tensor
    targets: Tensor  # the next token
    in_context: Tensor  # is this a trigger that was seen before, so that its output is known?
    untrapped: Tensor  # the same, without the sequences that get into a circle of triggers
    outputs: Tensor  # [sequence, trigger]


def read_counts(path: Path) -> Tensor:
    """counts[i, j] = how often token j follows token i in the text; the most frequent token is first."""
    return torch.tensor(json.loads(path.read_text(encoding="utf-8"))["counts"], dtype=torch.float64)


def sample(counts: Tensor, n: int, generator: torch.Generator) -> Batch:
    """Draw n sequences: a trigger is followed by its output, any other token by what follows it in the text."""
    outputs = torch.randint(len(counts), (n, K), generator=generator)

    def follow(z: Tensor, otherwise: Tensor) -> Tensor:
        return torch.where(z < K, outputs.gather(1, z.clamp(max=K - 1)), otherwise)

    # To draw y with probability q_y, draw r uniformly from 0 to 1 and take the first y with q_0 + … + q_y > r.
    first = counts.sum(1).cumsum(0) / counts.sum()
    following = counts.cumsum(1) / counts.sum(1, keepdim=True)
    r = torch.rand(T + 1, n, 1, dtype=torch.float64, generator=generator)
    chain = [torch.searchsorted(first, r[0], right=True)]
    for t in range(1, T + 1):
        z = chain[-1]
        chain.append(follow(z, torch.searchsorted(following[z[:, 0]], r[t], right=True)))
    text = torch.cat(chain, dim=1)
    tokens, targets = text[:, :-1], text[:, 1:]

    counter = (tokens[:, :, None] == tokens[:, None, :]).tril().sum(2)  # how often this token was seen, now included
    in_context = (tokens < K) & (counter >= 2)

    # An output may be a trigger. With a → a, or a → b → a, the text never leaves the triggers, and a model that merely
    # repeats looks good. A path that is still among the K triggers after K steps must have closed such a circle.
    end = torch.arange(K).expand(n, K)
    for _ in range(K):
        end = follow(end, end)
    trapped = ((tokens < K) & (end < K).gather(1, tokens.clamp(max=K - 1))).any(1, keepdim=True)
    return Batch(tokens, targets, in_context, in_context & ~trapped, outputs)


# --- 2. The model -----------------------------------------------------------------------------------------------------


class InductionHead(nn.Module):
    """Two layers of attention with one head each, no LayerNorm, no feed-forward part; a matrix acts on a row as x W.

    Only W_KQ1, W_KQ2 and W_O2, a factor of W_OV2, are trained. All else stays as it was drawn.
    """

    def __init__(self, n_tokens: int, generator: torch.Generator) -> None:
        super().__init__()

        def uniform(rows: int) -> Tensor:  # entries from −1/√d to 1/√d
            return (2 * torch.rand(rows, d, generator=generator) - 1) / math.sqrt(d)

        self.e = torch.randn(n_tokens, d, generator=generator)  # e_z: token z where it is read
        self.p = torch.randn(T, d, generator=generator)  # p_t: position t
        self.u = uniform(n_tokens)  # u_y: token y where it is predicted
        self.W_OV1 = uniform(d) @ uniform(d)  # makes of e_z another row, e_z W_OV1: "the token before me was z"
        self.W_V2 = uniform(d)
        self.W_KQ1, self.W_KQ2, self.W_O2 = (nn.Parameter(uniform(d)) for _ in range(3))
        self.future = torch.ones(T, T, dtype=torch.bool).triu(1)

    @property
    def W_OV2(self) -> Tensor:
        """A token x that layer 2 attends to adds x W_OV2 to the stream."""
        return self.W_V2 @ self.W_O2

    def attention(self, x: Tensor, W_KQ: Tensor) -> Tensor:
        """A[t, s] = softmax over s ≤ t of x_t W_KQ x_sᵀ / √d: how much position t looks at position s."""
        return (x @ W_KQ @ x.mT / math.sqrt(d)).masked_fill(self.future, -torch.inf).softmax(-1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token, [sequence, position, token]."""
        x = self.e[tokens] + self.p
        x = x + self.attention(x, self.W_KQ1) @ (x @ self.W_OV1)
        # This is (x + A x W_OV2) uᵀ. To multiply the small matrices first saves time.
        return x @ self.u.T + self.attention(x, self.W_KQ2) @ (x @ (self.W_OV2 @ self.u.T))


# --- 3. What the matrices should store --------------------------------------------------------------------------------


class Memory(NamedTuple):
    """The pairs of one matrix: asked with keys[i], it should answer with values[i]."""

    job: str
    W: Tensor
    keys: Tensor
    values: Tensor


def memories(model: InductionHead) -> dict[str, Memory]:
    """The three memories of an induction head, in the vectors of this model."""
    e, p, u = model.e, model.p, model.u
    return {
        "W_KQ1": Memory("layer 1: look one position back", model.W_KQ1, p[1:], p[:-1]),
        "W_KQ2": Memory("layer 2: find the token after the same trigger", model.W_KQ2, e[:K], e[:K] @ model.W_OV1),
        "W_OV2": Memory("layer 2: copy the attended token to the output", model.W_OV2, e, u),
    }


def recall(memory: Memory) -> float:
    """The fraction of the pairs i for which i = argmax_j keys_i W values_jᵀ; a guess is right in 1 of len(values)."""
    answers = (memory.keys @ memory.W @ memory.values.T).argmax(1)
    return (answers == torch.arange(len(answers))).double().mean().item()


# --- 4. Training, and the table ---------------------------------------------------------------------------------------


def train(counts: Tensor, steps: int, generator: torch.Generator) -> InductionHead:
    """Minimise the cross-entropy where the output of a trigger is known from the context."""
    model = InductionHead(len(counts), generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0)
    for step in range(1, steps + 1):
        batch = sample(counts, 64, generator)  # fresh ones: no sequence is seen twice
        loss = nn.functional.cross_entropy(model(batch.tokens)[batch.in_context], batch.targets[batch.in_context])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            recalls = ", ".join(f"{name} {recall(memory):.2f}" for name, memory in memories(model).items())
            print(f"step {step}: loss {loss.item():.2f}, recall {recalls}")
    return model


def main() -> None:
    """Train, and print what each matrix recalls beside the ideal and beside chance."""
    parser = argparse.ArgumentParser(description="Train an induction head, and ask its matrices what they store.")
    parser.add_argument("counts", nargs="?", type=Path, default=SHAKESPEARE, help="table of character pairs (JSON)")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts, generator = read_counts(arguments.counts), torch.Generator().manual_seed(arguments.seed)
    model = train(counts, arguments.steps, generator)

    print(f"\n{'matrix':8}{'its job':50}{'pairs':>6}{'learned':>9}{'ideal':>8}{'chance':>8}")
    for name, memory in memories(model).items():
        n, by_hand = len(memory.keys), memory._replace(W=memory.keys.T @ memory.values)  # W = Σ_i keys_iᵀ values_i
        print(f"{name:8}{memory.job:50}{n:6}{recall(memory):9.3f}{recall(by_hand):8.3f}{1 / n:8.3f}")
    batch = sample(counts, 256, generator)  # not trained on
    right = (model(batch.tokens).argmax(-1) == batch.targets).double()
    roles = {"where the answer is in the context": batch.in_context, "there, if not trapped": batch.untrapped}
    for where, role in roles.items():
        print(f"accuracy {where:55}{right[role].mean():9.3f}{1:8.3f}{1 / len(counts):8.3f}")


if __name__ == "__main__":
    main()
