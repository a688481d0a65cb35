"""A real browser for tests: the system's Chromium, driven by Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from tests.dashboard.feeding import PATIENCE_S
from tests.system import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

#: The minus sign that the page writes.
MINUS = "\u2212"


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium, without its own sandbox (Playwright's default), which root and containers lack."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=chromium(),
            timeout=PATIENCE_S * 1000,
            # A GPU's process would compute what a page without 3D does not need.
            args=["--disable-gpu"],
        )
        try:
            yield opened
        finally:
            opened.close()


class Window:
    """One page with what went wrong on it. It may reach the dashboard only: everything works without the internet."""

    def __init__(
        self,
        browser: Browser,
        *,
        width: int = 1280,
        height: int = 800,
        dark: bool = False,
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
        )
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_S * 1000)
        self.wrong: list[str] = []
        self.asked: set[str] = set()
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on(
            "dialog", lambda dialog: self.wrong.append(f"dialog {dialog.message}")
        )
        self.page.on("request", lambda request: self.asked.add(request.url))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.context.close()
        # The test's server may have ended before the window.
        if kind is None:
            assert [line for line in self.wrong if "net::ERR_" not in line] == []

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.text} {message.location['url']}")

    def open(self, url: str) -> Page:
        self.page.goto(url)
        self.page.wait_for_selector("tr.item, .answer")
        return self.page

    def rows(self) -> list[tuple[str, str, str]]:
        """(rank, label, count) of the rows in the document, as they read."""
        found = self.page.evaluate("""() => [...document.querySelectorAll("tr.item")].map((row) =>
            [".rank", ".pick", ".count"].map((part) => row.querySelector(part).textContent))""")
        return [tuple(row) for row in found]

    def shows(self, expression: str) -> None:
        self.page.wait_for_function(f"() => {expression}")

    def reads(self, selector: str, pattern: str) -> None:
        """Wait until the text of an element matches a regular expression."""
        matches = (
            "([s, p]) => new RegExp(p).test(document.querySelector(s)?.textContent)"
        )
        self.page.wait_for_function(matches, arg=[selector, pattern])

    def counts(self, selector: str, number: int) -> None:
        matches = "([s, n]) => document.querySelectorAll(s).length === n"
        self.page.wait_for_function(matches, arg=[selector, number])


def text(value: int) -> str:
    return f"{value:,}".replace("-", MINUS)
