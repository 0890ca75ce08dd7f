"""The probe limits: known numbers on planted matrices, the order of learned, ideal and limit on trained models."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

import toytf
from tasks.bigram.task import BigramTask
from toytf.build import build_model, build_probe, build_task
from toytf.config.plugins import load_config, plugins
from toytf.measurement import as_row
from toytf.memory import hebbian
from toytf.memory.limits import best_matrices, matrix_limits
from toytf.memory.measures import measure_margins, measure_scores, measure_spectrum
from toytf.models import Slot, ToyTransformer
from toytf.probe import ProbeResult
from toytf.randomness import generator
from toytf.theory import extreme_level, optimum_scores

CONFIGS = Path(__file__).parents[2] / "configs"
MEMORIES = ("W_KQ1", "W_KQ2", "W_OV2")
D = 32


def setting(path: str = "bigram/ideal.yaml", **overrides: Any) -> tuple[BigramTask, ToyTransformer]:
    """A model of d = 32 on sequences of 16, in which the ideal memories are written."""
    small = {"model.d_model": D, "task.seq_len": 16}
    config: Any = load_config(CONFIGS / path, small | {key.replace("__", "."): v for key, v in overrides.items()})
    task: Any = build_task(config.task, torch.device("cpu"))
    return task, build_model(config.model, task, 0)


def probe(task: BigramTask, model: ToyTransformer, *, glance: bool = False, **fields: Any) -> ProbeResult:
    built = build_probe(plugins("probes")["limits"](kind="limits", **fields))
    return (built.glance if glance else built)(model, task, task.sample(2, generator(0, "batch")))


def with_own_axes() -> tuple[BigramTask, ToyTransformer]:
    """A model in which every character has an axis of its own, and W_OV2 is one matrix."""
    own = {"embedding": "one_hot", "unembedding": "one_hot", "position": "none", "attention": {"ov": "joint"}}
    return setting("quickstart.yaml", model__d_model=65, **{f"model__{key}": value for key, value in own.items()})


# Planted matrices


def test_the_hebbian_matrix_written_in_recalls_what_the_hebbian_rule_does():
    task, model = setting(task__triggers="random")
    result = probe(task, model)
    for name in MEMORIES:
        levels = result.references[f"pairs/{name}"]
        assert result.metrics[f"pairs/{name}"] == levels.hebbian
    assert result.references["pairs/W_OV2"].hebbian < 65  # too many pairs for it at d = 32
    assert result.references["pairs/W_OV2"].ideal == 65  # load .27


def test_a_matrix_of_half_the_pairs_recalls_half():
    task, model = with_own_axes()
    half = torch.zeros(65, 65)
    half[range(32), range(32)] = 1.0
    model.write(Slot("OV", 1), half)
    result = probe(task, model)
    assert result.metrics["pairs/W_OV2"] == 32
    # By Fano 65 [log₂ 65 − h₂(33/65) − 33/65 log₂ 64], h₂ = 1: nobody knows which 32 answers are right.
    assert result.metrics["bits/W_OV2"] == pytest.approx((65 * (math.log2(65) - 1) - 33 * 6) / 65**2, rel=0.001)
    assert result.references["bits/W_OV2"].chance == 0
    levels = result.references["pairs/W_OV2"]
    assert (levels.ideal, levels.hebbian, levels.chance) == (65, 65, pytest.approx(1))


def test_a_random_matrix_recalls_what_a_guess_does():
    """One pair of 65 on average, with a standard deviation of 1: ten draws have 10 ± 3.2."""
    task, model = setting("quickstart.yaml", model__attention={"ov": "joint"})
    recalled = 0.0
    for seed in range(10):
        model.write(Slot("OV", 1), torch.randn(D, D, generator=generator(seed, "planted")))
        recalled += probe(task, model, glance=True).metrics["pairs/W_OV2"]
    assert 1 <= recalled <= 20


def test_the_limit_of_pairs_with_own_values_is_that_of_own_values():
    """p δ(65) = 32², δ(64) = 4.21: 243, the load of 65 pairs is .27. More pairs bring more values: 181.8 fit."""
    result = probe(*setting())
    found = result.metrics
    assert found["utilisation/W_OV2/capacity"] == pytest.approx(32**2 / 4.22, rel=0.01)
    assert found["utilisation/W_OV2/capacity_own_values"] == pytest.approx(181.8, rel=0.015)
    for name in ("W_OV2", "W_KQ1"):
        assert result.references[f"pairs/{name}"].limit == found[f"utilisation/{name}/capacity_own_values"]
    full = result.references["pairs/W_OV2"].limit
    assert result.references["bits/W_OV2"].limit == pytest.approx(full * math.log2(full) / 32**2)
    assert found["utilisation/W_OV2/load"] == pytest.approx(0.27, abs=0.005)
    assert found["utilisation/W_OV2"] == pytest.approx(found["pairs/W_OV2"] / found["utilisation/W_OV2/capacity"])


def test_values_that_are_a_linear_map_of_the_keys_have_no_limit_and_the_table_says_why():
    result = probe(*setting("quickstart.yaml"))
    assert result.references["pairs/W_KQ2"].limit is None
    assert result.references["bits/W_KQ2"].limit is None
    assert not any(name.startswith("utilisation/W_KQ2") for name in result.metrics)
    (measured,) = (one for one in result.measurements if one.flat == "pairs/W_KQ2")
    phrases = {row.label: row.phrase for row in measured.quantity.group.headline or ()}
    assert phrases["W_KQ2"].endswith("pairs recalled of 5 (no limit)")
    assert "no limit" not in phrases["W_OV2"] + phrases["W_KQ1"]


def test_weights_that_are_frozen_hold_no_bits():
    """W_OV2 = W_V W_O with W_V frozen has d² free numbers, as many as the one matrix W_KQ1: so the same bits fit."""
    limits = [
        probe(*setting("quickstart.yaml", model__freeze=freeze), glance=True).references[f"bits/{name}"].limit
        for freeze in (["blocks.1.attn.W_V"], ["blocks.1.attn.W_O"], ["blocks.1.attn.*"], ["embed.W_E"])
        for name in ("W_OV2", "W_KQ1")
    ]
    assert limits == [pytest.approx(limits[0])] * 8


@pytest.mark.parametrize(
    ("freeze", "expected"),
    [
        ([], 2 * D * 8 - 64),  # A Bᵀ does not change with A M, B M⁻ᵀ
        (["blocks.1.attn.W_V"], D * 8),
        (["blocks.*"], 2 * D * 8 - 64),  # written, not trained
    ],
)
def test_a_narrow_product_has_fewer_free_numbers_than_its_factors_have_weights(freeze: list[str], expected: int):
    task, model = setting("quickstart.yaml", model__freeze=freeze, model__attention={"n_heads": 2, "d_head": 4})
    by_head = {holder.head: holder.n_parameters for holder in task.holders(model) if holder.name == "W_OV2"}
    assert by_head[None] == expected
    assert by_head[0] == by_head[1] == (D * 4 if len(freeze) and "W_V" in freeze[0] else 2 * D * 4 - 16)


def test_what_thaws_later_is_trained():
    thawed = {"model__freeze": ["blocks.1.attn.W_V"], "model__unfreeze": {300: ["blocks.1.attn.W_V"]}}
    task, model = setting("quickstart.yaml", **thawed, model__attention={"d_head": 8})
    assert [one.n_parameters for one in task.holders(model) if one.name == "W_OV2"] == [2 * D * 8 - 64]


def test_half_the_width_costs_a_tenth_of_the_limit():
    half, full = (
        probe(*setting("quickstart.yaml", model__attention={"d_head": d_head}), glance=True).metrics[
            "utilisation/W_OV2/capacity"
        ]
        for d_head in (D // 2, D)
    )
    assert half / full == pytest.approx(0.894, abs=0.001)


def test_inside_it_measures_the_matrix_that_was_written():
    """The Hebbian matrix of each memory; the scale it was written with does not matter, its orientation does."""
    task, model = setting()
    found = probe(task, model).metrics
    for name, memory in task.memories(model).items():
        stored, W = memory.association, hebbian(memory.association)
        measured = [*measure_margins(stored, W), *measure_scores(stored, W), *measure_spectrum(W, len(stored.keys))]
        expected = as_row((one.placed({"memory": name}) for one in measured), references=False)
        assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_the_smallest_margin_has_the_best_and_the_possible_one_beside_it():
    """At d = 128 all 65 pairs are stored; theory is some 20 % too high where p is below 3 d."""
    result = probe(*setting(model__d_model=128))
    for name in ("W_KQ1", "W_OV2"):
        margin, levels = result.metrics[f"margin/{name}_min"], result.references[f"margin/{name}_min"]
        assert 0 < margin <= levels.ideal * 1.05
        assert 0.6 * levels.theory < levels.ideal < 1.05 * levels.theory


# Trained models


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, "toytf.Run"]:
    """Two models that have learned something, and not everything."""
    folder = tmp_path_factory.mktemp("trained")
    fast = {"threads": 1, "device": "cpu", "logging.wandb": "off"}
    small = {
        "quickstart": {"model.d_model": 24, "train.steps": 40, "task.triggers": "random", "probes": ["limits"]},
        "factual/quick": {"train.steps": 40, "probes": ["limits"]},
    }
    return {
        name: toytf.run(CONFIGS / f"{name}.yaml", overrides | fast, out=folder / name.replace("/", "_"))
        for name, overrides in small.items()
    }


@pytest.mark.parametrize("name", [pytest.param("quickstart", marks=pytest.mark.heavy), "factual/quick"])
def test_the_largest_margin_recalls_at_least_what_the_sum_does_and_all_that_fit(
    trained: dict[str, "toytf.Run"], name: str
):
    """Where the load is at most .8: some memories have 5 % less room than theory says."""
    run = trained[name].trained
    seen = 0
    for holder in run.task.holders(run.model()):
        stored, limits = holder.association, holder.limits or matrix_limits(holder.association, holder.rank)
        fits = limits is not None and len(stored.keys) <= 0.8 * limits.at_values
        if holder.head is None and fits and not holder.name.startswith("FF"):  # both layers have that limit
            built = best_matrices(stored, holder.rank)
            hebb, largest = (int(stored.recalled(built[rule]).sum()) for rule in ("hebbian", "max_margin"))
            assert hebb <= largest == len(stored.keys) <= limits.at_values
            seen += 1
    assert seen


def test_a_training_has_counted_pairs_at_every_evaluation(trained: dict[str, "toytf.Run"]):
    history = trained["quickstart"].history
    for metric in ("pairs/W_OV2", "utilisation/W_OV2", "margin/W_OV2_median", "spectrum/W_OV2_effective_rank"):
        assert history[metric].notna().all()
    assert history["pairs/W_OV2/least_squares"].notna().sum() == 1


def test_a_glance_says_what_the_whole_probe_says(trained: dict[str, "toytf.Run"]):
    run = trained["quickstart"].trained
    task: Any = run.task
    model = run.model()
    everything, glance = probe(task, model).metrics, probe(task, model, glance=True).metrics
    assert glance.keys() < everything.keys()
    assert dict(glance) == pytest.approx({name: everything[name] for name in glance})


# Heads, feed-forward parts, what cannot be measured


def test_heads_are_counted_each_and_together():
    task, model = setting("quickstart.yaml", model__attention={"n_heads": 2, "d_head": 4})
    result = probe(task, model)
    assert {"pairs/W_OV2", "pairs/W_OV2/head0", "pairs/W_OV2/head1"} <= result.metrics.keys()
    one, both = (result.references[f"pairs/W_OV2{part}"].limit for part in ("/head0", ""))
    assert one is not None and both is not None and one < both < 2 * one  # rank 4 and 8: less than twice


def test_hidden_units_are_read_by_a_matrix():
    """2.06 bits for each of the 2 m d weights, log₂ A of them for a fact."""
    config: Any = load_config(CONFIGS / "factual" / "quick.yaml", {"model.d_model": D})
    task: Any = build_task(config.task, torch.device("cpu"))
    model = build_model(config.model, task, 0)
    width, n_answers = config.model.width, len(task.output_names)
    assert probe(task, model, glance=True).references["pairs/FF1"].limit == pytest.approx(
        2.86 / math.log(2) * D * width / math.log2(n_answers), rel=0.001
    )


def test_hidden_units_that_say_one_value_to_all_keys_have_no_limit():
    """A sum of the hidden units, none below 0, says the noise token to any number of triggers."""
    task, model = setting("bigram/noisy.yaml", model__feed_forward={"kind": "relu", "width": 48}, task__n_triggers=5)
    part = model.feed_forward(1)
    assert part is not None and part.W_out is not None and task.noise is not None
    u = model.unembed.W_U.detach().T
    said = part.hidden(torch.randn(1000, D)) @ u[task.noise[1]].expand(48, D) @ u.T
    assert bool((said.argmax(1) == task.noise[1]).all())
    result = probe(task, model)
    assert result.references["pairs/FF2_noise"].limit is None
    assert "pairs/FF2" not in result.metrics  # a distribution has no pairs


def test_a_part_without_a_finite_limit_has_none():
    """One noise token against 256 dimensions: more tokens could be selected than there are numbers."""
    config: Any = load_config(
        CONFIGS / "factual" / "quick.yaml",
        {"model.d_model": 256, "task.n_noise": 1, "task.n_subjects": 3, "task.n_relations": 3},
    )
    task: Any = build_task(config.task, torch.device("cpu"))
    result = probe(task, build_model(config.model, task, 0))
    assert result.references["pairs/W_KQ1"].limit is None
    assert "utilisation/W_KQ1" not in result.metrics
    assert all(math.isfinite(value) for value in result.metrics.values())


def test_a_silent_model_recalls_nothing():
    task, model = setting("quickstart.yaml", model__attention={"init": "zeros", "kq": "joint", "ov": "joint"})
    result = probe(task, model)
    for name in MEMORIES:
        assert result.metrics[f"pairs/{name}"] == 0
        assert f"margin/{name}_min" not in result.metrics
    assert isinstance(result.figure(), go.Figure)


def test_a_diverged_part_is_left_out():
    task, model = setting("quickstart.yaml")
    with torch.no_grad():
        model.unembed.W_U[0, 0] = torch.nan
    names = {name.split("/")[1][:5] for name in probe(task, model).metrics}
    assert names == {"W_KQ1", "W_KQ2"}


# The pairs by name


def test_the_worst_pairs_are_named_with_the_rival_they_beat_or_lose_to():
    task, model = with_own_axes()
    W = 2 * torch.eye(65)
    W[1, 2], W[2, 1] = 1.0, 3.0  # e prefers itself to t by 1, t prefers e to itself by 1
    model.write(Slot("OV", 1), W)
    unit = math.sqrt(65 * 4 + 1 + 9) / 65
    result = probe(task, model, worst=2)
    assert result.failures["margin/W_OV2_min"] == [
        f"t → t: margin {-1 / unit:.2f} behind e",
        f"e → e: margin {1 / unit:.2f} ahead of t",
    ]
    assert result.metrics["margin/W_OV2_min"] == pytest.approx(-1 / unit)
    assert result.metrics["margin/W_OV2_median"] == pytest.approx(2 / unit)


# Figures


def traces(figure: go.Figure, name: str) -> list[Any]:
    return [trace for trace in figure.data if trace.name is not None and trace.name.startswith(name)]


def test_the_figure_has_a_bar_up_to_the_limit_and_marks_for_what_is_recalled():
    result = probe(*setting())
    figure = result.figure()
    (bar,) = traces(figure, "what fits")
    assert list(bar.y) == list(MEMORIES)
    assert list(bar.x) == [result.references[f"pairs/{name}"].limit for name in MEMORIES]
    assert bar.x[1] is None  # of W_KQ2 any number fits
    for label, values in {
        "learned": [result.metrics[f"pairs/{name}"] for name in MEMORIES],
        "ideal": [result.references[f"pairs/{name}"].ideal for name in MEMORIES],
        "Hebbian": [result.references[f"pairs/{name}"].hebbian for name in MEMORIES],
        "pairs to hold": [15, 5, 65],
    }.items():
        assert list(traces(figure, label)[0].x) == values
    (words,) = (trace for trace in figure.data if trace.type == "bar" and trace.text)
    assert "65 pairs, room for 18" in words.text[2]
    assert words.text[1] == "5 of 5 pairs, no limit: its values are W_OV1 times its keys"
    marks = [x for trace in figure.data for x in trace.x if x is not None]
    assert max(words.x) == max(marks)  # no mark lies in the words


def test_the_figure_of_scores_marks_the_levels_of_theory():
    figure: Any = probe(*setting()).details["scores"]()
    assert [title.text for title in figure.layout.annotations] == list(MEMORIES)
    for name, expected in {
        "t*": optimum_scores(65).mean,
        "√(2 log m)": extreme_level(65),
        "√(d_in d_out / n)": D / math.sqrt(65),
    }.items():
        assert traces(figure, name)[-1].x == pytest.approx((expected, expected))
    for label in ("right", "rivals"):
        assert len(traces(figure, label)) == 3
        assert sum(trace.showlegend for trace in traces(figure, label)) == 1
        for bars in traces(figure, label):
            assert np.sum(np.asarray(bars.y) * bars.width) == pytest.approx(1)


def test_the_figure_of_a_spectrum_shows_both_predictions():
    figure: Any = probe(*setting()).details["spectrum"]()
    for name in ("measured", "Gaussian matrix", "Hebbian matrix"):
        for curve in traces(figure, name):
            assert list(curve.y) == sorted(curve.y, reverse=True)
    measured, gaussian, hebbian = (np.asarray(traces(figure, name)[-1].y) for name in ("meas", "Gauss", "Hebb"))
    assert np.abs(measured - hebbian).mean() < np.abs(measured - gaussian).mean()  # the ideal memory is Hebbian


def test_every_figure_shows_what_was_measured_even_if_training_went_on():
    task, model = setting("quickstart.yaml")
    before = {name: draw().to_json() for name, draw in probe(task, model).details.items()}  # type: ignore[attr-defined]
    result = probe(task, model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    assert {name: draw().to_json() for name, draw in result.details.items()} == before  # type: ignore[attr-defined]
    assert before.keys() == {"margins", "scores", "spectrum"}


def test_the_page_of_a_run_has_all_its_figures(trained: dict[str, "toytf.Run"]):
    page = trained["quickstart"].report_file.read_text()
    for title in ("how many fit", "Margins", "Scores", "Singular values"):
        assert title in page


# On runs


def test_a_training_that_names_no_probes_has_this_one():
    config: Any = load_config({"experiment": "train", "task": {"kind": "bigram"}})
    assert [one.kind for one in config.probes] == ["limits"]
    without: Any = load_config({"experiment": "train", "task": {"kind": "bigram"}, "probes": []})
    assert without.probes == ()


def test_a_finished_run_can_be_probed(tiny_run: "toytf.Run"):
    result = tiny_run.probe("limits")
    assert all(math.isfinite(value) for value in result.metrics.values())
    assert {name.split("/")[1][:5] for name in result.metrics} == set(MEMORIES)


def test_the_command_prints_the_worst_pairs_of_a_run(tiny_run: "toytf.Run", invoke: Any):
    ended = invoke("probe", tiny_run.directory, "--probe", "limits")
    assert ended.code == 0
    assert "W_KQ1_min" in ended.out
    assert "margin" in ended.out and " behind t=" in ended.out
