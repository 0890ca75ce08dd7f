"""What a stranger's task or probe gives is checked once it is measured: one sentence names it and what it gave."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
import pytest
import torch

import toytf
from toytf.build import build_model
from toytf.config.plugins import load_config
from toytf.errors import RunFailed, UserError, plugin_of
from toytf.experiments.study import Drawn, Study
from toytf.experiments.train.figures import probe_figures
from toytf.holder import memories
from toytf.measurement import Group, Measurement, Quantity, Reference
from toytf.probe import Probe, ProbeResult
from toytf.report.page import Figures
from toytf.runs import Run
from toytf.runs.checkpoints import CheckpointStore
from toytf.runs.rows import MetricsFile
from toytf.task import Batch, Memory
from toytf.training.learner import SeedLearner
from toytf.training.loop import Trainee, Watch, train

if TYPE_CHECKING:
    from copycat.previous import CopyTask

pytestmark = pytest.mark.repeats_runs  # authors run without the checks of shapes and types that tests have

TINY = {
    "task.seq_len": 8, "model.d_model": 16, "model.n_layers": 1, "model.freeze": [], "train.steps": 1,
    "train.batch_size": 4, "train.evaluation.sequences": 6, "train.loss": "all", "probes": [],
}  # fmt: skip
AGREEMENT = Group("agreement", "Agreement")
FINE = AGREEMENT.measurement(1.0)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> "CopyTask":
    """The task of a stranger, with 5 tokens in sequences of 8."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "third_party"))
    from copycat.config import CopyConfig
    from copycat.previous import CopyTask

    return CopyTask(CopyConfig(kind="copy"), torch.device("cpu"))


def _learner(task: "CopyTask", *probes: Probe) -> SeedLearner:
    config: Any = load_config("configs/quickstart.yaml", TINY)
    return SeedLearner(build_model(config.model, task, 0), task, probes, config.train, 0)


