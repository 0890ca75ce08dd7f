"""Where a decision may look at values: not on a device that has to be waited for, nor where there are none yet."""

import torch

from toytf.models.reading import free_to_read


def test_values_are_read_on_a_cpu_and_not_where_operations_are_mapped() -> None:
    mapped = []

    def ask(x: torch.Tensor) -> torch.Tensor:
        mapped.append(free_to_read(x))
        return x

    torch.func.vmap(ask)(torch.zeros(2))
    assert mapped == [False]
    assert free_to_read(torch.zeros(2))
    assert not free_to_read(torch.zeros(2, device="meta"))
