"""What holds for every probe that is installed."""

import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import torch

from toytf.build import build_model, build_probe, build_task
from toytf.config.plugins import load_config, plugins
from toytf.measurement import flat, from_json, to_json
from toytf.models import ToyTransformer
from toytf.probe import ProbeResult
from toytf.randomness import generator
from toytf.task import Task

CONFIGS = Path(__file__).parents[2] / "configs"
OURS = [name for name, config in plugins("probes").items() if config.__module__ == "probes.config"]
OF_FACTS = [name for name in OURS if "fact" in plugins("probes")[name].needs_roles]
SMALL = {"model.d_model": 16, "task.seq_len": 16}
FEW_FACTS = {"task.n_subjects": 6, "task.n_relations": 4, "task.n_answers": 3}


def setting(kind: str) -> tuple[Task, ToyTransformer]:
    """A task that the probe is for, and a model of it."""
    if kind in OF_FACTS:
        config: Any = load_config(CONFIGS / "factual" / "quick.yaml", SMALL | FEW_FACTS)
    else:
        config = load_config(CONFIGS / "bigram" / "noisy.yaml", SMALL)
    task = build_task(config.task, torch.device("cpu"))
    return task, build_model(config.model, task, 0)


def probed(kind: str, task: Task, model: ToyTransformer) -> ProbeResult:
    probe = build_probe(plugins("probes")[kind](kind=kind))
    return probe(model, task, task.sample(16, generator(0, "batch")))


@pytest.mark.parametrize("kind", OURS)
def test_a_probe_measures_something_and_changes_nothing(kind: str) -> None:
    task, model = setting(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert probed(kind, task, model).metrics
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", ["ablation", "alignment", "transplant", "truncation"])
def test_a_diverged_model_has_no_ideal_matrix_and_no_singular_value(kind: str) -> None:
    """Nor an error: that training has failed is for the loop to say."""
    task, model = setting(kind)
    with torch.no_grad():
        model.embed.W_E[3, 0] = torch.inf
    assert probed(kind, task, model).metrics == {}


@pytest.mark.parametrize("kind", OF_FACTS)
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_probes_of_facts_survive_a_diverged_model(kind: str, value: float) -> None:
    """But no error."""
    task, model = setting(kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    probed(kind, task, model)


@pytest.mark.parametrize("kind", OURS)
def test_a_reader_is_told_what_is_measured_and_what_to_look_for(kind: str) -> None:
    for group in {measured.quantity.group for measured in probed(kind, *setting(kind)).measurements}:
        assert group.title != group.name
        assert group.says[:1].isupper() and group.says.endswith((".", "?"))


@pytest.mark.parametrize("kind", OURS)
def test_no_two_measurements_have_the_same_name(kind: str) -> None:
    names = [measured.flat for measured in probed(kind, *setting(kind)).measurements]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("kind", OURS)
def test_what_is_measured_can_be_written_down_and_read_again(kind: str) -> None:
    result = probed(kind, *setting(kind))
    quantities = {measured.flat: measured.quantity for measured in result.measurements}
    again = from_json(json.loads(json.dumps(to_json(quantities))))
    assert again == quantities
    assert [flat(quantity) for quantity in again.values()] == list(quantities)
    assert result.failures.keys() <= quantities.keys()


@pytest.mark.parametrize("kind", OURS)
def test_a_probe_can_be_drawn_after_the_model_has_changed(kind: str) -> None:
    task, model = setting(kind)
    result, again = probed(kind, task, model), probed(kind, task, model)
    before = result.figure().to_json()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    figure = again.figure()
    assert isinstance(figure, go.Figure)
    assert figure.to_json() == before


def rotate(model: ToyTransformer) -> None:
    """x → x R everywhere: what reads the stream is turned back first, what writes to it turns what it writes."""
    R = torch.linalg.qr(torch.randn(16, 16, generator=generator(0, "rotation"), dtype=torch.float64))[0].float()
    reads, writes = ["W_Q", "W_K", "W_V", "W_in", "W_U"], ["W_E", "W_pos", "W_O", "W_out"]
    if model.attention(0).W_Q is None:
        writes.append("W_K")  # a joint matrix is on both sides of the stream
    if model.attention(0).W_V is None:
        reads.append("W_O")
    with torch.no_grad():
        for name, W in model.named_parameters():
            leaf = name.rpartition(".")[2]
            W.copy_(R.T @ W if leaf in reads else W)
            W.copy_(W @ R if leaf in writes else W)


@pytest.mark.parametrize("kind", OURS)
def test_a_rotated_model_has_the_same_metrics(kind: str) -> None:
    """Up to rounding, of which singular values and differences of scores show most."""
    task, model = setting(kind)
    before = probed(kind, task, model).metrics
    rotate(model)
    assert dict(probed(kind, task, model).metrics) == pytest.approx(dict(before), rel=2e-3, abs=1e-4)