def _with(batch: Batch, **changes: Any) -> Batch:
    return replace(batch, **changes)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda batch: (batch.tokens, batch.targets), "a tuple, expected a Batch"),
        (lambda batch: batch.part(0, 4), "tokens of the shape 4x8, expected 6 sequences of at most 8 tokens"),
        (lambda batch: _with(batch, targets=batch.targets[:, 0]), "targets of the shape 6, expected 6x8, or less"),
        (lambda batch: _with(batch, targets=batch.targets[:, :0]), "targets of the shape 6x0, expected 6x8, or less"),
        (lambda batch: _with(batch, tokens=batch.tokens + 5), "expected 0 to 4"),
        (lambda batch: _with(batch, targets=batch.targets * 0 + 101), "the target 101, expected 0 to 4"),
        (lambda batch: _with(batch, targets=batch.targets * 0 - 100), "the target -100, expected 0 to 4"),
        (lambda batch: _with(batch, roles={"asked": batch.roles["all"]}), 'no role "all", which its config names: it'),
        (
            lambda batch: _with(batch, roles={"all": batch.roles["all"][:, 1:]}),
            'the role "all" as 6x7 of torch.bool, e',
        ),
        (lambda batch: _with(batch, roles={"all": batch.roles["all"] * 1.0}), "as 6x8 of torch.float32, expected 6x8"),
        (lambda batch: _with(batch, roles={"all": batch.roles["all"] & False}), "no position that is asked"),
    ],
)
def test_a_batch_that_is_not_what_its_task_says_is_refused_before_the_first_step(
    spoil: Callable[[Batch], Any], says: str, task: "CopyTask", monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = task.sample
    monkeypatch.setattr(task, "sample", lambda n, generator: spoil(sample(n, generator)))
    with pytest.raises(UserError) as refused:
        _learner(task).evaluate(0)
    assert str(refused.value).startswith("task copy: sample(6) gave ")
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda one: {"association": replace(one.association, keys=one.association.keys[:, :5])}, "keys of 5 numbers"),
        (
            lambda one: {"association": replace(one.association, values=one.association.values[:, :5])},
            "values of 5 num",
        ),
        (lambda one: {"slot": replace(one.slot, layer=3)}, "is in layer 3, expected 0 to 0"),
    ],
)
def test_a_memory_that_does_not_fit_its_slot_is_named(
    change: Callable[[Memory], Mapping[str, Any]], says: str, task: "CopyTask", monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _learner(task).model
    spoilt = {name: replace(one, **change(one)) for name, one in task.memories(model).items()}
    monkeypatch.setattr(task, "memories", lambda model: spoilt)
    for asked in (lambda: memories(model, task), lambda: task.ideal(model, {})):
        with pytest.raises(UserError, match=f"task copy: its memory W_KQ1 .*{says}"):
            asked()


class _Own(Probe):
    """Gives what it is told to give."""

    def __init__(self, give: Callable[[], Any]) -> None:
        super().__init__(SimpleNamespace(kind="mine", when="always", reads_batch=True, section=""))
        self.give = give

    def __call__(self, model: object, task: object, batch: object) -> ProbeResult:
        found: ProbeResult = self.give()
        return found


def _raw(value: Any, **references: Any) -> ProbeResult:
    return ProbeResult([Measurement(Quantity(AGREEMENT), value, Reference(**references))])


def _other_dtype() -> ProbeResult:
    torch.set_default_dtype(torch.float64)
    return ProbeResult([FINE])


@pytest.mark.parametrize(
    ("give", "says"),
    [
        (lambda: ProbeResult([1.0]), " gave a float, expected measurements"),
        (lambda: _raw(torch.ones(2)), " gave agreement the value tensor([1., 1.]), a Tensor: expected a number"),
        (lambda: _raw(1 + 2j), " gave agreement the value (1+2j), a complex: expected a number"),
        (lambda: _raw(1.0, ideal=torch.ones(1)), " gave agreement the ideal tensor([1.]), a Tensor: expected a number"),
        (lambda: ProbeResult([FINE, FINE]), ": agreement is measured twice: give one of the two a different name"),
        (lambda: ProbeResult([AGREEMENT.measurement(1.0, "two\nlines")]), ' cannot be called "agreement/two lines"'),
        (lambda: ProbeResult([AGREEMENT.measurement(1.0, "x" * 300)]), ' cannot be called "agreement/xxx'),
        (_other_dtype, " changed the default dtype of torch to torch.float64"),
    ],
)
def test_a_probe_that_gives_what_cannot_be_written_down_is_named(
    give: Callable[[], Any], says: str, task: "CopyTask"
) -> None:
    with pytest.raises(UserError) as refused:
        _learner(task, _Own(give)).evaluate(0)
    assert str(refused.value).startswith('probe "mine"')
    assert says in str(refused.value)
    assert torch.get_default_dtype() == torch.float32


def test_a_probe_that_gives_no_number_is_named_and_not_the_training(task: "CopyTask", tmp_path: Path) -> None:
    learner = _learner(task, _Own(lambda: ProbeResult([AGREEMENT.measurement(math.nan)])))
    trainee = Trainee(learner, CheckpointStore(tmp_path / "checkpoints", 0), MetricsFile(tmp_path / "metrics.jsonl"))
    [failure] = train([trainee], Watch())
    assert isinstance(failure, RunFailed)
    assert str(failure).startswith('probe "mine" gave agreement = nan at step 0, though weights and losses are finite')


def test_a_probe_whose_figure_is_none_is_named() -> None:
    with pytest.raises(UserError, match='probe "mine" drew a dict as probe_mine_more, expected a plotly figure'):
        probe_figures(ProbeResult(details={"more": dict}), _Own(dict).config, "")


# Names of files


@pytest.mark.parametrize("name", ["../../x", "/x", "..", "a/b", "a\\b", "", "two\nlines", "x\0", "x" * 151])
def test_a_figure_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    run, figure = Run(tmp_path / "a" / "run"), go.Figure()
    run.directory.mkdir(parents=True)
    for write in (lambda name, figure: run.keep_figures({name: figure}), run.write_figure):
        with pytest.raises(UserError, match=r'a figure cannot be called ".*": use at most 150 bytes'):
            write(name, figure)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["two\nlines", "a\\b", "\x1b[31m"])
def test_a_group_has_a_name_that_can_be_shown(name: str) -> None:
    with pytest.raises(UserError, match="a group cannot be called"):
        Group(name, "")


class _Study(Study[Any]):
    def __init__(self, *found: Any) -> None:
        self.given = found
        self.config: Any = SimpleNamespace(experiment="mine", seeds=(0,))

    def cases(self) -> list[Any]:
        return []

    def measure(self, case: Any, seed: int) -> Any:
        return self.given


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (1.0, "measure gave a float, expected measurements"),
        (_raw(torch.ones(2)).measurements[0], "measure gave agreement the value tensor"),
    ],
)
def test_a_study_that_measures_no_number_is_told(given: Any, says: str) -> None:
    study = _Study(Drawn("fine", go.Figure), given)
    with pytest.raises(UserError) as refused:
        [*study.found(Reference(), [0])]  # any dataclass is a case
    assert says in str(refused.value)


def test_a_figure_with_notes_of_its_own_is_shown() -> None:
    shown = Figures().add("mine", go.Figure(layout={"meta": ["a note"], "title": "Mine"}))
    assert (shown["title"], shown["section"]) == ("Mine", "")


def test_an_error_in_a_probe_that_ships_is_not_blamed_on_a_plug_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from probes.memory_recall import MemoryRecall

    def stumble(self: MemoryRecall, *_: object, **__: object) -> None:
        raise KeyError(self.config.kind)

    monkeypatch.setattr(MemoryRecall, "__call__", stumble)
    with pytest.raises(KeyError) as error:
        toytf.run("quickstart", {"train.steps": 0, "probes": ["memory_recall"], "logging.wandb": "off"}, out=tmp_path)
    assert plugin_of(error.value) == ""
