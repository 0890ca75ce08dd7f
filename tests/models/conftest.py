"""Models of every shape as TransformerLens sees them."""

from collections.abc import Iterator

import pytest
import torch

from tests.models.toys import SHAPES, build
from toytf.models import HookedToyTransformer, ToyTransformer


@pytest.fixture(params=sorted(SHAPES))
def model(request: pytest.FixtureRequest) -> ToyTransformer:
    return build(SHAPES[request.param])


@pytest.fixture
def lens(model: ToyTransformer) -> HookedToyTransformer:
    return HookedToyTransformer(model)


@pytest.fixture
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield
