"""The page of a histogram without epochs: its windows are one entry, and nothing is subtracted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.dashboard.browser import Window
from tests.dashboard.feeding import (
    RECENT_MS,
    Document,
    Moment,
    embedded,
    message,
    reads,
    sliding,
)
from workers.dashboard.api import pages
from workers.dashboard.server import Background, Dashboard

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.waits

TICKS = 130
#: When the cup passes the tea, the pot comes and the lid leaves.
TURN = 100
#: The first tick of another generation, of the stream key s2.
ANEW = 81
SD = {"10m": 12.0, "1h": 20.0, "1d": 30.0}
COUNTS = {"10m": 100, "1h": 600, "1d": 9_000}
THRESHOLD = 131.0
#: Counts different users.
USERS = "visitors.1h"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def end_of(tick: int) -> int:
    now = Moment.ms // RECENT_MS * RECENT_MS
    return now - (TICKS - tick) * RECENT_MS


def items(window: str, tick: int) -> list[tuple[str, int]]:
    most = COUNTS[window]
    turned = tick >= TURN
    counts = {"tea": most, "cup": 3 * most // 2 if turned else most // 2}
    counts["pot" if turned else "lid"] = most // 4
    return sorted(counts.items(), key=lambda item: -item[1])


def snapshot(window: str, tick: int, key: str) -> Document:
    fields: dict[str, Any] = {"key": key, "sd": SD[window], "threshold": THRESHOLD}
    if key == "s2" and tick >= ANEW:
        fields["id"] = f"{len(window):0>31}f"
    return sliding(
        window, end_of(tick), items(window, tick), tick_ms=RECENT_MS, **fields
    )


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    names = [f"products.{window}" for window in ("1d", "10m", "1h")]
    with embedded(*names, "orders", USERS) as topics:
        topics.send(
            *(
                snapshot(window, tick, key)
                for tick in range(1, TICKS + 1)
                for key in ("s1", "s2")
                for window in SD
            )
        )
        # It counts the same since a midnight, from the first of these ticks on.
        topics.send(
            *(
                message(
                    700 + tick,
                    [("tea", 10 * tick)],
                    histogram="orders",
                    start=end_of(tick) - RECENT_MS,
                    end=end_of(tick),
                )
                for tick in range(1, TICKS + 1)
            )
        )
        end = end_of(TICKS)
        of_users = {"ms": HOUR_MS, "from": end - HOUR_MS, "counts": "users"}
        visitors = [("home", 70), ("help", 30)]
        topics.send(
            sliding("1h", end, visitors, histogram=USERS, window=of_users, sd=2.0)
        )
        settings = topics.settings(*names, "orders", USERS, horizon=1_440)
        same = [
            replace(one, selection="people" if one.name == USERS else "items")
            for one in settings.histograms
        ]
        settings = replace(settings, histograms=tuple(same))
        with Background(Dashboard(settings, port=0)) as running:
            reads(running)
            yield running.url


def chips(page: Page) -> list[tuple[str, bool]]:
    found = page.evaluate("""() => [...document.querySelectorAll("#windows-row .chip")].map((chip) =>
        [chip.textContent, chip.getAttribute("aria-pressed") === "true"])""")
    return [tuple(chip) for chip in found]


def marks(page: Page) -> dict[str, str]:
    """The mark beside each row's rank, if there is one."""
    found = page.evaluate("""() => [...document.querySelectorAll("tr.item")].map((row) =>
        [row.label, row.querySelector(".change").textContent])""")
    return {label: mark for label, mark in found if mark}


def clock(ms: int) -> str:
    minutes = ms // 60_000 % 1_440
    return f"{minutes // 60:02}:{minutes % 60:02}"


def subtracting(window: Window) -> list[str]:
    """What the page has asked for as the difference of two snapshots."""
    asked = [url for url in window.asked if "/api/" in url]
    return [url for url in asked if "&window=" in url or "&since=" in url]


