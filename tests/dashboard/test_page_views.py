"""Titles, empty boards, many keys, phones, paper, walls and frames, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

from tests.dashboard.browser import Window, text
from tests.dashboard.feeding import (
    PATIENCE_S,
    RECENT_MS,
    Show,
    Topics,
    embedded,
    recent,
)
from tests.worker.harness import until
from workers.dashboard.guard import framed_by
from workers.dashboard.readers import single

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.waits

ITEMS = [("tea", 2_086), ("cup", 1_462), ("pot", 793), ("spoon", 300), ("lid", 180)]
#: Notes every word that the connection is called, and lets no stream be opened until it is told to.
HOLD = """window.words = new Set();
    window.opened = new Promise((resume) => (window.goOn = resume));
    const now = window.fetch;
    window.fetch = async (address, options) => {
        if (address.includes("api/stream")) await window.opened;
        return now(address, options);
    };
    addEventListener("DOMContentLoaded", () => {
        const look = () => window.words.add(document.querySelector("#connection").textContent);
        new MutationObserver(look).observe(document.querySelector("#connection"), { childList: true, characterData: true, subtree: true });
        look();
    });"""


@pytest.fixture(scope="module")
def topics() -> Iterator[Topics]:
    """Three ticks of one key, of a second one with nothing above the threshold, and of many more."""
    with embedded("products") as found:
        for tick in (1, 2, 3):
            found.send(
                recent(tick, [(label, count + tick) for label, count in ITEMS], ticks=3)
            )
            found.send(recent(tick, [], ticks=3, key="quiet"))
        found.send(
            *(
                recent(3, [("tea", 500 + i)], ticks=3, key=f"shop {i:02}")
                for i in range(40)
            )
        )
        yield found


@pytest.fixture(scope="module")
def url(topics: Topics) -> Iterator[str]:
    with topics.served("products") as dashboard:
        # A test holds the stream: what is read after the page has asked would not reach it.
        until(
            lambda: dashboard.dashboard.hub.state["kafka"] == "live",
            "the topic is read",
        )
        yield dashboard.url


def whole(window: Window) -> Page:
    window.counts("#chart .band", 1)
    return window.page


def test_a_page_that_was_just_opened_is_connecting(window: Window, url: str) -> None:
    window.page.add_init_script(HOLD)
    page = window.open(f"{url}?histogram=products&key=s1")
    assert page.inner_text("#connection") == "Connecting"
    assert page.get_attribute("#state", "data-state") == "connecting"
    page.evaluate("window.goOn()")
    window.reads("#connection", "^(Live|Waiting)$")
    assert "Reconnecting" not in page.evaluate("[...window.words]")


def test_a_key_among_many_is_found_by_a_part_of_its_name(
    window: Window, url: str
) -> None:
    page = window.open(f"{url}?histogram=products&key=s1")
    window.counts("#key option", 42)
    page.fill("#key-find", "OP 3")
    window.counts("#key-list [role=option]", 10)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    window.reads("#board-title", "^products of shop 31")
    assert page.input_value("#key") == "shop 31"
    page.fill("#key-find", "17")
    page.click('#key-list [role="option"]')
    window.reads("#board-title", "^products of shop 17")
    page.fill("#key-find", "zzz")
    window.reads("#key-list", "No stream key")


def test_an_empty_board_says_why(window: Window, url: str) -> None:
    page = window.page
    page.goto(f"{url}?histogram=products&key=quiet")
    window.reads("#empty", "No item has passed the threshold of 121 yet")
    window.reads("#empty", "Counting began 3 minutes before")
    page.goto(f"{url}?histogram=products&key=s1")
    page.wait_for_selector("tr.item")
    page.fill("#find", "nothing like it")
    # 121 and two standard deviations of the noise.
    bound = r"at most about 156 were counted\.$"
    window.reads(
        "#empty",
        rf"^No item here has this in its name\. Of one that is not shown, {bound}",
    )
    page.goto(f"{url}?histogram=products&key=s1&item=matcha")
    window.reads("#item-words", f"^Not shown: {bound}")


def test_a_telephone_shows_counts_without_scrolling(chrome: Browser, url: str) -> None:
    # What a telephone of 844 leaves between its bars.
    with Window(chrome, width=390, height=664) as window:
        page = window.open(f"{url}?histogram=products&key=s1")
        whole(window)
        for index in (0, 1):
            box = page.locator("tr.item").nth(index).bounding_box()
            assert box is not None and box["y"] + box["height"] <= 664
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        # A label gives way to its number, never the other way round: also beside a longer one.
        cut = """() => {
            const row = document.querySelector("tr.item"), count = row.querySelector(".count");
            row.querySelector(".pick").textContent = "a box with a ribbon ".repeat(9);
            row.querySelector(".prev span").textContent = "not shown";
            document.querySelector("#table").classList.add("with-before");
            return [count.textContent, count.clientWidth > 0 && count.scrollWidth <= count.clientWidth];
        }"""
        assert page.evaluate(cut) == ["2,089", True]
        # What a title means is a touch away, and goes with the next one.
        page.click("thead .sd button")
        assert "19 times out of 20" in page.inner_text("#legend-sd")
        assert page.is_visible("#legend-sd")
        page.keyboard.press("Escape")
        assert page.is_hidden("#legend-sd")


def test_the_tab_names_what_it_shows_and_time_is_said_as_people_say_it(
    window: Window, url: str, topics: Topics
) -> None:
    """Since when and until when; that it is tick 3 of an epoch is a detail."""
    page = window.open(f"{url}?histogram=products&key=s1")
    begin = topics.sent[0]["start"]
    form = '{ hour: "2-digit", minute: "2-digit", hourCycle: "h23" }'
    local = page.evaluate(
        f"(ms) => new Intl.DateTimeFormat(undefined, {form}).format(ms)", begin
    )
    since = f"Since {'midnight UTC' if begin % 86_400_000 == 0 else local}"
    assert page.inner_text("#period").startswith(since)
    assert "until" in page.inner_text("#period")
    details = page.get_attribute("#period", "title") or ""
    assert details.startswith("Times are in ")
    assert details.endswith(". Epoch 1, tick 3.")
    assert page.title() == "s1 \u00b7 products \u2013 orders \u2013 Quietcount"
    page.select_option("#key", "shop 07")
    window.shows('document.title.startsWith("shop 07 ")')


def test_several_items_and_keys_are_lines_of_one_chart(
    window: Window, url: str
) -> None:
    page = window.open(f"{url}?histogram=products&key=s1&item=tea")
    whole(window)
    for name in ("cup", "shop 03"):
        page.fill("#add-name", name)
        page.click("#add button")
    window.counts("#series li", 3)
    assert "with=cup&keys=shop+03" in page.url
    said = "tea 2,089 \u00b1 35; cup 1,465 \u00b1 35; tea of shop 03 503 \u00b1 35"
    window.shows(f'document.querySelector("#reading").textContent.endsWith("{said}")')
    page.reload()
    window.counts("#series li", 3)
    page.click('#series [aria-label="Take cup out of the chart"]')
    window.counts("#series li", 2)
    page.fill("#add-name", "nothing")
    page.click("#add button")
    assert page.is_visible("#add-wrong")
    total = sum(count + 3 for _, count in ITEMS)
    assert f"{100 * 2_089 / total:.2f}\u00a0% \u00b1 " in page.inner_text("#item-words")


def test_old_data_is_seen_on_the_tab(window: Window, show: Show) -> None:
    old = recent(1, ITEMS)
    hour = 60 * RECENT_MS
    topics, url = show(old | {"start": old["start"] - hour, "end": old["end"] - hour})
    page = window.open(url)
    window.counts('#icon[href="page/icon-stale.svg"]', 1)
    topics.send(recent(1, ITEMS, ticks=1, key="s1") | {"tick": 61})
    window.counts('#icon[href="page/icon.svg"]', 1)
    for name in ("icon.svg", "icon-stale.svg"):
        with urlopen(f"{url}page/{name}", timeout=PATIENCE_S) as answer:
            assert answer.headers["Content-Type"].startswith("image/svg+xml")
    assert page.title().startswith("s1 ")


def test_paper_has_every_row_and_no_button(window: Window, show: Show) -> None:
    _, url = show(recent(1, [(f"item {i:03}", 9_000 - 10 * i) for i in range(300)]))
    page = window.open(url)
    assert page.locator("tr.item").count() < 100
    page.emulate_media(media="print")
    page.evaluate('dispatchEvent(new Event("beforeprint"))')
    assert page.locator("tr.item").count() == 300
    assert page.locator("#follow").is_hidden()
    assert "Noise is added on purpose" in page.inner_text(".frame-foot")
    page.evaluate('dispatchEvent(new Event("afterprint"))')
    assert page.locator("tr.item").count() < 100


def test_a_wall_and_a_frame_show_counts_and_nothing_to_press(
    chrome: Browser, url: str
) -> None:
    for query in ("view=wall", "wall", "embed", "embed=board"):
        with Window(chrome, width=1000, height=700) as window:
            page = window.open(f"{url}?histogram=products&key=s1&{query}")
            assert [row[2] for row in window.rows()][:2] == [text(2_089), text(1_465)]
            assert page.locator("tr.item").first.is_visible()
            for part in ("#key", "#follow", "#theme", "#find", "#add", "#range-open"):
                assert page.locator(part).is_hidden(), (query, part)
            noise = "#lead" if "wall" in query else ".frame-foot"
            assert "Noise is added " in page.inner_text(noise)
            assert page.locator("#chart").is_visible() == (query != "embed=board")
            if "wall" not in query:
                link = page.get_attribute("#frame-link", "href") or ""
                assert "key=s1" in link
                assert "embed" not in link


def test_only_an_embedded_page_may_be_framed(url: str) -> None:
    local = "'self' http://localhost:* http://127.0.0.1:*"
    for path, allowed in (
        ("", "'none'"),
        ("?embed", local),
        ("api/histograms", "'none'"),
    ):
        with urlopen(url + path, timeout=PATIENCE_S) as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert policy.endswith(f"frame-ancestors {allowed}")
            assert answer.headers["X-Frame-Options"] == (
                None if path == "?embed" else "DENY"
            )
    assert (
        framed_by("0.0.0.0", None)
        == framed_by("127.0.0.1", single("a-token-of-16-bytes"))
        == "*"
    )
