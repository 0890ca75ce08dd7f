"""A real browser for pages: it opens files, and notices every request, error and dialog."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--host-resolver-rules=MAP * ~NOTFOUND",
]  # fmt: skip


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; where there is none the tests are skipped, but not in CI."""
    if CHROMIUM is None and not os.environ.get("CI"):
        pytest.skip("no chromium on this machine: the page is not opened")
    assert CHROMIUM is not None, "CI needs chromium"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


class Visit:
    """An open page, and what happened on it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.dialogs: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.errors.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", self._dismiss)

    def _dismiss(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def open(self, path: Path) -> "Visit":
        """Open a file, and wait until what is chosen is shown, if scripts run."""
        self.own = path.resolve().as_uri()
        self.page.goto(self.own)
        return self

    def shown(self, run: int = 0, seed: int = 0, step: int | None = None) -> "Visit":
        """Wait until a run, seed and step are shown."""
        wanted = f"{run}/{seed}/" if step is None else f"{run}/{seed}/{step}"
        operator = "^=" if step is None else "="
        self.page.wait_for_selector(f'html[data-shown{operator}"{wanted}"]', state="attached")
        return self

    @property
    def outside(self) -> list[str]:
        """What the page asked for besides itself and what it carries."""
        return [url for url in self.requests if url != self.own and not url.startswith(("data:", "blob:"))]

    def picture(self, view: str, number: int = 0) -> str:
        """The pixels of a map in a view of the run that is shown."""
        canvas = self.page.locator(f"article:not([hidden]) [data-view={view}] canvas").nth(number)
        pixels: str = canvas.evaluate("canvas => canvas.toDataURL()")
        return pixels

    def text(self, selector: str) -> str:
        """The text of an element of the run that is shown."""
        return self.page.locator(f"article:not([hidden]) {selector}").first.inner_text()

    def draw_all(self) -> None:
        """Scroll through the page, so that every figure is drawn."""
        self.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        for chart in self.page.locator("article:not([hidden]) .chart[data-figure]").all():
            chart.scroll_into_view_if_needed()
            chart.locator(".main-svg").first.wait_for(state="attached")


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """`visit(path, width=400, dark=True, scripts=False)`: the page in a window of its own."""
    contexts = []

    def go(path: Path, *, width: int = 1100, dark: bool = False, scripts: bool = True) -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
        )
        contexts.append(context)
        return Visit(context.new_page()).open(path)

    yield go
    for context in contexts:
        context.close()
