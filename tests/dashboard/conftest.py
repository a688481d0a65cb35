"""A window of the browser, and topics, for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.dashboard.browser import Window
from tests.dashboard.feeding import Topics, on_a_broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture
def window(chrome: Browser) -> Iterator[Window]:
    """A window in which nothing may go wrong: no error, no warning, no dialog."""
    with Window(chrome) as opened:
        yield opened


@pytest.fixture
def topics(bootstrap: str, request: pytest.FixtureRequest) -> Iterator[Topics]:
    """A histogram topic of `PARTITIONS` on a real broker, gone afterwards."""
    with on_a_broker(bootstrap, request.module.PARTITIONS) as found:
        yield found
