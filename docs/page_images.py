"""Make the pictures of docs/page.md: every section of real pages, as a browser shows it.

    python docs/page_images.py

The runs are kept in runs/images and used again. It takes two minutes on one core, and chromium.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from image_runs import run
from playwright.sync_api import Page, sync_playwright

from toytf.report.page import render

IMAGES = Path(__file__).resolve().parent / "images"
WIDTH, NARROW = 1000, 400


def at_step(page: Page, step: int) -> None:
    """Move the slider to a checkpoint."""
    slider = page.locator("#pick-step")
    slider.focus()
    slider.press("Home")
    for _ in range(int(slider.get_attribute("max") or 0)):
        if page.locator("#at-step").inner_text() == f"weights at step {step}":
            return
        page.locator("#pick-step").press("ArrowRight")
        page.wait_for_timeout(100)
    assert page.locator("#at-step").inner_text() == f"weights at step {step}", "the page has no such checkpoint"


def take(page: Page, selector: str, name: str, tallest: int | None = None) -> None:
    """A picture of a part of the page, without the bar that floats over it; tallest: pixels to keep."""
    part = page.locator(selector).first
    for chart in part.locator(".chart[data-figure]").all():
        if chart.is_visible():
            chart.scroll_into_view_if_needed()
            chart.locator(".main-svg").first.wait_for(state="attached")
    page.wait_for_timeout(500)
    page.add_style_tag(content=".bar { position: static !important; }")
    box = part.bounding_box()
    assert box is not None
    height = box["height"] if tallest is None else min(box["height"], tallest)
    clip = {"x": max(box["x"] - 8, 0), "y": box["y"] + page.evaluate("scrollY"), "width": box["width"] + 16}
    page.screenshot(path=IMAGES / f"{name}.png", clip={**clip, "height": height}, full_page=True)


def main() -> None:
    """Open the pages and take the pictures."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("a picture needs chromium")
    quick, facts = run("quickstart"), run("factual/quick")
    probes = ("limits", "memory_recall", "attention", "ablation", "truncation", "transplant")
    changed = run("quickstart", ("probes", probes))
    narrow = run("quickstart", ("model.d_model", 64))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        both = Path(folder) / "both.html"
        both.write_text(render([shown(one) for one in (quick, narrow)]), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def visit(path: Path, width: int = WIDTH, *, dark: bool = False) -> Page:
            scheme = "dark" if dark else "light"
            page = browser.new_page(viewport={"width": width, "height": 1400}, color_scheme=scheme)
            page.goto(path.resolve().as_uri())
            page.wait_for_selector("html[data-shown]", state="attached")
            return page

        pictures: list[tuple[str, Callable[[], Page], str, int | None]] = [
            ("page_story", lambda: visit(quick.report_file), "#story0", None),
            ("page_learning", lambda: visit(quick.report_file), "#learning0", None),
            ("page_memories", lambda: visit(quick.report_file), "#memories0", 1500),
            ("page_attention", lambda: visit(quick.report_file), "#attention0", 1250),
            ("page_interventions", lambda: visit(changed.report_file), "#interventions0", None),
            ("page_compare", lambda: visit(both), "#compare", 1100),
            ("page_narrow", lambda: visit(quick.report_file, NARROW, dark=True), "#attention0", 1200),
        ]
        for name, opened, selector, tallest in pictures:
            take(opened(), selector, name, tallest)
        page = visit(facts.report_file)
        at_step(page, 128)
        take(page, "#facts0", "page_facts", 1000)
        browser.close()


if __name__ == "__main__":
    main()
