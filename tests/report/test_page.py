"""The page opens from a file in a real browser, draws its figures, asks no host for anything and logs no error."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import toytf
from toytf.report.page import render, run_figures

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_a_browser = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="no chromium on this machine: the page is not opened"
)

TINY = {
    "task.seq_len": 8,
    "model.d_model": 16,
    "train.steps": 2,
    "train.batch_size": 4,
    "train.evaluation.every": 1,
    "train.evaluation.sequences": 8,
    "logging.wandb": "off",
}


class Visit:
    """What a browser did with a page: the document after its scripts ran, the hosts it asked, what it logged."""

    def __init__(self, page: Path, folder: Path) -> None:
        assert CHROMIUM is not None, "CI needs chromium"
        net_log = folder / "net.json"
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-default-apps",
            "--enable-logging=stderr",
            "--dump-dom",
            "--virtual-time-budget=10000",
        ]
        offline = [
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--log-net-log={net_log}",
            f"--user-data-dir={folder / 'profile'}",
        ]
        done = subprocess.run(
            [CHROMIUM, *flags, *offline, page.resolve().as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        self.document = done.stdout
        self.console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        events = [event.get("params", {}) for event in json.loads(net_log.read_text())["events"]]
        # The browser's own errands, which have no origin, are not the page's.
        asked = {event["url"] for event in events if event.get("initiator", "not an origin") != "not an origin"}
        self.requests = sorted(asked)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    return toytf.run("configs/quickstart.yaml", TINY, out=tmp_path_factory.mktemp("page") / "<tiny & run>")


@needs_a_browser
def test_the_page_opens_from_a_file_without_a_request_or_an_error(run: toytf.Run, tmp_path: Path) -> None:
    visit = Visit(run.report_file, tmp_path)
    assert visit.console == []
    assert visit.requests == []
    assert visit.document.count('class="main-svg"') >= 6  # loss, accuracy, recall, attention, and two maps
    for text in ("Loss by role", "Accuracy by role", "Recall, as a fraction of the pairs", "Attention of layer 2"):
        assert text in visit.document


@needs_a_browser
def test_memories_alone_open_the_same_way(tmp_path: Path) -> None:
    quiet = {"device": "cpu", "threads": 1, "logging": {"wandb": "off"}}
    by_size = {"experiment": "capacity", "rules": ["optimum", "hebbian"], "dimensions": [3, 4], "draws": 4}
    by_rule = {"experiment": "storage", "rules": ["optimum", "hebbian"], "dimension": 6, "n": 12}
    runs = [toytf.run({**quiet, **config}, out=tmp_path / config["experiment"]) for config in (by_size, by_rule)]
    page = tmp_path / "page.html"
    page.write_text(render([(run, run_figures(run)) for run in runs]), encoding="utf-8")
    visit = Visit(page, tmp_path)
    assert visit.console == []
    assert visit.requests == []
    assert visit.document.count('class="main-svg"') >= 3
    for text in (
        "Capacity by dimension",
        "theory: optimum",
        "Scores",
        "mean of the Hebbian rule",
        "Singular values of",
        "Associations stored",
    ):
        assert text in visit.document


@needs_a_browser
def test_the_visit_would_notice_a_request_and_an_error(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<script>console.error('boom')</script><img src='http://somewhere.invalid/x.png'>")
    visit = Visit(page, tmp_path)
    assert any("boom" in line for line in visit.console)
    assert any("somewhere.invalid" in url for url in visit.requests)


def test_names_are_escaped_and_nothing_points_to_the_network(run: toytf.Run) -> None:
    html = render([(run, {})])
    assert "&lt;tiny &amp; run&gt;" in html
    assert "<tiny" not in html
    outside_plotly = html[: html.index("<script>")] + html[html.rindex("</script>") :]
    assert "http://" not in outside_plotly
    assert "https://" not in outside_plotly


def test_every_figure_is_saved_as_plotly_json(run: toytf.Run) -> None:
    saved = {path.stem for path in (run.directory / "figures").glob("*.json")}
    assert {"loss", "accuracy", "recall", "attention", "attention_layer1_L0H0", "attention_layer2_L1H0"} <= saved
    for path in (run.directory / "figures").glob("*.json"):
        assert {"data", "layout"} <= set(json.loads(path.read_text()))
