"""One browser for each file of tests, and a window of it for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.dashboard.browser import Window, browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture
def window(chrome: Browser) -> Iterator[Window]:
    """A window in which nothing may go wrong: no error, no warning, no dialog."""
    opened = Window(chrome)
    yield opened
    opened.context.close()
    # The test's server may have ended before the window.
    assert [line for line in opened.wrong if "net::ERR_" not in line] == []
