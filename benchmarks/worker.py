"""Train for a few seconds, and print the seconds of a step.

python -m toytf.benchmarks.worker CONFIG [KEY=VALUE ...]
"""

import sys
import time
from typing import Any

from toytf.config.plugins import load_config

SECONDS, LEAST = 4.0, 2
"""How long to train, and the least number of steps."""


def main() -> None:
    """Warm up, then take steps with the threads that the config chooses."""
    config: Any = load_config(sys.argv[1], sys.argv[2:]).resolved()
    import torch

    from .training import learner_of, step_of

    torch.set_num_threads(config.threads)
    step = step_of(learner_of(config))
    for _ in range(LEAST):
        step()
    n, started = 0, time.perf_counter()
    while n < LEAST or time.perf_counter() - started < SECONDS:
        step()
        n += 1
    print((time.perf_counter() - started) / n)


if __name__ == "__main__":
    main()
