"""The board at work: what is known comes first, twelve rows are seen, and nothing is printed as known that noise may have made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.dashboard.browser import Window
from tests.dashboard.feeding import Document, Topics, embedded, reads, recent, sliding
from workers.dashboard.server import Background, Dashboard
from workers.mechanisms.config.sums import parse_sum
from workers.pipeline.snapshots import Means

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.waits

SD = 25.0
#: When the window of the last hour began, of which the snapshots are the last and the first tick.
TICKS = 61
KNOWN = {"tea": 4_000, "cup": 461, "pot": 30}
#: Shown since the window began; up to the threshold of each may have come before it.
NEW = {"fresh": 581, "novel": 3_000} | {f"late {i:02}": 490 for i in range(40)}
THRESHOLD = 500
PRICE = Means(parse_sum({"field": "lines[].price", "from": 0, "to": 60, "step": 0.01}))
PRICES = {"tea": 14.55, "cup": 40.0, "pot": 1.0}


def sums_of(counts: dict[str, int]) -> dict[str, Any]:
    """Sums whose noise is beyond what pots cost."""
    centred_sd = 15 * PRICE.steps
    sds = SD, centred_sd
    values = np.array(list(counts.values()))
    prices = np.array([PRICES[label] for label in counts])
    centred = np.rint(values * (prices - 30) / 0.005).astype(np.int64)
    return {"sums": PRICE.rows(values, centred, *sds), "sum": PRICE.head(*sds)}


def epoch(tick: int) -> Document:
    """Of 10,000 items that came, 9,000 before the window began; then as many others as 300."""
    counts = dict.fromkeys(KNOWN, 1000)
    total = 3_000 + 700
    if tick == TICKS:
        counts = {label: 1_000 + by for label, by in KNOWN.items()} | NEW
        total = sum(counts.values()) + 700
    items = sorted(counts.items(), key=lambda item: -item[1])
    hour = {"ms": 3_600_000, "ticks": 60, "sd": SD, "all_items_sd": 30.0}
    return recent(
        tick,
        items,
        ticks=TICKS,
        sd=SD,
        threshold=float(THRESHOLD),
        windows=[hour],
        all_items={"count": total, "sd": 30.0},
        histogram="orders",
    )


def shop(key: str) -> Document:
    """A window of 200 products, without epochs, of key `sums` with their prices."""
    end = recent(TICKS, [], ticks=TICKS)["end"]
    own: dict[str, Any] = {"key": key, "sd": SD, "threshold": 130.0, "tick_ms": 60_000}
    items = [(f"product {i:03}", 5_000 - 20 * i) for i in range(200)]
    if key == "sums":
        items = list(KNOWN.items())
        own |= sums_of(KNOWN)
    if key == "empty":
        items = []
        own |= {"all_items": {"count": 900, "sd": 30.0}}
    return sliding("1h", end, items, **own)


@pytest.fixture(scope="module")
def topics() -> Iterator[Topics]:
    with embedded("orders", "products.1h") as found:
        found.send(epoch(1), epoch(TICKS))
        found.send(*(shop(key) for key in ("all", "empty", "sums")))
        yield found


@pytest.fixture(scope="module")
def url(topics: Topics) -> Iterator[str]:
    settings = topics.settings("products.1h", "orders")
    named = [
        replace(one, sum_field="lines[].price", key_field="shop.branch_name")
        for one in settings.histograms
    ]
    settings = replace(settings, histograms=tuple(named))
    with Background(Dashboard(settings, port=0)) as dashboard:
        reads(dashboard)
        yield dashboard.url


def labels(page: Page) -> list[str]:
    found: list[str] = page.evaluate(
        '[...document.querySelectorAll("tr.item")].map((row) => row.label)'
    )
    return found


def last_hour(window: Window, url: str, more: str = "") -> Page:
    page = window.open(f"{url}?histogram=orders&key=s1&window=1h{more}")
    window.reads("#count-head", "^Counted$")
    return page


def test_what_is_known_leads_and_new_rows_of_which_nothing_is_known_stand_apart(
    window: Window, url: str
) -> None:
    page = last_hour(window, url)
    # At least 2,450 of `novel` came in the hour, and 31 of `fresh`; of the rest perhaps none.
    assert labels(page)[:4] == ["tea", "novel", "cup", "fresh"]
    apart = page.locator("tr.item.apart")
    assert apart.count() == 1
    assert apart.locator(".pick").inner_text().startswith("late ")
    words = page.inner_text("#summary")
    assert words.startswith("Most: tea, 4,000 ± 50 (19 times out of 20), ahead of all")
    # Noise alone may make 30 of 25.
    pot = page.locator("tr.item", has_text="pot").locator(".count")
    assert pot.inner_text() == "at most 80"
    assert (pot.get_attribute("title") or "").startswith("published: 30 ± 50")


def test_the_selection_never_moves_by_itself(
    window: Window, topics: Topics, url: str
) -> None:
    moving = {"key": "moving", "histogram": "orders"}
    topics.send(recent(1, [("tea", 900), ("cup", 800)], ticks=2, **moving))
    page = window.open(f"{url}?histogram=orders&key=moving")
    window.reads("#item-name", "^tea$")
    topics.send(recent(2, [("cup", 2_000), ("tea", 950)], ticks=2, **moving))
    window.reads("tr.item .pick", "^cup$")
    window.reads("#reading", ": 950 ")
    assert page.inner_text("#item-name") == "tea"
    assert "item=" not in page.url


def test_others_are_bounded_by_what_they_can_have_counted_at_all(
    window: Window, url: str
) -> None:
    """Forty new rows may have had 20,000 before the window; all that is not listed ever had 700."""
    page = last_hour(window, url)
    row = page.locator("tr.others")
    low, high = (
        int(part.replace(",", ""))
        for part in row.locator(".count")
        .inner_text()
        .split("between ")[1]
        .split(" and ")
    )
    assert low == 0 and 700 < high < 1_300
    assert "% of everything" in row.locator(".bar").inner_text()
    page = window.page
    page.goto(f"{url}?histogram=products.1h&key=empty")
    window.counts("tr.others:not([hidden])", 1)
    cells = row.locator("td").all_inner_texts()
    assert [cell for cell in cells if cell.strip()][:2] == ["everything", "900"]
    assert "%" not in row.inner_text()


def test_a_share_is_never_more_than_all_and_small_ones_have_only_an_end(
    window: Window, url: str
) -> None:
    page = last_hour(window, url)
    say = """async (given) => {
        const { rounded, shareWords } = await import("/page/words.js");
        return [...given.map((one) => shareWords(one, "it")), rounded(345_324, 2_012), rounded(1.2346, 0.0678)];
    }"""
    given = [
        {"part": 0.0, "half": 1.58},
        {"part": 0.02, "half": 0.05},
        {"part": 0.105, "half": 0.0123},
    ]
    assert page.evaluate(say, given) == [
        "at most 100\u00a0% of it",
        "at most 7.0\u00a0% of it",
        "10.5\u00a0% ± 1.2\u00a0% of it",
        ["345,300", "2,100"],
        ["1.235", "0.068"],
    ]


def test_sums_and_means_within_the_noise_are_only_ranges(
    chrome: Browser, url: str
) -> None:
    with Window(chrome, width=1400, height=1000) as window:
        page = window.open(f"{url}?histogram=products.1h&key=sums")
        found = page.evaluate("""() => Object.fromEntries([...document.querySelectorAll("tr.item")].map((row) =>
            [row.label, [".mean", ".sum"].map((part) => row.querySelector(part))
                .map((cell) => [cell.innerText, cell.classList.contains("unsure")])]))""")
        assert [unsure for _, unsure in found["tea"]] == [False, False]
        (mean, mean_unsure), (total, sum_unsure) = found["pot"]
        assert mean_unsure and sum_unsure
        assert " to " in mean and total.startswith("at most ")
        # The bars keep a third of the width, and titles are names.
        bar, table = (
            page.locator(part).bounding_box() for part in ("thead th.bar", "#table")
        )
        assert bar is not None and table is not None
        assert bar["width"] >= table["width"] / 3
        assert page.locator("thead .sum").inner_text().split() == ["Sum", "price"]


#: Rows of which all is seen.
SEEN = """() => {
    const top = document.querySelector("#table thead").getBoundingClientRect().bottom;
    const bottom = document.querySelector("#scroller").getBoundingClientRect().bottom;
    const boxes = [...document.querySelectorAll("tr.item")].map((row) => row.getBoundingClientRect());
    return boxes.filter((box) => box.top >= top - 1 && box.bottom <= bottom + 1).length;
}"""


def test_twelve_rows_are_seen_on_the_first_visit_and_a_wall_is_filled(
    chrome: Browser, url: str
) -> None:
    with Window(chrome, width=1400, height=1000) as window:
        page = window.open(f"{url}?histogram=products.1h&key=all")
        assert page.evaluate(SEEN) >= 12
    for width, height in ((1920, 1080), (2560, 1440)):
        with Window(chrome, width=width, height=height) as window:
            page = window.open(f"{url}?histogram=products.1h&key=all&wall")
            drawn = page.locator("tr.item").count()
            assert drawn >= 12
            until_seen = f"({SEEN})() === {drawn}"
            window.shows(until_seen)
            scroller = page.evaluate(
                '(({ scrollHeight, clientHeight }) => [scrollHeight, clientHeight])(document.querySelector("#scroller"))'
            )
            assert scroller[0] <= scroller[1] + 1, "nothing scrolls"
            row = page.locator("tr.item").last.bounding_box()
            box = page.locator("#scroller").bounding_box()
            assert row is not None and box is not None
            assert box["y"] + box["height"] - row["y"] - row["height"] < row["height"]
            fill = page.locator("tr.item .fill").first.bounding_box()
            assert fill is not None and fill["width"] > 50
            assert f"{200 - drawn} more" in page.inner_text("#under")


def test_order_and_search_are_in_the_address(window: Window, url: str) -> None:
    page = last_hour(window, url, "&find=late")
    assert page.input_value("#find") == "late"
    assert all(label.startswith("late ") for label in labels(page))
    page.fill("#find", "")
    window.shows('document.querySelectorAll("tr.item").length > 5')
    page.click("thead .label button")
    window.counts('th.label[aria-sort="ascending"]', 1)
    assert labels(page)[:2] == ["cup", "fresh"] and "order=name" in page.url
    page.click("thead .label button")
    window.counts('th.label[aria-sort="descending"]', 1)
    assert labels(page)[0] == "tea" and "order=-name" in page.url
    page.go_back()
    window.counts('th.label[aria-sort="ascending"]', 1)
    # Turned around, what has the least at most comes first, and what is not known still last.
    page.goto(f"{url}?histogram=orders&key=s1&window=1h&order=-count")
    window.reads("tr.item .pick", "^pot$")
    page.goto(f"{url}?histogram=products.1h&key=sums&order=mean")
    window.counts('th.mean[aria-sort="descending"]', 1)
    assert labels(page)[0] == "cup"
    page.goto(f"{url}?histogram=products.1h&key=sums&order=sum")
    window.counts('th.sum[aria-sort="descending"]', 1)
    assert labels(page)[0] == "tea"


def test_keys_are_called_by_their_field_and_what_is_sought_stays_sought(
    window: Window, url: str
) -> None:
    page = window.open(f"{url}?histogram=products.1h&key=all&find=t")
    assert page.inner_text("#key-title") == "Branch name"
    assert page.inner_text("#all-keys-open") == "Every branch name"
    page.select_option("#key", "sums")
    window.reads("tr.item .pick", "^tea$")
    assert page.input_value("#find") == "t" and labels(page) == ["tea", "pot"]
    assert "find=t" in page.url
    # Of more than is kept there is "All".
    window.counts("#ranges button:not([hidden])", 3)
    ranges = page.locator("#ranges button:not([hidden])").all_inner_texts()
    assert ranges == ["Last hour", "24 hours", "All"]


def test_a_missing_key_offers_those_that_are_there(window: Window, url: str) -> None:
    page = window.page
    page.goto(f"{url}?histogram=products.1h&key=nobody")
    window.reads("#unknown", "no|Nothing has been published for a stream key")
    assert page.locator("#unknown button").all_inner_texts() == ["all", "empty", "sums"]
    page.click('#unknown button:has-text("sums")')
    window.reads("#board-title", "of sums")
    page.goto(f"{url}?histogram=nothing")
    window.reads("#unknown", "There is no histogram")
    page.click('#unknown button:has-text("products")')
    page.wait_for_selector("tr.item")
    window.wrong.clear()


def test_links_to_files_are_links(window: Window, url: str) -> None:
    page = last_hour(window, url)
    link = page.locator('#board-foot a[data-format="csv"]').first
    with page.expect_download() as found:
        link.click()
    assert found.value.suggested_filename.endswith(".csv")
    assert (link.get_attribute("href") or "").startswith("api/snapshots?")
