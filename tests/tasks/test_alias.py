"""Alias tables hold the distributions they were built from, and draw nothing else."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.alias import AliasTable
from tasks.bigram.config import SHAKESPEARE
from tasks.bigram.corpus import load_table
from toytf.randomness import generator

CPU = torch.device("cpu")
BIGRAM = load_table(SHAKESPEARE, 65).bigram


def probabilities(table: AliasTable) -> np.ndarray:
    """Column j holds 1/n of keep_j, and what the columns whose other is j give away."""
    keep, other = table.keep.double().numpy(), table.other.numpy()
    rows, n = keep.shape
    distribution = keep / n
    for row in range(rows):
        np.add.at(distribution[row], other[row], (1 - keep[row]) / n)
    return distribution


def test_alias_tables_hold_the_rows_of_the_text_exactly():
    # keep is stored in float32: an error of 2^-24 per column.
    assert np.abs(probabilities(AliasTable.build(BIGRAM, CPU)) - BIGRAM).max() < 1e-6


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    weights=st.lists(
        st.one_of(st.just(0.0), st.floats(1e-6, 1.0), st.floats(1.0, 1e6)), min_size=1, max_size=30
    ).filter(lambda w: sum(w) > 0)
)
def test_alias_tables_hold_any_distribution_exactly(weights: list[float]):
    distribution = np.array([weights]) / sum(weights)
    assert np.abs(probabilities(AliasTable.build(distribution, CPU)) - distribution).max() < 1e-6


def test_a_fine_grid_of_uniform_numbers_gives_each_column_its_share():
    # A grid of 65 · 4000 cell middles: each of the two ends of a column's parts is off by at most one cell.
    table, n_cells = AliasTable.build(BIGRAM, CPU), 65 * 4000
    uniform = (torch.arange(n_cells, dtype=torch.float64) + 0.5) / n_cells
    for row in (0, 7, 64):
        drawn = table.draw(torch.full((n_cells,), row), uniform.float())
        share = torch.bincount(drawn, minlength=65).double().numpy() / n_cells
        assert np.abs(share - BIGRAM[row]).max() < 65 * 2 / n_cells


def test_the_ends_of_the_unit_interval_are_columns():
    table = AliasTable.build(BIGRAM, CPU)
    largest = float(np.nextafter(np.float32(1), np.float32(0)))
    column, height = table.split(torch.tensor([0.0, largest]))
    assert column.tolist() == [0, 64]
    assert (height >= 0).all()


def test_what_cannot_follow_is_never_drawn():
    table = AliasTable.build(np.array([[0.5, 0.0, 0.5, 0.0]]), CPU)
    uniform = torch.rand(20_000, generator=generator(0, "u"))
    drawn = table.draw(torch.zeros(20_000, dtype=torch.long), uniform)
    assert set(drawn.tolist()) == {0, 2}
