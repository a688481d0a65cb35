"""A histogram of numbers in a real browser: bars in the order of the edges, and quantiles where they are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.dashboard.browser import Window, text
from tests.dashboard.feeding import Show, Topics, embedded, numbers

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

EDGES = [0, 10, 50, 100, 500]
COUNTS = [-20, 900, 1_500, 700, 300, 80]
QUANTILES = [0.5, 0.99]

#: What is drawn, in pixels of the picture.
DRAWN = """() => {
    const box = (e) => { const b = e.getBBox(); return [b.x, b.x + b.width, b.y, b.y + b.height]; };
    const all = (what) => [...document.querySelectorAll("#bins " + what)];
    return {
        bars: all("rect:not(.interval)").map(box), open: all("rect.open").length, whiskers: all("path.whisker").map(box),
        lines: all("line.quantile").map((e) => Number(e.getAttribute("x1"))), intervals: all("rect.interval").map(box),
        base: Number(document.querySelector("#bins line.base").getAttribute("y1")),
        ticks: all("line.tick").map((e) => Number(e.getAttribute("x1"))),
        texts: all("text").map((e) => e.textContent), width: document.querySelector("#bins").clientWidth,
    };
}"""


@pytest.fixture(scope="module")
def topics() -> Iterator[Topics]:
    with embedded("latency") as found:
        for tick in (1, 2, 3):
            counts = [count + tick for count in COUNTS]
            found.send(numbers(tick, EDGES, counts, QUANTILES, 30.0, ticks=3))
        yield found


@pytest.fixture(scope="module")
def url(topics: Topics) -> Iterator[str]:
    with topics.served("latency") as dashboard:
        yield dashboard.url


def opened(window: Window, url: str) -> Page:
    window.page.goto(f"{url}?histogram=latency&key=s1")
    window.page.wait_for_selector("#bins rect")
    window.reads("#board-title", "tick 3$")
    return window.page


@pytest.mark.parametrize(
    ("width", "dark"), [(390, False), (390, True), (820, False), (1400, True)]
)
def test_bars_are_in_order_and_to_scale_and_quantiles_where_they_are(
    chrome: Browser, topics: Topics, width: int, dark: bool, url: str
) -> None:
    with Window(chrome, width=width, height=900, dark=dark) as window:
        page = opened(window, url)
        drawn: dict[str, Any] = page.evaluate(DRAWN)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        of_items = page.locator("#scroller, #find-row, #board-foot")
        assert of_items.evaluate_all("all => all.every((e) => e.hidden)")
        listed = page.locator("#quantiles li").all_inner_texts()
    bars = drawn["bars"]
    base = drawn["base"]
    assert bars == sorted(bars), "from left to right"
    assert (len(bars), drawn["open"]) == (6, 2)
    per_count = (base - bars[2][2]) / 1_503
    axis_ends = max(whisker[3] for whisker in drawn["whiskers"])
    drawn_bars = zip(bars, drawn["whiskers"], COUNTS, strict=True)
    for (left, right, top, bottom), whisker, count in drawn_bars:
        value = count + 3
        assert [top, bottom] == pytest.approx(
            sorted([base, base - value * per_count]), abs=1.6
        )
        # Below 0 it ends with the axis.
        ends = [min(base - (value + off) * per_count, axis_ends) for off in (60, -60)]
        assert whisker[2:] == pytest.approx(ends, abs=2.6)
        assert 0 <= left < right <= drawn["width"]
    # An edge lies where its bars meet, and a quantile as far between two as it is.
    said = topics.sent[-1]["quantiles"]
    if len(drawn["ticks"]) == len(EDGES):
        ticks = drawn["ticks"]
        assert ticks[1] == pytest.approx((bars[1][1] + bars[2][0]) / 2, abs=2)

        def place(value: float) -> float:
            k = next(k for k in range(4) if value <= EDGES[k + 1])
            share = (value - EDGES[k]) / (EDGES[k + 1] - EDGES[k])
            return float(ticks[k] + share * (ticks[k + 1] - ticks[k]))

        lines = [place(one["value"]) for one in said if one["value"] is not None]
        assert drawn["lines"] == pytest.approx(lines, abs=1)
        # Where in its bucket a quantile is, nobody knows.
        assert drawn["intervals"][0][:2] == pytest.approx([place(10), place(50)], abs=1)
    assert said[1]["bucket"] == ">=500"
    assert drawn["intervals"][1][1] > bars[5][0], (
        "open above: to the end of the open-ended bar"
    )
    assert [line.split("\n")[0] for line in listed] == ["Median", "99 % lie below"]
    assert listed[1].split("\n")[1:] == ["100 or more", "most likely 500 or more"]
    assert {"median", "◂ below 0", "500 and above ▸"} <= set(drawn["texts"])


def test_it_can_be_read_without_seeing_it(window: Window, url: str) -> None:
    page = opened(window, url)
    name = page.get_attribute("#bins", "aria-label") or ""
    assert name.startswith(
        "Histogram of 6 buckets. Most are from 10 to 50: 1,503. Median: "
    )
    assert "99 % lie below: 100 or more, most likely 500 or more." in name
    page.click("#numeric summary")
    window.counts("#bin-numbers tbody tr", 6)
    page.locator("#bin-numbers").wait_for(state="visible")
    rows = [
        row.split("\t")
        for row in page.locator("#bin-numbers tbody tr").all_inner_texts()
    ]
    inner = [f"from {low} to {high}" for low, high in pairwise(EDGES)]
    named = zip(["below 0", *inner, "500 and above"], COUNTS, strict=True)
    assert rows == [[name, text(count + 3), "60"] for name, count in named]
    page.focus("#bins")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    window.reads("#bin-reading", "^from 50 to 100: 703 ± 60$")
    window.reads("#reading", "703 ± 60")
    page.keyboard.press("End")
    window.reads("#item-name", "^500 and above$")
    assert page.locator("#bins rect.chosen").count() == 1
    assert "item=%3E%3D500" in page.url


def test_a_quantile_is_followed_over_the_ticks(
    chrome: Browser, topics: Topics, url: str
) -> None:
    with Window(chrome, width=390) as window:
        page = opened(window, url)
        window.counts("#chart .band", 1)
        assert page.inner_text("#item-name") == "Median, of all since counting began"
        page.click("#as-table summary")
        window.counts("#numbers tbody tr", 3)
        headings = page.locator("#numbers thead th").all_inner_texts()
        assert headings == ["Tick", "Ended", "Value", "95 % interval"]
        one = topics.sent[-1]["quantiles"][0]
        row = page.locator("#numbers tbody tr").first.locator("td").all_inner_texts()
        assert row[0] == "3"
        shown = [float(row[2]), *map(float, row[3].split(" to "))]
        assert shown == pytest.approx([one["value"], 10, 50], abs=0.5)
        assert page.inner_text("#reading").endswith(f": {row[3]}, about {row[2]}")
        page.click("#quantiles li:nth-child(2) button")
        window.reads("#item-name", "^99 % lie below, of all since counting began$")
        assert (
            page.get_attribute("#quantiles li:nth-child(2) button", "aria-pressed")
            == "true"
        )
        window.reads("#chart", r"^It cannot be said at any of these ticks\.$")
        assert "item=q%3A0.99" in page.url


def test_too_few_to_say_is_said(window: Window, show: Show) -> None:
    _, url = show(numbers(3, EDGES, [4, -9, 12, 3, -5, 1], (0.5,), 30.0, ticks=3))
    page = opened(window, url)
    said = page.locator("#quantiles li").all_inner_texts()
    assert said == ["Median\ncannot be said\nall counts together may be noise"]
    assert page.locator("#bins line.quantile, #bins rect.interval").count() == 0
