"""Three epochs and a new generation: every total that was ever final is found by clicking."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.dashboard.browser import Window, text
from tests.dashboard.feeding import Topics, message
from tests.worker.harness import until
from workers.kafka.reading import read_partition

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.waits
PARTITIONS = 1

HOUR_MS = 3_600_000
#: A midnight in UTC; a day of hourly ticks from there, three epochs of eight.
MIDNIGHT_MS = 1_700_006_400_000
HORIZON = 8
ITEMS = ("tea", "cup", "pot")
#: When each series begins, in hours; the lid is shown from the third tick of each on.
BEGUN = (0, 8, 16, 19)
#: The place of its last tick.
LAST = (7, 15, 18, 23)


def day() -> list[dict[str, Any]]:
    """The day's snapshots: in the last epoch a new generation begins after its third tick, and counts from zero."""
    found = []
    for hour in range(24):
        epoch = hour // HORIZON + 1
        tick = hour % HORIZON + 1
        generation = "b" if hour >= 2 * HORIZON + 3 else "a"
        since = tick - 3 if generation == "b" else tick
        added = 100 * epoch + hour
        start = MIDNIGHT_MS + hour * HOUR_MS
        items = [
            (label, 1_000 * since * (3 - place) + added)
            for place, label in enumerate(ITEMS)
        ]
        items += [("lid", added)] if since >= 3 else []
        own = {"epoch": epoch, "id": f"{generation * 31}{epoch}", "sd": 20.0}
        found.append(message(tick, items, start=start, end=start + HOUR_MS, **own))
    return found


def finals_on(topics: Topics) -> dict[tuple[str, int], list[list[Any]]]:
    """Items of the last snapshot of each series, as the topic itself has them: (id, end) -> items."""
    last: dict[str, dict[str, Any]] = {}
    for record in read_partition(topics.connection, f"{topics.prefix}.products", 0):
        snapshot = json.loads(record.value() or b"")
        last[snapshot["id"]] = snapshot
    return {(one["id"], one["end"]): one["items"] for one in last.values()}


def listed(page: Page) -> list[tuple[str, int]]:
    buttons = '[...document.querySelectorAll("#epochs-list button")]'
    found = page.evaluate(f"{buttons}.map((e) => ({{ ...e.dataset }}))")
    return [(one["id"], int(one["end"])) for one in found]


def test_every_total_that_was_final_is_found_by_clicking(
    window: Window, chrome: Browser, topics: Topics
) -> None:
    """The page once forgot them: at 120 ticks, at an epoch's end, at a new generation."""
    snapshots = day()
    topics.send(snapshots[0])
    with topics.served("products", horizon=HORIZON) as dashboard:
        page = window.open(f"{dashboard.url}?histogram=products&key=s1")
        # Each epoch's end and each beginning is seen for itself, and what lies between in one go.
        for first, last in (
            (1, 6),
            (7, 7),
            (8, 8),
            (9, 15),
            (16, 18),
            (19, 19),
            (20, 23),
        ):
            topics.send(*snapshots[first : last + 1])
            newest = text(snapshots[last]["items"][0][1])
            window.reads("tr.item .count", f"^{newest}$")
        finals = finals_on(topics)
        assert len(finals) == 4, "three epochs, the last of which was begun twice"
        assert list(finals.values()) == [snapshots[at]["items"] for at in LAST]
        # What has just begun is in the history a little later than on the page.
        until(lambda: listed(page) == list(reversed(finals)), "the totals")
        for (series, end), items in list(finals.items())[:-1]:
            page.click("#epochs summary")
            page.click(f'#epochs-list button[data-id="{series}"]')
            window.reads("tr.item .count", f"^{text(items[0][1])}$")
            shown = [(label, count) for _, label, count in window.rows()]
            assert shown == [(label, text(count)) for label, count in items]
            assert f"at={end}" in page.url
        # What is clicked can be sent to somebody, who sees the same.
        with Window(chrome) as other:
            other.open(page.url)
            assert other.rows() == window.rows()
        page.click("#follow")
        window.reads("tr.item .count", f"^{text(snapshots[-1]['items'][0][1])}$")


def test_what_had_gone_before_the_first_read_is_said(
    window: Window, topics: Topics
) -> None:
    topics.send(*(one | {"key": key} for one in day() for key in ("s1", "s2")))
    topics.remove("products", leaving=7)  # three ticks of both, and one of s2
    with topics.served("products", horizon=HORIZON) as dashboard:
        page = window.open(f"{dashboard.url}?histogram=products&key=s1&range=all")
        window.reads("#chart-note", "it was gone before this dashboard read it")
        page.click("#epochs summary")
        until(
            lambda: page.is_visible("#epochs-gone"), "the list says that it is not all"
        )


#: How far from the left to the right of the chart lines begin: those between series, and those of values.
DRAWN = """() => {
    const [left, right] = ["x1", "x2"].map((end) => Number(document.querySelector("#chart .grid").getAttribute(end)));
    const at = (x) => (x - left) / (right - left);
    const all = (what, of) => [...document.querySelectorAll(`#chart ${what}`)].map((one) => at(Number(of(one))));
    return [all(".cut", (one) => one.getAttribute("x1")), all("path.line", (one) => /^M([\\d.]+)/.exec(one.getAttribute("d"))[1])];
}"""