def test_a_histogram_is_one_entry_and_opens_on_its_second_window(
    window: Window, url: str
) -> None:
    page = window.open(url)
    listed = page.locator("#histogram option").all_inner_texts()
    assert listed == ["products", "orders", "visitors"]
    assert chips(page) == [
        ("Last 10 minutes", False),
        ("Last hour", True),
        ("Last day", False),
    ]
    assert "histogram=products.1h" in page.url
    begin, end = (clock(end_of(tick)) for tick in (TICKS - 60, TICKS))
    window.reads("#period", f"^In the last hour, from {begin}.* to {end}.*\\.$")
    assert page.inner_text("#board-title").strip() == "products of s1"
    assert [row[1:] for row in window.rows()] == [
        ("cup", "900"),
        ("tea", "600"),
        ("pot", "150"),
    ]
    text = page.inner_text("main")
    assert "midnight" not in text and "epoch" not in page.inner_text("#what")
    assert page.is_hidden("#since-details") and page.is_hidden("#unit-label")
    assert "for ever, for all windows together" in (
        page.text_content("#guarantee") or ""
    )


def test_counts_of_different_users_are_named_and_never_added_up(
    window: Window, url: str
) -> None:
    """Twice the time has not twice the users, and users of two items may be the same."""
    page = window.open(f"{url}?histogram={USERS}&key=s1&item=home")
    window.reads("#what", "^How many different users each item had in the last hour")
    window.reads("#count-head", "^Users$")
    window.reads("#summary", "^Most: home, 70 ± 4 different users ")
    window.reads("#chart-note", "Each point is how many different users there were in")
    assert page.is_hidden("#per-label")
    assert "%" not in page.inner_text("#item-words")


def test_arrows_and_new_are_against_the_board_one_window_earlier(
    window: Window, url: str
) -> None:
    page = window.open(url)
    window.shows('document.querySelectorAll("tr.item .change.up").length === 1')
    assert marks(page) == {"cup": "▲1", "tea": "▼1", "pot": "newly shown"}
    window.reads("#legend-passed", f"one hour earlier \\({clock(end_of(TICKS - 60))}")
    window.reads("#legend-passed", "whatever part of it they share")
    window.reads("#newly-words", "not on the board one hour earlier")
    # What has left is gone without a word.
    assert "lid" not in page.inner_text(".board")
    # Ten minutes earlier all was as now; of a day earlier nothing is kept.
    for button in ("Last 10 minutes", "Last day"):
        page.click(f'#windows-row button:has-text("{button}")')
        window.reads("#period", f"^In the {button[0].lower()}{button[1:]}")
        page.wait_for_timeout(500)
        assert marks(page) == {}
    window.reads("#legend-passed", "not known, as no whole day of then is kept")


def test_an_order_that_shared_noise_may_explain_is_no_arrow(
    window: Window, url: str
) -> None:
    """Of 12 items the rule for noise that is not shared asks for 2.6 sd; this one for 3.8."""
    page = window.open(url)
    found = page.evaluate("""async () => {
        const { Moves } = await import("./page/noise.js");
        const others = Array.from({ length: 10 }, (_, i) => [`o${i}`, 5000 + 1000 * i]);
        const of = (a, b) => ({ mechanism: "unk_base", sd: 10, threshold: 50, items: [["a", a], ["b", b], ...others] });
        // 45 apart at both times: 3.2 standard deviations of a difference.
        return [false, true].map((windows) => [[500, 545], [545, 500]].map(([a, b]) =>
            new Moves(of(a, b), of(b, a), windows).of("a").by));
    }""")
    assert found == [[-1, 1], [0, 0]]


