"""Draws without replacement and chains: the distributions they should have."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from toytf.benchmarks.data import loop_bigram

from tasks.alias import AliasTable
from tasks.bigram.config import SHAKESPEARE, BigramConfig
from tasks.bigram.corpus import load_table
from tasks.bigram.sampler import draw_chains, draw_without_replacement
from tasks.bigram.task import BigramTask
from toytf.randomness import generator

CPU = torch.device("cpu")
BIGRAM = load_table(SHAKESPEARE, 65).bigram


def pooled_chisquare(observed: np.ndarray, expected: np.ndarray) -> float:
    """p-value of Pearson's χ², cells with an expectation under 5 thrown together (with the next larger if need be)."""
    order = np.argsort(expected)
    observed, expected = observed[order].astype(float), expected[order]
    n_small = int(np.searchsorted(expected, 5))
    while 0 < n_small < len(expected) and expected[:n_small].sum() < 5:
        n_small += 1
    if n_small:
        observed = np.append(observed[n_small:], observed[:n_small].sum())
        expected = np.append(expected[n_small:], expected[:n_small].sum())
    if len(observed) == 1:
        return 1.0  # a distribution with one outcome cannot be missed
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


# Without replacement


def test_draws_without_replacement_are_distributed_as_successive_draws():
    """P(i, then j) = p_i p_j / (1 − p_i)."""
    distribution = np.array([0.5, 0.25, 0.15, 0.1])
    n = 40_000
    drawn = draw_without_replacement(
        torch.tensor(distribution, dtype=torch.float32), n, 2, [generator(0, "draw")]
    ).numpy()
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    observed = np.array([((drawn[:, 0] == i) & (drawn[:, 1] == j)).sum() for i, j in pairs])
    expected = n * np.array([distribution[i] * distribution[j] / (1 - distribution[i]) for i, j in pairs])
    assert observed.sum() == n  # never the same twice
    assert pooled_chisquare(observed, expected) > 1e-4


def test_draws_without_replacement_never_repeat():
    distribution = torch.tensor(load_table(SHAKESPEARE, 65).unigram, dtype=torch.float32)
    drawn = draw_without_replacement(distribution, 2000, 20, [generator(0, "draw")]).sort(1).values
    assert (drawn.diff(dim=1) > 0).all()


# Chains


def test_a_trigger_is_always_followed_by_its_output():
    uniform = AliasTable.build(np.full((6, 6), 1 / 6), CPU)
    first = AliasTable.build(np.full((1, 6), 1 / 6), CPU)
    output_of = torch.full((50, 6), -1)
    output_of[:, 2] = torch.arange(50) % 6
    chain = draw_chains(first, uniform, output_of, 40, [generator(0, "chain")])
    assert chain.shape == (50, 40)
    for row, sequence in enumerate(chain.tolist()):
        for a, b in pairwise(sequence):
            assert a != 2 or b == row % 6


def test_tokens_follow_each_other_as_bigrams_do():
    task = BigramTask(BigramConfig(kind="bigram"), CPU)
    batch = task.sample(2000, generator(0, "rows"))
    plain = batch.roles["global"]
    seen = np.zeros((65, 65))
    np.add.at(seen, (batch.tokens[plain].numpy(), batch.targets[plain].numpy()), 1)
    assert seen[:5].sum() == 0  # the five triggers have no global position
    assert (seen[BIGRAM == 0] == 0).all()
    frequent = [row for row in range(5, 65) if seen[row].sum() >= 100]
    assert len(frequent) > 40
    values = [pooled_chisquare(seen[row], BIGRAM[row] * seen[row].sum()) for row in frequent]
    # If so, the p-values are uniform: the smallest of fewer than 60 is under 1e-4 / 60 once in 10 000 times, and so is
    # Fisher's sum of all of them.
    assert min(values) > 1e-4 / 60
    assert stats.combine_pvalues(values).pvalue > 1e-4


def test_the_first_token_is_drawn_from_the_unigrams():
    task = BigramTask(BigramConfig(kind="bigram", seq_len=2), CPU)
    first = task.sample(50_000, generator(0, "first")).tokens[:, 0]
    seen = torch.bincount(first, minlength=65).numpy()
    assert pooled_chisquare(seen, 50_000 * load_table(SHAKESPEARE, 65).unigram) > 1e-4


VARIANTS = {
    "fixed": {},
    "random": {"triggers": "random"},
    "no_repeat": {"no_repeat": True, "n_triggers": 1},
    "bigram_outputs": {"outputs": "bigram", "no_repeat": True, "trigger_offset": 3},
}


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_sequences_have_the_distribution_of_the_definition(variant: str):
    """Against one token at a time in Python, at fixed positions, so that the counts of a position are independent."""
    task = BigramTask(BigramConfig(kind="bigram", seq_len=11, **VARIANTS[variant]), CPU)
    rng, n = np.random.default_rng(0), 1500
    slow = np.stack([loop_bigram(task, rng) for _ in range(n)])
    batch = task.sample(20_000, generator(0, variant))
    fast = torch.cat([batch.tokens, batch.targets[:, -1:]], dim=1).numpy()
    assert fast.shape[1] == slow.shape[1] == 12
    for position in (0, 1, 4, 11):
        counts = np.stack([np.bincount(z[:, position], minlength=65) for z in (slow, fast)])
        rare = counts.sum(0) < 100  # under 7 expected in the smaller sample
        table = np.column_stack([counts[:, ~rare], counts[:, rare].sum(1)])
        table = table[:, table.sum(0) > 0]
        assert stats.chi2_contingency(table).pvalue > 1e-4
    # Repeated tokens tell whether an output is kept for the whole sequence: two means, z-test at 4 standard errors.
    distinct = [np.array([len(set(z)) for z in sample]) for sample in (slow.tolist(), fast.tolist())]
    error = np.sqrt(sum(d.var() / len(d) for d in distinct))
    assert abs(distinct[0].mean() - distinct[1].mean()) < 4 * error