def test_a_chart_shows_where_each_series_begins_though_an_item_is_not_shown_yet(
    window: Window, topics: Topics
) -> None:
    topics.send(*day())
    with topics.served("products", horizon=HORIZON) as dashboard:
        address = f"{dashboard.url}?histogram=products&key=s1"
        page = window.open(f"{address}&item=lid&range=all")
        window.counts("#chart .cut", 3)
        # What has a count of 121 with noise is shown; two standard deviations of it are 40.
        bound = "not shown, nothing is drawn: its total was at most about 161"
        window.reads("#chart-note", f"vertical dotted line .* {bound}")
        cuts, lines = page.evaluate(DRAWN)
        # The first tick, at which the lid is not shown either, ended an hour after midnight.
        assert cuts == pytest.approx([(hour - 1) / 23 for hour in BEGUN[1:]], abs=0.002)
        shown = [(hour + 2) / 23 for hour in BEGUN if hour != 16]
        assert lines == pytest.approx(shown, abs=0.002), (
            "the series from 16:00 shows it at one tick"
        )
        # An epoch that is not whole is as narrow as the time in which it counted.
        page.select_option("#unit", "epoch")
        page.click('.pick:has-text("tea")')
        window.counts("#chart path.line", 4)
        parts = pytest.approx([hour / 24 for hour in BEGUN], abs=0.002)
        until(
            lambda: page.evaluate(DRAWN)[1] == parts, "the time in which each counted"
        )
        # Times of unlike length are compared from 0, by what was counted in an hour of them.
        page.click("#as-table summary")
        window.counts("#numbers tbody tr", 4)
        each = page.locator("#numbers tbody tr td:nth-child(5)").all_inner_texts()
        lasts = [
            (day()[at]["items"][0][1], hours)
            for at, hours in zip(LAST, (8, 8, 3, 5), strict=True)
        ]
        assert each == [
            f"{count / hours:,.0f}/hour" for count, hours in reversed(lasts)
        ]
        assert page.locator("#chart .rate").count() >= 3
        assert "0" in page.locator('#chart text[text-anchor="end"]').all_text_contents()
        window.reads("#reading", f"^From .* to .*: .*, {each[0]}$")
        # Counts of two series are not subtracted, and the time that was asked for is not passed over.
        page.goto(f"{address}&since={MIDNIGHT_MS + 10 * HOUR_MS}")
        window.reads("#period", r"counts last began at zero \(not since .*\), until")
        # On a phone, where three marks fit, a range of one to three weeks has two at least.
        few = """async () => { const { marks } = await import("./page/axis.js");
            const spans = Array.from({ length: 170 }, (_, i) => 7 + i / 10);
            return Math.min(...spans.map((days) => marks(1e12, 1e12 + days * 864e5, 3).length)); }"""
        assert page.evaluate(few) >= 2


def test_after_a_restart_all_of_it_is_still_there(
    window: Window, topics: Topics
) -> None:
    topics.send(*day())
    with topics.served("products", horizon=HORIZON) as dashboard:
        page = window.open(f"{dashboard.url}?histogram=products&key=s1")
        finals = finals_on(topics)
        until(lambda: listed(page) == list(reversed(finals)), "the totals")
        # The line of an item over all that is kept has every tick, and its sums by hour lose none at an epoch's end.
        page.click('#ranges button[data-range="all"]')
        page.click("#as-table summary")
        window.counts("#numbers tbody tr", 24)
        counts = page.locator("#numbers tbody tr td:nth-child(3)").all_inner_texts()
        assert counts == [text(one["items"][0][1]) for one in reversed(day())]
        page.select_option("#unit", "hour")
        window.reads("#numbers thead", "Counted")
        cells = page.locator("#numbers tbody tr td:nth-child(3)").all_inner_texts()
        counted = [int(one.replace(",", "").replace("\u2212", "-")) for one in cells]
        assert sum(counted) == sum(items[0][1] for items in finals.values())
        assert len(counted) == 24
        # A tick that is not kept is said not to be there, and not replaced.
        page.goto(
            f"{dashboard.url}?histogram=products&key=s1&at={MIDNIGHT_MS - HOUR_MS}"
        )
        window.reads("#missing", "^No tick is kept here that holds")
        assert window.rows() == []
        page.click('#missing button:has-text("nearest after")')
        window.reads("tr.item .count", f"^{text(day()[0]['items'][0][1])}$")
        page.goto(f"{dashboard.url}?histogram=products&key=s1&at=2023-11-15T05:30:00Z")
        window.reads("tr.item .count", f"^{text(day()[5]['items'][0][1])}$")
        no_key = "Nothing has been published for a stream key \u201cnobody\u201d"
        for query, said in (
            (
                "histogram=nothing&key=s1",
                "There is no histogram \u201cnothing\u201d here.",
            ),
            ("histogram=products&key=nobody", no_key),
        ):
            page.goto(f"{dashboard.url}?{query}")
            window.shows(
                f'document.querySelector("#unknown").textContent.includes("{said}")'
            )
            assert window.rows() == []
            assert query in page.url, "the address is never replaced by another"
    assert all("404" in line and "api/snapshots" in line for line in window.wrong), (
        window.wrong
    )
    window.wrong.clear()