def test_the_window_is_in_the_address_and_back_returns_to_it(
    window: Window, url: str
) -> None:
    held = end_of(TICKS - 5)
    page = window.open(f"{url}?histogram=products.1h&key=s1&at={held}")
    page.fill("#find", "tea")
    window.counts("tr.item", 1)
    assert chips(page)[1] == ("Hour before", True)
    window.reads("#period", "^In the hour from ")
    page.click('#windows-row button:has-text("Day before")')
    window.reads("#period", f"^In the day from .* to {clock(held)}")
    assert "histogram=products.1d" in page.url and f"at={held}" in page.url
    assert window.rows() == [("2", "tea", "9,000")]
    assert page.input_value("#find") == "tea"
    page.go_back()
    window.reads("#period", f"^In the hour from .* to {clock(held)}")
    assert window.rows() == [("2", "tea", "600")]
    page.go_forward()
    window.reads("#period", "^In the day from ")
    # The name and the window as two, as one would write them.
    page.goto(f"{url}?histogram=products&window=10m&key=s1")
    window.reads("#period", "^In the last 10 minutes, ")
    assert "histogram=products.10m" in page.url and "window=" not in page.url
    # Another histogram, and back to this one.
    page.select_option("#histogram", "orders")
    window.reads("#board-title", "^orders of s1")
    page.select_option("#histogram", "products")
    window.reads("#period", "^In the last hour, ")


@pytest.mark.parametrize("query", ["window=5m", "since=2020-01-01"])
def test_another_window_is_reported_and_never_replaced(
    window: Window, url: str, query: str
) -> None:
    window.page.goto(f"{url}?histogram=products&key=s1&{query}")
    window.reads("#empty", "published for the windows above, and for no other time")
    assert [chip for chip, pressed in chips(window.page) if pressed] == []
    assert subtracting(window) == []
    window.page.click('#windows-row button:has-text("Last hour")')
    window.counts("tr.item", 3)


def test_nothing_is_subtracted_and_a_page_that_does_is_found(
    window: Window, chrome: Browser, url: str
) -> None:
    page = window.open(url)
    window.reads("#changes", "^Counted in the last 10 minutes: 150 ± 24")
    window.reads("#changes", "last day, but only since .*: 13,500 ± 60$")
    page.click('.pick:has-text("tea")')
    began = clock(end_of(0))
    window.reads("#changes", f"Counted since {began}.* \\(orders\\): 1,300 ± 35$")
    page.click('.pick:has-text("pot")')
    window.reads("#changes", "^Counted in the last 10 minutes: 25 ± 24")
    assert subtracting(window) == []
    source = pages()["page/item.js"].body.decode()
    planted = source.replace(
        "if (snapshot.window) this.inWindows", "if (false) this.inWindows"
    )
    planted = planted.replace("counts && canSubtract(snapshot)", "counts")
    assert planted != source
    other = Window(chrome)
    other.page.route(
        "**/page/item.js",
        lambda route: route.fulfill(body=planted, content_type="text/javascript"),
    )
    other.open(url)
    other.page.wait_for_timeout(1_000)
    assert subtracting(other)
    assert any("400" in line for line in other.wrong)
    other.context.close()


def test_the_line_has_no_cut_but_where_a_generation_begins(
    window: Window, url: str
) -> None:
    page = window.open(f"{url}?histogram=products.10m&key=s1&item=tea&range=day")
    window.shows('document.querySelectorAll("#chart .line").length === 1')
    assert page.locator("#chart .cut").count() == 0
    note = page.inner_text("#chart-note")
    assert "Each point is of what came in the 10 minutes before it." in note
    assert "total" not in note and "zero" not in note
    assert "Tick" not in page.inner_text("#reading")
    page.goto(f"{url}?histogram=products.10m&key=s2&item=tea&range=day")
    window.counts("#chart .cut", 1)
    began = clock(end_of(ANEW - 1))
    # Both rises are those of a window that fills: the first series began too.
    note = f"the 10 minutes was not full yet: counting began at {clock(end_of(0))}.* and anew at {began}"
    window.reads("#chart-note", note)
    window.counts("#chart .filling", 2)
    page.goto(f"{url}?histogram=products.1h&key=s2&item=tea")
    day = "" if end_of(ANEW - 1) // DAY_MS == Moment.ms // DAY_MS else " yesterday"
    window.reads("#period", f"; counting began at {began}{day}\\.$")
    assert page.get_attribute('[data-range="day"]', "aria-pressed") == "true"
    assert page.is_hidden('[data-range="epoch"]')
    # No whole hour of the same noise is before it.
    assert marks(page) == {}


