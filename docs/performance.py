"""docs/performance.md: what `toytf bench` measured, in tables that say what each number means."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toytf.benchmarks.growth import MEMBERS, SIZES

from docs.markdown import filled, table
from docs.shown import millions, percent, power, seconds, times, times_precisely, whole

MEASURED = Path(__file__).resolve().parents[1] / "benchmarks" / "measured.json"

Numbers = Mapping[str, float]


# Tables


@dataclass(frozen=True)
class Number:
    """A number of a benchmark, by its key, and how it is shown."""

    key: str
    show: Callable[[float], str]

    def of(self, numbers: Numbers) -> str:
        """As a cell; a dash where it was not measured."""
        return self.show(numbers[self.key]) if self.key in numbers else "–"


Cell = str | Number


@dataclass(frozen=True)
class Table:
    """Columns, and rows of words and numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def write(self, numbers: Numbers) -> str:
        """In Markdown."""
        shown = [[cell.of(numbers) if isinstance(cell, Number) else cell for cell in row] for row in self.rows]
        return table(self.columns, shown)


@dataclass(frozen=True)
class Section:
    """A benchmark: what its numbers mean for a user, its tables, and its `ratio` in a few words."""

    title: str
    headline: str
    says: str
    tables: tuple[Table, ...]

    @property
    def keys(self) -> set[str]:
        """Of the numbers that it shows."""
        cells = [cell for one in self.tables for row in one.rows for cell in row]
        return {"ratio"} | {cell.key for cell in cells if isinstance(cell, Number)}

    def write(self, name: str, numbers: Numbers) -> Iterator[str]:
        """Its part of the page."""
        yield f"## {self.title}"
        yield filled(f"`toytf bench {name}`. {self.says}")
        for one in self.tables:
            yield one.write(numbers)


STEPS = {
    "factual": ("`factual/quick`", "256 facts, d = 32, batches of 1024"),
    "factual_large": ("`factual/quick`, larger", "1,024 facts, d = 128, 8 heads of 16, width 256, batches of 1024"),
    "bigram": ("`quickstart`", "T = 64, d = 128, batches of 64"),
    "bigram_long": ("`quickstart`, longer", "T = 256, d = 128, batches of 64"),
    "birth": ("`bigram/birth`", "T = 256, d = 256, batches of 512"),
}
CONFIGS = {name: STEPS[name][0] for name in ("bigram", "factual", "birth")}
GROWING = {
    "T": "tokens of a sequence, T",
    "d": "dimensions, d",
    "batch": "sequences of a batch",
    "facts": "subjects, with 16 facts each",
}
STACKED = {
    "ratio": ("`factual/quick`", "256 facts, d = 32, batches of 1024"),
    "ratio_256": ("`factual/quick`", "batches of 256"),
    "ratio_64": ("`factual/quick`", "batches of 64"),
    "attention_only_256": ("`factual/quick` without hidden units", "batches of 256"),
    "bigram_small": ("`quickstart`, smaller", "T = 16, d = 32, batches of 8"),
}

