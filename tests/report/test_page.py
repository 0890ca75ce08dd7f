"""The page in a real browser: it asks no host for anything, logs no error, and shows what is chosen."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import toytf
from toytf.experiments.opened import shown
from toytf.report.page import render

if TYPE_CHECKING:
    from conftest import Visit

    Open = Callable[..., Visit]

QUIET = {"logging.wandb": "off", "threads": 1, "device": "cpu"}
BIGRAM = {
    "task.seq_len": 24,
    "model.d_model": 32,
    "model.attention.n_heads": 2,
    "train.steps": 8,
    "train.batch_size": 16,
    "train.evaluation.every": 2,
    "train.evaluation.sequences": 64,
    "seeds": [0, 1],
    **QUIET,
}
FACTUAL = {
    "task": {"kind": "factual", "n_subjects": 6, "n_relations": 5, "n_answers": 3},
    "train.steps": 8,
    "train.batch_size": 64,
    "train.evaluation.every": 4,
    "train.evaluation.sequences": 64,
    **QUIET,
}


@pytest.fixture(scope="module")
def bigram(tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    return toytf.run(
        "quickstart",
        {**BIGRAM, "probes": ["limits", "memory_recall", "ablation", "heads"]},
        out=tmp_path_factory.mktemp("page") / "<tiny & run>",
    )


@pytest.fixture(scope="module")
def factual(tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    return toytf.run("factual/quick", FACTUAL, out=tmp_path_factory.mktemp("page") / "facts")


@pytest.fixture(scope="module")
def both(bigram: toytf.Run, factual: toytf.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "both.html"
    path.write_text(render([shown(run) for run in (bigram, factual)]), encoding="utf-8")
    return path


def test_the_page_opens_from_a_file_without_a_request_or_an_error(visit: "Open", bigram: toytf.Run) -> None:
    page = visit(bigram.report_file).shown(step=8)
    page.draw_all()
    assert (page.errors, page.outside, page.dialogs) == ([], [], [])
    assert page.page.locator("h1").inner_text().startswith("An induction head in twenty seconds")
    order = [element.inner_text() for element in page.page.locator("h2").all()]
    assert order == ["The story", "Learning", "Memories", "Attention", "Interventions", "All metrics"]


def test_the_visit_would_notice_a_request_an_error_and_a_dialog(visit: "Open", tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<script>console.error('boom'); alert(1)</script><img src='http://somewhere.invalid/x.png'>")
    page = visit(bad)
    assert "boom" in page.errors
    assert page.outside == ["http://somewhere.invalid/x.png"]
    assert page.dialogs == ["1"]


def test_the_checkpoint_slider_moves_memories_attention_and_the_mark_in_the_curves(
    visit: "Open", bigram: toytf.Run
) -> None:
    page = visit(bigram.report_file).shown(step=8)
    before = [page.picture("memories"), page.picture("attention")]
    slider = page.page.locator("#pick-step")
    slider.focus()
    slider.press("Home")
    page.shown(step=0)
    assert page.page.locator("#at-step").inner_text() == "weights at step 0"
    assert "at step 0" in page.text("[data-view=memories] p")
    after = [page.picture("memories"), page.picture("attention")]
    assert all(old != new for old, new in zip(before, after, strict=True))
    slider = page.page.locator("#pick-step")  # it keeps the focus, so that the arrow keys go on
    assert slider.evaluate("element => element === document.activeElement")
    slider.press("ArrowRight")
    page.shown(step=1)
    assert page.errors == []


def test_the_slider_can_be_dragged_with_the_mouse(visit: "Open", bigram: toytf.Run) -> None:
    page = visit(bigram.report_file).shown(step=8)
    slider = page.page.locator("#pick-step").bounding_box()
    y = slider["y"] + slider["height"] / 2
    page.page.mouse.move(slider["x"] + slider["width"] - 8, y)
    page.page.mouse.down()
    for share in (0.8, 0.6, 0.4, 0.2, 0.0):
        page.page.mouse.move(slider["x"] + 4 + share * (slider["width"] - 8), y)
    page.page.mouse.up()
    page.shown(step=0)


def test_what_is_shown_belongs_to_the_last_choice_however_fast_it_came(visit: "Open", bigram: toytf.Run) -> None:
    page = visit(bigram.report_file).shown(step=8)
    before = page.text("[data-view=memories]"), page.picture("memories")
    # To a checkpoint whose arrays are not unpacked yet, and straight back.
    page.page.evaluate(
        """() => { const slider = document.getElementById("pick-step"), last = slider.max;
        for (const value of [1, last]) { slider.value = value; slider.dispatchEvent(new Event("input")); } }"""
    )
    page.page.wait_for_timeout(500)
    assert page.page.locator("#at-step").inner_text() == "weights at step 8"
    assert (page.text("[data-view=memories]"), page.picture("memories")) == before


def test_every_score_is_in_the_histogram_the_largest_included(visit: "Open", factual: toytf.Run) -> None:
    page = visit(factual.report_file).shown(step=8)
    for matrix in page.page.locator("#pick-memory option").all_inner_texts():
        page.page.select_option("#pick-memory", matrix)
        page.page.wait_for_selector(f'[data-view=memories] b:text-is("{matrix}")')
        sums = page.page.locator("[data-view=memories] .chart.js-plotly-plot").first.evaluate(
            """chart => { const [from, to] = chart.layout.xaxis.range;
            return chart.calcdata.map(bars => bars.filter(bar => bar.p >= from && bar.p <= to)
                .reduce((sum, bar) => sum + (bar.s || 0), 0)); }"""
        )
        assert all(total == pytest.approx(1) for total in sums[1:])  # of the right scores; others may not compete


def test_seed_matrix_sequence_layer_and_head_change_the_picture(visit: "Open", bigram: toytf.Run) -> None:
    page = visit(bigram.report_file).shown(step=8)
    seen = {page.picture("memories")}
    for matrix in ("W_OV2", "W_KQ1, head 1"):
        page.page.select_option("#pick-memory", matrix)
        page.page.wait_for_selector(f'[data-view=memories] b:text-is("{matrix}")')
        seen.add(page.picture("memories"))
    assert len(seen) == 3
    maps = {page.picture("attention")}
    for control, value in (("head", "0"), ("head", "1"), ("layer", "0"), ("sequence", "2")):
        page.page.select_option(f"#pick-{control}", value)
        page.page.wait_for_timeout(150)
        maps.add(page.picture("attention"))
    assert len(maps) == 5
    page.page.select_option("#pick-seed", "1")
    page.shown(seed=1)
    assert page.picture("attention") not in maps
    assert page.errors == []


def test_a_token_that_is_pointed_at_or_focused_shows_its_keys_and_predictions(visit: "Open", bigram: toytf.Run) -> None:
    page = visit(bigram.report_file).shown(step=8)
    page.page.select_option("#pick-head", "1")
    page.page.wait_for_selector('figcaption:text-is("Attention of layer 2, head L1H1")')
    view = page.page.locator("[data-view=attention]")
    tokens = view.locator(".sequence button")
    assert tokens.count() == 24
    tokens.nth(3).hover()
    assert page.text("#attends").startswith("Position 4 (")
    tokens.nth(9).focus()
    assert page.text("#attends").startswith("Position 10 (")
    page.page.keyboard.press("ArrowRight")
    assert page.text("#attends").startswith("Position 11 (")
    assert view.locator(".predictions li").count() >= 5
    shares = view.locator(".weights .token").evaluate_all("all => all.map(one => one.title)")
    assert sum("comes later" in share for share in shares) == 24 - 11
    total = sum(float(share.rpartition(": ")[2].removeprefix("< ").removesuffix(" %")) for share in shares[:11])
    assert total == pytest.approx(100, abs=3)  # attention sums to 1, rounded to a byte each


def test_the_keys_where_a_layer_should_look_are_outlined(visit: "Open", bigram: toytf.Run) -> None:
    page = visit(bigram.report_file).shown(step=8)
    view = page.page.locator("[data-view=attention]")
    asked = view.locator(".sequence button.part0")
    if not asked.count():
        pytest.fail("the first sequence has no trigger that comes again: choose another seed")
    asked.last.focus()
    trigger = asked.last.inner_text()
    tokens = view.locator(".weights .token").evaluate_all("all => all.map(one => one.textContent)")
    right = view.locator(".weights .token").evaluate_all("all => all.map(one => one.classList.contains('right'))")
    places = [i for i, is_right in enumerate(right) if is_right]
    assert places
    assert all(tokens[i - 1] == trigger for i in places)  # layer 2: what followed the same trigger


def test_a_map_can_be_read_by_keyboard(visit: "Open", bigram: toytf.Run) -> None:
    page = visit(bigram.report_file).shown(step=8)
    canvas = page.page.locator("[data-view=memories] canvas").first
    canvas.focus()
    for key in ("ArrowRight", "ArrowDown"):
        page.page.keyboard.press(key)
    said = page.page.locator("[data-view=memories] output").first.inner_text()
    assert said.startswith("t=3 → t=1: ")


def test_axis_and_single_seeds_of_the_curves_can_be_chosen(visit: "Open", bigram: toytf.Run) -> None:
    page = visit(bigram.report_file).shown(step=8)
    chart = page.page.locator(".chart[data-steps]").first
    chart.scroll_into_view_if_needed()
    chart.locator(".main-svg").first.wait_for(state="attached")
    page.page.wait_for_timeout(300)
    kinds = "chart => chart.data.filter(one => one.visible === true).map(one => one.meta && one.meta.kind)"
    assert "seed" not in chart.evaluate(kinds)
    assert (
        chart.evaluate(kinds).count("band")
        <= chart.evaluate(kinds).count("mean")
        < chart.evaluate("chart => chart.data.filter(one => one.meta && one.meta.kind === 'mean').length")
    )  # a curve that is hidden has no band
    page.page.locator("[data-single]").click()
    page.page.locator("[data-axis]").click()
    page.page.wait_for_timeout(300)
    assert chart.evaluate(kinds).count("seed") >= 2
    assert chart.evaluate("chart => chart.layout.xaxis.type") == "log"
    means = chart.evaluate(kinds).count("mean")
    seeds = chart.evaluate(kinds).count("seed")
    every = page.page.locator("[data-every]")  # by keyboard, and with the seeds of what it shows
    every.focus()
    every.press("Enter")
    page.page.wait_for_timeout(300)
    assert chart.evaluate(kinds).count("mean") > means
    assert chart.evaluate(kinds).count("seed") > seeds
    every.press("Enter")
    page.page.wait_for_timeout(300)
    assert (chart.evaluate(kinds).count("mean"), chart.evaluate(kinds).count("seed")) == (means, seeds)
    assert page.errors == []


def test_a_curve_that_is_switched_on_in_the_legend_has_its_seeds(visit: "Open", bigram: toytf.Run) -> None:
    page = visit(bigram.report_file).shown(step=8)
    chart = page.page.locator(".chart[data-steps]").first
    chart.scroll_into_view_if_needed()
    chart.locator(".main-svg").first.wait_for(state="attached")
    page.page.locator("[data-single]").click()
    page.page.wait_for_timeout(300)
    seeds = "chart => chart.data.filter(one => one.visible === true && one.meta && one.meta.kind === 'seed').length"
    before = chart.evaluate(seeds)
    chart.locator(".legendtoggle").first.click()  # all_loss, which is hidden at first
    page.page.wait_for_timeout(800)
    assert chart.evaluate(seeds) > before


def test_moving_the_slider_leaves_no_charts_behind(visit: "Open", bigram: toytf.Run) -> None:
    page = visit(bigram.report_file).shown(step=8)
    purged = (
        "() => { window.purged = 0; const own = Plotly.purge; Plotly.purge = (c) => { window.purged += 1; own(c); }; }"
    )
    page.page.evaluate(purged)
    charts = page.page.locator("[data-view=memories] .js-plotly-plot").count()
    page.page.locator("#pick-step").focus()
    page.page.locator("#pick-step").press("Home")
    page.shown(step=0)
    assert page.page.evaluate("window.purged") == charts > 0


def test_facts_are_shown_searched_and_listed(visit: "Open", factual: toytf.Run) -> None:
    page = visit(factual.report_file).shown(step=8)
    sheet = factual.trained.facts()
    assert f"{sheet.n_known} of 30 facts" in page.text("[data-view=facts] p")
    assert f"Facts that are not always right ({30 - sheet.n_known})" in page.text("[data-view=facts] h3")
    known = page.picture("facts")
    page.page.select_option("#pick-facts", "margin")
    page.page.wait_for_timeout(150)
    assert page.picture("facts") != known
    page.page.locator("[data-view=facts] input[type=search]").fill("s3")
    assert page.text("[data-view=facts] h3") == "Facts that match (5)"
    listed = page.page.locator("[data-view=facts] .list tr")
    assert listed.count() == 5
    assert all(row.inner_text().startswith("s3, r") for row in listed.all())
    page.page.locator("#pick-step").focus()
    page.page.locator("#pick-step").press("Home")
    page.shown(step=0)
    assert page.text("[data-view=facts] h3") == "Facts that match (5)"  # one subject can be followed over training
    assert page.errors == []


@pytest.mark.parametrize("width", [400, 1100])
def test_no_page_is_wider_than_its_window(width: int, visit: "Open", factual: toytf.Run, both: Path) -> None:
    for path in (factual.report_file, both):
        page = visit(path, width=width).shown()
        page.draw_all()
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.errors == []


def test_dark_windows_get_a_dark_page_with_light_text(visit: "Open", bigram: toytf.Run) -> None:
    def lightness(colour: str) -> float:
        return sum(map(float, colour[colour.index("(") + 1 : -1].split(",")[:3])) / 765

    for dark in (False, True):
        page = visit(bigram.report_file, dark=dark).shown(step=8)
        page.page.locator(".chart[data-figure]").first.scroll_into_view_if_needed()
        page.page.locator(".xtick text").first.wait_for(state="attached")
        back, text, tick = page.page.evaluate(
            "() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color, "
            "getComputedStyle(document.querySelector('.xtick text')).fill]"
        )
        assert (lightness(back) < 0.2) == dark
        assert (lightness(text) > 0.8) == dark
        assert (lightness(tick) > 0.8) == dark


def test_without_javascript_there_are_story_and_tables_and_a_word_on_charts(
    visit: "Open", bigram: toytf.Run, factual: toytf.Run
) -> None:
    for run in (bigram, factual):
        page = visit(run.report_file, scripts=False)
        assert page.page.locator("noscript").all_inner_texts() == [
            "Charts, matrices, attention and facts are drawn by JavaScript, which is switched off here; the story and "
            "all numbers are text."
        ]
        table = page.page.locator("#story0 table")
        assert table.is_visible()
        assert "eval/" in table.inner_text()
        page.page.locator("#metrics0 summary").first.click()
        assert page.page.locator("#metrics0 table").is_visible()
        assert page.page.locator(".bar, .chart").filter(visible=True).count() == 0
        assert "of the" in page.text(".verdict")
        assert page.errors == []


def test_several_runs_are_columns_and_one_is_chosen(visit: "Open", both: Path, bigram: toytf.Run) -> None:
    page = visit(both).shown(0)
    head = page.page.locator("#compare table").nth(1).locator("th").all_inner_texts()
    assert head[1:3] == [bigram.name, "facts"]
    keys = page.page.locator("#compare table").first.locator("td:first-child").all_inner_texts()
    assert "task.kind" in keys
    assert "experiment" not in keys
    assert "An induction head" in page.text("h2")
    map_before = page.picture("attention")
    page.page.select_option("#pick-run", "1")
    page.shown(1)
    assert "One layer learns" in page.text("h2")
    assert page.picture("attention") != map_before
    assert page.page.locator("#run0").is_hidden()
    assert (page.errors, page.outside) == ([], [])


def test_memories_alone_open_the_same_way(visit: "Open", tmp_path: Path) -> None:
    quiet = {"device": "cpu", "threads": 1, "logging": {"wandb": "off"}}
    by_size = {"experiment": "capacity", "rules": ["optimum", "hebbian"], "dimensions": [3, 4], "draws": 4}
    by_rule = {"experiment": "storage", "rules": ["optimum", "hebbian"], "dimension": 6, "n": 12}
    runs = [toytf.run({**quiet, **config}, out=tmp_path / config["experiment"]) for config in (by_size, by_rule)]
    page_file = tmp_path / "page.html"
    page_file.write_text(render([shown(run) for run in runs]), encoding="utf-8")
    page = visit(page_file)
    page.page.wait_for_selector("html[data-shown]", state="attached")
    page.draw_all()
    assert (page.errors, page.outside) == ([], [])
    text = page.page.content()
    for words in ("Capacity by dimension", "theory: optimum", "mean of the Hebbian rule", "Associations stored"):
        assert words in text


def test_every_figure_is_saved_as_plotly_json(bigram: toytf.Run) -> None:
    saved = {path.stem for path in (bigram.directory / "figures").glob("*.json")}
    assert {"loss", "accuracy", "recall", "attention_layer1_L0H0", "attention_layer2_L1H1"} <= saved
    for path in (bigram.directory / "figures").glob("*.json"):
        assert {"data", "layout"} <= set(json.loads(path.read_text()))


# Names are shown to the letter


NAMES = ["<b>x</b>", "<script>alert(1)</script>", "\"&'", "l" * 3000, "北京", "القاهرة", "🦊👩‍🚀", "%{z}", "{{ 1 }}"]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> toytf.Run:
    folder = tmp_path_factory.mktemp("hostile")
    quoted = ['"' + name.replace('"', '""') + '"' for name in NAMES]
    rows = [
        f"{subject},{relation},{answer}"
        for subject in quoted
        for relation, answers in (('"<i>of</i>"', quoted), ('"is & has"', quoted[::-1]))
        for answer in [answers[quoted.index(subject)]]
    ]
    (folder / "facts.csv").write_text("subject,relation,attribute\n" + "\n".join(rows), encoding="utf-8")
    small: dict[str, Any] = {**FACTUAL, "task": {"kind": "factual", "facts": str(folder / "facts.csv")}}
    return toytf.run("factual/quick", small, out=folder / "<u>run")


@pytest.mark.parametrize("scripts", [True, False])
def test_names_are_shown_literally_and_run_nothing(scripts: bool, visit: "Open", hostile: toytf.Run) -> None:
    page = visit(hostile.report_file, scripts=scripts, width=400)
    if scripts:
        page.shown(step=8)
        page.draw_all()
        page.page.locator("[data-view=facts] input[type=search]").fill("of")
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 400
    assert (page.dialogs, page.errors, page.outside) == ([], [], [])
    assert page.page.locator("i:text-is('of')").count() == 0
    assert page.page.locator("b:text-is('x')").count() == 0
    assert page.page.locator("u").count() == 0
    text = page.page.locator("body").inner_text() + " ".join(page.page.locator("svg text").all_text_contents())
    names = ("<b>x</b>", "<script>", "\"&'", "北京", "القاهرة", "🦊", "%{z}", "{{ 1 }}") if scripts else ()
    for name in (*names, "<u>run"):  # without scripts, the example has but a few of them
        assert name in text, name


def test_a_text_of_markup_is_shown_literally(visit: "Open", tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("<b>x</b>&amp;\"'北京القاهرة🦊 " * 40, encoding="utf-8")
    run = toytf.run(
        "quickstart", {**BIGRAM, "task.corpus": str(corpus), "seeds": [0], "probes": ["limits"]}, out=tmp_path / "run"
    )
    page = visit(run.report_file).shown(step=8)
    page.draw_all()
    assert (page.dialogs, page.errors, page.outside) == ([], [], [])
    tokens = page.page.locator("[data-view=attention] .sequence button").all_inner_texts()
    assert {"<", ">", "&"} & set(tokens)
    assert set(tokens) <= set("<>b/x&amp;\"'北京القاهرة🦊") | {"␣"}


# Sizes


@pytest.mark.heavy
def test_thirty_checkpoints_of_long_sequences_fit_in_fifteen_megabytes(tmp_path: Path) -> None:
    changed = {
        "task.seq_len": 256, "model.d_model": 16, "train.steps": 40, "train.batch_size": 2, "train.loss": "all",
        "train.optimizer.lr": 0.05, "train.checkpoints.every": 1, "train.evaluation": {"every": 40, "sequences": 4},
        "probes": ["limits"], **QUIET,
    }  # fmt: skip
    run = toytf.run("quickstart", changed, out=tmp_path / "run")
    data = json.loads(run.report_file.read_text(encoding="utf-8").rpartition('id="data">')[2].partition("</script>")[0])
    assert len(data["runs"][0]["frames"]) == 30
    assert run.report_file.stat().st_size < 15e6
