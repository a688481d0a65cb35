"""The page in a real browser: it shows the topic, follows it, reconnects, and can be shared."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.dashboard.browser import MINUS, Window, text
from tests.dashboard.feeding import Topics, answer, embedded, recent
from tests.worker.harness import until
from workers.client.messages import Stream
from workers.dashboard import api
from workers.dashboard.readers import single
from workers.dashboard.server import Background

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.waits

TOKEN = "correct-horse-battery"
ITEMS = [("tea", 2_086), ("cup", 1_462), ("pot", 793), ("spoon", 300), ("lid", -4)]

#: What can be focused and has no name that a screen reader could say.
UNNAMED = """() => [...document.querySelectorAll("button, select, input, [tabindex='0']")]
    .filter((e) => e.checkVisibility())
    .filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.length || e.getAttribute("aria-labelledby")))
    .map((e) => e.outerHTML)"""

#: Contrast of texts with what they stand on, by the formula of WCAG.
CONTRAST = """() => {
    const rgb = (colour) => {
        const canvas = document.createElement("canvas").getContext("2d");
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part / 255);
    };
    const linear = (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    const light = (colour) => rgb(colour).map(linear).reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
    const of = (name) => light(getComputedStyle(document.documentElement).getPropertyValue(name)) + 0.05;
    const pairs = [["--ink", "--card"], ["--quiet", "--card"], ["--exact", "--card"], ["--quiet", "--ground"],
        ["--good", "--card"], ["--bad", "--card"], ["--ink", "--private-soft"], ["--quiet", "--private-soft"]];
    return Object.fromEntries(pairs.map(([a, b]) => [a + b, Math.max(of(a), of(b)) / Math.min(of(a), of(b))]));
}"""


@pytest.fixture
def topics() -> Iterator[Topics]:
    with embedded("products", "maximum") as found:
        for tick in (1, 2, 3):
            for key in ("s1", "s2"):
                grown = [
                    (label, count + 10 * tick + (5 if key == "s2" else 0))
                    for label, count in ITEMS
                ]
                found.send(recent(tick, grown, ticks=3, key=key))
        found.send(
            answer(3, histogram="maximum", query="max", value=70, since=2, error=12.5)
        )
        yield found


def served(topics: Topics, **options: Any) -> Background:
    return topics.served("products", "maximum", **options)


@pytest.fixture
def url(topics: Topics) -> Iterator[str]:
    with served(topics) as dashboard:
        yield dashboard.url


def at_most(value: int) -> str:
    """What is written of a count that noise alone may make: its upper end."""
    return text(value) if value > 2 * 17.25 else f"at most {math.ceil(value + 34.5)}"


def test_numbers_on_screen_are_those_of_the_topic_and_follow_it(
    window: Window, topics: Topics, url: str
) -> None:
    page = window.open(f"{url}?histogram=products&key=s1")
    shown = topics.sent[4]["items"]
    ranked = enumerate(shown, 1)
    assert window.rows() == [
        (f"{i}", label, at_most(count)) for i, (label, count) in ranked
    ]
    assert page.inner_text("#board-title") == "products of s1, tick 3"
    # two standard deviations of 17.25
    assert page.inner_text(".item.chosen .sd") == "35"
    said = page.text_content("#threshold-words") or ""
    assert "Below 121 nothing new is shown" in said
    bar = page.text_content("#sd-words") or ""
    assert "19 times out of 20; less often for a new item" in bar
    assert "allow for 80 less" in bar  # sqrt(2 ln(40 * 1,024)) times 17.25
    promise = page.text_content("#guarantee") or ""
    words = [
        "any one event",
        "2.72 times",
        "1 in a billion",
        "ε (epsilon)",
        "0.021",
        "one event",
    ]
    words.append("Anyone who sees all of this for the whole epoch (1,024 ticks")
    for part in (*words, f"1e{MINUS}9", "unk_base", topics.sent[0]["id"]):
        assert part in promise
    # Figures are folded, and stay open when they were opened.
    assert "ε (epsilon)" not in page.inner_text("#guarantee")
    page.click("#figures summary")
    window.reads("#connection", "^Live$")
    changed = recent(4, [("cup", 9_000), ("new one", 5_000), ("tea", 2_116)], ticks=3)
    topics.send(changed)
    window.reads("#board-title", "tick 4$")
    assert "ε (epsilon)" in page.inner_text("#guarantee")
    counts = [(label, count) for _, label, count in window.rows()]
    assert counts == [("cup", "9,000"), ("new one", "5,000"), ("tea", "2,116")]
    changes = page.locator("tr.item .change")
    assert changes.all_inner_texts() == ["▲1", "newly shown", "▼2"]
    assert changes.first.get_attribute("aria-label") == "up 1"
    assert all(asked.startswith(url) for asked in window.asked)


def test_bars_and_error_bars_are_as_long_as_the_counts_say(
    window: Window, topics: Topics, url: str
) -> None:
    topics.send(recent(4, ITEMS, ticks=3, sd=200.0))
    page = window.open(f"{url}?histogram=products&key=s1")
    window.reads("#board-title", "tick 4$")
    drawn = page.evaluate("""() => [...document.querySelectorAll("tr.item")].map((row) => {
        const box = (part) => { const b = row.querySelector(part).getBoundingClientRect(); return [b.left, b.right]; };
        return { fill: box(".fill"), error: box(".error"), limit: box(".limit"), zero: box(".zero") };
    })""")
    zero = drawn[0]["zero"][0]
    per_count = (drawn[0]["fill"][1] - zero) / ITEMS[0][1]
    for row, (_, count) in zip(drawn, ITEMS, strict=True):
        assert row["fill"] == pytest.approx(
            sorted([zero, zero + count * per_count]), abs=1.5
        )
        # Two standard deviations to each side: about 40 pixels here.
        ends = [zero + (count - 400) * per_count, zero + (count + 400) * per_count]
        assert row["error"] == pytest.approx(ends, abs=2.5)
        assert ends[1] - ends[0] > 40
        assert row["limit"][0] == pytest.approx(zero + 121 * per_count, abs=2.5)


def test_it_comes_back_after_the_server_was_restarted(
    window: Window, topics: Topics
) -> None:
    with served(topics) as first:
        page = window.open(f"{first.url}?histogram=products&key=s1&item=tea")
        port = urlsplit(first.url).port
        assert port is not None
    window.reads("#connection", "^Reconnecting$")
    topics.send(
        recent(4, [("tea", 2_126)], ticks=3), recent(5, [("tea", 2_136)], ticks=3)
    )
    with served(topics, port=port):
        window.reads("#connection", "^Live$")
        window.reads("#board-title", "tick 5$")
        assert window.rows() == [("1", "tea", "2,136")]
        page.click("#as-table summary")
        window.counts("#numbers tbody tr", 5)
        counts = page.locator("#numbers tbody tr td:nth-child(3)").all_inner_texts()
        assert counts == ["2,136", "2,126", "2,116", "2,106", "2,096"]
    assert all("ERR_" in line or "Failed to" in line for line in window.wrong), (
        window.wrong
    )
    window.wrong.clear()


def test_what_came_while_the_connection_was_broken_is_not_missing(
    window: Window, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(topics) as running:
        page = window.open(f"{running.url}?histogram=products&key=s1&item=tea")
        window.reads("#connection", "^Live$")
        page.click("#as-table summary")
        monkeypatch.setattr(api, "VIEWERS_MAX", 0)
        running.call(running.dashboard.hub.close)
        window.reads("#connection", "^Reconnecting$")
        topics.send(
            *(recent(tick, [("tea", 2_086 + 10 * tick)], ticks=3) for tick in (4, 5, 6))
        )
        newest = running.dashboard.hub.history
        until(
            lambda: (
                [one.tick for one in newest.page(Stream("products", "s1"), None, 1)[0]]
                == [6]
            ),
            "the snapshots",
        )
        monkeypatch.setattr(api, "VIEWERS_MAX", 9)
        window.counts("#numbers tbody tr", 6)
        ticks = page.locator("#numbers tbody tr td:first-child").all_inner_texts()
        assert ticks == ["6", "5", "4", "3", "2", "1"]


def test_the_address_bar_names_what_is_seen(
    window: Window, chrome: Browser, topics: Topics, url: str
) -> None:
    page = window.open(url)

    def address() -> dict[str, list[str]]:
        return parse_qs(urlsplit(page.url).query)

    assert address() == {"histogram": ["products"], "key": ["s1"]}
    page.select_option("#key", "s2")
    window.reads("#board-title", "^products of s2")
    page.click("text=pot")
    window.reads("#item-name", "^pot$")
    page.click("#follow")
    window.reads("#follow", "Follow")
    end = topics.sent[5]["end"]
    of_s2 = {"histogram": ["products"], "key": ["s2"]}
    assert address() == of_s2 | {"item": ["pot"], "at": [f"{end}"]}
    page.click("#back")
    window.reads("#board-title", "tick 2")
    shared = page.url
    page.go_back()
    window.reads("#board-title", "tick 3")
    for _ in ("held", "item", "key"):
        page.go_back()
    window.reads("#board-title", "^products of s1")

    with Window(chrome) as other:
        page = other.open(shared)
        other.reads("#board-title", "tick 2")
        assert page.inner_text("#item-name") == "pot"
        assert [(label, count) for _, label, count in other.rows()] == [
            (label, at_most(count)) for label, count in topics.sent[3]["items"]
        ]
        topics.send(recent(4, [("tea", 9)], ticks=3, key="s2"))
        page.click("#follow")
        other.reads("#board-title", "tick 4$")


def test_everything_can_be_reached_with_the_keyboard_and_has_a_name(
    window: Window, url: str
) -> None:
    page = window.open(f"{url}?histogram=products&key=s1")
    # A key that is pressed before the picker knows both stream keys moves nothing.
    window.shows(
        'document.querySelectorAll("#key option").length === 2 && document.querySelector("#key").value === "s1"'
    )
    page.press("#key", "ArrowDown")
    window.reads("#board-title", "^products of s2")
    page.press("tr.item .pick", "ArrowDown")
    page.keyboard.press("ArrowDown")
    window.reads("#item-name", "^pot$")
    assert page.evaluate("document.activeElement.textContent") == "pot"
    # The line of the item that was picked has to be there before a key can go along it.
    window.reads("#reading", "^Tick ")
    page.press("#chart", "Home")
    window.reads("#reading", "^Tick 1, ")
    page.keyboard.press("ArrowRight")
    window.reads("#reading", "^Tick 2, ")
    page.fill("#find", "SPO")
    window.counts("tr.item", 1)
    assert [row[:2] for row in window.rows()] == [("4", "spoon")]
    tree = page.locator("body").aria_snapshot()
    named = [
        'combobox "Histogram"',
        'combobox "Stream key"',
        'searchbox "Find an item"',
    ]
    for part in (*named, 'columnheader "Count"', 'button "spoon"'):
        assert part in tree, tree
    assert page.evaluate(UNNAMED) == []


def test_answers_to_queries_are_shown_as_answers(
    window: Window, topics: Topics, url: str
) -> None:
    answers = [
        {"query": "max", "value": 90},
        {"query": "top_k:2", "value": [90, 40]},
        {"query": "top_k_select:2", "value": ["<b>tea</b>", "cup"]},
        {"query": "histogram", "value": [["tea", 90], ["cup", -3]]},
    ]
    topics.send(answer(4, histogram="maximum", answers=answers, since=4, error=12.5))
    top: dict[str, Any] = {"query": "top", "labels": ["tea", "cup"], "complete": False}
    topics.send(answer(1, histogram="maximum", key="s2", asked=True, **top))
    page = window.open(f"{url}?histogram=maximum&key=s1")
    window.counts(".answer", 4)
    # What is not laid out yet, or again, has no white space between its parts.
    cards = [
        "".join(card.split()) for card in page.locator(".answer").all_inner_texts()
    ]
    assert cards == [
        "Largestcountofanyitem90±13",
        "The2largestcounts9040±13",
        "The2itemswiththelargestcounts<b>tea</b>cup±13",
        f"Countofeveryitemtea:90cup:{MINUS}3±13",
    ]
    assert "Answered at tick 4" in page.inner_text("#what")
    window.reads("#reading", "^Tick 4, ")
    page.select_option("#key", "s2")
    window.counts(".answer", 1)
    assert page.locator(".answer li").all_inner_texts() == ["tea", "cup"]
    assert "no longer clearly above the rest" in page.inner_text("#what")
    assert page.is_hidden("#history")


def test_a_token_is_asked_for_kept_for_the_tab_and_taken_from_a_link(
    window: Window, chrome: Browser, topics: Topics
) -> None:
    with served(topics, readers=single(TOKEN)) as dashboard:
        page = window.page
        page.goto(dashboard.url)
        page.wait_for_selector("#login:not([hidden])")
        assert window.rows() == []
        page.fill("#token", "a-wrong-token-of-some-length")
        page.click("#login button")
        page.wait_for_selector("#wrong:not([hidden])")
        page.fill("#token", TOKEN)
        page.click("#login button")
        page.wait_for_selector("tr.item")
        page.reload()
        page.wait_for_selector("tr.item")
        with Window(chrome) as other:
            linked = other.open(
                f"{dashboard.url}?histogram=products&key=s2#token={TOKEN}"
            )
            assert TOKEN not in linked.url
            asked = window.asked | {url.partition("#")[0] for url in other.asked}
            assert not any(TOKEN in url for url in asked)
    assert all("401" in line for line in window.wrong)
    window.wrong.clear()


def test_light_and_dark_follow_the_system_until_somebody_chooses(
    chrome: Browser, url: str
) -> None:
    """And every text stays readable: at least 4.5 to 1, as WCAG AA has it."""
    for own, other in (("light", "dark"), ("dark", "light")):
        with Window(chrome, dark=own == "dark") as window:
            page = window.open(url)
            for theme in (own, other):
                assert page.evaluate("document.documentElement.dataset.theme") == theme
                ratios = page.evaluate(CONTRAST).items()
                assert {pair: ratio for pair, ratio in ratios if ratio < 4.5} == {}, (
                    theme
                )
                page.click("#theme")
            page.click("#theme")
            page.reload()
            assert page.evaluate("document.documentElement.dataset.theme") == other


def test_it_fits_every_screen(chrome: Browser, url: str) -> None:
    screens = [(390, 844), (820, 1180), (1280, 720), (1920, 1080), (3840, 2160)]
    for width, height in screens:
        with Window(chrome, width=width, height=height) as window:
            page = window.open(f"{url}?histogram=products&key=s1")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            for part in (".pick", "td.count", "td.bar", "#guarantee", "#chart"):
                box = page.locator(part).first.bounding_box()
                assert box is not None and box["width"] > 20, (width, part)
                assert 0 <= box["x"] <= width - box["width"], (width, part)


def test_old_ticks_are_called_old(window: Window, topics: Topics, url: str) -> None:
    old = recent(1, ITEMS, key="s3")
    old["start"] -= 3_600_000
    old["end"] -= 3_600_000
    topics.send(old)
    page = window.open(f"{url}?histogram=products&key=s3")
    window.reads("#connection", "^Waiting$")
    assert re.search(r"\b6\d minutes ago", page.inner_text("#age"))
