"""A reader of the page alone can say how long the board may still run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.dashboard.browser import Window
from tests.dashboard.feeding import embedded, public_budget, recent
from workers.kafka.topics import Topic, create_missing
from workers.privacy.public import KEY

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.waits


@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_says_how_long_it_may_run_in_one_sentence(
    chrome: Browser, width: int
) -> None:
    window = Window(chrome, width=width, height=900)
    budget = public_budget(left_days=None)
    [running, other] = budget.histograms
    # Snapshots state the promise of their own generation.
    older = msgspec.structs.replace(running, status="ended", epsilon=4.0)
    running = msgspec.structs.replace(running, generation=2)
    budget = msgspec.structs.replace(
        budget, neighbours="record", histograms=(older, running, other)
    )
    with window, embedded("products") as topics:
        create_missing(
            topics.connection,
            [Topic("orders.budget", 1, "compact", None, "the budget")],
            {},
        )
        topics.producer.produce("orders.budget", msgspec.json.encode(budget), KEY, 0)
        topics.send(recent(1, [("tea", 500)]))
        with topics.served("products") as dashboard:
            page = window.open(f"{dashboard.url}?histogram=products&key=s1")
            window.shows('document.querySelector("#budget").textContent !== ""')
            said = page.inner_text("#budget")
            promised = page.text_content("#guarantee") or ""
            at_once = page.inner_text("#guarantee")
            box = page.locator("#budget").bounding_box()
    assert said == budget.sentence()
    # Snapshots do not say which neighbours are protected.
    assert "that it came, and what is in it" in promised
    assert budget.fingerprint in promised
    assert (
        "Earlier generations of products promised less, down to ε = 4, δ = 1e\u22129"
        in at_once
    )
    assert (
        "earlier generations included, it costs at most ε = 2.2, δ = 8e\u22129"
        in promised
    )
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