def test_a_longer_window_says_since_when_it_is_counted(
    window: Window, url: str
) -> None:
    """Counting began anew half an hour ago: of the day there is half an hour."""
    window.open(f"{url}?histogram=products.10m&key=s2&item=tea&at={end_of(ANEW + 30)}")
    only = f", but only since {clock(end_of(ANEW - 1))}.*, when counting began: "
    window.reads("#changes", f"^Counted in the hour before{only}600 ± 40")
    window.reads("#changes", f"Counted in the day before{only}9,000 ± 60$")


def test_a_row_below_the_limit_says_why_it_is_shown(window: Window, url: str) -> None:
    page = window.open(f"{url}?histogram=products.10m&key=s1")
    marked = "tr.item.below .pick"
    assert page.locator(marked).all_inner_texts() == ["tea", "pot"]
    window.reads(
        "#below", "^† Below the limit of 131 now.*earlier or in another window"
    )
    window.reads("#below", "as long as anything of it is left in the last day\\.$")
    page.click('#windows-row button:has-text("Last hour")')
    window.counts(marked, 0)
    assert page.is_hidden("#below")


def test_a_held_tick_is_the_last_point_of_its_line(window: Window, url: str) -> None:
    """Of a day the last tick of every 5 minutes is drawn: later ones of these 5 are in memory."""
    for tick in range(TICKS - 9, TICKS - 4):
        window.open(f"{url}?histogram=orders&key=s1&at={end_of(tick)}&range=day")
        window.reads("#reading", f"^Tick {700 + tick},.* {10 * tick:,} ")


def test_rates_and_an_earlier_window_have_their_errors(
    window: Window, url: str
) -> None:
    page = window.open(f"{url}?histogram=products.10m&key=s1&per=h&beside=1h")
    window.reads("#count-head", "^Per hour$")
    # 150 +- 24 in ten minutes, to two digits of the error.
    cup = page.locator("tr.item", has_text="cup")
    assert cup.locator(".count").inner_text() == "900"
    assert cup.locator(".sd").inner_text() == "150"
    # An hour earlier it had 50: both windows share noise, nobody knows how much, so the error is the sum of both.
    window.counts("table.with-before", 1)
    parts = cup.locator(".prev > *").all_inner_texts()
    assert parts == ["300", "+600 ± 290"]
    page.select_option("#beside-span", "")
    page.select_option("#per", "")
    window.reads("#count-head", "^Count$")
    assert "per=" not in page.url and "beside=" not in page.url


def test_all_keys_are_seen_at_once(window: Window, url: str) -> None:
    page = window.open(f"{url}?histogram=products.1h&key=s1")
    page.click("#all-keys-open")
    window.counts(".small-board", 2)
    boards = page.locator(".small-board").all_inner_texts()
    assert [board.split()[:5] for board in boards] == [
        [key, "cup", "900", "±", "40"] for key in ("s1", "s2")
    ]
    assert "all=keys" in page.url and page.is_hidden("#counts")
    page.click('.small-board:has-text("s2") .pick:has-text("tea")')
    window.reads("#board-title", "of s2$")
    window.reads("#item-name", "^tea$")
    page.go_back()
    window.counts(".small-board", 2)


def test_it_fits_a_phone(chrome: Browser, url: str) -> None:
    with Window(chrome, width=390, height=844) as phone:
        page = phone.open(url)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        right = page.evaluate("""() => Math.max(...[...document.querySelectorAll("#windows-row .chip")].map((chip) =>
            chip.getBoundingClientRect().right))""")
        assert right <= 390
