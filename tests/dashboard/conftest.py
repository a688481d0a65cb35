"""A window of the browser, and topics, for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.dashboard.browser import Window
from tests.dashboard.feeding import (
    Document,
    Show,
    Topics,
    embedded,
    on_a_broker,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture
def window(chrome: Browser) -> Iterator[Window]:
    """A window in which nothing may go wrong: no error, no warning, no dialog."""
    with Window(chrome) as opened:
        yield opened


@pytest.fixture
def show() -> Iterator[Show]:
    """Puts snapshots on topics of their own; returns these and the address of their page."""
    with ExitStack() as stack:
        topics = stack.enter_context(embedded())

        def serve(*documents: Document) -> tuple[Topics, str]:
            names = dict.fromkeys(one["histogram"] for one in documents)
            topics.send(*documents)
            return topics, stack.enter_context(topics.served(*names)).url

        yield serve


@pytest.fixture
def topics(bootstrap: str, request: pytest.FixtureRequest) -> Iterator[Topics]:
    """A histogram topic of `PARTITIONS` on a real broker, gone afterwards."""
    with on_a_broker(bootstrap, request.module.PARTITIONS) as found:
        yield found
