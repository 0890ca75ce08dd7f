"""Whatever may take long in a memory stops when it is asked to."""

import signal
from collections.abc import Callable

import pytest

from toytf.errors import Interrupted
from toytf.memory import (
    AssociationStream,
    StorageProblem,
    decide,
    decide_rank,
    max_margin,
    maximise_margin,
    train_linear,
    train_low_rank,
    train_mlp,
)
from toytf.memory.descent import RESCORE_MARGINS_EVERY
from toytf.randomness import generator
from toytf.stopping import stop_on_interrupt

HARD = AssociationStream(0, 8, 8).prefix(23)
"""About what an 8 × 8 matrix can store: no search is over soon."""

LONG: dict[str, Callable[[], object]] = {
    "decide": lambda: decide(StorageProblem.of(HARD), tolerance=1e-6),
    "maximise_margin": lambda: maximise_margin(StorageProblem.of(HARD)),
    "max_margin": lambda: max_margin(HARD),
    # The first part is over before anybody looks: it is the polish that must hear.
    "max_margin, its second part": lambda: max_margin(HARD, iterations=RESCORE_MARGINS_EVERY - 1),
    "decide_rank": lambda: decide_rank(HARD, 4),
    "train_linear": lambda: train_linear(HARD, generator(0, "stop"), steps=100),
    "train_low_rank": lambda: train_low_rank(HARD, 4, generator(0, "stop"), steps=100),
    "train_mlp": lambda: train_mlp(HARD, 4, generator(0, "stop"), steps=100),
}


@pytest.mark.parametrize("search", LONG.values(), ids=LONG)
def test_a_search_that_is_asked_to_stop_does(search: Callable[[], object]) -> None:
    with stop_on_interrupt():
        search()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted):
            search()