SECTIONS = {
    "data": Section(
        "Drawing sequences",
        "sequences drawn at once are so many times as fast as in a Python loop (bigram)",
        "Every training step draws new sequences. They are drawn all at once, by tables in which a draw takes the same "
        "time however large the vocabulary is. The alternative is a Python loop over tokens, as one would write it "
        "first. One thread.",
        (
            Table(
                ("task", "at once, against the loop", "tokens per second, at once"),
                tuple(
                    (label, Number(f"{name}_ratio", times), Number(f"{name}_tokens_per_second", millions))
                    for name, label in (("bigram", "bigram, T = 256"), ("factual", "factual, T = 32"))
                ),
            ),
        ),
    ),
    "steps": Section(
        "Training steps",
        "a training step with the fast forward is so many times as fast as with the plain one (`bigram/birth`)",
        "A whole step: data, forward, gradients and update, on one thread. Fast and plain give the same numbers up to "
        "rounding; `train.forward` chooses. The share of the peak compares a fast step with the machine: the "
        "arithmetic of its matrix products, over what the machine could do in the same time if it did nothing but "
        "multiply large matrices. What is missing to 100 % is everything else: exponentials, sums, moving data, and "
        "products that are too small to reach the peak.",
        (
            Table(
                ("config", "size", "a fast step", "fast, against plain", "share of the peak", "time for drawing data"),
                tuple(
                    (
                        *words,
                        Number(f"{name}_seconds", seconds),
                        Number(f"{name}_ratio", times),
                        Number(f"{name}_share", percent),
                        Number(f"{name}_data", percent),
                    )
                    for name, words in STEPS.items()
                ),
            ),
            Table(
                ("compared", ""),
                (
                    (
                        "`bigram/birth`: fast, against plain on the whole batch at once",
                        Number("birth_whole_ratio", times),
                    ),
                    ("`bigram/birth`: fast on two threads, against one", Number("two_threads_ratio", times)),
                    ("… and the share of what two cores could do", Number("two_threads_share", percent)),
                    (
                        "factual, larger: gradients by token counts, against attention of the last query",
                        Number("last_query_ratio", times),
                    ),
                    ("… against attention of all queries", Number("all_queries_ratio", times)),
                ),
            ),
        ),
    ),
    "growth": Section(
        "How a step grows",
        "a fast step takes so many times as long if sequences are twice as long",
        "The time of a step is roughly a power of each size, seconds ∝ size^b. With b = 0 a size costs nothing, with b "
        "= 1 twice the size takes twice as long, with b = 2 four times. The powers are fitted to a few doublings, on "
        "one thread. What does not grow, such as the overhead of small operations, makes them smaller than those of "
        "the arithmetic. The other sizes are those of `quickstart`, or of `factual/quick` for the facts. There, both "
        "forwards work mostly on the batch of 1024 sequences, and the number of facts matters little.",
        (
            Table(
                ("size", "measured at", "b, fast", "b, plain"),
                tuple(
                    (
                        label,
                        ", ".join(map(str, SIZES[name][2])),
                        Number(name, power),
                        Number(f"{name}_plain", power),
                    )
                    for name, label in GROWING.items()
                ),
            ),
            Table(
                ("size", "measured at", "b"),
                (
                    (
                        "seeds in a stack, `factual/quick` with batches of 64",
                        ", ".join(map(str, MEMBERS)),
                        Number("members", power),
                    ),
                ),
            ),
        ),
    ),
    "stacked_seeds": Section(
        "Seeds in a stack",
        "16 seeds of `factual/quick` in one tensor program are so many times as fast as one by one",
        "Seeds of a small training are stacked: every operation works on all of them at once, and its overhead is paid "
        "once. The smaller a step, the more that brings. Here whole steps of 16 seeds, one after the other, over one "
        "step of their stack, on one thread.",
        (
            Table(
                ("config", "size", "stacked, against one by one"),
                tuple((*words, Number(name, times)) for name, words in STACKED.items()),
            ),
        ),
    ),
    "sweep": Section(
        "Sweeps",
        "8 seeds of `quickstart` as a sweep of two workers are so many times as fast as in one run",
        "A sweep of two workers on two cores. What it adds to its runs is the start of the workers, waiting for the "
        "last one, and its table and page. It is measured with 200 tiny runs: the seconds of the sweep, over half of "
        "what its runs took by their own clocks. 1 × would be no cost at all.",
        (
            Table(
                ("compared", ""),
                (
                    ("8 seeds of `quickstart`: one run, against a sweep", Number("ratio", times)),
                    ("200 tiny runs: the sweep, over half of the sum of its runs", Number("overhead", times_precisely)),
                    ("… and what the sweep took", Number("tiny_seconds", seconds)),
                ),
            ),
        ),
    ),
    "probes": Section(
        "Evaluations and probes",
        "the slowest evaluation with all probes takes as long as so many training steps",
        "A run evaluates itself every few steps, and its probes look at every matrix. The last evaluation takes the "
        "longest, because some probes do all their work there. If all evaluations of a run take 50 % of the time of "
        "its steps, a third of the run is spent on measuring; fewer evaluations (`train.evaluation.every`) or fewer "
        "`probes` make it faster. One thread.",
        (
            Table(
                (
                    "config",
                    "the last evaluation",
                    "in training steps",
                    "all evaluations, of the time of all steps",
                ),
                (
                    *(
                        (
                            CONFIGS[name],
                            Number(f"{name}_seconds", seconds),
                            Number(f"{name}_ratio", times),
                            Number(f"{name}_of_training", percent),
                        )
                        for name in ("bigram", "factual")
                    ),
                    (
                        "`factual/quick` with 5,000 facts",
                        Number("many_facts_seconds", seconds),
                        Number("many_facts_ratio", times),
                        "not measured",
                    ),
                ),
            ),
        ),
    ),
    "solver": Section(
        "The storage solver",
        "the solver is so many times as fast as Adam at learning rate 0.1",
        "Can a matrix store these pairs? The solver finds one or proves that there is none. Adam can only find one, "
        "and how fast depends on its learning rate, whose best value nobody knows beforehand. Here pairs at d = 64, "
        "which can be stored, on one thread. A batch of large problems is not faster than one by one, because products "
        "of matrices, which are no faster in a batch, fill a large part of an iteration.",
        (
            Table(
                ("compared", ""),
                (
                    ("the solver, 555 pairs", Number("solver_seconds", seconds)),
                    (
                        "the solver, against Adam until every pair is recalled, at learning rate 0.1",
                        Number("ratio", times),
                    ),
                    ("… at the best of eight rates in hindsight, 500 pairs", Number("ratio_best_adam_500", times)),
                    ("… 555 pairs", Number("ratio_best_adam_555", times)),
                    ("… 575 pairs", Number("ratio_best_adam_575", times)),
                    ("… the least of the three", Number("ratio_best_adam", times)),
                    ("eight problems of d = 32 at once, against one by one", Number("batch_ratio", times)),
                    ("… of d = 64", Number("batch_ratio_d64", times)),
                    ("products of matrices, of an iteration at d = 64", Number("gemm_fraction", percent)),
                    ("… their speed, billion operations per second", Number("gemm_gflops", "{:.0f}".format)),
                    ("passes over the scores, of an iteration at d = 64", Number("elementwise_fraction", percent)),
                    ("the largest margin near capacity: what is left open", Number("margin_gap", percent)),
                    ("… time at d = 48, 345 pairs", Number("margin_seconds", seconds)),
                ),
            ),
        ),
    ),
    "scaling": Section(
        "Errors of memories",
        "errors at twenty dimensions in one pass are found so many times as fast as from left to right",
        "The error of a memory of 1,000 inputs at twenty dimensions up to 1,000, for three ways to store; and ten "
        "seeds of a memory that is trained by SGD. One thread.",
        (
            Table(
                ("compared", ""),
                (
                    ("all dimensions in one pass, against E W Uᵀ from left to right", Number("ratio", times)),
                    ("… against E (W Uᵀ)", Number("ratio_reassociated", times)),
                    ("… its time", Number("seconds", seconds)),
                    ("… answers that differ, by rounding", Number("differing", percent)),
                    (
                        "ten seeds trained as one closed-form program, against autograd for each seed",
                        Number("ratio_trainer", times),
                    ),
                ),
            ),
        ),
    ),
    "start": Section(
        "Starting",
        "a quickstart of one step, without probes, takes so many times as long as the import of torch",
        "What a command takes from its start to its end, in a new process. Every run has to import torch, so "
        "that is what the others are compared with.",
        (
            Table(
                ("command", "seconds", "against the import of torch"),
                (
                    ("`python -c 'import torch'`", Number("torch_seconds", seconds), ""),
                    ("`toytf --help`", Number("help_seconds", seconds), Number("help_ratio", times)),
                    (
                        "`toytf run quickstart` with one training step and no probes, its page included",
                        Number("run_seconds", seconds),
                        Number("run_ratio", times),
                    ),
                ),
            ),
        ),
    ),
    "neighbour": Section(
        "A busy neighbour",
        "beside a busy process, the threads of the config are so many times as fast as one (the worst config)",
        "Threads that wait for each other suffer when another program takes a core: then two threads can be slower "
        "than one. Each config trains with the number of threads that it chooses by itself, and with one. Below 1 ×, "
        "one thread (`threads=1`) would have been faster. A config that chooses one thread is compared with itself: "
        "there, the distance from 1 × only shows how exact the measurement is.",
        (
            Table(
                (
                    "config",
                    "threads it chooses",
                    "a step with these",
                    "these threads, against one",
                    "… beside a process that keeps one core busy",
                    "speed kept beside that process",
                ),
                tuple(
                    (
                        label,
                        Number(f"{name}_threads", whole),
                        Number(f"{name}_seconds", seconds),
                        Number(f"{name}_idle", times),
                        Number(f"{name}_busy", times),
                        Number(f"{name}_kept", percent),
                    )
                    for name, label in CONFIGS.items()
                ),
            ),
        ),
    ),
}
"""By the name of the benchmark."""


