"""Flat names of metrics are a promise: what reads metrics.jsonl, summary.json, wandb or claims goes by them.

Each also has a sentence that says what it is, which columns.json keeps for readers.

golden/metric_names.txt has the metrics of small versions of configs, each with what it can be read against. A name that
is gone, or one that is new, fails here: change the file only if the change is meant, and say so in CHANGELOG.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toytf.config.compose import overlay
from toytf.config.plugins import ExperimentConfig, load_config
from toytf.measurement import KINDS, reference_name
from toytf.runs import Run
from toytf.runs.summary import described

pytestmark = pytest.mark.heavy

GOLDEN = Path(__file__).parent / "golden" / "metric_names.txt"

TRAINING = {
    "train": {"steps": 2, "batch_size": 16, "evaluation": {"every": 1, "sequences": 64}},
    "model": {"d_model": 16},
}
FEW_STEPS = {"steps": 10, "check_every": 5, "batch_size": 64, "check_sequences": 64}
SMALL: dict[str, dict[str, Any]] = {
    "quickstart.yaml": {**TRAINING, "task": {"seq_len": 32}},
    "association/memory.yaml": {**TRAINING, "task": {"n_inputs": 24}},
    "bigram/noisy.yaml": {**TRAINING, "task": {"seq_len": 32}},
    "bigram/two_layers.yaml": {**TRAINING, "task": {"seq_len": 32}},
    "bigram/noise_learning.yaml": {"repeats": 2, "samples": [16, 64], "n_tokens": [8, 16]},
    "bigram/three_steps_samples.yaml": {"evaluation_samples": 64, "samples": [64, 128, 192, 256]},
    "capacity/low_rank.yaml": {
        "rules": ["low_rank", "trained_low_rank", "optimum"], "dimensions": [4, 5, 6], "widths": [2, 3, 4], "draws": 2,
        "resolution": 0.9, "trained": {"steps": 40},
    },
    "capacity/scores.yaml": {"dimension": 16, "n": 40},
    "capacity/trained_mlp.yaml": {
        "dimensions": [4, 5], "width_ratios": [1, 2], "resolution": 0.9, "trained": {"lr": 0.1, "steps": 40},
    },
    "scaling/answers.yaml": {"n_inputs": [60], "dimensions": [8, 16], "fit_dimensions_from": 1},
    "scaling/laws.yaml": {"n_inputs": [100], "dimensions": [8, 16, 24], "fit_dimensions_from": 1},
    "scaling/embeddings.yaml": {"n_inputs": 6, "n_outputs": [2, 3], "samples": [60], "batches": [20]},
    "scaling/muon_evenly.yaml": {"n_inputs": 6, "dimensions": [16], "steps": 400, "evaluations": 4},
    "scaling/optimisers.yaml": {"n_inputs": 6, "dimensions": [16], "samples": [60]},
    "scaling/samples.yaml": {"n_inputs": [100], "dimensions": [8, 16], "samples": [10, 100, 1000]},
    "dynamics/transformer.yaml": {
        "train": {**TRAINING["train"], "steps": 8, "checkpoints": {"every": 1}}, "model": {"d_model": 16},
        "task": {"seq_len": 32},
    },
    "dynamics/five_tokens.yaml": {"system": {"dimensions": [3, 8]}, "learning_rates": [1, 10], "steps": 30},
    "dynamics/log_growth.yaml": {"steps": 20, "batch_size": 50},
    "dynamics/underparameterised.yaml": {"system": {"n_inputs": 4}, "steps": 2, "report_at": [1]},
    "factual/quick.yaml": {
        **TRAINING,
        "task": {"n_subjects": 4, "n_relations": 4, "n_answers": 2, "construction": {"steps": 1}},
    },
    "factual/capacity_quick.yaml": {
        **FEW_STEPS, "goal": 0.15, "resolution": 0.9, "learning_rates": [5e-2], "seq_len": 3, "dimensions": [8, 12, 16],
    },
    "factual/dynamics_random.yaml": {
        "n_subjects": 8, "n_relations": 2, "n_answers": 2, "lr": 1.0, "steps": 600, "evaluate_every": 8,
    },
}  # fmt: skip


def _golden() -> dict[str, set[str]]:
    """The lines of each config: a metric, and the kinds of reference that it has."""
    sections = GOLDEN.read_text(encoding="utf-8").removeprefix("# ").split("\n# ")
    return {name: set(lines) for name, *lines in (section.strip().splitlines() for section in sections)}


def _small(name: str) -> ExperimentConfig:
    config = load_config(name, {"logging.wandb": "off"})
    content = overlay(config.model_dump(mode="json"), SMALL[name])
    return type(config).model_validate(content | {"seeds": [0, 1], "threads": 1, "device": "cpu"})


@pytest.fixture(scope="module", params=SMALL)
def small_run(request: pytest.FixtureRequest, made: Callable[[ExperimentConfig], Run]) -> tuple[str, Run]:
    name = str(request.param)
    return name, made(_small(name))


def test_metrics_have_the_names_they_always_had(small_run: tuple[str, Run]) -> None:
    name, run = small_run
    summary = run.summary
    metrics = [metric for metric in summary if metric.partition("/")[0] not in KINDS and not metric.endswith("/std")]
    found = {
        " ".join([metric, *(kind for kind in KINDS if reference_name(kind, metric) in summary)]) for metric in metrics
    }
    assert found == _golden()[name]
    assert set(_golden()) == set(SMALL)


def test_every_metric_has_a_sentence_that_says_what_it_is(small_run: tuple[str, Run]) -> None:
    _, run = small_run
    metrics = described(run.summary, run.columns)
    meanings = {name: quantity.group.meaning(quantity.label) for name, quantity in metrics.items()}
    assert [name for name, says in meanings.items() if not says] == []
    wrong = [says for says in meanings.values() if not (says[0].isupper() and says.endswith(".") and len(says) <= 160)]
    assert wrong == []