# The page


INTRODUCTION = """
`toytf bench` measures by comparing: two things are timed in turns within one run, and the number is their ratio. A busy
moment of the machine meets both, so ratios depend less on the machine than seconds do. Seconds are those of the best
round. In `data`, `steps`, `stacked_seeds`, `sweep`, `solver`, `scaling` and `neighbour`, 3 × means three times as fast,
and larger is better. In `growth`, `probes` and `start`, 3 × means that it takes three times as long, and smaller is
better. [speed.md](speed.md) says what makes toytf fast, and what to do about a slow run.

The numbers of this page were measured on: {machine}.
"""

COMMANDS = """
```
toytf bench                                      # everything, in about a quarter of an hour
toytf bench steps growth                         # some of it
toytf bench --json benchmarks/measured.json      # everything into the file from which `make docs` writes this page
```
"""


def performance_page(measured: Mapping[str, Any] | None = None) -> str:
    """All of docs/performance.md, from what was measured: benchmarks by name, and `machine`."""
    measured = json.loads(MEASURED.read_bytes()) if measured is None else measured
    found = {name: section for name, section in SECTIONS.items() if name in measured}
    headlines = [(f"`{name}`", section.headline, times(measured[name]["ratio"])) for name, section in found.items()]
    introduction = INTRODUCTION.format(machine=_machine(measured["machine"]))
    parts = [
        "# Performance",
        "<!-- Written by `make docs` from benchmarks/measured.json. Change docs/performance.py, or measure again. -->",
        *(filled(paragraph) for paragraph in introduction.strip().split("\n\n")),
        COMMANDS.strip(),
        table(("benchmark", "what its `ratio` compares", "`ratio`"), headlines),
        *(part for name, section in found.items() for part in section.write(name, measured[name])),
    ]
    return "\n\n".join(parts) + "\n"


def _machine(machine: Mapping[str, str]) -> str:
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['system']}, Python {machine['python']}, "
        f"torch {machine['torch']}"
    )
